"""Graphs made from a seed are hardly dearer forked: a node may call its model any number of times."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from cacheprefix.server import SimulatedProvider
from cacheprefix_langgraph import PrefixState, forked, wrap_model
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


class State(MessagesState, PrefixState):
    """A conversation and its ledger."""


@pytest.fixture(scope="module")
def begun() -> Iterator[Begun]:
    """A provider for each plan in turn."""
    with serving() as found:
        yield found


def _model(plan, provider):
    if plan.rules == "anthropic":
        return ChatAnthropic(
            model="claude-opus-4-1", base_url=provider.anthropic_base_url, api_key="k", max_tokens=64, max_retries=0
        )
    name = "gpt-5.6" if plan.rules == "openai-5.6" else "gpt-5.2"
    return ChatOpenAI(model=name, base_url=provider.openai_base_url, api_key="k", max_retries=0)


def _node(plan, at, model, session):
    form = {"type": "object", "properties": {"query": {"type": "string"}}}
    kit = [
        {"type": "function", "function": {"name": name, "description": about, "parameters": form}}
        for name, about in plan.kit(at)
    ]
    bound = model.bind_tools(kit) if kit else model

    def answer(state):
        said = bound.invoke([SystemMessage(plan.text(at)), *state["messages"]])
        # The others read it as a user's: this provider takes no beginning of its own answer.
        return {"messages": [HumanMessage(f"{plan.names[at]}: {said.text}")]}

    return answer if session is None else forked(session, role=plan.names[at])(answer)


def _run(plan, provider, kind, session):
    model, graph = _model(plan, provider), StateGraph(State)
    model = model if session is None else wrap_model(model, session)
    for at, name in enumerate(plan.names):
        graph.add_node(name, _node(plan, at, model, session))
        graph.add_edge(plan.names[at - 1] if at and kind == "in turn" else START, name)
        if kind == "side by side" or at == len(plan.names) - 1:
            graph.add_edge(name, END)
    compiled = graph.compile(checkpointer=InMemorySaver())
    for turn in range(plan.rounds if kind == "in turn" else 1):
        said = f"And question {turn}?" if turn else plan.said
        compiled.invoke({"messages": [HumanMessage(said)]}, {"configurable": {"thread_id": "one"}})
    return spent(provider, plan)


def compared(plan: Plan, kind: str, begun: Begun, *, known: bool = False) -> Compared:
    """A plan's costs."""
    own, session = _run(plan, begun(plan), kind, None), plan.session()
    forked_too = _run(plan, begun(plan), kind, session)
    return Compared(plan, own, forked_too, known, session.failures, session.report().total.unmodified_units)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["in turn", "side by side"])
def test_a_graph_keeps_within_the_bound_of_runs_that_nobody_knows(begun, kind):
    """Of nodes in a row, asked again and again, and of some that start together."""
    assert dearer([compared(plan, kind, begun) for plan in plans(9, tools=True, agents=2, salt=kind)]) == []


@pytest.mark.slow
@pytest.mark.parametrize("factor", FACTORS)
def test_the_report_says_what_a_graph_costs_unmodified_near_the_minimum(factor):
    """Or that it is not known: where the provider counts less than we do, and more."""
    with serving(factor) as provider:
        found = [compared(plan, "in turn", provider) for plan in near_the_minimum(3, factor, tools=True, agents=2)]
    assert untrue(found) == []
    assert known_of(found) > 0.5
