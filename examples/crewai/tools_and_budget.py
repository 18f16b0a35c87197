"""A tool that returns far too much: its result is cut once, before CrewAI stores it away under a random name."""

from __future__ import annotations

from typing import Any

from _run import BRIEF, Example, main, task
from crewai import Crew
from crewai.tools import tool

from cacheprefix import ToolResultBudget
from cacheprefix.server import Echo, Reply, Request, ToolCall


@tool
def annual_report(year: int) -> str:
    """Give the whole annual report of a year."""
    return "\n".join(f"Report {year}, line {line}: revenue, orders and staff by region." for line in range(4_000))


def answers(request: Request) -> Reply:
    """Read the report once, then answer."""
    wants = "annual_report" in request.asked.tools and request.rounds == 0 and request.asked.choice != "none"
    return Reply(tool_calls=(ToolCall("annual_report", {"year": 2025}),)) if wants else Echo()(request)


def run(example: Example) -> Any:
    """Two agents read the same report."""
    who = example.agents(lambda: [annual_report])[:2]
    tasks = [task("facts", "Facts from the report.", who[0]), task("figures", "Figures from the report.", who[1])]
    crew = Crew(agents=who, tasks=tasks, verbose=False)
    with example.installed(crew):
        return crew.kickoff(inputs={"brief": BRIEF}).raw


if __name__ == "__main__":
    main(run, __doc__, answers, budget=ToolResultBudget(max_tokens=1_000))
