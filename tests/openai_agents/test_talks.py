"""Whose words stand in a prompt: agents that serve several people."""

from __future__ import annotations

import asyncio
import re

import pytest
from agents import Agent, Runner, SQLiteSession
from agents_driver import HANDBOOK, MODELS, model_for

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply
from cacheprefix_openai_agents import wrap
from tests.talks import BOUNDS, LONG, USERS, asking, check, played, question


def answer(request):
    """What the model says to someone: their own words, where it was told any."""
    number, named = request.index, re.search("|".join(USERS), request.text)
    return Reply(f"{named.group()} is answered: {named.group()}-answer-{number}." if named else f"Well {number}.")


@pytest.mark.slow
@BOUNDS
@pytest.mark.parametrize("api", tuple(MODELS))
@pytest.mark.parametrize("held", [False, True], ids=["messages", "sessions"])
@played
def test_no_section_of_one_is_in_anothers_prompt_and_no_message_is_missing(
    provider, api, bounds, held, given_turns, people
):
    """Two and three people with equal texts ask the same two agents, by turns and at a time, whole and streamed.

    With a session each, or with their messages and nothing that says whose they are.
    """
    provider.reset()
    script, provider.simulator.script = provider.simulator.script, answer
    caching = Caching(provider="openai-5.6", counter=ESTIMATE)
    session = Session(SharedPrefix(system=HANDBOOK), gate=None, caching=caching, **bounds)
    talks = {user: [] for user in USERS[:people]}
    compacted = 0

    async def ask(agent, user, number, kept):
        asked, options = (talks[user][-1]["content"], {"session": kept[user]}) if held else (list(talks[user]), {})
        if number % 4 != 3:
            return (await Runner.run(agent, asked, **options)).final_output
        result = Runner.run_streamed(agent, asked, **options)
        async for _ in result.stream_events():
            pass
        return result.final_output

    async def go():
        nonlocal compacted
        model = model_for(api, provider)
        told = {name: f"You are the {name}.\n\n{HANDBOOK}" for name in ("helper", "critic")}
        agents = [wrap(Agent(name, instructions=text, model=model), session) for name, text in told.items()]
        kept = {user: SQLiteSession(user) for user in talks}
        for number, turn in enumerate(given_turns):
            now, start = asking(turn, people), len(provider.requests)
            for user in now:
                talks[user].append({"role": "user", "content": question(user, number, turn)})
            agent = agents[number % 3 // 2]
            answers = await asyncio.gather(*(ask(agent, user, number, kept) for user in now))
            said = {user: [message["content"] for message in talks[user]] for user in now}
            compacted += check(provider.requests[start:], said)
            for user, made in zip(now, answers, strict=True):
                talks[user].append({"role": "assistant", "content": made})
        for each in kept.values():
            each.close()
        await model._client.close()

    try:
        asyncio.run(go())
    finally:
        provider.simulator.script = script
    assert compacted or given_turns is not LONG or "compaction" not in bounds
    assert not session.failures
