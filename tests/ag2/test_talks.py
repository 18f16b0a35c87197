"""Whose words stand in a prompt: streams of several people over the same agents."""

from __future__ import annotations

import asyncio
import re

import pytest
from ag2 import MemoryStream
from ag2_driver import RULES, agent, configured
from test_layout import session

from cacheprefix.server import Reply
from cacheprefix_ag2 import PrefixState, session_of, wrap
from tests.talks import BOUNDS, LONG, USERS, asking, check, played, question


def answer(request):
    """What the model says to someone: their own words, where it was told any."""
    number, named = request.index, re.search("|".join(USERS), request.text)
    return Reply(f"{named.group()} is answered: {named.group()}-answer-{number}." if named else f"Well {number}.")


async def moved(stream):
    """The same stream, from its saved events, as another process has it."""
    events = [
        type(event).from_dict(event.to_dict()) if isinstance(event, PrefixState) else event
        for event in await stream.history.get_events()
    ]
    again = MemoryStream(id=stream.id)
    await again.history.replace(events)
    return again


@pytest.mark.slow
@BOUNDS
@pytest.mark.parametrize("api", tuple(RULES))
@pytest.mark.parametrize("kept", [True, False], ids=["streams", "saved"])
@played
def test_no_section_of_one_is_in_anothers_prompt_and_no_message_is_missing(
    servers, api, bounds, kept, given_turns, people
):
    """Two and three people with equal texts ask the same two agents on streams of their own, by turns and at a time.

    The streams are kept, or each is made anew from its saved events and the agents are wrapped anew half-way.
    """
    server, script = servers[api], servers[api].simulator.script
    talks = {user: [] for user in USERS[:people]}
    compacted, used = 0, []

    async def go():
        nonlocal compacted
        async with configured(api, server) as config:
            streams = {user: MemoryStream() for user in talks}
            for number, turn in enumerate(given_turns):
                if not number or (not kept and number == len(given_turns) // 2):
                    agents = wrap([agent("planner", config), agent("critic", config)], session(**bounds))
                    used.append(session_of(agents))
                now, start, speaker = asking(turn, people), len(server.requests), agents[number % 3 // 2]
                for user in now:
                    streams[user] = streams[user] if kept else await moved(streams[user])
                    talks[user].append(question(user, number, turn))
                replies = await asyncio.gather(*(
                    speaker.ask(talks[user][-1], stream=streams[user]) for user in now
                ))  # fmt: skip
                compacted += check(server.requests[start:], {user: talks[user] for user in now})
                for user, reply in zip(now, replies, strict=True):
                    talks[user].append(reply.body)

    server.reset()
    server.simulator.script = answer
    try:
        asyncio.run(go())
    finally:
        server.simulator.script = script
    assert compacted or given_turns is not LONG or "compaction" not in bounds
    assert not any(one.failures for one in used)
