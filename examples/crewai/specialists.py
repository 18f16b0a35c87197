"""A plan, then two specialists side by side on it, then the synthesis: dependency waves of CrewAI's own tasks.

The specialists start together; the second waits until the first has written the shared part to the cache.
"""

from __future__ import annotations

from typing import Any

from _run import BRIEF, Example, main, task
from crewai import Crew


def run(example: Example) -> Any:
    """Plan, fan out, join."""
    researcher, analyst, writer = example.agents()
    plan = task("plan", "Plan the work in three lines.", writer)
    facts = task("facts", "Collect the facts the plan needs.", researcher, context=[plan], async_execution=True)
    figures = task("figures", "Work out the figures the plan needs.", analyst, context=[plan], async_execution=True)
    memo = task("memo", "Write the memo from facts and figures.", writer, context=[plan, facts, figures])
    crew = Crew(agents=[researcher, analyst, writer], tasks=[plan, facts, figures, memo], verbose=False)
    with example.installed(crew):
        return crew.kickoff(inputs={"brief": BRIEF}).raw


if __name__ == "__main__":
    main(run, __doc__)
