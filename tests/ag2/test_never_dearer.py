"""Teams made from a seed are hardly dearer forked: ag2 says of no run how long it will be."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator

import pytest
from ag2 import Agent, MemoryStream, tool
from ag2_driver import configured
from test_layout import discuss

from cacheprefix.server import Reply, SimulatedProvider, ToolCall, fill
from cacheprefix_ag2 import wrap
from tests.never_dearer import Compared, Plan, dearer, plans, serving, spent

Begun = Callable[[Plan], SimulatedProvider]
NOTHING = {"type": "object", "properties": {}}


@pytest.fixture(scope="module")
def begun() -> Iterator[Begun]:
    """A provider for each plan in turn."""
    with serving() as found:
        yield found


MODELS = {"openai": "gpt-5", "openai-5.6": "gpt-5.6", "anthropic": "claude-sonnet-4-6"}


async def _run(plan, provider, kind, *, forked, model="", called=False):
    """What each request costs, and what failed. With ``called`` each agent is told in each turn to call its tool."""
    api, says = "anthropic" if plan.rules == "anthropic" else "openai-chat", fill("found:", 150) if called else ""

    def made(name, about):
        return tool(lambda: says, name=name, description=about, schema=NOTHING)

    async with configured(api, provider, model=model or MODELS[plan.rules]) as config:
        kits = [[made(*one) for one in plan.kit(at)] for at in range(len(plan.names))]
        agents = [Agent(name, plan.text(at), config=config, tools=kits[at]) for at, name in enumerate(plan.names)]
        session = plan.session() if forked else None
        if session is not None:
            wrap(agents, session)
        questions = [plan.said, *(f"And question {at}?" for at in range(1, plan.rounds))]
        if kind == "channel":
            await discuss(agents, questions)
        else:
            stream = MemoryStream()
            streams = [stream if kind == "stream" else MemoryStream() for _ in agents]
            for question in questions:
                for at, (each, kit, on) in enumerate(zip(agents, kits, streams, strict=True)):
                    asked = f"{question} You, {each.name}?" if at or called else question
                    await each.ask(f"{asked} Call {kit[0].name}." if called else asked, stream=on)
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


def _answering(plan):
    """A model that calls the tool that a question names, once, and answers then."""
    called = set()

    def answer(request):
        asked = re.findall(r"Call (\w+)\.", request.text)
        if asked and len(asked) not in called:
            called.add(len(asked))
            return Reply(tool_calls=(ToolCall(asked[-1], {}),))
        return Reply(fill("So it is:", plan.answer))

    return answer


KNOWN = {"openai": ("gpt-4.1", 0.25), "openai-5.6": ("gpt-5.6", 0.1), "anthropic": ("claude-sonnet-4-6", 0.1)}


@pytest.mark.parametrize("kind", ["stream", "streams of their own", "channel"])
@pytest.mark.parametrize("rounds", [1, 6])
@pytest.mark.parametrize("tools", [(1_500, 1_500, 1_500), (1_500, 40, 60)], ids=["large", "large and small"])
@pytest.mark.parametrize("rules", tuple(KNOWN))
def test_a_team_with_tools_of_its_own_is_not_dearer(begun, rules, tools, rounds, kind):
    """On one stream, where they go over to the tools of all by a reckoning of the adapter's own, it was 1.24."""
    model, read = KNOWN[rules]
    plan = Plan(0, rules, read, (700, 700, 40), tools, rounds, 400, first=False, task=150, answer=120)
    costs = []
    for forked in (False, True):
        provider = begun(plan)
        provider.simulator.script = _answering(plan)
        cost, failures = asyncio.run(_run(plan, provider, kind, forked=forked, model=model, called=True))
        assert failures == {}
        costs.append(cost)
    own, shared = costs
    assert len(own) == len(shared)
    assert sum(shared) <= 1.01 * sum(own)
