"""Teams made from a seed are never dearer forked: those that are known beforehand at all, open-ended ones by much."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat
from autogen_core.models import ModelFamily, ModelInfo
from autogen_core.tools import FunctionTool

from cacheprefix.server import SimulatedProvider, fill
from cacheprefix_autogen import session_of, wrap
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


def _client(plan: Plan, provider: Any) -> Any:
    openai = plan.rules != "anthropic"
    info = ModelInfo(
        vision=False,
        function_calling=True,
        json_output=True,
        family=ModelFamily.GPT_4O if openai else ModelFamily.CLAUDE_4_SONNET,
        structured_output=openai,
        multiple_system_messages=openai,
    )
    if openai:
        from autogen_ext.models.openai import OpenAIChatCompletionClient

        return OpenAIChatCompletionClient(
            model="gpt-5-2025-08-07", base_url=provider.openai_base_url, api_key="any", model_info=info
        )
    from autogen_ext.models.anthropic import AnthropicChatCompletionClient

    return AnthropicChatCompletionClient(
        model="claude-sonnet-4-5-20250929", base_url=provider.anthropic_base_url, api_key="any", model_info=info
    )


def _tool(name: str, about: str) -> FunctionTool:
    def run(query: str) -> str:
        return query

    return FunctionTool(run, name=name, description=about)


def _team(plan: Plan, client: Any, kind: str) -> Any:
    agents = [
        AssistantAgent(name, client, system_message=plan.text(at), tools=[_tool(*one) for one in plan.kit(at)])
        for at, name in enumerate(plan.names)
    ]
    turns = plan.rounds * len(agents)
    if kind == "turns":
        return RoundRobinGroupChat(agents, max_turns=turns)
    if kind == "runs":
        return RoundRobinGroupChat(agents, max_turns=len(agents))
    if kind == "messages":
        return RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(turns + 1))
    if kind == "open":
        ends = MaxMessageTermination(turns + 1) | TextMentionTermination("nobody says this")
        return RoundRobinGroupChat(agents, termination_condition=ends)
    graph = DiGraphBuilder()
    for agent in agents:
        graph.add_node(agent)
    first, *middle, last = agents
    if kind == "chain":
        for one, other in pairwise(agents):
            graph.add_edge(one, other)
    else:
        for one in middle:
            graph.add_edge(first, one).add_edge(one, last)
        if not middle:
            graph.add_edge(first, last)
    return GraphFlow(agents, graph=graph.build())


async def _run(plan: Plan, provider: Any, kind: str, *, forked: bool) -> tuple[list[float], Any]:
    client = _client(plan, provider)
    team = _team(plan, client, kind)
    if forked:
        wrap(team, plan.session())
    await team.run(task=plan.said)
    for number in range(1, plan.rounds if kind == "runs" else 1):
        await team.run(task=f"Question {number}: {fill('', plan.task // 4)}")
    await client.close()
    return spent(provider, plan), session_of(team)


def compared(plan: Plan, kind: str, begun: Begun, *, known: bool) -> Compared:
    """A plan's costs."""
    own, _ = asyncio.run(_run(plan, begun(plan), kind, forked=False))
    forked, session = asyncio.run(_run(plan, begun(plan), kind, forked=True))
    return Compared(plan, own, forked, known, session.failures, session.report().total.unmodified_units)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["turns", "messages", "chain", "fan"])
def test_a_run_that_is_known_costs_at_most_what_it_costs_unmodified(begun, kind):
    """A round robin of agents without tools and a fixed number of turns or messages, and graphs without a circle."""
    found = [compared(plan, kind, begun, known=True) for plan in plans(6, tools=False, agents=2, salt=kind)]
    assert dearer(found) == []
    assert min(one.ratio for one in found) < 0.9


@pytest.mark.slow
def test_a_run_that_nobody_knows_keeps_within_its_bound(begun):
    """With tools, and with a stop that goes by what is said."""
    assert (
        dearer([compared(plan, "open", begun, known=False) for plan in plans(6, tools=True, agents=2, salt="open")])
        == []
    )


@pytest.mark.slow
def test_a_team_that_runs_again_and_again_keeps_within_the_bound(begun):
    """Its first run is known, and nothing of those that follow."""
    assert (
        dearer([compared(plan, "runs", begun, known=False) for plan in plans(6, tools=False, agents=2, salt="runs")])
        == []
    )


@pytest.mark.slow
@pytest.mark.parametrize("factor", FACTORS)
def test_the_report_says_what_a_team_costs_unmodified_near_the_minimum(factor):
    """Or that it is not known: where the provider counts less than we do, and more."""
    with serving(factor) as provider:
        found = [compared(plan, "turns", provider, known=True) for plan in near_the_minimum(3, factor, agents=2)]
    assert untrue(found) == []
    assert known_of(found) > 0.5
