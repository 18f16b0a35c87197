"""Teams made from a seed are hardly dearer forked: ag2 says of no run how long it will be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from ag2 import Agent, MemoryStream, tool
from ag2_driver import configured
from test_layout import discuss

from cacheprefix.server import SimulatedProvider
from cacheprefix_ag2 import wrap
from tests.never_dearer import Compared, Plan, dearer, plans, serving, spent

Begun = Callable[[Plan], SimulatedProvider]
NOTHING = {"type": "object", "properties": {}}


@pytest.fixture(scope="module")
def begun() -> Iterator[Begun]:
    """A provider for each plan in turn."""
    with serving() as found:
        yield found


async def _run(plan, provider, kind, *, forked):
    api, model = ("anthropic", "claude-sonnet-4-6") if plan.rules == "anthropic" else ("openai-chat", "gpt-5")
    async with configured(api, provider, model="gpt-5.6" if plan.rules == "openai-5.6" else model) as config:
        agents = [
            Agent(
                name,
                plan.text(at),
                config=config,
                tools=[tool(lambda: "", name=one, description=about, schema=NOTHING) for one, about in plan.kit(at)],
            )
            for at, name in enumerate(plan.names)
        ]
        session = plan.session() if forked else None
        if forked:
            wrap(agents, session)
        questions = [plan.said, *(f"And question {at}?" for at in range(1, plan.rounds))]
        if kind == "channel":
            await discuss(agents, questions)
        else:
            stream = MemoryStream()
            for question in questions:
                for at, each in enumerate(agents):
                    await each.ask(f"{question} You, {each.name}?" if at else question, stream=stream)
    return spent(provider, plan), {} if session is None else session.failures


def compared(plan: Plan, kind: str, begun: Begun, *, known: bool = False) -> Compared:
    """A plan's costs."""
    own, _ = asyncio.run(_run(plan, begun(plan), kind, forked=False))
    forked, failures = asyncio.run(_run(plan, begun(plan), kind, forked=True))
    return Compared(plan, own, forked, known, failures)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "many"), [("stream", 6), ("channel", 3)])
def test_a_run_that_nobody_knows_keeps_within_its_bound(begun, kind, many):
    """Agents with tools on one stream, and on a channel of the network."""
    assert dearer([compared(plan, kind, begun) for plan in plans(many, tools=True, agents=2, salt=kind)]) == []
