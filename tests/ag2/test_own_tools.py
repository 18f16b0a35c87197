"""Teams whose agents have tools of their own are not dearer: what each request carries the core's planner decides."""

from __future__ import annotations

import asyncio
import re

import pytest
from ag2 import Agent, MemoryStream, tool
from ag2_driver import configured
from test_layout import discuss

from cacheprefix.server import Reply, ToolCall, fill
from cacheprefix_ag2 import wrap
from tests.never_dearer import Plan, serving, spent

MODELS = {"openai": ("gpt-4.1", 0.25), "openai-5.6": ("gpt-5.6", 0.1), "anthropic": ("claude-sonnet-4-6", 0.1)}
NOTHING = {"type": "object", "properties": {}}


@pytest.fixture(scope="module")
def begun():
    """A provider for each plan in turn."""
    with serving() as found:
        yield found


def answering(plan):
    """A model that calls the tool that a question names, once, and answers then."""
    called = set()

    def answer(request):
        asked = re.findall(r"Call (\w+)\.", request.text)
        if asked and len(asked) not in called:
            called.add(len(asked))
            return Reply(tool_calls=(ToolCall(asked[-1], {}),))
        return Reply(fill("So it is:", plan.answer))

    return answer


async def _run(plan, provider, kind, *, forked):
    api = "anthropic" if plan.rules == "anthropic" else "openai-chat"

    def made(name, about):
        return tool(lambda: fill("found:", 150), name=name, description=about, schema=NOTHING)

    async with configured(api, provider, model=MODELS[plan.rules][0]) as config:
        kits = [[made(*one) for one in plan.kit(at)] for at in range(len(plan.roles))]
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
                for each, kit, on in zip(agents, kits, streams, strict=True):
                    await each.ask(f"{question} You, {each.name}? Call {kit[0].name}.", stream=on)
    return spent(provider, plan), {} if session is None else session.failures


def ratio(plan, kind, begun):
    """What the run costs wrapped, for each unit that it costs unmodified."""
    costs = []
    for forked in (False, True):
        provider = begun(plan)
        provider.simulator.script = answering(plan)
        costs.append(asyncio.run(_run(plan, provider, kind, forked=forked)))
    (own, _), (shared, failures) = costs
    assert failures == {}
    assert len(own) == len(shared)
    return sum(shared) / sum(own)


@pytest.mark.parametrize("kind", ["stream", "streams of their own", "channel"])
@pytest.mark.parametrize("rounds", [1, 6])
@pytest.mark.parametrize("tools", [(1_500, 1_500, 1_500), (1_500, 40, 60)], ids=["large", "large and small"])
@pytest.mark.parametrize("rules", tuple(MODELS))
def test_a_team_with_tools_of_its_own_is_not_dearer(begun, rules, tools, rounds, kind):
    """On one stream, where they go over to the tools of all by a reckoning of the adapter's own, it was 1.24."""
    plan = Plan(0, rules, MODELS[rules][1], (700, 700, 40), tools, rounds, 400, first=False, task=150, answer=120)
    assert ratio(plan, kind, begun) <= 1.01
