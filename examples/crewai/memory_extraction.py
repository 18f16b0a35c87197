"""What is worth remembering: a fork reads the finished work from the cache and writes it down for the next run."""

from __future__ import annotations

from typing import Any

from _run import BRIEF, Example, main, task
from crewai import Crew, Task

from cacheprefix import ForkPolicy
from cacheprefix_crewai import ask

QUESTION = "List what should be remembered for the next quarter, one fact a line, nothing else."


def run(example: Example) -> Any:
    """A first kickoff gives the memory, a second one reads it behind what both share."""
    who = example.agents()[:2]
    tasks = [
        task("facts", "Facts for {quarter}.\n\nKnown from before: {known}", who[0]),
        task("figures", "Figures for {quarter}.\n\nKnown from before: {known}", who[1]),
    ]
    crew = Crew(agents=who, tasks=tasks, verbose=False)
    with example.installed(crew, shared_inputs=["brief"]):
        crew.kickoff(inputs={"brief": BRIEF, "quarter": "spring", "known": "nothing yet"})
        if example.layout == "shared":
            known = ask(crew, QUESTION, role="memory", policy=ForkPolicy.memory_update()).text
        else:
            # Without forks someone reads everything once more, in a prompt of its own.
            extract = Task(
                name="memory",
                description=f"{QUESTION}\n\n{BRIEF}\n\n" + "\n\n".join(one.output.raw for one in tasks if one.output),
                expected_output="One fact a line.",
                agent=who[1],
            )
            extractor = Crew(agents=[who[1]], tasks=[extract], verbose=False)
            with example.installed(extractor):
                known = str(extractor.kickoff().raw)
        result = crew.kickoff(inputs={"brief": BRIEF, "quarter": "summer", "known": known})
    example.extra["remembered"] = len(known.splitlines())
    return result.raw


if __name__ == "__main__":
    main(run, __doc__)
