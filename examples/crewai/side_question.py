"""A question beside the crew's work: it reads the crew's cached prefix and leaves no trace."""

from __future__ import annotations

from typing import Any

from _run import BRIEF, Example, main, task
from crewai import Crew, Task

from cacheprefix_crewai import ask

QUESTION = "In one sentence: which of the board's questions is answered so far?"


def run(example: Example) -> Any:
    """After the first task someone wants to know where it stands; the second goes on as if nobody had asked."""
    who = example.agents()[:2]
    said: list[str] = []

    def aside(_: Any) -> None:
        if example.layout == "shared" and not said:
            said.append(ask(crew, QUESTION).text)

    facts, figures = task("facts", "Collect the facts.", who[0]), task("figures", "Work out the figures.", who[1])
    tasks = [facts, figures]
    if example.layout == "unmodified":
        # Without forks a side question is a task like any other, with the whole brief and a prompt of its own.
        asked = Task(
            name="aside", description=f"{QUESTION}\n\n{{brief}}", expected_output="One sentence.", agent=who[1]
        )
        tasks = [facts, asked, figures]
    crew = Crew(agents=who, tasks=tasks, task_callback=aside, verbose=False)
    with example.installed(crew):
        result = crew.kickoff(inputs={"brief": BRIEF})
    return f"Asked on the side: {said[0] if said else result.tasks_output[1].raw}"


if __name__ == "__main__":
    main(run, __doc__)
