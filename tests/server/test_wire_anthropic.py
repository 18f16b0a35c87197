"""Anthropic's wire form, read by the real SDK over HTTP."""

from __future__ import annotations

import anthropic
import pytest
from pydantic import BaseModel

from cacheprefix.server import Queue, Reply, Rule, Rules, ToolCall

MODEL = "claude-sonnet-4-6"
MARK = {"type": "ephemeral"}
SYSTEM = [{"type": "text", "text": "handbook " * 700, "cache_control": MARK}]
ASK = [{"role": "user", "content": "Please look."}]
TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}
OTHER = {"name": "other", "input_schema": {"type": "object", "properties": {}}}
CALLS = Reply(
    "I look twice.", (ToolCall("look", {"path": "a"}), ToolCall("look", {"path": "b"})), thinking="Hm, twice."
)
SCRIPT = Rules([Rule("look", CALLS, round=0), Rule("", Reply("Done."))])


class Finding(BaseModel):
    file: str
    line: int


def test_usage_keeps_read_written_and_uncached_apart(serve, anthropic_client):
    """Total input = input_tokens + cache_read_input_tokens + cache_creation_input_tokens (the documentation)."""
    provider = serve("anthropic")
    client = anthropic_client(provider)
    first, second = (
        client.messages.create(model=MODEL, max_tokens=50, system=SYSTEM, messages=ASK).usage for _ in range(2)
    )
    shared = provider.requests[0].prompt.sections[0].tokens
    tail = provider.requests[0].prompt.tokens - shared
    assert (first.cache_creation_input_tokens, first.cache_read_input_tokens, first.input_tokens) == (shared, 0, tail)
    assert (second.cache_creation_input_tokens, second.cache_read_input_tokens, second.input_tokens) == (
        0,
        shared,
        tail,
    )
    assert first.cache_creation.ephemeral_5m_input_tokens == shared
    assert first.cache_creation.ephemeral_1h_input_tokens == 0


def test_an_hours_writes_are_reported_apart(serve, anthropic_client):
    """``cache_creation.ephemeral_1h_input_tokens``; the sum equals cache_creation_input_tokens."""
    client = anthropic_client(serve("anthropic"))
    system = [{**SYSTEM[0], "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    usage = client.messages.create(model=MODEL, max_tokens=50, system=system, messages=ASK).usage
    assert usage.cache_creation.ephemeral_1h_input_tokens == usage.cache_creation_input_tokens > 0


def test_thinking_text_and_parallel_calls_come_whole_and_streamed_alike(serve, anthropic_client):
    """Blocks in order, arguments as objects, stop_reason tool_use; usage in message_start and message_delta."""
    whole = anthropic_client(serve("anthropic", SCRIPT)).messages.create(
        model=MODEL, max_tokens=500, system=SYSTEM, messages=ASK, tools=[TOOL]
    )
    with anthropic_client(serve("anthropic", SCRIPT)).messages.stream(
        model=MODEL, max_tokens=500, system=SYSTEM, messages=ASK, tools=[TOOL]
    ) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_message()
    for answer in (whole, streamed):
        assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert (answer.content[0].thinking, answer.content[1].text) == ("Hm, twice.", "I look twice.")
        assert answer.content[0].signature
        assert [block.input for block in answer.content[2:]] == [{"path": "a"}, {"path": "b"}]
        assert answer.stop_reason == "tool_use"
    assert [block.id for block in whole.content[2:]] == [block.id for block in streamed.content[2:]]
    for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"):
        assert getattr(whole.usage, name) == getattr(streamed.usage, name)
    assert streamed.usage.cache_creation_input_tokens > 0


def test_the_stream_gives_output_tokens_in_its_last_delta(serve, anthropic_client):
    """message_start says 1, message_delta the whole (the documentation on streaming)."""
    client = anthropic_client(serve("anthropic", Queue(["words " * 30])))
    events = list(client.messages.create(model=MODEL, max_tokens=500, messages=ASK, stream=True))
    assert events[0].message.usage.output_tokens == 1
    delta = next(event for event in events if event.type == "message_delta")
    assert delta.usage.output_tokens == 45
    assert delta.delta.stop_reason == "end_turn"


def test_structured_output_is_parsed(serve, anthropic_client):
    """``output_config.format`` json_schema (anthropic 2.11.0)."""
    client = anthropic_client(serve("anthropic"))
    answer = client.messages.parse(model=MODEL, max_tokens=500, messages=ASK, output_format=Finding)
    assert isinstance(answer.parsed_output, Finding)


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ({"type": "none"}, []),
        ({"type": "auto"}, ["look", "look"]),
        ({"type": "auto", "disable_parallel_tool_use": True}, ["look"]),
        ({"type": "tool", "name": "other"}, ["other"]),
    ],
    ids=["none", "auto", "not parallel", "one tool"],
)
def test_the_tool_choice_is_obeyed(serve, anthropic_client, choice, called):
    """Whatever the script wants, a call that the request forbids is not made."""
    client = anthropic_client(serve("anthropic", SCRIPT))
    answer = client.messages.create(model=MODEL, max_tokens=500, messages=ASK, tools=[TOOL, OTHER], tool_choice=choice)
    assert [block.name for block in answer.content if block.type == "tool_use"] == called


