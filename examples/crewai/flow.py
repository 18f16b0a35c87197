"""Agents of a flow, without a crew: the context they share is named once."""

from __future__ import annotations

from typing import Any

from _run import BRIEF, Example, main
from crewai.flow.flow import Flow, listen, start


def run(example: Example) -> Any:
    """Each step asks another agent about the same brief."""
    researcher, analyst, _ = who = example.agents()

    class Study(Flow):  # type: ignore[type-arg]
        @start()
        def facts(self) -> str:
            return str(researcher.kickoff(f"Collect the facts.\n\n{BRIEF}").raw)

        @listen(facts)
        def figures(self, facts: str) -> str:
            return str(analyst.kickoff(f"Work out the figures.\n\n{BRIEF}\n\nFacts: {facts}").raw)

    with example.installed(who, shared_context=BRIEF):
        return Study(suppress_flow_events=True).kickoff()


if __name__ == "__main__":
    main(run, __doc__)
