"""OpenAI's wire forms, read by the real SDK over HTTP."""

from __future__ import annotations

import asyncio

import openai
import pytest
from pydantic import BaseModel

from cacheprefix.server import Latency, Queue, Reply, Rule, Rules, SimulatedProvider, ToolCall

MODEL = "gpt-5"
LONG = {"role": "system", "content": "handbook " * 700}
ASK = {"role": "user", "content": "Please look."}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks at a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
OTHER = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}
FLAT = {"type": "function", "name": "look", "parameters": TOOL["function"]["parameters"]}
CALLS = Reply("I look twice.", (ToolCall("look", {"path": "a"}), ToolCall("look", {"path": "b"})))
SCRIPT = Rules([Rule("look", CALLS, round=0), Rule("", Reply("Done."))])


class Finding(BaseModel):
    file: str
    line: int
    notes: list[str]


def test_a_chat_answer_has_the_scripts_text_and_usage(serve, openai_client):
    """``prompt_tokens`` includes what was read (openai SDK, CompletionUsage)."""
    provider = serve("exact", Queue(["First.", "Second."]))
    client = openai_client(provider)
    answers = [client.chat.completions.create(model=MODEL, messages=[LONG, ASK]) for _ in range(2)]
    assert [one.choices[0].message.content for one in answers] == ["First.", "Second."]
    assert answers[0].choices[0].finish_reason == "stop"
    first, second = (one.usage for one in answers)
    assert first.prompt_tokens == second.prompt_tokens == provider.requests[0].prompt.tokens
    assert first.prompt_tokens_details.cached_tokens == 0
    assert second.prompt_tokens_details.cached_tokens == second.prompt_tokens
    assert second.total_tokens == second.prompt_tokens + second.completion_tokens


def test_parallel_tool_calls_come_whole_and_streamed_alike(serve, openai_client):
    """Ids differ between calls and are the same for the same prompt at a fresh server."""
    client = openai_client(serve("exact", SCRIPT))
    whole = client.chat.completions.create(model=MODEL, messages=[ASK], tools=[TOOL]).choices[0]
    again = openai_client(serve("exact", SCRIPT))
    with again.chat.completions.stream(model=MODEL, messages=[ASK], tools=[TOOL]) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0]
    for choice in (whole, streamed):
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I look twice."
        assert [call.function.arguments for call in choice.message.tool_calls] == ['{"path":"a"}', '{"path":"b"}']
    ids = [call.id for call in whole.message.tool_calls]
    assert len(set(ids)) == 2
    assert ids == [call.id for call in streamed.message.tool_calls]


def test_the_same_prompt_sent_twice_gets_other_ids(serve, openai_client):
    """Frameworks merge messages by id, so two answers never share one."""
    client = openai_client(serve("exact", SCRIPT))
    two = [client.chat.completions.create(model=MODEL, messages=[ASK], tools=[TOOL]) for _ in range(2)]
    assert two[0].id != two[1].id
    assert two[0].choices[0].message.tool_calls[0].id != two[1].choices[0].message.tool_calls[0].id


def test_a_tool_loop_reads_its_own_history(serve, openai_client):
    """The assistant's calls and the results come back as input, append only."""
    provider = serve("exact", SCRIPT)
    client = openai_client(provider)
    messages = [LONG, ASK]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL]).choices[0].message
    messages.append(answer.model_dump(exclude_none=True))
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "text"} for call in answer.tool_calls]
    last = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
    assert last.choices[0].message.content == "Done."
    assert last.usage.prompt_tokens_details.cached_tokens == provider.requests[0].prompt.tokens


@pytest.mark.parametrize("wanted", [True, False])
def test_a_stream_ends_with_usage_only_where_it_is_asked_for(serve, openai_client, wanted):
    """``stream_options.include_usage`` (openai SDK, ChatCompletionStreamOptionsParam)."""
    client = openai_client(serve("exact", Queue(["A few words to stream in several pieces."])))
    options = {"stream_options": {"include_usage": True}} if wanted else {}
    chunks = list(client.chat.completions.create(model=MODEL, messages=[ASK], stream=True, **options))
    usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert len(usages) == int(wanted)
    assert (chunks[-1].choices == []) is wanted
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "A few words to stream in several pieces."


def test_structured_output_follows_the_schema(serve, openai_client):
    """``response_format`` json_schema: the answer is valid JSON for it, the same every time."""
    client = openai_client(serve("exact"))
    two = [
        client.chat.completions.parse(model=MODEL, messages=[ASK], response_format=Finding).choices[0].message
        for _ in range(2)
    ]
    assert isinstance(two[0].parsed, Finding)
    assert two[0].content == two[1].content


