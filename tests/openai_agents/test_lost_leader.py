"""A leader that is lost costs its siblings nothing: they go on at once, and nothing of it is left behind.

The gate would hold them for ten minutes; each test ends at once or not at all. The Agents SDK has no other way
than the asynchronous one.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from agents import Agent, Runner
from agents_driver import HANDBOOK, MODELS, model_for

from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix.server import Fault, Latency, Reply
from cacheprefix_openai_agents import wrap

PATIENCE = 60
NAMES = ("planner", "critic", "writer")
EVERYWHERE = pytest.mark.parametrize("api", tuple(MODELS))
STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@pytest.fixture
def cold(provider):
    """``cold(api)``: three agents on a cold prefix."""
    script = provider.simulator.script

    @contextlib.asynccontextmanager
    async def made(api, seconds=0.0):
        slow(provider, seconds)
        session = Session(SharedPrefix(system=HANDBOOK), gate=Gate(600.0, price=0.0))
        model = model_for(api, provider)
        told = {name: f"You are the {name}.\n\n{HANDBOOK}" for name in NAMES}
        yield session, [wrap(Agent(name, instructions=text, model=model), session) for name, text in told.items()]
        assert not session.adapter._gate._flights
        assert session.failures == {}
        await model._client.close()

    yield made
    provider.simulator.script, provider.simulator.latency = script, Latency()


def slow(provider, seconds):
    """Every first token takes this long."""
    provider.simulator.latency = Latency(base=seconds, uncached=0, cached=0, output=0, scale=1)


async def asked(agent, *, streamed):
    """One run."""
    if not streamed:
        return await Runner.run(agent, "What now?")
    result = Runner.run_streamed(agent, "What now?")
    async for _ in result.stream_events():
        pass
    return result


async def waiting(session, number):
    """Until someone leads and so many wait for it."""
    gate = session.adapter._gate
    while (  # noqa: ASYNC110 - nothing tells when another one waits
        not gate._flights or sum(flight.waiting for flight in gate._flights.values()) < number
    ):
        await asyncio.sleep(0.01)


@EVERYWHERE
@STREAMED
async def test_a_run_that_is_given_up_leads_nobody(cold, provider, api, streamed):
    """Cancelled while the provider works, with two siblings that wait: one of them leads in its place."""
    async with cold(api, 600.0) as (session, agents):
        if streamed:
            run = Runner.run_streamed(agents[0], "What now?")
            leader = asyncio.create_task(anext(run.stream_events()))
        else:
            leader = asyncio.create_task(Runner.run(agents[0], "What now?"))
        await waiting(session, 0)
        others = [asyncio.create_task(asked(one, streamed=streamed)) for one in agents[1:]]
        await waiting(session, 2)
        slow(provider, 0.2)
        if streamed:
            run.cancel()
        leader.cancel()
        with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
            await leader
        await asyncio.wait_for(asyncio.gather(*others), PATIENCE)
        assert session.report().gate.followed == 1


@EVERYWHERE
async def test_a_stream_that_is_left_is_a_call_and_leads_nobody(cold, provider, api):
    """At the first piece of its answer, by the way that the Agents SDK has for it."""
    provider.simulator.script = lambda _: Reply("word " * 3_000)
    async with cold(api) as (session, agents):
        provider.simulator.latency = Latency(output=0.02, scale=1)
        run = Runner.run_streamed(agents[0], "What now?")
        async for event in run.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                run.cancel()
                slow(provider, 0)
                break
        await asyncio.wait_for(asyncio.gather(*(asked(one, streamed=True) for one in agents[1:])), PATIENCE)
        assert sorted(call.agent for call in session.calls) == sorted(NAMES)


@pytest.mark.slow
@EVERYWHERE
@STREAMED
@pytest.mark.parametrize("fault", [Fault(status=500), Fault(status=400), Fault(cut_after=1)], ids=["500", "400", "cut"])
async def test_a_request_that_fails_leads_nobody(cold, provider, api, streamed, fault):
    """The error is its caller's, and one that waits leads in its place."""
    provider.simulator.script = lambda request: Reply("Fine. " * 9, fault=None if request.index else fault)
    async with cold(api, 0.2) as (_, agents):
        runs = asyncio.gather(*(asked(one, streamed=streamed) for one in agents), return_exceptions=True)
        ends = await asyncio.wait_for(runs, PATIENCE)
        assert sum(isinstance(end, Exception) for end in ends) == 1
