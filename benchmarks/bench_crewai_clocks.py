"""Time to the first token and whole runs of four CrewAI agents on a real engine: see ``benchmarks/_clocks.py``.

``python -m benchmarks.bench_crewai_clocks`` prints a table and writes ``benchmarks/results/crewai_clocks.json``.
"""

from __future__ import annotations

from crewai import Agent, Crew, Process, Task

from benchmarks import _clocks
from benchmarks.crewai_workloads import new_llm
from benchmarks.local_engine import MODEL, LocalEngine
from cacheprefix import Session
from cacheprefix_crewai import install


def in_turn(engine: LocalEngine, session: Session, handbook: str) -> None:
    """One after the other."""
    llm = new_llm(f"openai/{MODEL}", engine.openai_base_url, provider="openai", max_tokens=1)
    roles = _clocks.ROLES.items()
    agents = [Agent(role=role, goal=text, backstory="Of old.", llm=llm) for role, text in roles]
    tasks = [
        Task(
            description=f"{_clocks.TASK}\n\n{handbook}",
            expected_output="Words.",
            agent=agent,
        )
        for agent in agents
    ]
    crew = Crew(agents=agents, tasks=tasks, process=Process.sequential)
    with install(crew, session):
        crew.kickoff()


if __name__ == "__main__":
    _clocks.main("crewai_clocks", "CrewAI", {"in turn": in_turn}, __doc__)
