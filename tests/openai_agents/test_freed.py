"""What is over is let go: sessions, agents, runs and streams; the application's own model goes on."""

from __future__ import annotations

import asyncio
import gc
import weakref

import openai
import pytest
from agents import Agent, Runner
from agents_driver import HANDBOOK, MODELS, model_for, tool

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply
from cacheprefix_openai_agents import unwrap, wrap

EVERYWHERE = pytest.mark.parametrize("api", tuple(MODELS))
STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
EMPTY = {"type": "object", "properties": {}}


def session_of_a_process():
    """One that all users of a program share."""
    return Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE))


def team(model):
    """A planner that hands off to a critic, who asks a writer."""

    def agent(name, **options):
        return Agent(name, instructions=f"You are the {name}.\n\n{HANDBOOK}", model=model, **options)

    writer = agent("writer", tools=[tool("look", "Looks.", EMPTY, lambda: "Found.")])
    critic = agent("critic", tools=[writer.as_tool("ask_writer", "Asks the writer.")])
    return [agent("planner", handoffs=[critic]), critic, writer]


async def run(first, said, *, streamed=False, **options):
    """One run, read to its end."""
    if not streamed:
        return await Runner.run(first, said, **options)
    result = Runner.run_streamed(first, said, **options)
    async for _ in result.stream_events():
        pass
    return result


def left(found):
    """Which of these are still there once the collector has been through, and streams of the client's."""
    gc.collect()
    streams = [type(one).__name__ for one in gc.get_objects() if issubclass(type(one), openai.AsyncStream)]
    return [kind for kind, one in found if one() is not None] + streams


@EVERYWHERE
@STREAMED
async def test_a_session_goes_with_its_agents(provider, api, streamed):
    """Dropped, or taken back from agents that live on."""
    model = model_for(api, provider)
    kept = team(model)

    async def asked(agents, *, back):
        session = session_of_a_process()
        wrap(agents[0], session)
        for said in ("Call transfer_to_critic.", "Call look."):
            await run(agents[0], said, streamed=streamed)
        assert {"planner", "critic"} <= {call.agent for call in session.calls}
        if back:
            unwrap(agents[0])
        return [("session", weakref.ref(session)), ("its parts", weakref.ref(session.adapter))]

    assert left([*await asked(team(model), back=False), *await asked(kept, back=True)]) == []
    assert (await run(kept[0], "Still there?")).final_output
    await model._client.close()


@EVERYWHERE
@STREAMED
async def test_agents_and_runs_go_while_their_session_lives(provider, api, streamed):
    """A program that makes agents for each of its users keeps one session for all of them."""
    model, session = model_for(api, provider), session_of_a_process()

    async def asked(user):
        agents = team(model)
        wrap(agents[0], session)
        result = await run(agents[0], f"Call transfer_to_critic. I am {user}.", streamed=streamed)
        return [(one.name, weakref.ref(one)) for one in agents] + [("result", weakref.ref(result))]

    found = [each for user in range(4) for each in await asked(user)]
    assert len(session.calls) >= 8
    assert left(found) == []
    await model._client.close()


@EVERYWHERE
async def test_a_stream_that_was_dropped_unread_keeps_nothing(provider, api):
    """Neither before its first event nor in its midst."""
    model, session = model_for(api, provider), session_of_a_process()
    script, provider.simulator.script = provider.simulator.script, lambda _: Reply("word " * 300)

    async def dropped(*, after):
        agent = team(model)[0]
        wrap(agent, session)
        result = Runner.run_streamed(agent, "What now?")
        if after:
            events = result.stream_events()
            for _ in range(after):
                await anext(events)
            await events.aclose()
        result.cancel()
        return [("agent", weakref.ref(agent)), ("result", weakref.ref(result))]

    try:
        found = [each for after in (0, 1, 5) for each in await dropped(after=after)]
        # Tasks that were cancelled end in the loop's next steps.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait_for(asyncio.gather(*others, return_exceptions=True), 60)
    finally:
        provider.simulator.script = script
    assert left(found) == []
    assert not session.adapter._gate._flights
    assert not session.failures
    await model._client.close()
