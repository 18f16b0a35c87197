"""Three specialists one after the other, with one brief: it is written to the cache once."""

from __future__ import annotations

from typing import Any

from _run import BRIEF, Example, main, task
from crewai import Crew


def run(example: Example) -> Any:
    """Install on the crew for one kickoff."""
    who = example.agents()
    words = ("Collect the facts the brief asks for.", "Work out the figures.", "Write the memo for the board.")
    tasks = [task(f"step {i + 1}", text, agent) for i, (text, agent) in enumerate(zip(words, who, strict=True))]
    crew = Crew(agents=who, tasks=tasks, verbose=False)
    with example.installed(crew):
        return crew.kickoff(inputs={"brief": BRIEF}).raw


if __name__ == "__main__":
    main(run, __doc__)
