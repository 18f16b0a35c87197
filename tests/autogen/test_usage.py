"""The cached tokens that AutoGen drops."""

from __future__ import annotations

import asyncio

import pytest
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import CreateResult, ModelInfo, RequestUsage, UserMessage
from autogen_ext.models.replay import ReplayChatCompletionClient
from autogen_teams import ROLES, TASK, Says, role, search
from pydantic import BaseModel

from cacheprefix import Session, SharedPrefix
from cacheprefix.profiles import normalise_usage
from cacheprefix.server import ToolCall
from cacheprefix_autogen import CachedUsage, PrefixClient, session_of, wrap

STEPS = {name: (ToolCall("search", {"query": name}), f"{name} is done") for name in ROLES}


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize("stream", [False, True])
async def test_usage_of_every_call_equals_the_servers(provide, new_client, api, stream):
    """Input, reads and writes of every call are what the provider reported, streaming or not."""
    provider = provide(api, Says(STEPS))
    team = RoundRobinGroupChat(
        [
            role(
                n,
                new_client(provider, api=api),
                tools=[search()],
                reflect_on_tool_use=True,
                model_client_stream=stream,
            )
            for n in ROLES
        ],
        max_turns=4,
    )
    result = await wrap(team).run(task=TASK)
    reported = [normalise_usage(record.usage, record.api) for record in provider.requests]
    seen = [call.usage for call in session_of(team).calls]
    assert [(u.input_tokens, u.cache_read_tokens, u.cache_write_tokens) for u in seen] == [
        (u.input_tokens, u.cache_read_tokens, u.cache_write_tokens) for u in reported
    ]
    assert sum(usage.cache_read_tokens or 0 for usage in seen) > 0
    shown = [message.models_usage for message in result.messages if message.models_usage is not None]
    # AutoGen does not ask OpenAI for the usage of a stream, and what it does not ask for it does not see.
    seen = [0 if stream and api == "openai" else usage.input_tokens for usage in reported]
    assert [(type(usage), usage.prompt_tokens) for usage in shown] == [(RequestUsage, one) for one in seen]


async def test_the_clients_totals_hold_the_whole_input(provide, new_client):
    """On Anthropic AutoGen counts neither what was read nor what was written; the wrapper adds it."""
    provider = provide("anthropic", Says())
    client = PrefixClient(new_client(provider, api="anthropic"), Session(SharedPrefix(system="Rules. " * 1500)))
    for _ in range(2):
        result = await client.create([UserMessage(content=TASK, source="user")])
    whole = sum(normalise_usage(record.usage, record.api).input_tokens for record in provider.requests)
    assert client.total_usage().prompt_tokens == whole
    assert type(result.usage) is RequestUsage
    assert result.usage.prompt_tokens == client.last_usage.prompt_tokens
    assert isinstance(client.last_usage, CachedUsage)
    assert client.last_usage.cache_read_tokens > 0


# AutoGen dumps the SDK's parsed answer, which the SDK's own types do not foresee.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_structured_output_is_accounted_for_on_the_sdks_own_parsing_path(provide, new_client):
    """A response schema goes through another method of the SDK, and passes the same tap."""

    class Answer(BaseModel):
        verdict: str

    provider = provide("openai")
    client = PrefixClient(new_client(provider), Session())
    await client.create([UserMessage(content=TASK, source="user")], json_output=Answer)
    pieces = [p async for p in client.create_stream([UserMessage(content=TASK, source="user")], json_output=Answer)]
    assert [record.json["response_format"]["type"] for record in provider.requests] == ["json_schema"] * 2
    assert len(client.session.calls) == 2
    sent = normalise_usage(provider.requests[1].usage, "openai-chat")
    assert client.session.calls[-1].usage.input_tokens == sent.input_tokens
    assert isinstance(pieces[-1].content, str)


