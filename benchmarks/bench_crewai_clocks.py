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


def _run(engine: LocalEngine, session: Session, handbook: str, *, together: bool) -> None:
    llm = new_llm(f"openai/{MODEL}", engine.openai_base_url, provider="openai", max_tokens=1)
    roles = _clocks.ROLES.items()
    agents = [Agent(role=role, goal=text, backstory="Of old.", llm=llm) for role, text in roles]
    tasks = [
        Task(
            description=_clocks.TASK + "\n\n{handbook}",
            expected_output="Words.",
            agent=agent,
            async_execution=together and agent is not agents[-1],
        )
        for agent in agents
    ]
    crew = Crew(agents=agents, tasks=tasks, process=Process.sequential)
    with install(crew, session):
        crew.kickoff(inputs={"handbook": handbook})


def in_turn(engine: LocalEngine, session: Session, handbook: str) -> None:
    """One after the other."""
    _run(engine, session, handbook, together=False)


def three_at_once(engine: LocalEngine, session: Session, handbook: str) -> None:
    """Three at the same moment, and the last after them: a crew may not end with several asynchronous tasks."""
    _run(engine, session, handbook, together=True)


if __name__ == "__main__":
    _clocks.main("crewai_clocks", "CrewAI", {"in turn": in_turn, "three together": three_at_once}, __doc__, inputs=True)
