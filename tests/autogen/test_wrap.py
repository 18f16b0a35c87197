"""What is wrapped twice, copied, changed behind our back, or refused in a stream."""

from __future__ import annotations

import asyncio
import copy
import pickle
import re

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core import InMemoryStore
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import CreateResult, SystemMessage, UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.cache import ChatCompletionCache
from autogen_teams import HANDBOOK, ROLES, TASK, Says, role, search

from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix.errors import SetupError
from cacheprefix.server import Latency, Queue, Reply, ToolCall
from cacheprefix.stores import MemoryStore
from cacheprefix_autogen import ForkAgent, PrefixClient, session_of, unwrap, wrap


def _texts(record):
    return [str(message["content"]) for message in record.json["messages"]]


def _clients(team):
    return [type(agent._model_client).__name__ for agent in team._participants]


async def test_agents_of_a_wrapped_team_cannot_be_wrapped_on_another_session(provide, new_client):
    """What they were told belongs to one session, so the second says whose they are."""
    client = new_client(provide("openai", Says()))
    team = RoundRobinGroupChat([role(n, client) for n in ROLES], name="first", max_turns=3)
    wrap(team)
    other = RoundRobinGroupChat(team._participants[:2], max_turns=2)
    with pytest.raises(SetupError, match="'planner' is wrapped already as a part of 'first'"):
        wrap(other, Session())
    assert session_of(other) is None
    assert _clients(team) == ["PrefixClient"] * 3
    unwrap(team)
    wrap(other, Session())
    unwrap(other)
    assert _clients(team) == ["OpenAIChatCompletionClient"] * 3


async def test_what_was_wrapped_by_itself_is_taken_over_whole(provide, new_client):
    """An inner team or an agent belongs to the outer team from then on, and is free when that is unwrapped."""
    client = new_client(provide("openai", Says()))
    inner = SelectorGroupChat([role(f"i_{n}", client) for n in ROLES], client, name="inner", description="Inner.")
    wrap(inner, Session())
    agent = wrap(role("planner", client), Session())
    outer = RoundRobinGroupChat([agent, inner], max_turns=2)
    session = Session()
    wrap(outer, session)
    assert session_of(agent) is session
    assert isinstance(inner._model_client, PrefixClient)
    assert not isinstance(inner._model_client.client, PrefixClient)
    unwrap(outer)
    assert session_of(inner) is session_of(agent) is None
    assert type(inner._model_client).__name__ == "OpenAIChatCompletionClient"
    assert _clients(inner) == ["OpenAIChatCompletionClient"] * 3


async def test_a_fork_agent_is_what_it_was_when_its_team_is_unwrapped(provide, new_client):
    """A team takes the agent inside over, and gives it back as the fork agent made it."""
    session = Session(SharedPrefix(system=HANDBOOK))
    agent = ForkAgent(role("planner", new_client(provide("openai", Says()))), session)
    team = wrap(RoundRobinGroupChat([agent, role("critic", agent.inner._model_client.client)], max_turns=2), Session())
    assert session_of(agent.inner) is session_of(team)
    unwrap(team)
    assert session_of(agent.inner) is session


async def test_a_deep_copy_goes_on_from_what_was_said_in_a_conversation_of_its_own(provide, new_client):
    """It shares the session's prefix and all that was said, and neither hears what the other is told then."""
    provider = provide("openai", Says())
    session = Session(SharedPrefix(system=HANDBOOK))
    agent = wrap(role("planner", new_client(provider)), session)
    await agent.run(task=TASK)
    other = copy.deepcopy(agent)
    assert session_of(other) is session
    await other.run(task="Told to the copy.")
    await agent.run(task="Told to the original.")
    first, of_copy, of_original = (_texts(record) for record in provider.requests)
    assert of_copy[: len(first) - 1] == of_original[: len(first) - 1] == first[:-1]
    assert "<role name=" in of_copy[-1]
    assert not any("to the original" in text for text in of_copy)
    assert not any("to the copy" in text for text in of_original)
    assert len({call.conversation for call in session.calls}) == 2
    assert len(await other.model_context.get_messages()) == len(await agent.model_context.get_messages()) == 4
    await other._model_client.close()