def test_a_script_may_give_the_structured_output_itself(serve, openai_client):
    """Text that is JSON already stays as the script wrote it."""
    client = openai_client(serve("exact", Queue(['{"file": "a.py", "line": 3, "notes": []}'])))
    parsed = (
        client.chat.completions.parse(model=MODEL, messages=[ASK], response_format=Finding).choices[0].message.parsed
    )
    assert parsed == Finding(file="a.py", line=3, notes=[])


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ("none", []),
        ("auto", ["look", "look"]),
        ({"type": "function", "function": {"name": "other"}}, ["other"]),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "name": "other"}]},
            },
            [],
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "name": "other"}]},
            },
            ["other"],
        ),
    ],
    ids=["none", "auto", "one tool", "allowed", "allowed and required"],
)
def test_the_tool_choice_is_obeyed(serve, openai_client, choice, called):
    """Whatever the script wants, a call that the request forbids is not made."""
    client = openai_client(serve("exact", SCRIPT))
    answer = client.chat.completions.create(model=MODEL, messages=[ASK], tools=[TOOL, OTHER], tool_choice=choice)
    assert [call.function.name for call in answer.choices[0].message.tool_calls or []] == called


def test_without_parallel_tool_calls_one_is_made(serve, openai_client):
    """``parallel_tool_calls: false``."""
    client = openai_client(serve("exact", SCRIPT))
    answer = client.chat.completions.create(model=MODEL, messages=[ASK], tools=[TOOL], parallel_tool_calls=False)
    assert len(answer.choices[0].message.tool_calls) == 1


def test_an_answer_longer_than_asked_for_is_cut(serve, openai_client):
    """``max_completion_tokens``: finish_reason is length."""
    client = openai_client(serve("exact", Queue(["words " * 100])))
    answer = client.chat.completions.create(model=MODEL, messages=[ASK], max_completion_tokens=10)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 10


def test_a_reply_may_state_its_length(serve, openai_client):
    """For workloads that only care for how much is said."""
    client = openai_client(serve("exact", Queue([Reply("short", output_tokens=700)])))
    assert client.chat.completions.create(model=MODEL, messages=[ASK]).usage.completion_tokens == 700


def test_responses_answers_whole_and_streamed_alike(serve, openai_client):
    """Output items, call ids and usage of ``/v1/responses``."""
    first, second = (openai_client(serve("exact", SCRIPT)) for _ in range(2))
    whole = first.responses.create(model=MODEL, input="Please look.", instructions="Be brief.", tools=[FLAT])
    with second.responses.stream(model=MODEL, input="Please look.", instructions="Be brief.", tools=[FLAT]) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    for answer in (whole, streamed):
        assert answer.output_text == "I look twice."
        assert [item.type for item in answer.output] == ["message", "function_call", "function_call"]
        assert answer.usage.input_tokens_details.cached_tokens == 0
    assert [item.id for item in whole.output] == [item.id for item in streamed.output]


def test_responses_structured_output_is_parsed(serve, openai_client):
    """``text.format`` json_schema."""
    client = openai_client(serve("exact"))
    assert isinstance(client.responses.parse(model=MODEL, input="x", text_format=Finding).output_parsed, Finding)


def test_responses_continue_a_stored_one(serve, openai_client):
    """``previous_response_id`` stands for the stored input and output, so the prefix is the same."""
    provider = serve("exact", Queue(["First.", "Second.", "Third."]))
    client = openai_client(provider)
    first = client.responses.create(model=MODEL, input="handbook " * 500)
    second = client.responses.create(model=MODEL, input="And now?", previous_response_id=first.id)
    assert (first.previous_response_id, second.previous_response_id) == (None, first.id)
    events = list(client.responses.create(model=MODEL, input="And then?", previous_response_id=second.id, stream=True))
    assert {event.response.previous_response_id for event in (events[0], events[-1])} == {second.id}
    assert second.usage.input_tokens_details.cached_tokens == first.usage.input_tokens
    assert [one.text for one in provider.requests[1].prompt.tier("messages")][1:] == ["First.", "And now?"]


def test_an_unknown_previous_response_is_refused(serve, openai_client):
    """As the provider does."""
    client = openai_client(serve("exact"))
    with pytest.raises(openai.BadRequestError, match="not found"):
        client.responses.create(model=MODEL, input="x", previous_response_id="resp_none")


def test_cache_writes_are_reported_from_5_6_on(serve, openai_client):
    """``prompt_tokens_details.cache_write_tokens`` (openai 2.54.0)."""
    client = openai_client(serve("openai-5.6"))
    usage = client.chat.completions.create(model="gpt-5.6", messages=[LONG, ASK]).usage
    assert usage.prompt_tokens_details.cache_write_tokens == usage.prompt_tokens
    old = openai_client(serve("openai")).chat.completions.create(model=MODEL, messages=[LONG, ASK]).usage
    assert not old.prompt_tokens_details.cache_write_tokens