def test_zero_tokens_warm_the_cache(serve, anthropic_client):
    """max_tokens 0: an empty content array, stop_reason max_tokens, a write, no output billed."""
    provider = serve("anthropic")
    client = anthropic_client(provider)
    warm = client.messages.create(
        model=MODEL, max_tokens=0, system=SYSTEM, messages=[{"role": "user", "content": "warmup"}]
    )
    assert (warm.content, warm.stop_reason, warm.usage.output_tokens) == ([], "max_tokens", 0)
    assert warm.usage.cache_creation_input_tokens > 0
    real = client.messages.create(model=MODEL, max_tokens=50, system=SYSTEM, messages=ASK)
    assert real.usage.cache_read_input_tokens == warm.usage.cache_creation_input_tokens


@pytest.mark.parametrize(
    "against",
    [
        {"stream": True},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
        {"tool_choice": {"type": "any"}, "tools": [TOOL]},
    ],
    ids=["stream", "thinking", "format", "tool choice"],
)
def test_warming_is_refused_with_what_implies_output(serve, anthropic_client, against):
    """A max_tokens 0 request is rejected if any of these are set (the documentation, "Limitations")."""
    client = anthropic_client(serve("anthropic"))
    with pytest.raises(anthropic.BadRequestError, match="max_tokens 0"):
        client.messages.create(model=MODEL, max_tokens=0, messages=ASK, **against)


def test_too_many_breakpoints_are_a_400(serve, anthropic_client):
    """The engine's refusal reaches the client as the provider's error."""
    provider = serve("anthropic")
    content = [{"type": "text", "text": f"{n}" + "words " * 300, "cache_control": MARK} for n in range(5)]
    with pytest.raises(anthropic.BadRequestError, match="maximum of 4") as caught:
        anthropic_client(provider).messages.create(
            model=MODEL, max_tokens=50, messages=[{"role": "user", "content": content}]
        )
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert provider.requests[0].status == 400


def test_tokens_are_counted_without_a_request(serve, anthropic_client):
    """``/v1/messages/count_tokens`` leaves neither a record nor an entry."""
    provider = serve("anthropic")
    client = anthropic_client(provider)
    counted = client.messages.count_tokens(model=MODEL, system=SYSTEM, messages=ASK)
    client.messages.create(model=MODEL, max_tokens=50, system=SYSTEM, messages=ASK)
    assert counted.input_tokens == provider.requests[0].prompt.tokens
    assert len(provider.requests) == 1
    assert provider.requests[0].outcome.read_tokens == 0


