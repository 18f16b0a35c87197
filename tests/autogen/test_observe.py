"""Observe mode, unwrap and failing open: the application's own requests."""

from __future__ import annotations

import pytest
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_teams import ROLES, TASK, Says, role, search

from cacheprefix import Session
from cacheprefix.errors import ConfigError
from cacheprefix.server import ToolCall
from cacheprefix_autogen import ForkAgent, PrefixClient, unwrap, wrap

STEPS = {name: (ToolCall("search", {"query": name}), f"{name} is done") for name in ROLES}


def _team(client, **options):
    return RoundRobinGroupChat(
        [role(n, client(), tools=[search()], reflect_on_tool_use=True, **options) for n in ROLES], max_turns=4
    )


async def test_unwrap_gives_the_agents_back_with_their_full_own_context(provide, new_client):
    """After unwrap the next request is what an agent that was never wrapped would send."""
    bodies = []
    for wrapped in (False, True):
        provider = provide("openai", Says(STEPS))
        team = _team(lambda p=provider: new_client(p))
        if wrapped:
            wrap(team)
        await team.run(task=TASK)
        if wrapped:
            before = [agent._model_client for agent in team._participants]
            unwrap(team)
            assert all(a is not agent._model_client for a, agent in zip(before, team._participants, strict=True))
        provider.requests.clear()
        await team.run(task="And now?")
        bodies.append([record.json for record in provider.requests])
    # Call ids follow from the prompt at the simulated provider, so they are left out.
    assert [_without_ids(body) for body in bodies[0]] == [_without_ids(body) for body in bodies[1]]


def _without_ids(value):
    if isinstance(value, dict):
        return {key: _without_ids(item) for key, item in value.items() if key not in ("id", "tool_call_id")}
    return [_without_ids(item) for item in value] if isinstance(value, list) else value


async def test_a_copy_leaves_the_original_as_it_was(provide, new_client):
    """wrap(copy=True) binds a new team; the original's agents have their own client and context."""
    provider = provide("openai", Says())
    team = SelectorGroupChat(
        [role(name, new_client(provider)) for name in ROLES],
        new_client(provider),
        max_turns=2,
        selector_func=lambda thread: ROLES[len(thread) % 3],
    )
    clients = [agent._model_client for agent in team._participants]
    copied = wrap(team, copy=True)
    assert copied is not team
    assert [agent._model_client for agent in team._participants] == clients
    await copied.run(task=TASK)
    assert [await agent.model_context.get_messages() for agent in team._participants] == [[], [], []]
    await team.run(task=TASK)
    assert "You are the" in provider.requests[-1].json["messages"][0]["content"]


async def test_without_a_session_the_configuration_counts(provide, new_client, monkeypatch):
    """For each front door as for ``Session.from_config()``; a mistake is told before the team is touched."""
    monkeypatch.setenv("CACHEPREFIX_MODE", "observe")
    bodies = []
    for front_door in (None, wrap):
        provider = provide("openai", Says(STEPS))
        team = _team(lambda p=provider: new_client(p))
        if front_door is not None:
            front_door(team)
        await team.run(task=TASK)
        bodies.append([record.body for record in provider.requests])
    assert bodies[0] == bodies[1]
    client = new_client(provider)
    assert PrefixClient(client).session.mode == ForkAgent(role("planner", client)).session.mode == "observe"
    monkeypatch.setenv("CACHEPREFIX_MODE", "sideways")
    team = _team(lambda: client)
    for front_door, target in ((wrap, team), (PrefixClient, client), (ForkAgent, role("planner", client))):
        with pytest.raises(ConfigError, match="CACHEPREFIX_MODE"):
            front_door(target)
    monkeypatch.delenv("CACHEPREFIX_MODE")
    assert wrap(team, Session()) is team
