"""A leader that is lost costs its siblings nothing: they go on at once, and nothing of it is left behind.

The gate would hold them for ten minutes; each test ends at once or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from crew_wire import BRIEF, INPUTS

from benchmarks.crewai_workloads import agents, crew, new_llm, tasks
from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix.server import Fault, Latency, Reply
from cacheprefix_crewai import install

PATIENCE = 60
MODEL = "gpt-5.6"


@pytest.fixture
def provider(provide):
    """OpenAI's rules that bill writing; an entry can be read once the first answer has begun."""
    return provide("openai-5.6", lambda _: Reply("Said. " * 9))


@pytest.fixture
def session():
    """One whose gate waits, for ten minutes."""
    return Session(SharedPrefix(system=f"The house. {BRIEF}"), gate=Gate(limit=600.0, price=0.0))


@pytest.fixture
def siblings(provider, session):
    """``siblings(number)`` gives installed crews of one task, which share the session's text and nothing else."""

    def make(number, *, stream=False, **options):
        made = []
        for _ in range(number):
            one = agents(
                lambda: new_llm(MODEL, provider.openai_base_url, max_retries=0, stream=stream),
                tools=False,
                max_retry_limit=0,
            )[:1]
            made.append(crew(one, tasks([one[0]] * 3)[:1], **options))
            install(made[-1], session)
        return made

    return make


def _slow(provider, seconds):
    provider.simulator.latency = Latency(base=seconds, uncached=0, cached=0, output=0, scale=1)


def _held(provider):
    """The first request waits for its answer until what is returned is called."""
    gone_on = threading.Event()

    def answer(asked):
        assert asked.index or gone_on.wait(PATIENCE)
        return Reply("Said. " * 9)

    provider.simulator.script = answer
    return gone_on.set


def _waits(session, number):
    flights = list(session.adapter._gate._flights.values())
    return flights and sum(flight.waiting for flight in flights) >= number


def _one_behind(pool, session, leader, other):
    """Two kickoffs under way, of which the second waits for the first."""
    found = []
    for number, one in enumerate((leader, other)):
        found.append(pool.submit(one.kickoff, inputs=INPUTS))
        while not _waits(session, number):
            time.sleep(0.01)
    return found


async def _waiting(session, number):
    """Until someone leads and so many wait for it."""
    while not _waits(session, number):  # noqa: ASYNC110 - nothing tells when another one waits
        await asyncio.sleep(0.01)


async def _cancelled(leader, started):
    """The task that kicks the crew off."""
    task = asyncio.create_task(leader.akickoff(inputs=INPUTS))
    await started()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _late(leader, started):
    """A time limit of the application's."""
    task = asyncio.create_task(leader.akickoff(inputs=INPUTS))
    await started()
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(task, 0.01)


async def _left(leader, started):
    """A streaming crew that nobody reads on, before anything of the answer has come."""
    leader.stream = True
    streaming = await leader.akickoff(inputs=INPUTS)
    chunks = aiter(streaming)
    reading = asyncio.create_task(anext(chunks))
    await started()
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
        await reading
    await streaming.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("lose", [_cancelled, _late, _left])
