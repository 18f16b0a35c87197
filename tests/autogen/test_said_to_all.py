"""What the application says to a team's conversation: zones and durable context arrive everywhere, in every layout."""

from __future__ import annotations

import copy
import json

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_teams import HANDBOOK, LONG, ROLES, TASK, Says, role, search
from test_selector import Selecting

from cacheprefix import Compaction, Session, SharedPrefix
from cacheprefix.errors import SetupError
from cacheprefix.server import ToolCall
from cacheprefix_autogen import ask, conversation_of, session_of, wrap

ZONE, DELTA = "Memory: the customer prefers trains.", "News: the line to Bern is closed."


def _texts(record):
    return [str(one["content"]) for one in record.json["messages"]]


def _count(provider, text):
    return ["\n".join(_texts(record)).count(text) for record in provider.requests]


def _team(client, **options):
    return RoundRobinGroupChat([role(n, client, **options) for n in ROLES], max_turns=3)


@pytest.mark.parametrize("layout", ["fork", "own"])
async def test_zones_stand_before_the_conversation_and_context_where_it_was_said(provide, new_client, layout):
    """In forks and in agents' own layout, once in each request, and the requests only grow at their end."""
    provider = provide("openai", Says())
    session = Session(SharedPrefix(system=HANDBOOK) if layout == "fork" else None)
    client = new_client(provider)
    # Short agents with nothing in common share too little.
    options = {} if layout == "fork" else {"system_message": "Be brief."}
    team = wrap(RoundRobinGroupChat([role(n, client, **options) for n in ROLES], max_turns=3), session)
    talk = session.conversation(conversation_of(team))
    talk.set_zone("memories", ZONE)
    await team.run(task=TASK if layout == "fork" else "Hello.")
    talk.append_context(DELTA, key="news")
    await team.run(task="Go on.")
    assert {call.layout for call in session.calls} == {layout}
    assert {call.conversation for call in session.calls} == {talk.id}
    assert not session.failures
    assert _count(provider, ZONE) == [1] * 6
    assert _count(provider, DELTA) == [0] * 3 + [1] * 3
    for record in provider.requests[3:]:
        texts = _texts(record)
        news = next(at for at, text in enumerate(texts) if DELTA in text)
        assert texts[news] == f'<context key="news">\n{DELTA}\n</context>'
        assert any("Go on." in text for text in texts[:news])
    if layout == "fork":
        last, newest = _texts(provider.requests[3]), _texts(provider.requests[5])
        assert newest[: len(last) - 1] == last[:-1]
        assert all(call.usage.cache_read_tokens > 1_000 for call in session.calls[1:])


async def test_agents_that_keep_their_own_prompts_are_told_too(provide, new_client):
    """A bounded context has no place for it among its messages, so it stands in front."""
    provider = provide("openai", Says())
    client, session = new_client(provider), Session()
    agents = [role(n, client, model_context=BufferedChatCompletionContext(3)) for n in ROLES]
    team = wrap(RoundRobinGroupChat(agents, max_turns=3), session)
    talk = session.conversation(conversation_of(team))
    talk.set_zone("memories", ZONE)
    talk.append_context(DELTA, key="news")
    await team.run(task=TASK)
    assert _count(provider, ZONE) == _count(provider, DELTA) == [1] * 3
    assert not session.failures


async def test_a_selector_reads_what_the_agents_read(provide, new_client):
    """Its questions begin as their requests do."""
    provider = provide("openai", Selecting(*ROLES))
    client, session = new_client(provider), Session(SharedPrefix(system=HANDBOOK))
    team = wrap(SelectorGroupChat([role(n, client) for n in ROLES], client, max_turns=4), session)
    talk = session.conversation(conversation_of(team))
    talk.set_zone("memories", ZONE)
    talk.append_context(DELTA, key="news")
    await team.run(task=TASK)
    assert not session.failures
    assert set(_count(provider, ZONE)) == set(_count(provider, DELTA)) == {1}
    again = [call for call in session.calls if call.agent == "selector"][1:]
    assert again
    assert all(call.usage.cache_read_tokens > 1_000 for call in again)


