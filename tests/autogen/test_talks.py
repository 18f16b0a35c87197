"""Whose words stand in a prompt: teams that are reset, and all that may serve more than one person."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.messages import HandoffMessage, TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat, Swarm
from autogen_core import CancellationToken
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import AssistantMessage, ModelFamily, ModelInfo, SystemMessage, UserMessage
from autogen_ext.models.anthropic import AnthropicChatCompletionClient
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_teams import after_a_pause, role, search

from cacheprefix import Compaction, Session, SharedPrefix
from cacheprefix.server import Queue, Reply, SimulatedProvider, ToolCall
from cacheprefix_autogen import ForkContext, PrefixClient, wrap
from tests.talks import BOUNDS, LONG, USERS, asking, check, played, question

HANDBOOK = "The handbook of the house, rule by rule. " * 150


def _session():
    return Session(SharedPrefix(system=HANDBOOK), compaction=Compaction(trigger=4_500, horizon=1_000), gate=None)


def _agent(client, name, context=None):
    return AssistantAgent(name, client, system_message=f"{HANDBOOK}\n\nYou are {name}.", model_context=context)


def _words(user, number):
    return f"{user} task {number}: " + " ".join(f"{user}-value-{number}-{k}" for k in range(60))


def _bodies(provider, start):
    return [record.body.decode() for record in list(provider.requests)[start:]]


async def test_a_reset_team_leaves_nothing_behind(provide, new_client):
    """The next run's prompts hold nothing of the last one's, nor does the session."""
    provider, session = provide("openai", keep=1_000), _session()
    agents = [_agent(new_client(provider), name) for name in ("planner", "critic")]
    team = wrap(RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(3)), session)
    for number in range(12):
        await team.run(task=_words("alice", number))
    assert any(talk.ledger.epoch for talk in session.adapter.shared.conversations.values())
    await team.reset()
    start = len(provider.requests)
    await team.run(task="What is the weather?")
    assert not any("alice" in body for body in _bodies(provider, start))
    assert not any("alice" in talk.ledger.dumps() for talk in session.adapter.shared.conversations.values())


class _Redacting(UnboundedChatCompletionContext):
    """Has a number taken out of what comes."""

    async def add_message(self, message):
        if isinstance(message, UserMessage):
            message = message.model_copy(update={"content": message.content.replace("4711", "****")})
        await super().add_message(message)


@pytest.mark.parametrize("lost", ["redacted", "cleared", "reset", "loaded"])
async def test_what_one_agent_forgets_moves_nothing_in_the_others_prompts(provide, new_client, lost):
    """The planner's answer stood in front of the task that it answers: it had seen nothing, as far as we knew."""
    said = ["critic", "planner", "All is planned. DONE.", "critic", "So be it. DONE."]
    over = {name: Reply(tool_calls=(ToolCall(f"transfer_to_{name}", {}, id=f"call_{name}"),)) for name in said[:2]}
    provider, session = provide("openai", Queue([over.get(one, one) for one in said])), _session()
    planner, critic = (
        AssistantAgent(name, new_client(provider), system_message=f"{HANDBOOK}\n\nYou are {name}.", **options)
        for name, options in (
            ("planner", {"handoffs": ["critic"], "model_context": _Redacting() if lost == "redacted" else None}),
            ("critic", {"handoffs": ["planner"]}),
        )
    )
    empty = await planner.save_state()
    team = wrap(Swarm([planner, critic], termination_condition=TextMentionTermination("DONE")), session)
    await team.run(task="The first task, with card 4711.")
    if lost == "cleared":
        await planner.model_context.clear()
    elif lost == "reset":
        await planner.on_reset(CancellationToken())
    elif lost == "loaded":
        await planner.load_state(empty)
    await team.run(task="The second task.")
    told = [section.text for section in provider.requests[-1].prompt.tier("messages")]
    order = ["card 4711", "to critic", "to planner", "DONE.", "The second task.", "to critic"]
    assert [one for text in told for one in dict.fromkeys(order) if one in text and "<role" not in text] == order
    assert session.calls[-1].layout == "fork"
    assert session.failures == {}


