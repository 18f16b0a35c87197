"""Whose words stand in a prompt: functions and routers of LiteLLM's that serve several people."""

from __future__ import annotations

import asyncio
import re

import litellm
import pytest
from litellm_driver import HANDBOOK, MODELS, RULES, place, router_for

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply
from cacheprefix_litellm import role, unwrap, wrap
from tests.talks import BOUNDS, LONG, USERS, asking, check, played, question


def answer(request):
    """What the model says to someone: their own words, where it was told any."""
    number, named = request.index, re.search("|".join(USERS), request.text)
    return Reply(f"{named.group()} is answered: {named.group()}-answer-{number}." if named else f"Well {number}.")


@pytest.mark.slow
@BOUNDS
@pytest.mark.parametrize("vendor", tuple(RULES))
@pytest.mark.parametrize("way", ["function", "router", "named"])
@played
def test_no_section_of_one_is_in_anothers_prompt_and_no_message_is_missing(
    fresh, vendor, bounds, way, given_turns, people
):
    """Two and three people with equal texts ask the same two roles, by turns and at a time, in both ways of asking.

    By their messages alone, or with an id of each one's conversation.
    """
    provider = fresh(vendor)
    script, provider.simulator.script = provider.simulator.script, answer
    caching = Caching(provider=RULES[vendor], counter=ESTIMATE)
    session = Session(SharedPrefix(system=HANDBOOK), gate=None, caching=caching, **bounds)
    talks = {user: [] for user in USERS[:people]}
    router = wrap(router_for((vendor, provider)), session) if way == "router" else None
    one, later = (wrap(each, session) for each in (litellm.completion, litellm.acompletion))
    if router is not None:
        one, later = router.completion, router.acompletion
    to = {"model": vendor} if router is not None else {"model": MODELS[vendor], **place(vendor, provider)}
    compacted = 0

    async def ask(user, name, number):
        told = {"role": "system", "content": f"You are the {name}.\n\n{HANDBOOK}"}
        with role(name, conversation=user if way == "named" else ""):
            if number % 4 == 3:
                return await asyncio.to_thread(one, messages=[told, *talks[user]], **to)
            return await later(messages=[told, *talks[user]], **to)

    async def go():
        nonlocal compacted
        for number, turn in enumerate(given_turns):
            now, start = asking(turn, people), len(provider.requests)
            for user in now:
                talks[user].append({"role": "user", "content": question(user, number, turn)})
            name = ("helper", "critic")[number % 3 // 2]
            answers = await asyncio.gather(*(ask(user, name, number) for user in now))
            said = {user: [message["content"] for message in talks[user]] for user in now}
            compacted += check(provider.requests[start:], said)
            for user, made in zip(now, answers, strict=True):
                talks[user].append({"role": "assistant", "content": made.choices[0].message.content})

    try:
        asyncio.run(go())
    finally:
        provider.simulator.script = script
        if router is not None:
            unwrap(router)
    assert compacted or given_turns is not LONG or "compaction" not in bounds
    assert not session.failures
