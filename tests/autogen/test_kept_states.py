"""A state that was loaded and not yet used is saved as it was loaded; one without us stays so until we are used."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from autogen_agentchat.agents import BaseChatAgent, SocietyOfMindAgent
from autogen_agentchat.base import Response
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken
from autogen_teams import HANDBOOK, ROLES, TASK, Says, role, search
from test_selector import Selecting

from cacheprefix import CacheprefixWarning, Session, SharedPrefix
from cacheprefix.server import ToolCall
from cacheprefix_autogen import conversation_of, session_of, wrap

STEPS = {name: (ToolCall("search", {"query": name}), f"{name} is done") for name in ROLES}
KINDS = ("round robin", "selector", "nested", "society", "agent")


def _made(kind, client):
    if kind == "agent":
        return role("planner", client)
    agents = [role(name, client, tools=[search()], reflect_on_tool_use=True) for name in ROLES]
    if kind == "selector":
        return SelectorGroupChat(agents, client, max_turns=2)
    if kind == "nested":
        inner = RoundRobinGroupChat(agents[1:], max_turns=2, name="inner", description="Both.")
        return RoundRobinGroupChat([agents[0], inner], max_turns=2)
    if kind == "society":
        inner = RoundRobinGroupChat(agents[1:], termination_condition=MaxMessageTermination(3))
        return RoundRobinGroupChat([agents[0], SocietyOfMindAgent("society", inner, client)], max_turns=2)
    return RoundRobinGroupChat(agents, max_turns=3)


def _says(kind):
    return Selecting(*ROLES) if kind == "selector" else Says(deepcopy(STEPS) if kind != "agent" else {})


def _session():
    return Session(SharedPrefix(system=HANDBOOK))


def _text(state):
    return json.dumps(state, sort_keys=True)


def _asked(provider, start):
    def without_ids(value):
        if isinstance(value, dict):
            return {key: without_ids(item) for key, item in value.items() if key not in ("id", "tool_call_id")}
        return [without_ids(item) for item in value] if isinstance(value, list) else value

    return [without_ids(record.json) for record in list(provider.requests)[start:]]


async def _state_of_a_run(kind, provider, client, *, wrapped):
    team = wrap(_made(kind, client), _session()) if wrapped else _made(kind, client)
    await team.run(task=TASK)
    return json.loads(json.dumps(await team.save_state()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_loaded_is_saved_as_it_was(provide, new_client, kind):
    """Byte for byte, in a fresh team; and what was saved so goes on as what was loaded would have."""
    provider = provide("openai", _says(kind))
    client = new_client(provider)
    state = await _state_of_a_run(kind, provider, client, wrapped=True)
    assert "cacheprefix" in _text(state)
    resumed = wrap(_made(kind, client), _session())
    await resumed.load_state(state)
    again = await resumed.save_state()
    assert _text(again) == _text(state)
    sent = []
    for one in (state, again):
        team = wrap(_made(kind, client), _session())
        await team.load_state(json.loads(_text(one)))
        provider.simulator.script, start = _says(kind), len(provider.requests)
        await team.run(task="Go on.")
        assert not session_of(team).failures
        sent.append(_asked(provider, start))
    assert sent[0] == sent[1]
    assert _text(await team.save_state()) != _text(state)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_state_without_us_stays_so_until_an_agent_is_asked(provide, new_client, kind):
    """Loaded and saved it is the application's own, and goes on as that would have; used, it carries our part."""
    provider = provide("openai", _says(kind))
    client = new_client(provider)
    state = await _state_of_a_run(kind, provider, client, wrapped=False)
    assert "cacheprefix" not in _text(state)
    sent = []
    for hops in (1, 2):
        for _ in range(hops):
            team = wrap(_made(kind, client), _session())
            await team.load_state(json.loads(_text(state)))
            assert _text(await team.save_state()) == _text(state)
        provider.simulator.script, start = _says(kind), len(provider.requests)
        await team.run(task="Go on.")
        sent.append(_asked(provider, start))
        assert "cacheprefix" in await team.save_state()
    assert sent[0] == sent[1]


@pytest.mark.parametrize("way", ["made", "run"])
async def test_a_wrapped_team_that_was_not_asked_yet_saves_what_a_plain_one_does(provide, new_client, way):
    """A new one, and one that was wrapped in the middle of its work."""
    provider = provide("openai", Says())
    team = RoundRobinGroupChat([role(name, new_client(provider)) for name in ROLES], max_turns=3)
    if way == "run":
        await team.run(task=TASK)
    plain = _text(await team.save_state())
    wrap(team, _session())
    assert _text(await team.save_state()) == plain


async def test_what_the_application_says_to_the_conversation_is_saved_before_anybody_is_asked(provide, new_client):
    """With a state that said nothing of us too."""
    provider = provide("openai", Says())
    client = new_client(provider)
    state = await _state_of_a_run("round robin", provider, client, wrapped=False)
    team = wrap(_made("round robin", client), _session())
    await team.load_state(state)
    session_of(team).conversation(conversation_of(team)).append_context("The line is closed.", key="news")
    other = wrap(_made("round robin", client), _session())
    await other.load_state(json.loads(_text(await team.save_state())))
    start = len(provider.requests)
    await other.run(task="Go on.")
    assert all("The line is closed." in str(body) for body in _asked(provider, start))


