"""A client that stands by itself, as a core agent uses it: what a conversation with a tool loop costs, turn by turn."""

import copy
import json
from itertools import pairwise

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    SystemMessage,
    UserMessage,
)
from autogen_core.tools import FunctionTool
from autogen_ext.models.anthropic import AnthropicChatCompletionClient
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel

from cacheprefix import Session, SharedPrefix
from cacheprefix.errors import SetupError
from cacheprefix.server import Reply, SimulatedProvider, ToolCall
from cacheprefix_autogen import PrefixClient, unwrap, wrap

HANDBOOK = "\n".join(f"Rule {n}: a claim about part {n} names the file and the line." for n in range(1, 100))
INFO = {"vision": False, "function_calling": True, "json_output": True, "family": "unknown", "structured_output": True}


def _ledger(question: str) -> str:
    """Read the ledger."""
    return f"{question}: " + "entry 1234 " * 300


LEDGER = FunctionTool(_ledger, description="Read the ledger.", name="ledger")


def _script(request):
    """Calls the tool, and answers behind its result."""
    if request.index % 2 == 0:
        return Reply("", tool_calls=(ToolCall("ledger", {"question": f"q{request.index}"}, f"c{request.index}"),))
    return Reply(f"Answer {request.index}. " + "said " * 80)


def _native(provider, kind):
    if kind == "anthropic":
        return AnthropicChatCompletionClient(
            model="claude-sonnet-4-5", base_url=provider.anthropic_base_url, api_key="k", model_info=INFO
        )
    model = {"openai": "gpt-4.1-2025-04-14", "openai-5.6": "gpt-5.6"}[kind]
    return OpenAIChatCompletionClient(model=model, base_url=provider.openai_base_url, api_key="k", model_info=INFO)


async def _turn(client, name, said):
    """One turn of an agent that keeps its own messages ``said``, and runs what the model calls."""
    while True:
        asked = [SystemMessage(content=f"You are the {name}.\n\n{HANDBOOK}"), *said]
        answer = await client.create(asked, tools=[LEDGER])
        said.append(AssistantMessage(content=answer.content, source=name))
        if isinstance(answer.content, str):
            return answer.content
        done = [
            FunctionExecutionResult(call_id=one.id, name=one.name, content=_ledger(one.id), is_error=False)
            for one in answer.content
        ]
        said.append(FunctionExecutionResultMessage(content=done))


async def _played(kind, names, conversations, *, wrapped):
    """The requests of core agents that speak in turns, and what the simulator says that these cost."""
    with SimulatedProvider(kind, _script, keep=1_000) as provider:
        native = _native(provider, kind)
        session = Session(SharedPrefix(system=HANDBOOK), gate=None)
        clients = {name: PrefixClient(native, session, role=name) if wrapped else native for name in names}
        said = {(talk, name): [] for talk in range(conversations) for name in names}
        for turn in range(8):
            for talk in range(conversations):
                for name in names:
                    said[talk, name].append(UserMessage(content=f"Question {turn} of {talk}.", source="user"))
                for name in names:
                    answer = await _turn(clients[name], name, said[talk, name])
                    for other in set(names) - {name}:
                        said[talk, other].append(UserMessage(content=answer, source=name))
        await native.close()
        rules = provider.simulator.profile_for
        cost = sum(one.outcome.cost_units(rules(one.model, one.api)) for one in provider.requests)
        return [json.loads(one.body) for one in provider.requests], cost


@pytest.mark.parametrize("kind", ["openai", "openai-5.6", "anthropic"])
@pytest.mark.parametrize(("names", "conversations"), [(("analyst",), 1), (("analyst",), 2), (("analyst", "critic"), 1)])
async def test_a_tool_loop_by_itself_is_not_dearer_than_without_us(kind, names, conversations):
    """Invariant 6, at three providers: one role, one that serves two conversations, and two that hear each other."""
    _, own = await _played(kind, names, conversations, wrapped=False)
    _, forked = await _played(kind, names, conversations, wrapped=True)
    assert forked <= own * 1.01


async def test_its_requests_only_grow_at_their_end_and_hold_its_calls_as_calls():
    """What was sent is never moved: no earlier round becomes text behind what was said."""
    bodies, _ = await _played("openai", ("analyst",), 1, wrapped=True)
    for before, after in pairwise(bodies):
        assert after["messages"][: len(before["messages"])] == before["messages"]
    calls = [one for one in bodies[-1]["messages"] if one.get("tool_calls")]
    assert len(calls) == 8


