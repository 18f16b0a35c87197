"""``Crew(stream=True)``: a kickoff gives a stream, and the crew runs where that is read."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import time
from typing import Any

import pytest
from crew_wire import BRIEF, raw

from benchmarks.crewai_workloads import CrewModel, agents, crew, tasks
from cacheprefix import Session
from cacheprefix_crewai import install, uninstall
from cacheprefix_crewai.binding import KEY, binding_of


async def _read(team: Any, inputs: dict[str, str]) -> None:
    async for _ in await team.akickoff(inputs=inputs):
        pass


@pytest.mark.parametrize("way", ["kickoff", "akickoff"])
def test_a_streamed_kickoff_is_one_run(servers, new_llm, way) -> None:
    """CrewAI kicks the crew off again where the stream is read: what repeated runs cost goes by how many there were."""
    server = servers("openai", CrewModel(tools=False))
    who = agents(lambda: new_llm(server, stream=True), tools=False)
    team = crew(who, tasks(who), stream=True)
    with install(team, Session()) as installed:
        for _ in range(3):
            asyncio.run(_read(team, {"brief": BRIEF})) if way == "akickoff" else list(team.kickoff({"brief": BRIEF}))
        assert installed._binding.runs_before(team) == 2
    assert len(raw(server)) == 9


@pytest.mark.parametrize("way", ["kickoff", "akickoff", "kickoff_async"])
def test_a_stream_that_is_read_elsewhere_is_nobody_elses(servers, new_llm, way) -> None:
    """As a web framework reads it, when another request has installed on the crew that both share."""
    server, session = servers("openai", CrewModel(tools=False)), Session()
    who = agents(lambda: new_llm(server, stream=True), tools=False)
    team = crew(who, tasks(who), stream=True)

    def installed(user: str) -> Any:
        told = {"me": f"I am {user}-secret."}
        return install(team, session, scope=user, volatile=lambda: told)

    async def read(stream: Any) -> None:
        if way == "kickoff":
            list(stream)
        else:
            async for _ in stream:
                pass

    async def main() -> None:
        request, other = contextvars.Context(), contextvars.Context()
        held, beside = request.run(installed, "alice"), other.run(installed, "bob")
        streams = []
        for _ in range(2):
            made = request.run(getattr(team, way), {"brief": f"alice asks. {BRIEF}"})
            streams.append(await request.run(asyncio.ensure_future, made) if way != "kickoff" else made)
        await contextvars.Context().run(asyncio.ensure_future, read(streams[0]))
        request.run(held.undo)
        await contextvars.Context().run(asyncio.ensure_future, read(streams[1]))
        other.run(beside.undo)

    asyncio.run(main())
    bodies = raw(server)
    assert not any(b"bob-secret" in one for one in bodies)
    assert [b"alice-secret" in one for one in bodies] == [True] * 3 + [False] * 3


@pytest.mark.parametrize("way", ["kickoff", "akickoff"])
def test_a_stream_that_is_read_behind_its_block_is_of_the_installation(servers, new_llm, way) -> None:
    """As every web framework reads it. Who kicks the crew off beside it is not, and it ends with the run."""
    server, session = servers("openai", CrewModel(tools=False)), Session()
    who = agents(lambda: new_llm(server, stream=True), tools=False)
    team = crew(who, tasks(who), stream=True)
    kind = type(team)

    async def main() -> None:
        told = {"me": "I am alice-secret."}
        with install(team, session, volatile=lambda: told) as installed:
            made = getattr(team, way)({"brief": BRIEF})
            stream = made if way == "kickoff" else await made
        assert not installed.active
        assert binding_of(team) is None  # nobody's who kicks it off now
        if way == "kickoff":
            list(stream)
        else:
            async for _ in stream:
                pass
        assert type(team) is kind
        assert not vars(team).get(KEY)

    asyncio.run(main())
    assert len(session.calls) == 3
    assert all(b"alice-secret" in one for one in raw(server))


def test_a_run_that_is_left_unread_goes_on_as_it_began(servers, new_llm) -> None:
    """A client breaks off: CrewAI runs the crew to its end."""
    server, session = servers("openai", CrewModel(tools=False)), Session()
    who = agents(lambda: new_llm(server, stream=True), tools=False)
    team = crew(who, tasks(who), stream=True)
    kind = type(team)
    with install(team, session):
        stream = team.kickoff({"brief": BRIEF})
        for _ in stream:
            break
    end = time.monotonic() + 60
    while type(team) is not kind and time.monotonic() < end:
        time.sleep(0.05)
    assert type(team) is kind
    assert len(raw(server)) == len(session.calls) == 3


def test_a_stream_that_nobody_reads_keeps_nothing(servers, new_llm) -> None:
    """The installation goes with the stream, or where it is taken back by name."""
    server, session = servers("openai", CrewModel(tools=False)), Session()
    who = agents(lambda: new_llm(server, stream=True), tools=False)
    team = crew(who, tasks(who), stream=True)
    kind = type(team)
    with install(team, session):
        stream = team.kickoff({"brief": BRIEF})
    assert type(team) is not kind
    del stream
    gc.collect()
    assert type(team) is kind
    with install(team, session):
        stream = team.kickoff({"brief": BRIEF})
    uninstall(team)
    assert type(team) is kind
    list(stream)
    assert len(raw(server)) == 3
    assert not session.calls
