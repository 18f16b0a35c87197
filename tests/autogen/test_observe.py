"""Observe mode, unwrap and failing open: the application's own requests."""

from __future__ import annotations

import pytest
from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_agentchat.tools import AgentTool
from autogen_ext.agents.openai import OpenAIAgent
from autogen_ext.models.replay import ReplayChatCompletionClient
from autogen_teams import ROLES, TASK, Says, role, search

from cacheprefix import Caching, Session
from cacheprefix.errors import ConfigError
from cacheprefix.layout import with_volatile
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


_IDS = ("id", "tool_call_id", "tool_use_id")


def _without_ids(value):
    if isinstance(value, dict):
        return {key: _without_ids(item) for key, item in value.items() if key not in _IDS}
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


class Noting(BaseChatAgent):
    """Keeps what it heard in lists of its own, and on a board that others have too."""

    produced_message_types = (TextMessage,)

    def __init__(self, name, board):
        super().__init__(name, "Takes notes.")
        self.board, self.heard = board, {"all": []}

    async def on_messages(self, messages, cancellation_token):
        """Notes them."""
        self.heard["all"] += [message.to_text() for message in messages]
        self.board.append(self.name)
        return Response(chat_message=TextMessage(content=f"{self.name} notes.", source=self.name))

    async def on_reset(self, cancellation_token):
        """Forgets nothing."""


async def test_a_copy_changes_nothing_that_agents_hold(provide, new_client):
    """Their own lists, an agent as a tool, one behind ``ForkAgent``; what two of them hold, both copies hold."""
    provider = provide("openai", Says({"lead": (ToolCall("reader", {"task": "Read."}), "done")}))
    client, board = new_client(provider), []
    reader, inner = role("reader", client), ForkAgent(role("planner", client))
    lead = role("lead", client, tools=[AgentTool(reader)], max_tool_iterations=2)
    kept = OpenAIAgent("kept", "Keeps.", client._client, "gpt-4o-2024-08-06", "You are the keeper.")
    noting = [Noting(name, board) for name in ("first", "second")]
    copied = wrap(RoundRobinGroupChat([lead, inner, kept, *noting], max_turns=5), copy=True)
    await copied.run(task=TASK)
    assert len(provider.requests) == 5
    assert isinstance(reader._model_client, type(client))
    assert await reader.model_context.get_messages() == await inner.inner.model_context.get_messages() == []
    assert kept._message_history == board == noting[0].heard["all"] == []
    assert copied._participants[3].board is copied._participants[4].board == ["first", "second"]
    assert copied._participants[2]._client is kept._client


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


# On OpenAI nothing is marked.
BROKEN = {
    "openai": ("calls.begin.plan_breakpoints", "cache.CacheModel.begin", "calls.state.decode"),
    "anthropic": ("calls.begin.mark", "cache.CacheModel.begin"),
}
BEGIN = "begin: cacheprefix failed (RuntimeError: on purpose)"


def _pair(provide, new_client, api, **options):
    """A provider, and a function that starts it afresh with a team of two of its own."""
    provider = provide(api, Says(STEPS))

    def fresh():
        provider.reset()
        client = new_client(provider, api=api, fresh=True)
        tools = {name: search(f"look_{name}") for name in ROLES[:2]}
        agents = [role(n, client, tools=[tools[n]], reflect_on_tool_use=True, **options) for n in tools]
        provider.simulator.script = Says({n: (ToolCall(f"look_{n}", {"query": n}), f"{n} is done") for n in tools})
        return RoundRobinGroupChat(agents, max_turns=2)

    return provider, fresh


async def _outcome(team):
    """What a run gives: who said what, at what usage."""
    return [
        (m.type, m.source, str(getattr(m, "content", "")), type(m.models_usage), m.models_usage)
        for m in (await team.run(task=TASK)).messages
    ]


def _raise(*_, **__):
    raise RuntimeError("on purpose")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_a_request_that_cannot_be_begun_is_the_applications_own(provide, new_client, monkeypatch, api, stream):
    """Behind the layout too: bytes and answers of an unmodified team, and forks again once nothing fails."""
    provider, fresh = _pair(provide, new_client, api, model_client_stream=stream)
    plain = await _outcome(fresh())
    own = [record.body for record in provider.requests]
    for step in BROKEN[api]:
        team, session = fresh(), Session()
        wrap(team, session)
        with monkeypatch.context() as broken, pytest.warns(UserWarning, match="on purpose") as told:
            broken.setattr(f"cacheprefix.{step}", _raise)
            outcome = await _outcome(team)
        assert [record.body for record in provider.requests] == own
        assert outcome == plain
        assert [str(w.message).startswith(BEGIN) for w in told].count(True) == 1
        assert session.failures["begin"] == len(own) == 4
        assert session.calls == ()
        assert len(session.adapter.shared.model._forest) == 0
    await team.run(task="Go on.")
    assert all("<role name=" in str(record.json["messages"]) for record in list(provider.requests)[4:])
    assert len(session.calls) == 4
    assert not any(call.verdict.alarm for call in session.calls)


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_one_failure_is_nothing_to_the_requests_around_it(provide, new_client, monkeypatch, api):
    """A reflection alone is the application's own, with its tools and the text for it alone; the others are forks."""
    now = {"volatile": lambda: {"now": "noon"}, "volatile_role": "user"}
    provider, fresh = _pair(provide, new_client, api)
    await fresh().run(task=TASK)
    own = _without_ids(provider.requests[1].json)
    await wrap(fresh(), **now).run(task=TASK)
    forks = [_without_ids(record.json) for record in provider.requests]
    team, session = fresh(), Session()
    wrap(team, session, **now)
    begin = session.adapter.shared.model.begin
    steps = iter([begin, _raise, begin, begin])

    def step(*given, **options):
        return next(steps)(*given, **options)

    monkeypatch.setattr(session.adapter.shared.model, "begin", step)
    with pytest.warns(UserWarning, match="begin"):
        await team.run(task=TASK)
    sent = [_without_ids(record.json) for record in provider.requests]
    assert sent[1] == with_volatile(own, "anthropic" if api == "anthropic" else "openai-chat", "<now>\nnoon\n</now>")
    assert [sent[0], *sent[2:]] == [forks[0], *forks[2:]]
    assert session.failures == {"begin": 1}
    assert len(session.calls) == 3
    assert not any(call.verdict.alarm for call in session.calls)
    assert not session.adapter._gate._flights


async def test_a_client_that_cannot_be_watched_gets_the_applications_own_request_too(monkeypatch):
    """What could not be noted is not laid out either."""
    seen = []

    class Noting(ReplayChatCompletionClient):
        async def create(self, messages, **options):
            seen.append(list(messages))
            return await super().create(messages, **options)

    for session in (None, Session(caching=Caching(provider="openai"))):
        client = Noting(["yes", "no"])
        team = RoundRobinGroupChat([role(name, client) for name in ROLES[:2]], max_turns=2)
        if session is None:
            await team.run(task=TASK)
            continue
        wrap(team, session)
        monkeypatch.setattr(session.adapter.shared.model, "begin", _raise)
        with pytest.warns(UserWarning, match="begin"):
            await team.run(task=TASK)
        assert session.failures == {"begin": 2}
    assert seen[2:] == seen[:2]