def test_the_minimum_is_the_models_own(serve, anthropic_client):
    """One server, two models: 4,096 tokens for claude-haiku-4-5, 1,024 for claude-sonnet-4-6."""
    client = anthropic_client(serve("anthropic"))
    written = {
        model: client.messages.create(model=model, max_tokens=9, system=SYSTEM, messages=ASK).usage
        for model in ("claude-haiku-4-5", MODEL)
    }
    assert written["claude-haiku-4-5"].cache_creation_input_tokens == 0
    assert written[MODEL].cache_creation_input_tokens > 0


def test_beta_headers_separate_caches(serve, anthropic_client):
    """``anthropic-beta`` is a lane of its own in the row; other headers are not recorded."""
    provider = serve("anthropic")
    client = anthropic_client(provider)
    for headers in ({}, {"anthropic-beta": "context-1m", "x-secret": "s"}):
        client.messages.create(model=MODEL, max_tokens=9, system=SYSTEM, messages=ASK, extra_headers=headers)
    assert provider.requests[1].headers == {"anthropic-beta": "context-1m"}
    assert provider.requests[1].outcome.read_tokens == 0


async def test_the_async_client_streams(serve):
    """Asynchronous and streaming, the fourth way to call."""
    provider = serve("anthropic", SCRIPT)
    async with anthropic.AsyncAnthropic(base_url=provider.anthropic_base_url, api_key="k", max_retries=0) as client:
        async with client.messages.stream(model=MODEL, max_tokens=500, messages=ASK, tools=[TOOL]) as stream:
            text = "".join([piece async for piece in stream.text_stream])
        answer = await client.messages.create(model=MODEL, max_tokens=500, messages=ASK, tools=[TOOL])
    assert text == "I look twice."
    assert answer.stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"messages": [*ASK, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]}, None),
        ({"model": "claude-opus-5"}, "model_changed"),
        ({"tools": [OTHER]}, "tools_changed"),
        ({"system": "other"}, "system_changed"),
        ({"messages": [{"role": "user", "content": "Please don't."}]}, "messages_changed"),
        ({"tool_choice": {"type": "none"}}, "unavailable"),
    ],
)
def test_the_provider_explains_a_miss_where_it_is_asked_to(serve, anthropic_client, change, reason):
    """``diagnostics.cache_miss_reason`` against the message named (anthropic 2.11.0, types/diagnostics.py)."""
    client = anthropic_client(serve("anthropic"))
    request = {"model": MODEL, "max_tokens": 9, "system": SYSTEM, "tools": [TOOL], "messages": ASK}
    first = client.messages.create(**request, diagnostics={"previous_message_id": None})
    assert first.diagnostics is None
    second = client.messages.create(**{**request, **change}, diagnostics={"previous_message_id": first.id})
    found = second.diagnostics and second.diagnostics.cache_miss_reason.type
    assert found == reason


def test_an_unknown_message_cannot_be_compared_with(serve, anthropic_client):
    """previous_message_not_found."""
    client = anthropic_client(serve("anthropic"))
    answer = client.messages.create(
        model=MODEL, max_tokens=9, messages=ASK, diagnostics={"previous_message_id": "msg_none"}
    )
    assert answer.diagnostics.cache_miss_reason.type == "previous_message_not_found"


def test_a_message_thread_is_gone_on_with_and_gives_its_system_text_once(serve, anthropic_client):
    """A request that continues one is read behind all that was said in it; the thread's own is refused there."""
    provider = serve("anthropic")
    client = anthropic_client(provider)

    def ask(thread, **options):
        body = {"thread": thread}
        return client.messages.create(model=MODEL, max_tokens=50, messages=ASK, extra_body=body, **options)

    first = ask({"type": "create"}, system=SYSTEM)
    on = {"type": "continue", "previous_message_id": first.id}
    ask(on)
    began, went_on = (record.prompt.sections for record in provider.requests)
    assert [one.digest for one in went_on[: len(began)]] == [one.digest for one in began]
    for wrong in ({**on, "previous_message_id": "msg_none"}, on):
        with pytest.raises(anthropic.BadRequestError):
            ask(wrong, **({"system": SYSTEM} if wrong is on else {}))