@pytest.mark.filterwarnings("ignore::cacheprefix.CacheprefixWarning")
@pytest.mark.parametrize("way", ["team", "agent", "team's state", "agent's state", "copy"])
async def test_where_taking_over_fails_requests_stay_the_applications(provide, new_client, monkeypatch, way):
    """What a view misses, a fork would not say."""
    provider = provide("openai", Says())
    client = new_client(provider)

    def made():
        team = RoundRobinGroupChat([role(n, client) for n in ROLES], max_turns=3)
        return team if "team" in way else team._participants[0]

    def broken(*_given):
        raise LookupError

    session = Session(SharedPrefix(system=HANDBOOK))
    first, after = made(), made()
    if way == "copy":
        wrap(first, session)
    await first.run(task=TASK)
    with monkeypatch.context() as patched:
        patched.setattr("cacheprefix_autogen.transcript.View.restore", broken)
        patched.setattr("cacheprefix_autogen.transcript.View.receive", broken)
        if "state" in way:
            await wrap(after, session).load_state(await first.save_state())
        else:
            after = copy.deepcopy(first) if way == "copy" else wrap(first, session)
    asked = len(provider.requests)
    await after.run(task="Go on.")
    if way == "copy":
        await after._model_client.close()
    assert session.failures["copy" if way == "copy" else "take over"]
    bodies = [record.json["messages"] for record in provider.requests]
    assert all(str(body[0]["content"]).startswith("You are the ") for body in bodies[asked:])
    assert all(any(TASK in str(one["content"]) for one in body) for body in bodies[asked:])


async def test_a_copy_of_an_agent_that_somebody_else_copied_is_bound_once(provide, new_client):
    """An agent inside an object of the application's is bound as it was; in a wrapped team, with the team."""
    client = new_client(provide("openai", Says()))
    session = Session()
    agent = wrap(role("planner", client), session)
    held = copy.deepcopy({"agents": [agent, agent]})
    assert held["agents"][0] is held["agents"][1] is not agent
    assert session_of(held["agents"][0]) is session
    team = wrap(RoundRobinGroupChat([role(n, client) for n in ROLES], max_turns=1), session)
    made = copy.deepcopy(team)
    assert session_of(made) is session
    unwrap(made)
    assert _clients(made) == ["OpenAIChatCompletionClient"] * 3
    assert _clients(team) == ["PrefixClient"] * 3
    for one in (held["agents"][0], *made._participants):
        await one._model_client.close()


async def test_a_client_is_copied_with_its_session_and_pickled_with_its_settings(provide, new_client):
    """A session cannot be pickled; whoever loads the client has one of the same prefix."""
    session = Session(SharedPrefix(system=HANDBOOK))
    client = PrefixClient(new_client(provide("openai", Says())), session, role="critic")
    for other in (copy.copy(client), copy.deepcopy(client)):
        assert (other.session, other.role) == (session, "critic")
    loaded = pickle.loads(pickle.dumps(client))
    assert (loaded.session.prefix.text, loaded.role) == (HANDBOOK, "critic")
    for one in (other, loaded):
        await one.close()


async def test_a_wrapped_client_around_a_wrapped_client_lays_out_once(provide, new_client):
    """A cache of AutoGen's between them changes nothing."""
    provider = provide("openai", Says())
    session = Session(SharedPrefix(system=HANDBOOK))
    inner = PrefixClient(new_client(provider), session, role="inner")
    agent = wrap(role("planner", ChatCompletionCache(inner, InMemoryStore())), session)
    await agent.run(task=TASK)
    assert [text.count("<role name=") for text in _texts(provider.requests[0])].count(1) == 1
    assert len(session.calls) == 1


