"""Dependency waves: tasks of one wave start together, and each wave's join is the next one's context."""

from __future__ import annotations

from typing import Any

from _run import BRIEF, Example, main, task
from crewai import Crew


def run(example: Example) -> Any:
    """Schema; api and storage side by side; their contract; client and migration side by side; the release."""
    researcher, analyst, writer = who = example.agents()
    schema = task("schema", "Lay out the schema.", researcher)
    beside = {"context": [schema], "async_execution": True}
    api = task("api", "Write the interface on the schema.", analyst, **beside)
    storage = task("storage", "Write the storage of the schema.", writer, **beside)
    contract = task("contract", "Say where the two meet.", researcher, context=[schema, api, storage])
    beside = {"context": [schema, contract], "async_execution": True}
    client = task("client", "Write the client.", analyst, **beside)
    migration = task("migration", "Write the migration.", writer, **beside)
    release = task("release", "Write the notes of the release.", writer, context=[schema, contract, client, migration])
    tasks = [schema, api, storage, contract, client, migration, release]
    crew = Crew(agents=list(who), tasks=tasks, verbose=False)
    with example.installed(crew):
        return crew.kickoff(inputs={"brief": BRIEF}).raw


if __name__ == "__main__":
    main(run, __doc__)
