"""A leader that is lost costs its siblings nothing: they go on at once, and nothing of it is left behind.

The gate would hold them for ten minutes; each test ends at once or not at all. The framework has no other way than the
asynchronous one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest
from agent_framework.orchestrations import ConcurrentBuilder
from maf_driver import RULES
from maf_teams import NAMES, TASK, role, served
from test_agents import session_for, team

from cacheprefix import Gate
from cacheprefix.server import Fault, Latency, Reply
from cacheprefix_maf import wrap

PATIENCE = 60
HELD = []
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture(autouse=True)
def uncollected():
    """The garbage collector helps nobody."""
    gc.collect()
    gc.disable()
    yield
    HELD.clear()
    gc.enable()


@contextlib.asynccontextmanager
async def cold(servers, api="anthropic", seconds=0.0):
    """Three roles on a cold prefix, whose provider takes its time before it answers."""
    async with served(servers, api) as (client, provider):
        session = session_for(api, gate=Gate(600.0, price=0.0))
        provider.simulator.latency = Latency(base=seconds, uncached=0, cached=0, output=0, scale=1)
        try:
            yield session, provider, team(client, session, api)
        finally:
            provider.simulator.latency = Latency()


async def ask(agent, *, stream=False):
    """One answer, streamed or not."""
    return await (agent.run(TASK, stream=True).get_final_response() if stream else agent.run(TASK))


async def led(session):
    """Until somebody leads."""
    while not session.adapter._gate._flights:  # noqa: ASYNC110 - nothing tells when another one leads
        await asyncio.sleep(0.01)


async def go_on(session, provider, agents):
    """The next ones are not held up, and of those the first writes what the other reads."""
    start = len(provider.requests)
    await asyncio.wait_for(asyncio.gather(*map(ask, agents)), PATIENCE)
    assert sorted(record.outcome.read_tokens > 1_000 for record in provider.requests[start:]) == [False, True]
    assert not session.adapter._gate._flights
    assert session.failures == {}


async def drop(stream):
    """Nobody holds it any more, but the framework: in a circle, until the garbage collector comes by."""
    del stream


async def rest(stream):
    """Held by somebody who reads no further."""
    HELD.append(stream)


async def close(stream):
    """Closed by its reader."""
    await stream.close()


@pytest.mark.slow
@pytest.mark.parametrize("api", tuple(RULES))
@pytest.mark.parametrize("leave", [close, drop, rest])
async def test_a_stream_that_nobody_reads_to_its_end_leads_nobody(servers, api, leave):
    """Left at its first update, which the provider has just begun with."""
    async with cold(servers, api) as (session, provider, agents):
        provider.simulator.script = lambda _: Reply("word " * 3_000)
        stream = agents[0].run(TASK, stream=True)
        await anext(stream)
        left = leave(stream)
        del stream
        await left
        await asyncio.wait_for(asyncio.gather(*map(ask, agents[1:])), PATIENCE)
        assert not session.adapter._gate._flights
        assert session.failures == {}


@pytest.mark.parametrize("leave", [drop, rest])
async def test_a_stream_that_is_resolved_and_never_read_leads_nobody(servers, leave):
    """The application waits for it and reads nothing."""
    async with cold(servers) as (session, provider, agents):
        await leave(await agents[0].run(TASK, stream=True))
        await go_on(session, provider, agents[1:])


async def test_a_stream_that_is_read_again_after_a_rest_is_a_call_like_others(servers):
    """Its siblings went on meanwhile; what it says and used is all there."""
    async with cold(servers, "openai-chat") as (session, provider, agents):
        stream = await agents[0].run(TASK, stream=True)
        await asyncio.wait_for(asyncio.gather(*map(ask, agents[1:])), PATIENCE)
        assert (await stream.get_final_response()).text
        assert len(session.calls) == len(provider.requests) == 3
        assert all(call.usage.reported for call in session.calls)
        assert not session.adapter._gate._flights
        assert session.failures == {}


@pytest.mark.slow
@STREAMED
@pytest.mark.parametrize("api", tuple(RULES))
async def test_a_cancelled_task_leads_nobody(servers, api, stream):
    """Cancelled while the provider works, with two siblings that wait: one of them leads in its place."""
    async with cold(servers, api, seconds=2.0) as (session, provider, agents):
        leader = asyncio.create_task(ask(agents[0], stream=stream))
        await led(session)
        others = [asyncio.create_task(ask(each, stream=stream)) for each in agents[1:]]
        await asyncio.sleep(0.1)
        provider.simulator.latency = Latency()
        leader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leader
        await asyncio.wait_for(asyncio.gather(*others), PATIENCE)
        assert not session.adapter._gate._flights
        assert session.failures == {}


@pytest.mark.slow
@STREAMED
async def test_one_that_is_cancelled_while_it_waits_holds_nobody_up(servers, stream):
    """The leader goes on, and so does the other one that waits."""
    async with cold(servers, seconds=0.5) as (session, provider, agents):
        leader = asyncio.create_task(ask(agents[0], stream=stream))
        await led(session)
        lost, other = (asyncio.create_task(ask(each, stream=stream)) for each in agents[1:])
        await asyncio.sleep(0.1)
        lost.cancel()
        await asyncio.wait_for(asyncio.gather(leader, other), PATIENCE)
        assert [record.outcome.read_tokens > 1_000 for record in provider.requests] == [False, True]
        assert not session.adapter._gate._flights


@pytest.mark.slow
@STREAMED
@pytest.mark.parametrize("api", tuple(RULES))
async def test_a_request_that_fails_leads_nobody(servers, api, stream):
    """The error is its caller's, and one that waits leads in its place."""
    async with cold(servers, api, seconds=0.3) as (session, provider, agents):
        provider.simulator.script = lambda asked: Reply("fine", fault=None if asked.index else Fault(status=500))
        made = await asyncio.wait_for(
            asyncio.gather(*(ask(each, stream=stream) for each in agents), return_exceptions=True), PATIENCE
        )
        assert sum(isinstance(one, Exception) for one in made) == 1
        assert not session.adapter._gate._flights
        assert session.failures == {}


@STREAMED
async def test_a_workflow_whose_leader_fails_leaves_nothing_behind(servers, stream):
    """The run ends with the framework's error, and the next cold run waits for nobody."""
    async with served(servers, "anthropic") as (client, provider):
        provider.simulator.latency = Latency(base=0.2, uncached=0, cached=0, output=0, scale=1)
        provider.simulator.script = lambda asked: Reply("fine", fault=None if asked.index else Fault(status=500))
        session = session_for("anthropic", gate=Gate(600.0, price=0.0))

        def built():
            return wrap(ConcurrentBuilder(participants=[role(client, name) for name in NAMES]).build(), session)

        async def go(workflow):
            given = workflow.run(TASK, stream=True).get_final_response() if stream else workflow.run(TASK)
            return await asyncio.wait_for(given, PATIENCE)

        try:
            with pytest.raises(Exception, match="500"):
                await go(built())
            assert not session.adapter._gate._flights
            assert (await go(built())).get_outputs()
            assert not session.adapter._gate._flights
        finally:
            provider.simulator.latency = Latency()