@pytest.mark.parametrize("way", ["wrapped later", "a state"])
@pytest.mark.parametrize("gone", ["alice's card", "planner's card"])
async def test_what_was_taken_out_of_a_context_before_us_is_not_taken_over(provide, new_client, gone, way):
    """The team's own thread still holds it: the agent was shown what the application had taken from it."""
    provider = provide("openai", Queue(["The planner's card is 4712.", "Seen.", "So be it.", "Yes.", "No.", "Well."]))
    names, session = ("planner", "critic", "writer"), after_a_pause()

    def made():
        return RoundRobinGroupChat([role(name, new_client(provider)) for name in names], max_turns=3)

    team = made()
    planner = team._participants[0]
    await team.run(task="Here is alice's card, 4711.")
    held = await planner.model_context.get_messages()
    await planner.model_context.clear()
    for message in held:
        if gone not in message.content:
            await planner.model_context.add_message(message)
    if way == "a state":
        state, team = json.loads(json.dumps(await team.save_state())), made()
    wrap(team, session)
    if way == "a state":
        await team.load_state(state)
    start = len(provider.requests)
    await team.run(task="Go on.")
    assert [gone in body for body in _bodies(provider, start)] == [False, True, True]
    assert [call.layout for call in session.calls] == ["own", "fork", "fork"]
    assert session.failures == {}


@pytest.mark.parametrize("gone", ["a summary's result", "a hand-off's result"])
async def test_a_tools_result_that_was_taken_out_of_a_context_before_us_is_not_taken_over(provide, new_client, gone):
    """The team's thread holds it too, as the summary that all were told, or with the hand-off that carried it."""
    calls = [ToolCall("search", {"query": "x"}), *([ToolCall("transfer_to_critic")] if "hand" in gone else [])]
    provider = provide("openai", Queue([Reply(tool_calls=tuple(calls)), "Seen.", "Yes.", "No."]))
    client, session = new_client(provider), after_a_pause()
    handoffs = ["critic"] if "hand" in gone else None
    planner = role("planner", client, tools=[search(result="card 4711")], handoffs=handoffs)
    agents = [planner, role("critic", client)]
    team = Swarm(agents, max_turns=2) if handoffs else RoundRobinGroupChat(agents, max_turns=2)
    await team.run(task="Here we go.")
    context = agents[1 if handoffs else 0].model_context
    held = await context.get_messages()
    await context.clear()
    for message in held:
        if isinstance(message.content, str):
            await context.add_message(message)
    wrap(team, session)
    start = len(provider.requests)
    await team.run(task="Go on." if not handoffs else HandoffMessage(source="user", target="critic", content="Go on."))
    assert "card 4711" not in _bodies(provider, start)[0]
    assert session.calls[0].layout == "own"
    assert session.failures == {}


async def test_a_cleared_context_drops_what_was_decided_on_it(provide, new_client):
    """An agent that is reset begins anew, whatever its context had been compacted to."""
    provider, context = provide("openai", keep=1_000), ForkContext(UnboundedChatCompletionContext())
    agent = _agent(PrefixClient(new_client(provider), _session(), role="helper"), "helper", context)
    for number in range(14):
        await agent.run(task=_words("alice", number))
    assert "alice" in str(await context.save_state())
    await context.clear()
    assert "alice" not in str(await context.save_state())
    start = len(provider.requests)
    await agent.run(task="What is the weather?")
    assert not any("alice" in body for body in _bodies(provider, start))


WAYS = ("agents", "one client", "contexts", "teams", "histories", "agents, saved", "teams, saved")


def _answer(request):
    """What the model says to someone: their own words, where it was told any."""
    number, named = request.index, re.search("|".join(USERS), request.text)
    return Reply(f"{named.group()} is answered: {named.group()}-answer-{number}." if named else f"Well {number}.")


