"""A leader that is lost costs its siblings nothing: they go on at once, and nothing of it is left behind.

The gate would hold them for ten minutes; each test ends at once or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat
from autogen_core import CancellationToken
from autogen_core.models import SystemMessage, UserMessage
from autogen_teams import HANDBOOK, TASK

from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix.server import Fault, Latency, Reply
from cacheprefix_autogen import PrefixClient, wrap
from tests.cancelling import Points, until_led

PATIENCE = 60


@pytest.fixture
def provider(provide):
    """OpenAI's rules that bill writing; an entry can be read once the first answer has begun."""
    return provide("openai-5.6")


@pytest.fixture
def session():
    """One whose gate waits, for ten minutes."""
    return Session(SharedPrefix(system=HANDBOOK * 2), gate=Gate(limit=600.0, price=0.0))


@pytest.fixture
def siblings(provider, session, new_client):
    """``siblings(number)`` gives agents with clients of their own, wrapped one by one: they share no conversation."""

    def make(number, **options):
        options = {"model_client_stream": True, **options}
        return [
            wrap(
                AssistantAgent(
                    f"role_{each}",
                    new_client(provider, fresh=True, model="gpt-5.6", max_retries=0),
                    system_message=f"{HANDBOOK * 2}\n\nYou are role {each}.",
                    **options,
                ),
                session,
            )
            for each in range(number)
        ]

    return make


def _slow(provider, seconds):
    provider.simulator.latency = Latency(base=seconds, uncached=0, cached=0, output=0, scale=1)


async def _waiting(session, number):
    """Until someone leads and so many wait for it."""
    gate = session.adapter._gate
    while (  # noqa: ASYNC110 - nothing tells when another one waits
        sum(flight.waiting for flight in gate._flights.values()) < number or not gate._flights
    ):
        await asyncio.sleep(0.01)


async def _cancelled(leader, started):
    """The task that runs the agent."""
    task = asyncio.create_task(leader.run(task=TASK))
    await started()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _token(leader, started):
    """The application's own token, which AutoGen links to the request."""
    token = CancellationToken()
    task = asyncio.create_task(leader.run(task=TASK, cancellation_token=token))
    await started()
    token.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _left(leader, started):
    """A stream that nobody reads on, before anything of the answer has come."""
    events = leader.run_stream(task=TASK)
    await anext(events)
    reading = asyncio.create_task(anext(events))
    await started()
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
        await reading
    await events.aclose()


async def _late(leader, started):
    """A time limit of the application's."""
    asked = [TextMessage(content=TASK, source="user")]
    task = asyncio.create_task(leader.on_messages(asked, CancellationToken()))
    await started()
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(task, 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("lose", [_cancelled, _token, _left, _late])
async def test_a_leader_that_is_given_up_leads_nobody(provider, session, siblings, lose, streams):
    """Given up while the provider works, with two siblings that wait: one of them leads, the other one reads."""
    _slow(provider, 600.0)
    leader, *others = siblings(3, model_client_stream=streams)
    waiting = []

    async def started():
        await _waiting(session, 0)
        waiting.extend(asyncio.create_task(one.run(task=TASK)) for one in others)
        await _waiting(session, 2)
        _slow(provider, 0.3)

    await lose(leader, started)
    await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)
    assert not session.adapter._gate._flights
    assert not session.failures
    assert session.report().gate.followed == 1


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault(status=500), Fault(status=400), Fault(cut_after=1)], ids=["500", "400", "cut"])
async def test_a_request_that_fails_leads_nobody(provider, session, siblings, fault):
    """The error is its caller's, and one that waits leads in its place."""
    _slow(provider, 0.3)
    provider.simulator.script = lambda asked: Reply("Fine. " * 9, fault=None if asked.index else fault)
    runs = [one.run(task=TASK) for one in siblings(3)]
    ends = await asyncio.wait_for(asyncio.gather(*runs, return_exceptions=True), PATIENCE)
    assert sum(isinstance(end, Exception) for end in ends) == 1
    assert not session.adapter._gate._flights
    assert not session.failures


async def test_who_reads_streams_in_turn_does_not_wait_for_himself(provider, session, new_client):
    """Two streams of one task, with a gate that would hold it for ten minutes."""
    native = new_client(provider, fresh=True, model="gpt-5.6", max_retries=0)
    asked = [SystemMessage(content=HANDBOOK * 2), UserMessage(content=TASK, source="user")]
    streams = [PrefixClient(native, session, role=name).create_stream(asked) for name in ("first", "second")]
    begun = [await asyncio.wait_for(anext(stream), PATIENCE) for stream in streams]
    assert all(begun)
    for stream in streams:
        assert [piece async for piece in stream][-1].content
    assert not session.adapter._gate._flights


