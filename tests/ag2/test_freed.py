"""A session is freed with the agents that were wrapped with it, once the connections are closed that they opened.

ag2 keeps an agent that was asked, wrapped or not, in the contexts of its client's connections.
"""

from __future__ import annotations

import gc
import weakref

from ag2 import MemoryStream
from ag2_driver import HANDBOOK, agent, configured
from test_layout import session as counting

from cacheprefix import Session, SharedPrefix
from cacheprefix.server import SimulatedProvider
from cacheprefix_ag2 import PrefixState, wrap
from tests.session.forgetting import held


async def test_a_session_goes_with_its_agents(fresh):
    """And what the adapter keeps for it."""

    async def run():
        async with configured("openai-chat", fresh("openai-chat")) as config:
            session = Session(SharedPrefix(system=HANDBOOK))
            for each in wrap([agent("planner", config), agent("critic", config)], session):
                await each.ask("What now?")
            assert len(session.calls) == 2
            return weakref.ref(session)

    session = await run()
    gc.collect()
    assert session() is None


async def test_an_agent_goes_while_its_session_lives(fresh):
    """A program that wraps agents for each of its users keeps one session for all of them."""
    session = Session(SharedPrefix(system=HANDBOOK))

    async def run():
        async with configured("openai-chat", fresh("openai-chat")) as config:
            wrapped = wrap([agent("planner", config), agent("critic", config)], session)
            for each in wrapped:
                await each.ask("What now?")
            return [weakref.ref(each) for each in wrapped]

    agents = await run()
    gc.collect()
    assert len(session.calls) == 2
    assert [each() for each in agents] == [None, None]


async def test_streams_that_ended_go_while_their_session_lives(fresh):
    """Except the last one, which ag2 holds by itself, without us too."""
    session = Session(SharedPrefix(system=HANDBOOK))
    streams = []
    async with configured("openai-chat", fresh("openai-chat")) as config:
        for _ in range(10):
            stream = MemoryStream()
            streams.append(weakref.ref(stream))
            for each in wrap([agent("planner", config), agent("critic", config)], session):
                await each.ask("What now?", stream=stream)
        del stream, each
    gc.collect()
    assert len(session.calls) == 20
    assert sum(each() is not None for each in streams) <= 1


async def test_a_forgotten_conversation_leaves_no_text_behind():
    """Of its stream's saved decisions, which hold its zones and summaries."""
    session, mark = counting(compaction=4_000), "jam of " + "gooseberries"
    stream = MemoryStream()
    session.conversation(str(stream.id)).set_zone("memories", f"Likes the {mark}.")
    with SimulatedProvider("openai-5.6") as server:
        async with configured("openai-chat", server) as config:
            agents = wrap([agent("planner", config), agent("critic", config)], session)
            for number in range(8):
                await agents[number % 2].ask(f"Question {number}? " + "More of it. " * 150, stream=stream)
        server.reset()
    saved = [mark in str(event.state) for event in await stream.history.get_events() if type(event) is PrefixState]
    assert any(saved)
    await stream.history.replace([])
    session.forget(str(stream.id))
    # The tests' own records of what the provider was sent.
    assert {kind for _, kind in held(mark)} == {"Record", "Section"}