async def test_agents_that_hear_each_other_are_in_one_conversation_although_each_has_its_own_answers_as_such(provide):
    """What one said is the assistant's to itself, and the user's to the other: nobody's text moves in front of it."""
    provider = provide("anthropic", lambda request: f"Answer {request.index}. " + "said " * 20)
    native, session = _native(provider, "anthropic"), Session(SharedPrefix(system=HANDBOOK))
    names = "writer", "critic"
    clients = {name: PrefixClient(native, session, role=name) for name in names}
    history = []
    for turn in range(3):
        history.append(UserMessage(content=f"Question {turn}.", source="user"))
        for name in names:
            own = [
                AssistantMessage(content=one.content, source=name) if one.source == name else one for one in history
            ]
            duty = f"You are the {name}. " + f"The {name} looks at each part. " * 120
            answer = await clients[name].create([SystemMessage(content=f"{duty}\n\n{HANDBOOK}"), *own])
            history.append(UserMessage(content=answer.content, source=name))
    await native.close()
    assert len({call.conversation for call in session.calls}) == 1


class Verdict(BaseModel):
    """What the last request of a loop asks for."""

    ok: bool


# AutoGen's own, of what OpenAI's SDK parsed.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("streams", [False, True], ids=["create", "create_stream"])
@pytest.mark.parametrize("strict", [False, True])
async def test_a_structured_answer_behind_a_tool_loop_has_the_tools_back_only_where_they_may_stand(strict, streams):
    """OpenAI's SDK parses an answer that follows a class, and refuses tools beside it that are not strict."""

    def script(request):
        return Reply('{"ok": true}') if request.asked.schema is not None else _script(request)

    tool = FunctionTool(_ledger, description="Read the ledger.", name="ledger", strict=strict)
    with SimulatedProvider("openai", script, keep=100) as provider:
        native = _native(provider, "openai")
        client = PrefixClient(native, Session(SharedPrefix(system=HANDBOOK)), role="analyst")
        asked = [
            SystemMessage(content=f"You are the analyst.\n\n{HANDBOOK}"),
            UserMessage(content="Go.", source="user"),
        ]
        calls = (await client.create(asked, tools=[tool])).content
        done = [FunctionExecutionResult(content="1", name=one.name, call_id=one.id, is_error=False) for one in calls]
        asked += [AssistantMessage(content=calls, source="a"), FunctionExecutionResultMessage(content=done)]
        if streams:
            *_, answer = [one async for one in client.create_stream(asked, json_output=Verdict)]
        else:
            answer = await client.create(asked, json_output=Verdict)
        await native.close()
    assert Verdict.model_validate_json(answer.content).ok
    assert bool(json.loads(provider.requests[-1].body).get("tools")) == strict


async def test_what_is_no_plain_model_client_is_refused(provide, new_client):
    """A client laid out twice, an SDK's client, and an option of a wrong kind: each error says what to do."""
    client, session = new_client(provide("openai")), Session()
    made = PrefixClient(client, session)
    with pytest.raises(SetupError, match=r"PrefixClient already; use it as it is"):
        PrefixClient(made, session)
    with pytest.raises(SetupError, match="found AsyncOpenAI; give the ChatCompletionClient"):
        PrefixClient(client._client, session)
    with pytest.raises(SetupError, match="copy is True or False, found 'yes'"):
        wrap(AssistantAgent("one", client), session, copy="yes")
    agent = AssistantAgent("two", made)
    wrap(agent, session)
    assert agent._model_client.client is client
    assert unwrap(agent)._model_client is made
    assert copy.deepcopy(made).client is not made.client


@pytest.mark.parametrize("copied", [None, copy.copy, copy.deepcopy])
async def test_a_wrapped_client_is_its_users(copied):
    """Also a copy of it: each user's scope and volatile text are in force, and stand in nobody else's requests."""
    session, users = Session(SharedPrefix(system=HANDBOOK)), ("alice", "bob")
    with SimulatedProvider("openai") as provider:
        native = _native(provider, "openai")
        for user in users:
            told = {"me": f"I am {user}-secret."}
            client = wrap(native, session, scope=user, volatile=lambda told=told: told)
            client = client if copied is None else copied(client)
            assert client.dump_component().config["prefix"]["scope"] == user
            await client.create([SystemMessage(content=HANDBOOK), UserMessage(content="Begin.", source="user")])
    said = [[user for user in users if f"{user}-secret".encode() in one.body] for one in provider.requests]
    assert said == [["alice"], ["bob"]]