async def test_a_zone_that_changes_waits_for_the_compaction_and_deltas_are_joined_then(provide, new_client):
    """The prefix breaks there anyway. The hook gets the base of the shared prefix first."""
    seen = []

    def joined(key, texts):
        seen.append((key, tuple(texts)))
        return " / ".join(texts)

    provider = provide("openai", Says())
    session = Session(
        SharedPrefix(system=HANDBOOK, context={"news": "News of old."}),
        compaction=Compaction(trigger=4_000, target=2_600, keep_turns=1, consolidate=joined),
    )
    team = wrap(_team(new_client(provider)), session)
    talk = session.conversation(conversation_of(team))
    talk.set_zone("memories", ZONE)
    await team.run(task="Hello.")
    talk.append_context(DELTA, key="news")
    await team.run(task="Go on.")
    talk.set_zone("memories", "Memory: by bus.")
    for number in range(6):
        await team.run(task=f"And then, for the time {number}? {LONG[:1500]}")
    assert not session.failures
    assert talk.ledger.epoch >= 1
    assert seen[0] == ("news", ("News of old.", DELTA))
    last = "\n".join(_texts(provider.requests[-1]))
    assert last.count("Memory: by bus.") == 1
    assert ZONE not in last
    assert f"News of old. / {DELTA}" in last
    assert last.count("</context>") == 2


async def test_it_travels_with_the_saved_state_and_goes_with_a_reset(provide, new_client):
    """Loaded elsewhere the next requests have the same bytes; after a reset nothing of it is said any more."""
    provider = provide("openai", Says())
    session = Session(SharedPrefix(system=HANDBOOK))
    team = wrap(_team(new_client(provider)), session)
    talk = session.conversation(conversation_of(team))
    talk.set_zone("memories", ZONE)
    talk.append_context(DELTA, key="news")
    await team.run(task=TASK)
    state = json.loads(json.dumps(await team.save_state()))
    provider.simulator.script = Says()
    provider.requests.clear()
    await team.run(task="Go on.")
    uninterrupted = [record.json for record in provider.requests]
    for same in (True, False):
        provider.simulator.script = Says()
        provider.requests.clear()
        other = team if same else wrap(_team(new_client(provider)), Session(SharedPrefix(system=HANDBOOK)))
        await other.load_state(copy.deepcopy(state))
        await other.run(task="Go on.")
        assert [record.json for record in provider.requests] == uninterrupted
        assert not session_of(other).failures
    provider.requests.clear()
    await team.reset()
    await team.run(task=TASK)
    assert _count(provider, ZONE) == _count(provider, DELTA) == [0] * 3


@pytest.mark.parametrize("layout", ["fork", "own"])
async def test_what_a_forgotten_conversation_was_told_is_told_no_more_and_the_next_one_hears_its_own(
    provide, new_client, layout
):
    """Without a reset the agents keep what they said; saved and loaded elsewhere, the team sends the same bytes."""
    provider = provide("openai", Says({n: (ToolCall("search", {"query": "q"}), f"{n} is done") for n in ROLES}))

    def made():
        options = {} if layout == "fork" else {"system_message": "Be brief."}
        agents = _team(new_client(provider), tools=[search(result="Found.")], reflect_on_tool_use=True, **options)
        return wrap(agents, Session(SharedPrefix(system=HANDBOOK) if layout == "fork" else None))

    team = made()
    session, name = session_of(team), conversation_of(team)
    session.conversation(name).append_context(DELTA, key="news")
    await team.run(task=TASK if layout == "fork" else "Hello.")
    assert set(_count(provider, DELTA)) == {1}
    session.forget(name)
    state = json.loads(json.dumps(await team.save_state()))
    sent = []
    for again in (team, made()):
        if again is not team:
            await again.load_state(state)
        session_of(again).conversation(name).append_context("News: it is open again.", key="news")
        provider.simulator.script = Says()
        provider.requests.clear()
        await again.run(task="Go on.")
        assert set(_count(provider, DELTA)) == {0}
        assert set(_count(provider, "it is open again")) == {1}
        # Nothing of a turn before is taken for what nobody else has heard.
        assert set(_count(provider, "planner is done")) == {int(layout == "fork")}
        sent.append([record.json for record in provider.requests])
        assert not session_of(again).failures
    assert sent[0] == sent[1]