async def test_what_the_application_puts_into_a_context_is_sent(provide, new_client):
    """No transcript holds it, so the agent's requests are its own from then on, until it is reset."""
    provider = provide("openai", Says())
    agents = [role(n, new_client(provider)) for n in ROLES]
    team = wrap(RoundRobinGroupChat(agents, max_turns=3))
    await team.run(task=TASK)
    await agents[1].model_context.add_message(UserMessage(content="Mind the margin.", source="alice"))
    provider.requests.clear()
    await team.run(task="Go on.")
    planner, critic, writer = (_texts(record) for record in provider.requests)
    assert "Mind the margin." in critic
    assert not any("<role name=" in text for text in critic)
    assert all(any("<role name=" in text for text in texts) for texts in (planner, writer))
    assert any("changed its model context" in note for note in session_of(team).report().notes)
    await team.reset()
    await team.run(task="Anew.")
    assert any("<role name=" in text for text in _texts(provider.requests[-2]))


async def test_what_a_context_is_made_with_is_sent(provide, new_client):
    """Messages that stood in an agent's context before its team first ran."""
    provider = provide("openai", Says())
    before = UnboundedChatCompletionContext([UserMessage(content="Mind the margin.", source="alice")])
    agents = [role("planner", new_client(provider), model_context=before), role("critic", new_client(provider))]
    await wrap(RoundRobinGroupChat(agents, max_turns=2)).run(task=TASK)
    assert "Mind the margin." in _texts(provider.requests[0])


async def test_a_context_that_derives_from_the_unbounded_one_keeps_what_it_leaves_out(provide, new_client):
    """It shows the agent what it wants to, and nobody else does."""

    class Newest(UnboundedChatCompletionContext):
        async def get_messages(self):
            return (await super().get_messages())[-1:]

    provider = provide("openai", Says())
    agents = [role(n, new_client(provider), model_context=Newest()) for n in ROLES]
    await wrap(RoundRobinGroupChat(agents, max_turns=3)).run(task=TASK)
    assert [len(record.json["messages"]) for record in provider.requests] == [2, 2, 2]


def _restricted(new_client, provider):
    """A client of a role that may call one tool of two, which Anthropic can only be told in words."""
    tools = [FunctionTool(search(name), description=f"Does {name}.") for name in ("look", "deploy")]
    session = Session(SharedPrefix(system=HANDBOOK, tools=[dict(tool.schema) for tool in tools]))
    client = PrefixClient(new_client(provider, api="anthropic"), session, role="critic")
    messages = [SystemMessage(content="You are the critic."), UserMessage(content=TASK, source="user")]
    return client, messages, tools[:1]


DEPLOY = (ToolCall("deploy", {"query": "q"}),)


async def test_pieces_of_an_answer_that_is_refused_do_not_reach_the_application(provide, new_client):
    """What it said before it called another's tool is held back until that is known."""
    provider = provide("anthropic", Queue([Reply("Let me deploy.", tool_calls=DEPLOY), "I cannot."]))
    client, messages, tools = _restricted(new_client, provider)
    pieces = [piece async for piece in client.create_stream(messages, tools=tools)]
    assert "".join(piece for piece in pieces if isinstance(piece, str)) == "I cannot."
    assert [piece.content for piece in pieces if isinstance(piece, CreateResult)] == ["I cannot."]
    assert len(provider.requests) == 2


async def test_a_long_answer_is_not_held_back_to_its_end(provide, new_client):
    """From then on it is the answer, whatever it calls at its end: text and pieces are the same."""
    said = "This is what I think of it, at length. " * 30
    provider = provide("anthropic", Queue([Reply(said, tool_calls=DEPLOY)]))
    client, messages, tools = _restricted(new_client, provider)
    pieces = [piece async for piece in client.create_stream(messages, tools=tools)]
    texts, result = pieces[:-1], pieces[-1]
    assert len(texts) > 3
    assert "".join(texts) == result.content == said
    assert (result.finish_reason, result.thought) == ("stop", None)
    assert len(provider.requests) == 1


