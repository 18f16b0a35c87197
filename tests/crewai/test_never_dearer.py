"""Crews made from a seed are never dearer installed: sequential ones without tools at all, others by much."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from crewai import Agent, Crew, Task
from crewai.tools import BaseTool

from cacheprefix.server import Reply, SimulatedProvider, fill
from cacheprefix_crewai import install
from tests.never_dearer import (
    FACTORS,
    Compared,
    Plan,
    dearer,
    known_of,
    near_the_minimum,
    plans,
    serving,
    spent,
    untrue,
)

Begun = Callable[[Plan], SimulatedProvider]


@pytest.fixture(scope="module")
def begun() -> Iterator[Begun]:
    """A provider for each plan in turn."""
    with serving() as found:
        yield found


def _tool(called: str, about: str) -> BaseTool:
    class Looks(BaseTool):
        name: str = called
        description: str = about

        def _run(self) -> str:
            return "Found."

    return Looks()


def _crew(plan: Plan, llm: Any, kind: str) -> Crew:
    """Each agent has ``rounds`` tasks, in turn; all of them hold the brief, and each its item."""
    agents = [
        Agent(
            role=name,
            goal=f"Goal of {name}.",
            backstory=plan.text(at),
            llm=llm,
            tools=[_tool(*one) for one in plan.kit(at)],
            respect_context_window=False,
        )
        for at, name in enumerate(plan.names)
    ]
    item = "\n\nThe item: {item}" if kind == "for each" else ""
    each = 1 if kind == "for each" else min(plan.rounds, 3)
    tasks = [
        Task(
            description=f"Do step {at}.\n\nThe brief:\n{{brief}}{item}",
            expected_output="One line.",
            agent=agents[at % len(agents)],
            context=[] if kind == "apart" else None,
        )
        for at in range(each * len(agents))
    ]
    return Crew(agents=agents, tasks=tasks, verbose=False)


def _run(plan: Plan, provider: SimulatedProvider, new_llm: Any, kind: str, *, forked: bool) -> tuple[list[float], Any]:
    def answer(request: Any) -> Reply:
        step = re.findall(r"Do step (\d+)[.]", request.text)[-1]
        return Reply(fill(f"Result {step}:", plan.answer))

    provider.simulator.script = answer
    crew = _crew(plan, new_llm(provider, "anthropic" if plan.rules == "anthropic" else "openai"), kind)
    session = plan.session()
    held = install(crew, session) if forked else None
    if kind == "for each":
        crew.kickoff_for_each(inputs=[{"brief": plan.said, "item": f"Item {n}"} for n in range(plan.rounds)])
    else:
        crew.kickoff(inputs={"brief": plan.said})
    if held is not None:
        held.undo()
    return spent(provider, plan), session


def compared(plan: Plan, kind: str, begun: Begun, new_llm: Any, *, known: bool) -> Compared:
    """A plan's costs."""
    own, _ = _run(plan, begun(plan), new_llm, kind, forked=False)
    forked, session = _run(plan, begun(plan), new_llm, kind, forked=True)
    return Compared(plan, own, forked, known, session.failures, session.report().total.unmodified_units)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["in turn", "apart", "for each"])
def test_a_crew_that_is_known_costs_at_most_what_it_costs_unmodified(begun, new_llm, kind):
    """Sequential crews of agents without tools, with results of earlier tasks and without, and one for each item."""
    known = plans(5, tools=False, salt=kind)
    assert dearer([compared(plan, kind, begun, new_llm, known=True) for plan in known]) == []


@pytest.mark.slow
def test_a_crew_whose_tasks_may_loop_keeps_within_its_bound(begun, new_llm):
    """Agents with tools may ask any number of times."""
    assert dearer([compared(plan, "in turn", begun, new_llm, known=False) for plan in plans(5, tools=True)]) == []


@pytest.mark.slow
@pytest.mark.parametrize("factor", FACTORS)
def test_the_report_says_what_a_crew_costs_unmodified_near_the_minimum(new_llm, factor):
    """Or that it is not known: where the provider counts less than we do, and more."""
    with serving(factor) as provider:
        found = [compared(plan, "in turn", provider, new_llm, known=True) for plan in near_the_minimum(3, factor)]
    assert untrue(found) == []
    assert known_of(found) > 0.5