def _client(server, api):
    """AutoGen's own, to be closed in the event loop that it is used in."""
    openai = api == "openai"
    info = ModelInfo(
        vision=False,
        function_calling=True,
        json_output=True,
        family=ModelFamily.GPT_4O if openai else ModelFamily.CLAUDE_4_SONNET,
        structured_output=openai,
        multiple_system_messages=openai,
    )
    if openai:
        url, model = server.openai_base_url, "gpt-4o-2024-08-06"
        return OpenAIChatCompletionClient(model=model, base_url=url, api_key="k", model_info=info)
    url, model = server.anthropic_base_url, "claude-sonnet-4-5-20250929"
    return AnthropicChatCompletionClient(model=model, base_url=url, api_key="k", model_info=info)


class _Histories:
    """An application that asks the client itself and keeps what was said."""

    def __init__(self, client):
        self._client, self._said = client, []

    async def run(self, task):
        self._said.append(UserMessage(content=task, source="user"))
        asked = [SystemMessage(content=f"{HANDBOOK}\n\nYou are helper."), *self._said]
        answer = await self._client.create(asked)
        self._said.append(AssistantMessage(content=answer.content, source="helper"))
        return TaskResult(messages=[TextMessage(content=one.content, source=one.source) for one in self._said[-2:]])


def _made(client, session, way, shared):
    """What one person's application made for that person."""
    if way.startswith("teams"):
        return wrap(RoundRobinGroupChat([_agent(client, "planner"), _agent(client, "critic")], max_turns=2), session)
    if way == "histories":
        return _Histories(shared)
    if way.startswith("agents"):
        return wrap(_agent(client, "helper"), session)
    context = ForkContext(UnboundedChatCompletionContext()) if way == "contexts" else None
    return _agent(shared if way == "one client" else PrefixClient(client, session), "helper", context)


async def _saved_and_made_anew(old, new):
    """The people's agents or teams as another process has them."""
    for user, target in new.items():
        await target.load_state(json.loads(json.dumps(await old[user].save_state())))
    return new


@pytest.mark.slow
@BOUNDS
@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize("way", WAYS)
@played
def test_no_section_of_one_is_in_anothers_prompt_and_no_message_is_missing(
    servers, way, api, bounds, given_turns, people
):
    """Two and three people with equal texts, by turns and at a time, through whatever was made for each of them.

    What is saved is made anew half-way, on a session of its own.
    """
    server, used, compacted = servers[api], [], 0
    server.reset()

    def new(client):
        used.append(Session(SharedPrefix(system=HANDBOOK), gate=None, **bounds))
        shared = PrefixClient(client, used[-1], role="helper")
        return {user: _made(client, used[-1], way, shared) for user in USERS[:people]}

    async def go():
        nonlocal compacted
        client = _client(server, api)
        targets = new(client)
        talks = {user: [] for user in targets}
        for number, turn in enumerate(given_turns):
            if "saved" in way and number == len(given_turns) // 2:
                targets = await _saved_and_made_anew(targets, new(client))
            now, start = asking(turn, people), len(server.requests)
            for user in now:
                talks[user].append(question(user, number, turn))
            results = await asyncio.gather(*(targets[user].run(task=talks[user][-1]) for user in now))
            compacted += check(server.requests[start:], {user: talks[user] for user in now})
            for user, result in zip(now, results, strict=True):
                talks[user] += [message.content for message in result.messages[1:]]
        await client.close()

    asyncio.run(go())
    assert compacted or given_turns is not LONG or "compaction" not in bounds
    assert not any(one.failures for one in used)


@pytest.fixture(scope="module")
def servers():
    """One provider for each API."""
    with SimulatedProvider("openai", _answer) as chat, SimulatedProvider("anthropic", _answer) as claude:
        yield {"openai": chat, "anthropic": claude}