async def test_durable_context_alone_leaves_the_text_in_common_to_be_found(provide, new_client):
    """The agents share as without it, and one that has not their text is told the context all the same."""
    provider = provide("openai", Says())
    client, session = new_client(provider), Session(SharedPrefix(context={"news": DELTA}))
    other = AssistantAgent("clerk", client, system_message="You are the clerk.")
    await wrap(RoundRobinGroupChat([*(role(n, client) for n in ROLES), other], max_turns=8), session).run(task=TASK)
    assert _count(provider, DELTA) == [1] * 8
    assert [call.layout for call in session.calls] == ["fork", "fork", "fork", "own"] * 2
    assert _count(provider, HANDBOOK.strip())[3::4] == [0, 0]
    assert all(call.usage.cache_read_tokens > 1_000 for call in session.calls[4:7])
    assert not session.failures


async def test_an_agent_by_itself_is_told(provide, new_client):
    """In its own layout: the zone before what was said, the context behind it."""
    provider = provide("openai", Says())
    session = Session()
    agent = wrap(AssistantAgent("solo", new_client(provider), system_message="You are the solo."), session)
    talk = session.conversation(conversation_of(agent))
    talk.set_zone("memories", ZONE)
    await agent.run(task="Hello.")
    talk.append_context(DELTA, key="news")
    await agent.run(task="Go on.")
    first, second = (_texts(record) for record in provider.requests)
    assert [ZONE in text for text in first] == [False, True, False]
    assert second[:3] == first
    assert DELTA in second[-1]
    assert not session.failures


def test_the_id_of_what_is_not_wrapped_is_refused(provide, new_client):
    """There is no conversation yet."""
    with pytest.raises(SetupError, match="wrap it first"):
        conversation_of(role("planner", new_client(provide("openai", Says()))))


@pytest.mark.parametrize("ran", [True, False], ids=["after a run", "before the first"])
async def test_a_side_question_holds_what_was_said_to_all(provide, new_client, ran):
    """Zones stand where the agents' requests have them, so that all behind them is read; nothing is said for good."""
    provider, session = provide("openai", Says()), Session()
    team = wrap(_team(new_client(provider)), session)
    talk = session.conversation(conversation_of(team))
    talk.set_zone("memories", ZONE)
    if ran:
        await team.run(task=TASK)
    talk.append_context(DELTA, key="news")
    before = session.calls[-1].usage.input_tokens if ran else 0
    await ask(team, "Where are we?")
    assert (_count(provider, ZONE)[-1], _count(provider, DELTA)[-1]) == (1, 1)
    if ran:
        assert session.calls[-1].usage.cache_read_tokens > before - 500
    await team.run(task="Go on.")
    assert _count(provider, ZONE) == [1] * len(provider.requests)
    assert _count(provider, DELTA)[-3:] == [1] * 3
    assert "Where are we?" not in "".join(_texts(provider.requests[-1]))


async def test_a_side_question_of_agents_that_shorten_their_own_messages_holds_it_in_front(provide, new_client):
    """As their own requests do, in which zones have no place among the messages."""
    provider, session = provide("openai", Says()), Session()
    team = wrap(_team(new_client(provider), model_context=BufferedChatCompletionContext(3)), session)
    talk = session.conversation(conversation_of(team))
    talk.set_zone("memories", ZONE)
    talk.append_context(DELTA, key="news")
    await team.run(task=TASK)
    await ask(team, "Where are we?")
    assert not session.failures
    assert _count(provider, ZONE) == _count(provider, DELTA) == [1] * 4


async def test_a_side_question_behind_a_compaction_holds_what_the_agents_read(provide, new_client):
    """What was dropped from their requests, no question brings back: it reads what they wrote."""
    provider, session = provide("openai", Says()), Session(compaction=Compaction(trigger=4_000, horizon=1_000))
    team = wrap(_team(new_client(provider)), session)
    session.conversation(conversation_of(team)).set_zone("memories", ZONE)
    for number in range(5):
        await team.run(task=f"{number}: {TASK}")
    before = session.calls[-1].usage
    await ask(team, "Where are we?")
    asked = "".join(_texts(provider.requests[-1]))
    assert not session.failures
    assert f"0: {TASK[:40]}" not in asked
    assert _count(provider, ZONE)[-1] == 1
    assert session.calls[-1].usage.cache_read_tokens > before.input_tokens / 2
