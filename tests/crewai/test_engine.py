"""CrewAI's installed crews on a real prefix cache: llama.cpp reports what the session expected."""

from __future__ import annotations

import pytest
from crewai import Agent, Crew, Process, Task

from benchmarks.crewai_workloads import new_llm
from benchmarks.local_engine import COUNTER, MODEL, rules
from cacheprefix import Caching, Session
from cacheprefix_crewai import install

BRIEF = "Every statement needs a source that the reader can open. " * 6
ROLES = {"Planner": "plan", "Critic": "criticise", "Writer": "write"}


@pytest.fixture
def crew(engine):
    """``crew(brief)`` is a crew of three whose tasks all quote the brief, on CrewAI's own client."""

    def make(brief: str) -> Crew:
        llm = new_llm(f"openai/{MODEL}", engine.openai_base_url, provider="openai", max_tokens=6)
        agents = [Agent(role=role, goal=f"to {verb}", backstory="Of old.", llm=llm) for role, verb in ROLES.items()]
        tasks = [
            Task(
                description=f"{agent.role}: do your part on this brief.\n\n{brief}",
                expected_output="Words.",
                agent=agent,
            )
            for agent in agents
        ]
        return Crew(agents=agents, tasks=tasks, process=Process.sequential)

    return make


@pytest.mark.slow
def test_an_installed_crew_reads_the_shared_part_from_a_real_cache(crew, fresh_text) -> None:
    """Every task but the first reads the brief, as the session expected."""
    brief = fresh_text(BRIEF)
    session = Session(brief, caching=Caching(provider="llama.cpp", profiles=rules(), counter=COUNTER))
    target = crew(brief)
    with install(target, session):
        target.kickoff()
    first, *others = session.calls
    assert (first.usage.cache_read_tokens or 0) < 60
    assert len(others) >= 2
    for call in others:
        read = call.usage.cache_read_tokens or 0
        assert read >= COUNTER(brief)
        assert call.verdict.expected_tokens == read
    assert not session.failures
