"""One crew for many items with one brief: every run after the first reads the brief from the cache."""

from __future__ import annotations

from typing import Any

from _run import BRIEF, Example, main, task
from crewai import Crew


def run(example: Example) -> Any:
    """Three regions, three runs of copies of the crew."""
    who = example.agents()[:2]
    tasks = [task("facts", "Facts on {region}.", who[0]), task("figures", "Figures on {region}.", who[1])]
    crew = Crew(agents=who, tasks=tasks, verbose=False)
    with example.installed(crew):
        outputs = crew.kickoff_for_each(
            inputs=[{"brief": BRIEF, "region": region} for region in ("the north", "the south", "the coast")]
        )
    return "\n\n".join(output.raw for output in outputs)


if __name__ == "__main__":
    main(run, __doc__)