async def test_one_agents_turn_is_in_the_state_of_its_team(provide, new_client):
    """What changes a part of what was loaded has all of it saved as it stands now."""
    provider = provide("openai", Says())
    client = new_client(provider)
    state = await _state_of_a_run("round robin", provider, client, wrapped=True)
    team = wrap(_made("round robin", client), _session())
    await team.load_state(state)
    await team.run(task="And now?")
    saved = await team.save_state()
    said = [entry["forms"][0]["content"] for entry in saved["cacheprefix"]["entries"]]
    assert any("And now?" in text for text in said)
    assert _text(saved["agent_states"]) != _text(state["agent_states"])


class Echo(BaseChatAgent):
    """Says what it is told, and asks nobody."""

    @property
    def produced_message_types(self):
        """Texts."""
        return (TextMessage,)

    async def on_messages(self, messages, cancellation_token):
        """The last message again."""
        return Response(chat_message=TextMessage(content=messages[-1].to_text(), source=self.name))

    async def on_reset(self, cancellation_token):
        """Nothing is kept."""

    async def save_state(self):
        """Of its own."""
        return {"said": "all"}


async def test_an_agent_that_asks_no_model_saves_its_own_state(provide, new_client):
    """By itself, and as a tool: nothing of it is laid out."""
    echo = wrap(Echo("echo", "An echo."), _session())
    await echo.run(task=TASK)
    assert await echo.save_state() == {"said": "all"}
    tool = AgentTool(Echo("echo", "An echo."))
    wrap(role("planner", new_client(provide("openai", Says())), tools=[tool]), _session())
    await tool.run_json({"task": TASK}, None)
    assert await tool.save_state_json() == {"said": "all"}


@pytest.mark.parametrize("whose", ["team", "agent"])
async def test_a_loaded_state_that_was_reset_is_not_saved_again(provide, new_client, whose):
    """What was forgotten does not come back with the next state."""
    provider = provide("openai", Says())
    client = new_client(provider)
    state = await _state_of_a_run("round robin", provider, client, wrapped=True)
    team = wrap(_made("round robin", client), _session())
    await team.load_state(state)
    if whose == "team":
        await team.reset()
        assert TASK not in _text(await team.save_state())
        return
    await team._participants[0].on_reset(CancellationToken())
    saved = await team.save_state()
    held = {one["id"]: one["forms"] for one in saved["cacheprefix"]["entries"]}
    # How far the others have come it still knows.
    assert not any(held[one] for one in saved["agent_states"][ROLES[0]]["agent_state"]["cacheprefix"]["view"])
    assert saved["agent_states"][ROLES[1]]["agent_state"]["cacheprefix"]["view"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::cacheprefix.CacheprefixWarning")
@pytest.mark.parametrize("kind", ["selector", "society", "agent"])
@pytest.mark.parametrize("value", [7, [None], "gone"])
async def test_a_state_with_a_damaged_part_of_ours_goes_on_and_is_saved(provide, new_client, kind, value):
    """Each of its fields in turn, of the team's part and of its agents': the application sees what it sees without."""

    def damaged(state, name):
        if not isinstance(state, dict):
            return state
        made = {key: damaged(one, name) for key, one in state.items()}
        if "cacheprefix" in made and name in made["cacheprefix"]:
            made["cacheprefix"] = {key: one for key, one in made["cacheprefix"].items() if key != name}
            made["cacheprefix"] |= {} if value == "gone" else {name: value}
        return made

    def fields(state):
        found = {name for key, one in state.items() if isinstance(one, dict) for name in fields(one)}
        return found | set(state.get("cacheprefix") or {})

    async def said(target):
        return [one.to_text() for one in (await target.run(task="Go on.")).messages if isinstance(one, TextMessage)]

    provider = provide("openai", _says(kind))
    client = new_client(provider)
    team = wrap(_made(kind, client), Session())
    await team.run(task=TASK)
    state = json.loads(json.dumps(await team.save_state()))
    for name in sorted(fields(state)):
        outcomes = []
        for broken in (False, True):
            provider.simulator.script = _says(kind)
            target = wrap(_made(kind, client), Session()) if broken else _made(kind, client)
            await target.load_state(damaged(state, name))
            assert not broken or isinstance(conversation_of(target), str)
            outcomes.append(await said(target))
            saved = json.loads(json.dumps(await target.save_state()))
            await target.load_state(saved)
            outcomes[-1] += await said(target)
        assert outcomes[0] == outcomes[1], name


async def test_where_our_part_cannot_be_saved_or_reset_the_applications_is(provide, new_client, monkeypatch):
    """Nothing of ours fails what AutoGen does; the requests are the application's own from then on."""

    def fails(*_, **__):
        raise RuntimeError("on purpose")

    provider = provide("openai", Says())
    session = _session()
    team = wrap(RoundRobinGroupChat([role(name, new_client(provider)) for name in ROLES], max_turns=3), session)
    await team.run(task=TASK)
    monkeypatch.setattr("cacheprefix_autogen.state.save_member", fails)
    monkeypatch.setattr("cacheprefix_autogen.state.save_transcript", fails)
    monkeypatch.setattr("cacheprefix_autogen.member.Member.reset", fails)
    with pytest.warns(CacheprefixWarning, match="on purpose"):
        assert "cacheprefix" not in json.dumps(await team.save_state())
    with pytest.warns(CacheprefixWarning, match="on purpose"):
        await team.reset()
    start = len(session.calls)
    await team.run(task="Anew.")
    assert session.failures == {"save state": 4, "reset": 3}
    assert {call.layout for call in session.calls[start:]} == {"own"}
    assert not any("The task." in record.body.decode() for record in list(provider.requests)[start:])