@pytest.mark.parametrize("way", ["closed", "dropped", "cancelled"])
async def test_a_clients_stream_that_is_left_leads_nobody(provider, session, new_client, way):
    """Before its first piece; the next one leads, and the one after it reads."""
    native = new_client(provider, fresh=True, model="gpt-5.6", max_retries=0)
    client = PrefixClient(native, session, role="first")
    asked = [SystemMessage(content=HANDBOOK * 2), UserMessage(content=TASK, source="user")]
    _slow(provider, 600.0)
    pieces = client.create_stream(asked)
    reading = asyncio.create_task(anext(pieces))
    await _waiting(session, 0)
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
        await reading
    if way == "closed":
        await pieces.aclose()
    elif way == "dropped":
        del pieces, reading
        gc.collect()
    await asyncio.sleep(0)
    assert not session.adapter._gate._flights
    _slow(provider, 0.0)
    for _ in range(2):
        result = await asyncio.wait_for(client.create(asked), PATIENCE)
    assert client.last_usage.cache_read_tokens > 1_000
    assert result.content


async def test_a_branch_that_fails_leaves_no_leader(provider, session, new_client):
    """AutoGen ends the run with the error of the one; another team's branches wait for nobody of it."""

    def team():
        names = ("lead", "two", "three", "four")
        agents = [
            AssistantAgent(
                name,
                new_client(provider, fresh=True, model="gpt-5.6", max_retries=0),
                system_message=f"{HANDBOOK * 2}\n\nYou are {name}.",
            )
            for name in names
        ]
        graph = DiGraphBuilder()
        for agent in agents:
            graph.add_node(agent)
        for agent in agents[1:]:
            graph.add_edge(agents[0], agent)
        return wrap(GraphFlow(agents, graph.build()), session)

    def answer(request):
        return Reply("Said. " * 9, fault=Fault(status=500) if "You are two." in request.text else None)

    _slow(provider, 0.2)
    provider.simulator.script = answer
    with pytest.raises(RuntimeError, match="fails on purpose"):
        await asyncio.wait_for(team().run(task=TASK), PATIENCE)
    assert not session.adapter._gate._flights
    provider.simulator.script = lambda _: Reply("Said. " * 9)
    provider.reset()
    await asyncio.wait_for(team().run(task=f"{TASK} Another one."), PATIENCE)
    assert not session.adapter._gate._flights
    assert not session.failures


async def test_a_team_whose_run_is_cancelled_leaves_no_leader(provider, session, new_client):
    """The team's next run, and another team's, go on at once."""

    def team():
        agents = [
            AssistantAgent(
                name,
                new_client(provider, fresh=True, model="gpt-5.6", max_retries=0),
                system_message=f"{HANDBOOK * 2}\n\nYou are {name}.",
                model_client_stream=True,
            )
            for name in ("one", "two")
        ]
        return wrap(RoundRobinGroupChat(agents, max_turns=2), session)

    _slow(provider, 600.0)
    first, second = team(), team()
    token = CancellationToken()
    running = asyncio.create_task(first.run(task=TASK, cancellation_token=token))
    await _waiting(session, 0)
    other = asyncio.create_task(second.run(task=TASK))
    await _waiting(session, 1)
    _slow(provider, 0.0)
    token.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await asyncio.wait_for(other, PATIENCE)
    await first.reset()
    await asyncio.wait_for(first.run(task=TASK), PATIENCE)
    assert not session.adapter._gate._flights
    assert not session.failures


# What a cancelled run of AutoGen leaves behind in its own runtime.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
async def test_a_team_that_is_cancelled_wherever_it_waits_leaves_no_leader(provider, new_client):
    """A sample of all points at which one of its tasks waits: another team goes on, and so does its own next run.

    ``CACHEPREFIX_POINTS`` is how many points lie between two that are tried.
    """
    client = new_client(provider, fresh=True, model="gpt-5.6", max_retries=0)

    async def trial(at):
        session = Session(SharedPrefix(system=HANDBOOK * 2), gate=Gate(limit=600.0, price=0.0))
        flights, over = session.adapter._gate._flights, asyncio.Event()

        def team():
            agents = [
                AssistantAgent(name, client, system_message=f"{HANDBOOK * 2}\n\nYou are {name}.") for name in "ab"
            ]
            return wrap(RoundRobinGroupChat(agents, max_turns=2), session)

        async def run(one):
            return [event async for event in one.run_stream(task=TASK)]

        async def other():
            await until_led(flights, over)
            return await run(team())

        first, points = team(), Points(at)
        sibling = asyncio.create_task(other())
        await asyncio.sleep(0)
        cancelled = await points.run(lambda: run(first))
        over.set()
        assert len((await asyncio.wait_for(sibling, PATIENCE))[-1].messages) == 3
        assert len((await asyncio.wait_for(run(team()), PATIENCE))[-1].messages) == 3
        assert not flights
        assert not session.failures
        return cancelled

    at = 1
    while await trial(at):
        at += int(os.environ.get("CACHEPREFIX_POINTS", "41"))
    assert at > 80
