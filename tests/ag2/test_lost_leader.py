"""A leader that is lost costs its siblings nothing: they go on at once, and nothing of it is left behind.

The gate would hold them for ten minutes; each test ends at once or not at all. ag2 has no other way than the
asynchronous one.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from ag2 import MemoryStream
from ag2.events import ModelMessageChunk
from ag2_driver import RULES, agent, configured
from test_layout import NAMES, session

from cacheprefix import Gate
from cacheprefix.server import Fault, Latency, Reply
from cacheprefix_ag2 import wrap

PATIENCE = 60
STREAMED = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
EVERYWHERE = pytest.mark.parametrize("api", tuple(RULES))
QUESTION = "What now?"


@pytest.fixture
def cold(fresh):
    """``cold(api, streaming, seconds)``: three agents on a cold prefix, whose provider takes its time to answer."""
    used = []

    @contextlib.asynccontextmanager
    async def made(api="anthropic", *, streaming=False, seconds=0.0):
        server = fresh(api)
        used.append((server, server.simulator.script))
        slow(server, seconds)
        shared = session(gate=Gate(600.0, price=0.0))
        async with configured(api, server, streaming=streaming) as config:
            yield shared, server, wrap([agent(name, config) for name in NAMES], shared)
        assert not shared.adapter._gate._flights
        assert shared.failures == {}

    yield made
    for server, script in used:
        server.simulator.script, server.simulator.latency = script, Latency()


def slow(server, seconds):
    """Every first token takes this long."""
    server.simulator.latency = Latency(base=seconds, uncached=0, cached=0, output=0, scale=1)


def failing(server):
    """The first request is refused."""
    server.simulator.script = lambda asked: Reply("fine", fault=None if asked.index else Fault(status=500))


async def led(shared):
    """Until somebody leads."""
    while not shared.adapter._gate._flights:  # noqa: ASYNC110 - nothing tells when another one leads
        await asyncio.sleep(0.01)


async def all_of(agents, **options):
    """Everyone's answer, or what was raised."""
    asked = asyncio.gather(*(each.ask(QUESTION) for each in agents), **options)
    return await asyncio.wait_for(asked, PATIENCE)


@STREAMED
@EVERYWHERE
async def test_a_cancelled_task_leads_nobody(cold, api, streaming):
    """Cancelled while the provider works, with two siblings that wait: one of them leads in its place."""
    async with cold(api, streaming=streaming, seconds=2.0) as (shared, server, agents):
        leader = asyncio.create_task(agents[0].ask(QUESTION))
        await led(shared)
        others = asyncio.create_task(all_of(agents[1:]))
        await asyncio.sleep(0.1)
        slow(server, 0)
        leader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leader
        await others


@STREAMED
async def test_a_run_that_is_left_leads_nobody(cold, streaming):
    """``async with agent.run(...)``, left before the answer has begun."""
    async with cold(streaming=streaming, seconds=2.0) as (shared, server, agents):
        async with agents[0].run(QUESTION) as run:
            run.start()
            await led(shared)
        slow(server, 0)
        assert not shared.adapter._gate._flights
        await all_of(agents[1:])


@pytest.mark.slow
@EVERYWHERE
async def test_a_stream_that_is_left_leads_nobody(cold, api):
    """At its first chunk, by whoever watches it: by giving up the run, or with an error of the application's own."""
    async with cold(api, streaming=True) as (_, server, agents):
        server.simulator.script = lambda _: Reply("word " * 3_000)
        async with agents[0].run(QUESTION) as run, run.stream.get(ModelMessageChunk) as first:
            run.start()
            await first
        stream = MemoryStream()
        stream.where(ModelMessageChunk).subscribe(lambda: 1 // 0, sync_to_thread=False)
        with contextlib.suppress(ZeroDivisionError):
            await agents[1].ask(QUESTION, stream=stream)
        await all_of(agents)


@STREAMED
async def test_one_that_is_cancelled_while_it_waits_holds_nobody_up(cold, streaming):
    """The leader goes on, and so does the other one that waits."""
    async with cold(streaming=streaming, seconds=0.5) as (shared, server, agents):
        leader = asyncio.create_task(agents[0].ask(QUESTION))
        await led(shared)
        lost, other = (asyncio.create_task(each.ask(QUESTION)) for each in agents[1:])
        await asyncio.sleep(0.1)
        lost.cancel()
        await asyncio.wait_for(asyncio.gather(leader, other), PATIENCE)
        assert [record.outcome.read_tokens > 1_000 for record in server.requests] == [False, True]


@pytest.mark.slow
@STREAMED
@EVERYWHERE
async def test_a_request_that_fails_leads_nobody(cold, api, streaming):
    """The error is its caller's, and one that waits leads in its place."""
    async with cold(api, streaming=streaming, seconds=0.3) as (_, server, agents):
        failing(server)
        made = await all_of(agents, return_exceptions=True)
        assert sum(isinstance(one, Exception) for one in made) == 1


@STREAMED
async def test_what_a_lost_leader_leaves_holds_up_no_later_one(cold, streaming):
    """Refused and then asked again: one leads, the others read what it wrote."""
    async with cold(streaming=streaming) as (shared, server, agents):
        failing(server)
        with pytest.raises(Exception, match="500"):
            await agents[0].ask(QUESTION)
        assert not shared.adapter._gate._flights
        slow(server, 0.2)
        await all_of(agents)
        read = sorted(record.outcome.read_tokens > 1_000 for record in server.requests[1:])
        assert read == [False, True, True]
