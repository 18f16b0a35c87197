"""``Crew(stream=True)``: a kickoff gives a stream, and the crew runs where that is read."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from crew_wire import BRIEF, raw

from benchmarks.crewai_workloads import CrewModel, agents, crew, tasks
from cacheprefix import Session
from cacheprefix_crewai import install


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


def test_a_stream_that_is_read_in_another_thread_is_nobody_elses(servers, new_llm) -> None:
    """As a web framework reads it, when another request has installed on the crew that both share."""
    server, session, users = servers("openai", CrewModel(tools=False)), Session(), ("alice", "bob")
    who = agents(lambda: new_llm(server, stream=True), tools=False)
    team = crew(who, tasks(who), stream=True)

    def installed(user: str) -> Any:
        told = {"me": f"I am {user}-secret."}
        return install(team, session, scope=user, volatile=lambda: told)

    with ThreadPoolExecutor(1) as alices, ThreadPoolExecutor(1) as bobs, ThreadPoolExecutor(1) as reader:
        held = {user: pool.submit(installed, user).result() for user, pool in zip(users, (alices, bobs), strict=True)}
        stream = alices.submit(team.kickoff, {"brief": f"alice asks. {BRIEF}"}).result()
        alices.submit(held["alice"].undo).result()
        reader.submit(list, stream).result()
        bobs.submit(held["bob"].undo).result()
    assert len(raw(server)) == 3
    assert not any(b"bob-secret" in one for one in raw(server))
