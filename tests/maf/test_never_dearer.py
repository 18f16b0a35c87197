"""Teams made from a seed are never dearer forked: those that are known beforehand at all, open-ended ones by much."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from agent_framework import Agent, FunctionTool, Message
from agent_framework.orchestrations import ConcurrentBuilder, SequentialBuilder
from maf_driver import close, make_client

from cacheprefix.server import SimulatedProvider
from cacheprefix_maf import wrap
from tests.never_dearer import Compared, Plan, dearer, plans, serving, spent

Begun = Callable[[Plan], SimulatedProvider]
SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}}


@pytest.fixture(scope="module")
def begun() -> Iterator[Begun]:
    """A provider for each plan in turn."""
    with serving() as found:
        yield found


def _tool(name, about):
    return FunctionTool(name=name, description=about, func=lambda query="": query, input_model=SCHEMA)


async def _run(plan, provider, kind, *, forked):
    client = make_client("anthropic" if plan.rules == "anthropic" else "openai-chat", provider)
    client.model = {"openai": "gpt-5", "openai-5.6": "gpt-5.6"}.get(plan.rules, client.model)
    agents = [
        Agent(client, plan.text(at), name=name, tools=[_tool(*one) for one in plan.kit(at)])
        for at, name in enumerate(plan.names)
    ]
    session = plan.session() if forked else None
    if kind == "chat":
        for agent in agents if forked else ():
            wrap(agent, session, conversation="c")
        said = [Message("user", [plan.said])]
        for _ in range(plan.rounds):
            for agent in agents:
                answer = await agent.run([*said, Message("user", ["Go on."])])
                said += [Message("user", ["Go on."]), Message("assistant", [answer.text], author_name=agent.name)]
    else:
        workflow = (SequentialBuilder if kind == "in turn" else ConcurrentBuilder)(participants=agents).build()
        await (wrap(workflow, session) if forked else workflow).run(plan.said)
    await close(client)
    return spent(provider, plan), {} if session is None else session.failures


def compared(plan: Plan, kind: str, begun: Begun, *, known: bool) -> Compared:
    """A plan's costs."""
    own, _ = asyncio.run(_run(plan, begun(plan), kind, forked=False))
    forked, failures = asyncio.run(_run(plan, begun(plan), kind, forked=True))
    return Compared(plan, own, forked, known, failures)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["in turn", "side by side"])
def test_a_run_that_is_known_costs_at_most_what_it_costs_unmodified(begun, kind):
    """Sequential and concurrent workflows of agents without tools."""
    found = [compared(plan, kind, begun, known=True) for plan in plans(6, tools=False, agents=2, salt=kind)]
    assert dearer(found) == []
    assert min(one.ratio for one in found) < 0.9


@pytest.mark.slow
def test_a_run_that_nobody_knows_keeps_within_its_bound(begun):
    """Agents with tools that the application asks in turn."""
    assert dearer([compared(plan, "chat", begun, known=False) for plan in plans(5, tools=True, agents=2)]) == []
