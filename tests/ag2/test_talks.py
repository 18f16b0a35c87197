"""Whose words stand in a prompt: streams of several people over the same agents."""

from __future__ import annotations

import asyncio
import re
from contextvars import ContextVar

import pytest
from ag2 import MemoryStream, tool
from ag2_driver import RULES, agent, configured
from test_layout import session

from cacheprefix.server import Reply, ToolCall
from cacheprefix_ag2 import PrefixState, session_of, wrap
from tests.talks import BOUNDS, LONG, USERS, asking, check, played, question


def answer(request):
    """What the model says to someone: their own words, where it was told any."""
    number, named = request.index, re.search("|".join(USERS), request.text)
    return Reply(f"{named.group()} is answered: {named.group()}-answer-{number}." if named else f"Well {number}.")


WHO = ContextVar("who")
"""Whose question is answered."""


def looks(request):
    """The model looks first, and answers in the words of who asks."""
    number = re.findall(r"asks (\d)", request.text)[-1]
    if f"'s log {number}" not in request.text:
        return Reply(tool_calls=(ToolCall("look", {"query": number}),))
    return answer(request)


@tool
async def look(query: str) -> str:
    """The log of who asks."""
    await asyncio.sleep(0.01)
    return f"{WHO.get()}'s log {query}"


def retrieved():
    """What was found for who asks."""
    return {"found": f"Found for {WHO.get()}."}


@pytest.mark.parametrize("named", [True, False], ids=["named", "streams"])
@pytest.mark.parametrize("api", tuple(RULES))
async def test_agents_made_once_tell_nobody_what_is_anothers(fresh, servers, api, named):
    """Neither their words, nor volatile text, nor what a tool told them, while two people ask side by side."""
    server, script = fresh(api), servers[api].simulator.script
    server.simulator.script = looks
    async with configured(api, server, streaming=api == "openai-responses") as config:
        agents = [agent("planner", config, tools=[look]), agent("critic", config, tools=[look])]
        wrap(agents, session(), volatile=retrieved, conversation=(lambda _: WHO.get()) if named else None)

        async def asks(user):
            WHO.set(user)
            stream = MemoryStream()
            for number in range(2):
                for each in agents:
                    # Equal for both, where it is not the first one.
                    first = not number and each is agents[0]
                    await each.ask(f"{user} asks 0." if first else f"One asks {number}.", stream=stream)

        try:
            await asyncio.gather(*(asyncio.create_task(asks(user)) for user in USERS[:2]))
        finally:
            server.simulator.script = script
    bodies = [record.body.decode() for record in server.requests]
    seen = [[user for user in USERS if user in body] for body in bodies]
    assert sorted(seen) == [[user] for user in USERS[:2] for _ in range(len(seen) // 2)]
    assert all(body.count("Found for ") == 1 for body in bodies)
    assert any("'s log 0" in body for body in bodies)
    assert not session_of(agents).failures


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