async def test_two_agents_on_one_client_at_once_are_told_apart(provide, new_client):
    """Concurrent calls through one client are each booked on their own agent."""
    provider = provide("openai", Says())
    client = new_client(provider)
    session = Session(SharedPrefix(system="Rules. " * 1500))
    agents = [wrap(role(name, client), session) for name in ROLES]
    await asyncio.gather(*(agent.run(task=f"{TASK} {agent.name}") for agent in agents for _ in range(1)))
    calls = {call.agent: call.usage.input_tokens for call in session.calls}
    told = {
        prompt.sections[-1].text.split('"')[1]: normalise_usage(record.usage, record.api).input_tokens
        for record in provider.requests
        for prompt in [record.prompt]
    }
    assert calls == told


async def test_a_failed_call_leaves_no_trace(provide, new_client):
    """A refused request is not counted, and the error reaches the application."""
    from cacheprefix.server import Fault, Queue, Reply

    provider = provide("openai", Queue([Reply(fault=Fault(status=400, message="no"))]))
    client = PrefixClient(new_client(provider), Session())
    with pytest.raises(Exception, match="no"):
        await client.create([UserMessage(content=TASK, source="user")])
    assert client.session.calls == ()


async def test_a_client_without_an_sdk_is_observed_as_far_as_it_tells():
    """A replayed conversation is reported as one whose provider says nothing about its cache."""
    from autogen_ext.models.replay import ReplayChatCompletionClient

    client = PrefixClient(ReplayChatCompletionClient(["one", "two"]), Session())
    await client.create([UserMessage(content=TASK, source="user")])
    assert [call.usage.cache_read_tokens for call in client.session.calls] == [None]
    assert client.session.failures == {}


async def test_a_failed_call_of_a_client_without_an_sdk_leaves_no_trace_either():
    """A replay that has run out is not counted as a call."""
    from autogen_ext.models.replay import ReplayChatCompletionClient

    client = PrefixClient(ReplayChatCompletionClient([]), Session())
    with pytest.raises(ValueError, match="No more mock responses"):
        await client.create([UserMessage(content=TASK, source="user")])
    assert client.session.calls == ()


async def test_a_client_of_ones_own_class_says_what_it_sent_and_nobody_says_what_was_read():
    """Its count is taken as it is; what a cache did is reported as unknown."""
    usage = [RequestUsage(prompt_tokens=n, completion_tokens=7) for n in (1_234, 2_345)]
    answers = [CreateResult(finish_reason="stop", content="Yes.", usage=one, cached=False) for one in usage]
    info = ModelInfo(vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False)
    session = Session(SharedPrefix(system="The handbook."))
    client = PrefixClient(ReplayChatCompletionClient(answers, model_info=info), session, role="critic")
    for _ in usage:
        await client.create([UserMessage(content=TASK, source="user")])
    assert [call.usage.input_tokens for call in session.calls] == [1_234, 2_345]
    assert [call.usage.output_tokens for call in session.calls] == [7, 7]
    assert [call.usage.cache_read_tokens for call in session.calls] == [None, None]


async def test_forks_of_a_client_of_ones_own_class_are_held_against_its_own_requests():
    """By what is foreseen of both: no role's first request unmodified would have read what another role has written.

    Rules and reads are nobody's word there, so the report, which people read, says neither a cost nor a ratio.
    """
    handbook = "Every claim names its source and the page on which it stands. " * 150
    client, session = ReplayChatCompletionClient(["Yes. " * 40] * 6), Session()
    agents = [role(name, client, system_message=f"You are the {name}.\n\n{handbook}") for name in ("planner", "critic")]
    await wrap(RoundRobinGroupChat(agents, max_turns=4), session).run(task=TASK)
    asked = [call for call in session.calls if call.agent == "critic"]
    assert sum(call.unmodified_units for call in asked) > 1.1 * sum(call.units for call in asked)
    assert {(line.unmodified_units, line.ratio) for line in session.report().lines} == {(None, None)}
