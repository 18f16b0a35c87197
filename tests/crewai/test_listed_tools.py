"""Tools that a crew's agents list are reckoned with before an agent was asked."""

from __future__ import annotations

from typing import Any

from crewai import Agent, Crew, Task
from crewai.tools import BaseTool
from pydantic import BaseModel

from benchmarks.crewai_workloads import prose
from cacheprefix import Session
from cacheprefix.profiles import cost_units, default_registry, normalise_usage
from cacheprefix.server import Reply
from cacheprefix_crewai import install

SIZES = (5_000, 1_100, 1_400, 320, 3_300, 1_250)


class Query(BaseModel):
    """What the tools take."""

    query: str


class Look(BaseTool):
    """A tool of any name."""

    args_schema: type[BaseModel] = Query

    def _run(self, query: str) -> str:
        return query


def test_others_with_smaller_tools_are_not_taken_for_ones_with_as_many(servers, new_llm) -> None:
    """The first of six agents has the largest tools: it would carry those of all for others, who would not follow."""
    profile, spent = default_registry().get("anthropic"), []
    for installed in (False, True):
        provider = servers("anthropic", lambda request: Reply(f"Result {request.index}."))
        team = crew_of(new_llm(provider, "anthropic"))
        session = Session()
        held = install(team, session) if installed else None
        team.kickoff()
        if held is not None:
            held.undo()
        assert session.failures == {}
        spent.append(sum(cost_units(normalise_usage(one.usage, one.api), profile) for one in provider.requests))
    assert spent[1] <= spent[0]


def crew_of(llm: Any) -> Crew:
    """A crew whose agents have tools of their own, and a text of some length."""
    who = [
        Agent(
            role=f"Agent {number}",
            goal="Do it.",
            backstory=prose(60, number),
            llm=llm,
            tools=[
                Look(name=f"look_{number}_{part}", description=prose(size // max(1, size // 400) - 60, part))
                for part in range(max(1, size // 400))
            ],
            respect_context_window=False,
            use_better_compaction=False,
        )
        for number, size in enumerate(SIZES)
    ]
    tasks = [Task(description=f"Do step {at}.", expected_output="A line.", agent=one) for at, one in enumerate(who)]
    return Crew(agents=who, tasks=tasks, verbose=False)