async def test_pieces_come_at_once_where_the_provider_keeps_the_role_to_its_tools(provide, new_client):
    """OpenAI is told by ``tool_choice``, so nothing is held back."""
    provider = provide("openai", Queue([Reply("Short, but at once.")]))
    tools = [FunctionTool(search(name), description=f"Does {name}.") for name in ("look", "deploy")]
    session = Session(SharedPrefix(system=HANDBOOK, tools=[dict(tool.schema) for tool in tools]))
    client = PrefixClient(new_client(provider), session, role="critic")
    messages = [SystemMessage(content="You are the critic."), UserMessage(content=TASK, source="user")]
    stream = client.create_stream(messages, tools=tools[:1])
    first = await stream.__anext__()
    assert isinstance(first, str)
    assert provider.requests[0].json["tool_choice"]["type"] == "allowed_tools"
    await stream.aclose()


async def test_observed_a_context_is_asked_as_often_as_without_us(provide, new_client):
    """An application's context may count, or do something at each question."""

    class Counting(UnboundedChatCompletionContext):
        asked = 0

        async def get_messages(self):
            Counting.asked += 1
            return await super().get_messages()

    seen = []
    for mode in (None, "observe"):
        Counting.asked = 0
        client = new_client(provide("openai", Says()))
        agent = AssistantAgent("planner", client, system_message="You are the planner.", model_context=Counting())
        if mode is not None:
            wrap(agent, Session(mode=mode))
        await agent.run(task=TASK)
        seen.append(Counting.asked)
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ({"volatile": {"now": "ten"}}, "volatile is called for each request and gives texts by name, found dict"),
        ({"volatile_role": "tool"}, "volatile_role is one of 'user', 'system', 'developer', found 'tool'"),
        ({"scope": 7}, "scope is a text, found int"),
    ],
)
def test_what_no_request_could_be_given_is_refused_before_anything_is_wrapped(provide, new_client, option, named):
    """A dict in place of what gives one, and roles that no provider has."""
    agent = role("planner", new_client(provide("openai")))
    with pytest.raises(SetupError, match=re.escape(named)):
        wrap(agent, Session(), **option)
    assert session_of(agent) is None
    assert unwrap("not an agent") == "not an agent"


async def test_an_agent_alone_follows_the_leader_of_another_process(provide, new_client):
    """Two sessions that have only the gate's store in common, as processes do: one writes, the other reads.

    An agent that is alone keeps its own layout, which OpenAI keeps unmarked.
    """
    provider, store = provide("openai"), MemoryStore()
    provider.simulator.latency = Latency(base=0.5, uncached=0, cached=0, output=0, scale=1)
    made = [Session(gate=Gate(60.0, price=0.0, store=store)) for _ in range(2)]
    agents = [wrap(role("planner", new_client(provider, fresh=True)), one) for one in made]
    await asyncio.gather(*(agent.run(task=TASK) for agent in agents))
    assert [[call.layout for call in one.calls] for one in made] == [["own"]] * 2
    assert sorted(record.outcome.read_tokens > 1_000 for record in provider.requests) == [False, True]


async def test_both_sessions_say_where_an_agents_prefix_client_was_of_another_one(provide, new_client, caplog):
    """Its requests are in the report of the session that the team is wrapped with."""
    provider, before, session = provide("openai", Says()), Session(), Session()
    agents = [role(ROLES[0], PrefixClient(new_client(provider), before)), role(ROLES[1], new_client(provider))]
    await wrap(RoundRobinGroupChat(agents, max_turns=2), session).run(task=TASK)
    assert (len(session.calls), len(before.calls)) == (2, 0)
    assert f"agent '{ROLES[0]}' has a PrefixClient of another session than it is wrapped with" in caplog.text
    assert "its requests are in no report of this one" in str(before.report())
    caplog.clear()
    same = role(ROLES[2], PrefixClient(new_client(provider), session))
    wrap(same, session)
    assert "another session" not in caplog.text
