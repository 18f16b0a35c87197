"""A leader that is lost costs its siblings nothing: they go on at once, and nothing of it is left behind.

The gate would hold them for ten minutes; each test ends at once or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from concurrent.futures import ThreadPoolExecutor

import litellm
import pytest
from litellm_driver import HANDBOOK, MODELS, RULES, messages, place, router_for

from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix.server import Fault, Latency, Reply
from cacheprefix_litellm import role, unwrap, wrap

PATIENCE = 60
EVERYWHERE = pytest.mark.parametrize("vendor", tuple(RULES))
BY = pytest.mark.parametrize("router", [False, True], ids=["function", "router"])
# What of LiteLLM's own a cancelled call had begun, goes with it.
pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


@pytest.fixture
def cold(fresh):
    """``cold(vendor)``: who asks in a role on a cold prefix, in both ways, and the provider."""
    used = []

    @contextlib.contextmanager
    def made(vendor, *, router=False, seconds=0.0):
        provider = fresh(vendor)
        used.append((provider, provider.simulator.script))
        slow(provider, seconds)
        session = Session(SharedPrefix(system=HANDBOOK), gate=Gate(600.0, price=0.0))
        by = wrap(router_for((vendor, provider)), session) if router else None
        one, later = (wrap(each, session) for each in (litellm.completion, litellm.acompletion))
        to = {"model": MODELS[vendor], **place(vendor, provider)}
        if by is not None:
            one, later, to = by.completion, by.acompletion, {"model": vendor}

        def ask(name, **options):
            with role(name):
                return one(messages=messages(name), **to, **options)

        async def aask(name, **options):
            with role(name):
                return await later(messages=messages(name), **to, **options)

        try:
            yield session, provider, ask, aask
        finally:
            if by is not None:
                unwrap(by)
        assert not session.adapter._gate._flights
        assert session.failures == {}

    yield made
    for provider, script in used:
        provider.simulator.script, provider.simulator.latency = script, Latency()


def slow(provider, seconds):
    """Every first token takes this long."""
    provider.simulator.latency = Latency(base=seconds, uncached=0, cached=0, output=0, scale=1)


async def waiting(session, number):
    """Until someone leads and so many wait for it."""
    gate = session.adapter._gate
    while (  # noqa: ASYNC110 - nothing tells when another one waits
        not gate._flights or sum(flight.waiting for flight in gate._flights.values()) < number
    ):
        await asyncio.sleep(0.01)


@pytest.mark.slow
@EVERYWHERE
@BY
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_cancelled_task_leads_nobody(cold, vendor, router, streamed):
    """Cancelled while the provider works, with two siblings that wait: one of them leads in its place."""
    with cold(vendor, router=router, seconds=600.0) as (session, provider, _, ask):
        leader = asyncio.create_task(ask("planner", stream=streamed))
        await waiting(session, 0)
        others = [asyncio.create_task(ask(name)) for name in ("critic", "writer")]
        await waiting(session, 2)
        slow(provider, 0.2)
        leader.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await leader
        await asyncio.wait_for(asyncio.gather(*others), PATIENCE)
        assert session.report().gate.followed == 1


@EVERYWHERE
@pytest.mark.parametrize("left", ["dropped", "adropped", "aclosed"])
async def test_a_stream_that_nobody_reads_leads_nobody(cold, vendor, left):
    """Opened, and closed or dropped before anything was read; LiteLLM's synchronous streams cannot be closed."""
    with cold(vendor) as (_, provider, ask, aask):
        stream = await (
            asyncio.to_thread(ask, "planner", stream=True) if left == "dropped" else aask("planner", stream=True)
        )
        if left == "aclosed":
            await stream.aclose()
        del stream
        gc.collect()
        await asyncio.wait_for(asyncio.gather(*(aask(name) for name in ("critic", "writer"))), PATIENCE)
        assert len(provider.requests) == 3


@pytest.mark.slow
@EVERYWHERE
@BY
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("fault", [Fault(status=500), Fault(status=400), Fault(cut_after=1)], ids=["500", "400", "cut"])
def test_a_request_that_fails_leads_nobody(cold, vendor, router, later, fault):
    """The error is its caller's, and one that waits leads in its place."""
    names = ("planner", "critic", "writer")
    with cold(vendor, router=router, seconds=0.2) as (_, provider, ask, aask):
        provider.simulator.script = lambda asked: Reply("Fine. " * 9, fault=None if asked.index else fault)

        async def all_at_once():
            asked = asyncio.gather(*(aask(name) for name in names), return_exceptions=True)
            return await asyncio.wait_for(asked, PATIENCE)

        if later:
            ends = asyncio.run(all_at_once())
        else:
            with ThreadPoolExecutor(3) as pool:
                ends = [running.exception(PATIENCE) for running in [pool.submit(ask, name) for name in names]]
        assert sum(isinstance(end, Exception) for end in ends) == 1