@pytest.mark.parametrize(
    "fields",
    [
        {"extra_body": {"prompt_cache_options": {"mode": "explicit"}}},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}],
                }
            ]
        },
    ],
    ids=["options", "breakpoint"],
)
def test_breakpoints_are_unknown_before_5_6(serve, openai_client, fields):
    """prompt_cache_breakpoint and prompt_cache_options are a 400 before gpt-5.6 (research table, [doc])."""
    client = openai_client(serve("openai"))
    with pytest.raises(openai.BadRequestError, match="Unknown parameter"):
        client.chat.completions.create(**{"model": MODEL, "messages": [ASK], **fields})


def test_deepseeks_own_usage_fields_are_there(serve, openai_client):
    """``prompt_cache_hit_tokens`` and ``prompt_cache_miss_tokens`` beside OpenAI's (row deepseek)."""
    client = openai_client(serve("deepseek"))
    usage = [client.chat.completions.create(model="deepseek-chat", messages=[LONG, ASK]).usage for _ in range(2)][1]
    assert usage.model_extra["prompt_cache_hit_tokens"] == usage.prompt_tokens
    assert usage.model_extra["prompt_cache_miss_tokens"] == 0


def test_ollama_reports_no_cached_tokens(serve, openai_client):
    """Ollama does not report them (row ollama): nothing is there, which is not zero."""
    client = openai_client(serve("ollama"))
    usage = client.chat.completions.create(model="llama3", messages=[LONG, ASK]).usage
    assert usage.prompt_tokens_details.cached_tokens is None


def test_api_keys_do_not_share(serve, openai_client):
    """The scope of a cache is the account behind the key."""
    provider = serve("exact")
    for key in ("one", "two", "one"):
        openai_client(provider, key).chat.completions.create(model=MODEL, messages=[LONG])
    reads = [record.outcome.read_tokens > 0 for record in provider.requests]
    assert reads == [False, False, True]
    assert provider.requests[0].scope != provider.requests[1].scope
    assert "one" not in provider.requests[0].scope


def test_an_unreadable_body_is_a_400_with_the_path(serve, openai_client):
    """``error.param`` names the place."""
    client = openai_client(serve("exact"))
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[ASK, {"role": 7}])
    assert caught.value.param == "messages[1].role"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": ["x"]},
        {"tools": [{"type": "function", "function": 5}], "tool_choice": "required"},
        {"tool_choice": {"type": "allowed_tools", "tools": [3]}},
        {"response_format": {"type": "json_schema", "json_schema": "x"}},
        {"prompt_cache_options": 3, "stream": 4},
    ],
)
def test_nothing_a_client_sends_makes_the_server_fail(serve, openai_client, fields):
    """It answers, or refuses with 400."""
    client = openai_client(serve("exact"))
    try:
        client.chat.completions.create(model=MODEL, messages=[ASK], extra_body=fields)
    except openai.APIStatusError as error:
        assert error.status_code == 400  # noqa: PT017 - an answer is fine as well


def test_models_and_embeddings_answer(serve, openai_client):
    """What frameworks ask for at start-up."""
    client = openai_client(serve("exact"))
    assert client.models.list().data[0].id == "simulated"
    assert client.models.retrieve("gpt-5").id == "gpt-5"
    vectors = [client.embeddings.create(model="e", input=["a", "b"], dimensions=8).data for _ in range(2)]
    assert vectors[0] == vectors[1]
    assert len(vectors[0][1].embedding) == 8
    assert vectors[0][0].embedding != vectors[0][1].embedding


async def test_concurrent_async_calls_on_a_cold_cache_all_miss(serve):
    """An entry is readable once the first answer has begun: all start before any token."""
    provider: SimulatedProvider = serve("exact", latency=Latency(base=0.3, uncached=0, cached=0, output=0, scale=1.0))
    async with openai.AsyncOpenAI(base_url=provider.openai_base_url, api_key="k", max_retries=0) as client:
        calls = (client.chat.completions.create(model=MODEL, messages=[LONG]) for _ in range(4))
        answers = await asyncio.gather(*calls)
        assert [one.usage.prompt_tokens_details.cached_tokens for one in answers] == [0, 0, 0, 0]
        stream = await client.chat.completions.create(
            model=MODEL, messages=[LONG], stream=True, stream_options={"include_usage": True}
        )
        usage = [chunk.usage async for chunk in stream][-1]
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens
