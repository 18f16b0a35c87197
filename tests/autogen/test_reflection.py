"""Reflection, which AutoGen sends without the agent's tools, and runs whose end is known beforehand: never dearer."""

from __future__ import annotations

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.tools import FunctionTool
from autogen_teams import HANDBOOK, ROLES, TASK, role

from cacheprefix.profiles import cost_units, normalise_usage
from cacheprefix.server import Queue, Reply, ToolCall
from cacheprefix_autogen import session_of, wrap


def _tools(name, count, words):
    def look(query: str) -> str:
        return f"What {name} found for {query}."

    about = " ".join(f"word{n}" for n in range(words))
    return [FunctionTool(look, name=f"{name}_{n}", description=about) for n in range(count)]


def _units(provider, session):
    rules = session.calls[0].profile
    return sum(cost_units(normalise_usage(record.usage, record.api), rules) for record in provider.requests)


async def _both(provide, new_client, build, script, api="openai", **options):
    """Cost units without and with us, the provider's requests with us, and the session."""
    costs = []
    for on in (False, True):
        provider = provide(api, script())
        target = build(new_client(provider, api=api, fresh=True, **options))
        observed = wrap(target) if on else target
        for number in range(3):
            await observed.run(task=f"{TASK if number else 'Weather?'}")
            if isinstance(target, RoundRobinGroupChat):
                break
        costs.append((provider, session_of(target)))
    (plain, _), (ours, session) = costs
    return _units(plain, session), _units(ours, session), list(ours.requests), session


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt-5-2025-08-07", "gpt-4o-2024-08-06"])
@pytest.mark.parametrize("count", [2, 5, 12])
async def test_tools_come_back_into_a_reflection_only_where_that_costs_less(provide, new_client, model, count):
    """Short prompts with many tools are sent as AutoGen sends them, and the call says what it would have cost."""

    def build(client):
        return AssistantAgent("a", client, tools=_tools("look", count, 60), reflect_on_tool_use=True)

    def script():
        return Queue([Reply(tool_calls=(ToolCall("look_0", {"query": "x"}),)), Reply("It is sunny.")] * 3)

    plain, ours, requests, session = await _both(provide, new_client, build, script, model=model)
    assert ours <= plain * 1.01
    assert "tools" not in requests[1].json
    assert session.calls[1].layout == "own"
    assert session.failures == {}


async def test_a_long_prompt_keeps_its_tools_in_the_reflection(provide, new_client):
    """There the reflection reads the whole request before it."""

    def build(client):
        return role("planner", client, tools=_tools("look", 1, 20), reflect_on_tool_use=True)

    def script():
        return Queue([Reply(tool_calls=(ToolCall("look_0", {"query": "x"}),)), Reply("It is sunny.")] * 3)

    plain, ours, requests, _ = await _both(provide, new_client, build, script, model="gpt-5-2025-08-07")
    assert ours < plain * 0.9
    assert all("tools" in record.json for record in requests)


@pytest.mark.parametrize("common", ["", HANDBOOK])
async def test_agents_that_speak_once_pay_for_no_write_on_anthropic(provide, new_client, common):
    """With ``max_turns`` and no other stop it is known that nobody reads it."""

    def build(client):
        own = {name: f"You are the {name}. " + f"Mind the duty of a {name}. " * 300 for name in ROLES}
        agents = [role(name, client, system_message=f"{common[:900]}\n\n{own[name]}") for name in ROLES]
        return RoundRobinGroupChat(agents, max_turns=3)

    plain, ours, requests, session = await _both(provide, new_client, build, lambda: Queue(["Done."] * 9), "anthropic")
    assert ours == plain
    assert not any("cache_control" in record.body.decode() for record in requests)
    assert session.report().as_dict()["total"]["unmodified_cost_units_estimated"] == pytest.approx(plain, rel=0.02)


async def test_agents_that_come_round_again_are_marked_from_their_first_request(provide, new_client):
    """What they write they read."""

    def build(client):
        own = {name: f"You are the {name}. " + f"Mind the duty of a {name}. " * 300 for name in ROLES}
        agents = [role(name, client, system_message=own[name]) for name in ROLES]
        return RoundRobinGroupChat(agents, max_turns=9)

    plain, ours, _, session = await _both(provide, new_client, build, lambda: Queue(["Done."] * 9), "anthropic")
    assert ours < plain * 0.6
    estimated = session.report().as_dict()["total"]["unmodified_cost_units_estimated"]
    assert estimated == pytest.approx(plain, rel=0.02)