def test_a_leader_that_is_given_up_holds_nobody_beyond_its_answer(provider, session, siblings, lose, streams) -> None:
    """CrewAI asks its models in threads, which no cancelled task ends: who waits reads what the request wrote."""
    go_on = _held(provider)
    leader, *others = siblings(3, stream=streams)
    waiting = []

    async def started():
        await _waiting(session, 0)
        waiting.extend(asyncio.create_task(one.akickoff(inputs=INPUTS)) for one in others)
        await _waiting(session, 2)

    async def run():
        await lose(leader, started)
        go_on()
        return await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)

    assert all(one.raw for one in asyncio.run(run()))
    assert not session.adapter._gate._flights
    assert not session.failures
    assert session.report().gate.followed == 2


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault(status=500), Fault(status=400), Fault(cut_after=1)], ids=["500", "400", "cut"])
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("way", ["kickoff", "akickoff"])
def test_a_request_that_fails_leads_nobody(provider, session, siblings, way, streams, fault) -> None:
    """The error is its caller's, and one that waits leads in its place."""
    _slow(provider, 0.3)
    provider.simulator.script = lambda asked: Reply("Fine. " * 9, fault=None if asked.index else fault)
    crews = siblings(3, stream=streams)
    if way == "kickoff":
        with ThreadPoolExecutor(3) as pool:
            under_way = [pool.submit(one.kickoff, inputs=INPUTS) for one in crews]
            ends = [one.exception(PATIENCE) for one in under_way]
    else:

        async def run():
            runs = [one.akickoff(inputs=INPUTS) for one in crews]
            return await asyncio.wait_for(asyncio.gather(*runs, return_exceptions=True), PATIENCE)

        ends = asyncio.run(run())
    assert sum(isinstance(end, Exception) for end in ends) == 1
    assert not session.adapter._gate._flights
    assert not session.failures


@pytest.mark.parametrize("way", ["stream", "hook"])
def test_a_leader_that_never_asked_leads_nobody(provider, session, siblings, way) -> None:
    """A hook of the application forbids its request, or its streaming crew is closed unread: there was none."""
    from crewai.hooks import register_before_llm_call_hook, unregister_before_llm_call_hook

    leader, other = siblings(2, stream=True)
    if way == "stream":
        leader.stream = True
        leader.kickoff(inputs=INPUTS).close()
    else:

        def forbid(_):
            return False

        register_before_llm_call_hook(forbid)
        try:
            with pytest.raises(ValueError, match="blocked"):
                leader.kickoff(inputs=INPUTS)
        finally:
            unregister_before_llm_call_hook(forbid)
    assert not provider.requests
    assert not session.adapter._gate._flights
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(other.kickoff, inputs=INPUTS).result(PATIENCE).raw


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
def test_the_report_names_the_agent_that_siblings_followed(provider, session, siblings, streams) -> None:
    """It is in this process; a leader whose name is not known would be told as another process's."""
    go_on = _held(provider)
    leader, other = siblings(2, stream=streams)
    with ThreadPoolExecutor(2) as pool:
        first, second = _one_behind(pool, session, leader, other)
        go_on()
        assert first.result(PATIENCE).raw
        assert second.result(PATIENCE).raw
    (fan_out,) = session.report().gate.fan_outs
    assert (fan_out.leader, fan_out.followed) == (leader.agents[0].role, 1)


def test_a_streaming_crew_that_is_left_after_its_first_chunk_leads_nobody(provider, session, siblings) -> None:
    """What it wrote is there from then on, and the next one reads it."""
    leader, other = siblings(2, stream=True)
    leader.stream = True
    streaming = leader.kickoff(inputs=INPUTS)
    next(iter(streaming))
    streaming.close()
    assert not session.adapter._gate._flights
    with ThreadPoolExecutor(1) as pool:
        pool.submit(other.kickoff, inputs=INPUTS).result(PATIENCE)
    assert not session.adapter._gate._flights
    assert provider.requests[-1].outcome.read_tokens > 1_000


def test_a_task_that_runs_into_its_time_limit_holds_nobody_beyond_its_answer(provider, session, siblings) -> None:
    """After a second CrewAI gives the task up and lets its request go on; who waits for it reads what it wrote."""
    go_on = _held(provider)
    leader, other = siblings(2)
    leader.agents[0].max_execution_time = 1
    with ThreadPoolExecutor(2) as pool:
        first, second = _one_behind(pool, session, leader, other)
        time.sleep(2)
        go_on()
        assert isinstance(first.exception(PATIENCE), TimeoutError)
        assert second.result(PATIENCE).raw
    assert not session.adapter._gate._flights
