"""Wire bodies become prompts and come back as the same prompts, in all five forms."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from cacheprefix.errors import BodyError, SetupError
from cacheprefix.prompt import Prompt, dumps, loads
from cacheprefix.wire import decode, encode, guess_api

# ------------------------------------------------------------------------------------ drawn bodies

text = st.sampled_from(["", "x"]) | st.text(st.characters(), max_size=12)
"""Any characters, lone surrogates among them; often none at all."""

numbers = st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(text, values, max_size=3)


def made(**fields: Any) -> st.SearchStrategy[dict]:
    """Objects with these fields, in this order."""
    return st.fixed_dictionaries(fields)


def marked(blocks: st.SearchStrategy[dict], name: str = "cache_control") -> st.SearchStrategy[dict]:
    """The same with a cache marker on some."""
    markers = st.sampled_from([{"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}])
    return st.one_of(blocks, st.tuples(blocks, markers).map(lambda pair: {**pair[0], name: pair[1]}))


unknown = st.tuples(st.sampled_from(["document", "search_result", "x-new"]), objects).map(
    lambda pair: {"type": pair[0], **{f"f{name}": value for name, value in pair[1].items()}}
)
settings = st.dictionaries(
    st.sampled_from(["temperature", "tool_choice", "thinking", "stream", "stop", "metadata", "x_new"]),
    values,
    max_size=3,
)


def blocks(*kinds: st.SearchStrategy[dict]) -> st.SearchStrategy[list]:
    """Content lists, the empty one too."""
    return st.lists(st.one_of(*kinds), max_size=4)


# OpenAI chat

chat_text = made(type=st.just("text"), text=text)
chat_image = made(type=st.just("image_url"), image_url=made(url=text, detail=st.sampled_from(["low", "high"])))
chat_content = st.one_of(text, st.none(), blocks(marked(chat_text, "prompt_cache_breakpoint"), chat_image, unknown))
chat_call = made(id=text, type=st.just("function"), function=made(name=text, arguments=text))
chat_message = st.one_of(
    made(role=st.sampled_from(["system", "developer", "user", "odd", "+", "{", "item"]), content=chat_content),
    made(role=st.just("user"), content=chat_content, name=text),
    made(role=st.just("assistant"), content=chat_content, tool_calls=st.lists(chat_call, max_size=3)),
    made(role=st.just("assistant"), content=chat_content, reasoning_content=text, refusal=text),
    made(role=st.just("tool"), tool_call_id=text, content=chat_content),
)
chat_tool = marked(made(type=st.just("function"), function=made(name=text, description=text, parameters=objects)))
chat = st.tuples(
    made(model=text, messages=st.lists(marked(chat_message), max_size=5), tools=st.lists(chat_tool, max_size=3)),
    settings,
)

# OpenAI responses

response_text = st.sampled_from(["input_text", "output_text"]).flatmap(lambda kind: made(type=st.just(kind), text=text))
response_image = made(type=st.just("input_image"), image_url=text)
response_content = st.one_of(text, blocks(marked(response_text, "prompt_cache_breakpoint"), response_image, unknown))
response_item = st.one_of(
    made(role=st.sampled_from(["system", "user", "assistant", "item", "instructions"]), content=response_content),
    made(type=st.just("message"), role=st.just("assistant"), content=response_content),
    made(type=st.just("function_call"), call_id=text, name=text, arguments=text),
    made(type=st.just("function_call_output"), call_id=text, output=text),
    made(type=st.just("reasoning"), id=text, summary=st.lists(values, max_size=2), encrypted_content=text),
    unknown,
)
responses = st.tuples(
    st.one_of(
        made(model=text, input=text),
        made(model=text, instructions=text, input=st.lists(response_item, max_size=5)),
        made(model=text, input=st.lists(response_item, max_size=5), tools=st.lists(objects, max_size=2)),
    ),
    settings,
)

# Anthropic

claude_text = made(type=st.just("text"), text=text)
claude_result = made(
    type=st.just("tool_result"),
    tool_use_id=text,
    content=st.one_of(text, st.lists(marked(claude_text), max_size=2)),
    is_error=st.booleans(),
)
claude_block = st.one_of(
    marked(claude_text),
    marked(made(type=st.just("tool_use"), id=text, name=text, input=objects)),
    marked(claude_result),
    made(type=st.just("thinking"), thinking=text, signature=text),
    made(type=st.just("redacted_thinking"), data=text),
    marked(made(type=st.just("image"), source=made(type=st.just("base64"), media_type=text, data=text))),
    marked(unknown),
    st.just({}),
)
claude_message = st.one_of(
    made(role=st.sampled_from(["user", "assistant", "+", "{}"]), content=st.one_of(text, blocks(claude_block))),
    made(role=st.just("system"), content=text, output_config=objects),
)
claude = st.tuples(
    made(
        model=text,
        system=st.one_of(text, blocks(marked(claude_text))),
        messages=st.lists(claude_message, max_size=5),
        tools=st.lists(marked(made(name=text, description=text, input_schema=objects)), max_size=3),
    ),
    st.one_of(settings, settings.map(lambda found: {**found, "cache_control": {"type": "ephemeral", "ttl": "1h"}})),
)

# Gemini

gemini_part = st.one_of(
    made(text=text),
    made(text=text, thoughtSignature=text),
    made(text=text, thought=st.sampled_from([True])),
    made(functionCall=made(id=text, name=text, args=objects)),
    made(functionResponse=made(id=text, name=text, response=objects)),
    made(inlineData=made(mimeType=text, data=text)),
    objects.filter(lambda part: set(part) != {"text"}),
)
gemini_content = st.one_of(
    made(role=st.sampled_from(["user", "model", "function", "+"]), parts=st.lists(gemini_part, max_size=4)),
    made(parts=st.lists(gemini_part, max_size=2)),
)
gemini = st.tuples(
    made(
        model=text,
        systemInstruction=made(parts=st.lists(gemini_part, max_size=2)),
        contents=st.one_of(text, st.lists(gemini_content, max_size=4)),
        tools=st.lists(
            st.one_of(
                objects,
                made(functionDeclarations=st.lists(objects, max_size=3)),
                made(function_declarations=st.lists(objects, max_size=2)),
            ),
            max_size=2,
        ),
    ),
    settings,
)

# Bedrock

bedrock_block = st.one_of(
    made(text=text),
    made(cachePoint=st.sampled_from([{"type": "default"}, {"type": "default", "ttl": "1h"}])),
    made(toolUse=made(toolUseId=text, name=text, input=objects)),
    made(toolResult=made(toolUseId=text, content=st.lists(made(text=text), max_size=2))),
    made(reasoningContent=made(reasoningText=made(text=text, signature=text))),
    made(image=made(format=text, source=made(bytes=text))),
    made(document=objects),
)
bedrock_message = made(role=st.sampled_from(["user", "assistant", "+"]), content=st.lists(bedrock_block, max_size=5))
bedrock = st.tuples(
    made(
        modelId=text,
        system=st.lists(bedrock_block, max_size=3),
        messages=st.lists(bedrock_message, max_size=4),
        toolConfig=made(tools=st.lists(st.one_of(made(toolSpec=objects), bedrock_block), max_size=3)),
    ),
    settings,
)

BODIES = {"openai-chat": chat, "openai-responses": responses, "anthropic": claude, "gemini": gemini, "bedrock": bedrock}
apis = pytest.mark.parametrize("api", list(BODIES))


FEW = examples(max_examples=30)
"""For what the first property shows already in most cases."""


def drawn(data: st.DataObject, api: str) -> dict:
    """A body of one form."""
    body, extra = data.draw(BODIES[api])
    return {**extra, **body}


def markers(prompt: Prompt) -> list:
    """The markers by section, which equality leaves out."""
    return [section.marker for section in prompt.sections]


# ------------------------------------------------------------------------------------- properties


@pytest.mark.slow
@apis
@given(st.data())
def test_what_is_encoded_decodes_to_the_same_prompt(api, data):
    """decode(encode(p)) is p, markers included."""
    prompt = decode(drawn(data, api), api)
    again = decode(encode(prompt), api)
    assert again == prompt
    assert markers(again) == markers(prompt)
    assert again.top_marker == prompt.top_marker
    assert [one.digest for one in again.sections] == [one.digest for one in prompt.sections]


@apis
@FEW
@given(st.data())
def test_the_canonical_body_is_canonical(api, data):
    """Encoding a decoded canonical body changes nothing."""
    body = encode(decode(drawn(data, api), api))
    assert encode(decode(body, api)) == body


@pytest.mark.slow
@apis
@FEW
@given(st.data())
def test_bytes_and_object_give_the_same_prompt(api, data):
    """A body read from the wire and the object that was sent are one prompt, however large its integers."""
    body = drawn(data, api)
    assert decode(json.dumps(body).encode(), api) == decode(body, api)


@pytest.mark.slow
@apis
@FEW
@given(st.data())
def test_tokens_are_the_sum_over_sections_and_never_negative(api, data):
    """What the prompt counts is what its sections count."""
    prompt = decode(drawn(data, api), api)
    assert prompt.tokens == sum(one.tokens for one in prompt.sections)
    assert all(one.tokens >= 0 for one in prompt.sections)


@pytest.mark.slow
@apis
@FEW
@given(st.data())
def test_sections_come_in_cache_order_with_paths_of_their_own(api, data):
    """Tools, system, messages; no two sections at one place."""
    prompt = decode(drawn(data, api), api)
    order = [("tools", "system", "messages").index(one.tier) for one in prompt.sections]
    assert order == sorted(order)
    paths = [one.path for one in prompt.sections]
    assert len(set(paths)) == len(paths)


@pytest.mark.slow
@apis
@FEW
@given(st.data())
def test_decoding_changes_nothing_in_the_body(api, data):
    """The user's objects stay as they are."""
    body = drawn(data, api)
    before = dumps(body, "body")
    decode(body, api)
    assert dumps(body, "body") == before


# ---------------------------------------------------------------------------------- exact contents


@pytest.mark.parametrize(
    "block",
    [
        {"type": "x-new", "z": 1, "a": [1.0, 1, True, None], "text": "t"},
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "opaque"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
        {"type": "text", "text": "t", "citations": []},
        {"type": "tool_use", "id": "t", "name": "n", "input": {"b": 1, "a": 2}},
        {"type": "x-new", "huge": 2**70, "lone": "\ud800", "deep": {"b": {"a": []}}},
    ],
)
def test_blocks_keep_every_field_and_their_key_order(block):
    """Images, thinking with its signature, blocks nobody knows: byte for byte."""
    prompt = decode({"model": "m", "messages": [{"role": "user", "content": [block]}]}, "anthropic")
    assert prompt.sections[0].data == dumps(block, "block")
    assert list(encode(prompt)["messages"][0]["content"][0].items()) == list(block.items())


@pytest.mark.parametrize("before", range(7))
@pytest.mark.parametrize("digits", [19, 20, 40])
def test_an_integer_of_more_than_64_bits_is_read_whole_wherever_it_stands(before, digits):
    """Its place among the bytes decides nothing."""
    body = {"x" * before: int("9" * digits)}
    assert loads(json.dumps(body)) == body


def test_integers_of_any_size_stay_exact_from_the_wire():
    """64 bits are not the limit of JSON."""
    raw = b'{"model":"m","messages":[{"role":"user","content":[{"type":"x","n":123456789012345678901234567890}]}]}'
    assert b"123456789012345678901234567890" in decode(raw, "anthropic").sections[0].data


def test_tool_arguments_stay_as_they_were_sent():
    """Spacing and escapes of the arguments' text are the provider's input."""
    call = {"id": "c", "type": "function", "function": {"name": "n", "arguments": '{ "a" : "\\u00e9" }'}}
    body = {"model": "m", "messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    assert encode(decode(body, "openai-chat"))["messages"][0]["tool_calls"] == [call]


def test_parallel_tool_calls_are_sections_of_one_message():
    """Each call has a path; the envelope stands on the first section."""
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": "n", "arguments": "{}"}} for n in range(3)]
    body = {"model": "m", "messages": [{"role": "assistant", "content": "I call", "tool_calls": calls}]}
    sections = decode(body, "openai-chat").sections
    assert [one.path for one in sections] == [
        "messages[0].content",
        *(f"messages[0].tool_calls[{n}]" for n in range(3)),
    ]
    assert [one.head for one in sections] == ["assistant", "+", "+", "+"]


def test_a_field_named_like_content_is_no_content():
    """Unknown message fields come back where they were."""
    message = {"role": "assistant", "content_filter_results": {"hate": False}, "content": "x"}
    assert encode(decode({"model": "m", "messages": [message]}, "openai-chat"))["messages"] == [message]


def test_message_fields_beside_role_and_content_are_content():
    """Anthropic's per-message effort changes the prompt."""
    plain = {"role": "system", "content": "x"}
    prompts = [
        decode({"model": "m", "messages": [message]}, "anthropic")
        for message in (plain, {**plain, "output_config": {"effort": "low"}})
    ]
    assert prompts[0] != prompts[1]
    assert encode(prompts[1])["messages"][0]["output_config"] == {"effort": "low"}


@pytest.mark.parametrize("api", list(BODIES))
def test_an_empty_body_is_an_empty_prompt(api):
    """Nothing to cache is nothing to fear."""
    assert decode({}, api).sections == ()
    assert decode({}, api).tokens == 0


def test_paths_use_the_bodys_own_indexes():
    """System messages that lead are the system tier; the rest keeps its place in the list."""
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "system", "content": "t"},
    ]
    sections = decode({"model": "m", "messages": messages}, "openai-chat").sections
    assert [(one.tier, one.path) for one in sections] == [
        ("system", "system[0]"),
        ("messages", "messages[1].content"),
        ("messages", "messages[2].content"),
    ]


# ------------------------------------------------------------------------------- canonical equality


def claude_prompt(content: Any, **fields: Any) -> Prompt:
    """One user message."""
    return decode({"model": "m", "messages": [{"role": "user", "content": content}], **fields}, "anthropic")


BLOCK = {"type": "text", "text": "x"}
MARK = {"cache_control": {"type": "ephemeral"}}


def test_a_string_equals_a_list_of_one_text_block():
    """At message and system level the provider renders them alike."""
    assert claude_prompt("x") == claude_prompt([BLOCK])
    assert claude_prompt("x", system="s") == claude_prompt("x", system=[{"type": "text", "text": "s"}])
    one, other = (
        decode({"model": "m", "messages": [{"role": "user", "content": content}]}, "openai-chat")
        for content in ("x", [BLOCK])
    )
    assert one == other


def test_inside_a_tool_result_a_string_is_not_a_list():
    """Whether the real API treats the two shapes as one prompt is undocumented: assume not (langgraph.md 2.2)."""
    result = {"type": "tool_result", "tool_use_id": "t"}
    assert claude_prompt([{**result, "content": "x"}]) != claude_prompt([{**result, "content": [BLOCK]}])


def test_two_blocks_are_not_one():
    """The block boundary is a token."""
    assert claude_prompt([BLOCK, BLOCK]) != claude_prompt("xx")


def test_a_moved_marker_changes_nothing():
    """Where a breakpoint stands is not content: on a block, inside a tool result, on a tool, at the top."""
    plain = [BLOCK, {"type": "tool_result", "tool_use_id": "t", "content": [BLOCK]}]
    inner = [BLOCK, {"type": "tool_result", "tool_use_id": "t", "content": [{**BLOCK, **MARK}]}]
    outer = [{**BLOCK, **MARK}, {**plain[1], **MARK}]
    tool = {"name": "n", "input_schema": {}}
    unmarked = claude_prompt(plain, tools=[tool])
    for prompt in (
        claude_prompt(inner, tools=[tool]),
        claude_prompt(outer, tools=[{**tool, **MARK}]),
        claude_prompt(plain, tools=[tool], **MARK),
    ):
        assert prompt == unmarked
        assert [one.digest for one in prompt.sections] == [one.digest for one in unmarked.sections]


def test_a_marker_inside_a_tool_result_marks_the_result():
    """It is found, and it does not change the shape."""
    prompt = claude_prompt([{"type": "tool_result", "tool_use_id": "t", "content": [{**BLOCK, **MARK}]}])
    assert prompt.sections[0].marker is not None
    assert b"cache_control" not in prompt.sections[0].data


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "user"}, {"role": "assistant"}),
        ({"role": "user"}, {"role": "user", "name": "n"}),
        ({"role": "tool", "tool_call_id": "a"}, {"role": "tool", "tool_call_id": "b"}),
    ],
)
def test_the_envelope_is_content(one, other):
    """Role, name and call id are part of the prompt."""
    first, second = (
        decode({"model": "m", "messages": [{**envelope, "content": "x"}]}, "openai-chat") for envelope in (one, other)
    )
    assert first != second
    assert first.sections[0].digest != second.sections[0].digest


def test_key_order_of_a_tool_is_content():
    """Inference servers render schemas in the order sent."""
    one, other = ({"name": "n", "description": "d"}, {"description": "d", "name": "n"})
    assert claude_prompt("x", tools=[one]) != claude_prompt("x", tools=[other])


# ------------------------------------------------------------------------------------ broken bodies


@pytest.mark.parametrize(
    ("api", "body", "path"),
    [
        ("openai-chat", {"messages": "x"}, "messages"),
        ("openai-chat", {"messages": [3]}, "messages[0]"),
        ("openai-chat", {"messages": [{"content": "x"}]}, "messages[0].role"),
        ("openai-chat", {"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ("openai-chat", {"messages": [{"role": "user", "content": [7]}]}, "messages[0].content[0]"),
        ("openai-chat", {"messages": [{"role": "assistant", "tool_calls": {"a": 1}}]}, "messages[0].tool_calls"),
        ("openai-chat", {"messages": [{"role": "assistant", "tool_calls": ["a"]}]}, "messages[0].tool_calls[0]"),
        ("openai-chat", {"tools": {"a": 1}}, "tools"),
        ("openai-chat", {"tools": [{}, None]}, "tools[1]"),
        ("openai-chat", {"model": 3}, "model"),
        ("openai-responses", {"input": 4}, "input"),
        ("openai-responses", {"instructions": ["x"]}, "instructions"),
        ("openai-responses", {"input": [{"role": "user", "content": [4]}]}, "messages[0].content[0]"),
        ("anthropic", {"system": 4}, "system"),
        ("anthropic", {"system": [{"type": "text", "text": "x", "cache_control": "y"}]}, "system[0].cache_control"),
        ("anthropic", {"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        (
            "anthropic",
            {"messages": [{"role": "user", "content": [{"type": "text", "cache_control": {"ttl": 5}}]}]},
            "messages[0].content[0].cache_control.ttl",
        ),
        ("gemini", {"contents": [4]}, "messages[0]"),
        ("gemini", {"contents": [{"parts": ["x"]}]}, "messages[0].content[0]"),
        ("bedrock", {"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ("bedrock", {"toolConfig": {"tools": 3}}, "tools"),
        ("bedrock", {"system": [{"text": "x"}, {"cachePoint": 3}]}, "system[1].cachePoint"),
    ],
)
def test_a_body_that_cannot_be_read_names_the_place(api, body, path):
    """BodyError, never another exception."""
    with pytest.raises(BodyError) as caught:
        decode({"model": "m", **body}, api)
    assert caught.value.path == path
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    "raw", [b"", b"{", b'{"a":}', b"[1]", b"null", b"\xff", b'{"a":' + b"[" * 100_000, b"1" * 5000]
)
@pytest.mark.parametrize("api", list(BODIES))
def test_bytes_that_are_no_object_are_a_body_error(api, raw):
    """Truncated, nested without end, too long a number, or plainly not JSON."""
    with pytest.raises(BodyError):
        decode(raw, api)


def test_values_that_are_no_json_name_their_place():
    """A frame's own object in the body."""
    with pytest.raises(BodyError) as caught:
        decode({"model": "m", "messages": [{"role": "user", "content": [{"type": "x", "o": object()}]}]}, "openai-chat")
    assert caught.value.path.startswith("messages[0]")


@given(
    api=st.sampled_from(list(BODIES)),
    body=st.dictionaries(
        st.sampled_from(
            [
                "model",
                "messages",
                "input",
                "instructions",
                "system",
                "tools",
                "contents",
                "systemInstruction",
                "toolConfig",
                "cache_control",
            ]
        ),
        st.recursive(
            values,
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["role", "content", "parts", "type", "text", "tool_calls", "cachePoint"]),
                    inner,
                    max_size=3,
                )
            ),
        ),
        max_size=4,
    ),
)
def test_any_json_object_is_read_or_refused_by_a_body_error(api, body):
    """Nothing a user's framework builds makes the codec fail otherwise."""
    try:
        prompt = decode(body, api)
    except BodyError as error:
        assert error.path  # noqa: PT017 - either outcome is right
        return
    assert decode(encode(prompt), api) == prompt


def test_an_unknown_form_names_the_known_ones():
    """Misuse at set-up."""
    with pytest.raises(SetupError, match="openai-chat"):
        decode({}, "cohere")


# ----------------------------------------------------------------------------- settings, guessed form


def test_everything_that_is_no_content_is_a_setting():
    """As canonical JSON; headers by lower-case name; None is as if not there."""
    body = {"model": "m", "messages": [], "tool_choice": {"b": 1, "a": 2}, "top_p": None, "temperature": 0.5}
    prompt = decode(body, "openai-chat", headers={"OpenAI-Organization": "o"})
    assert prompt.settings == {
        "tool_choice": '{"a":2,"b":1}',
        "temperature": "0.5",
        "header:openai-organization": '"o"',
    }


def test_bedrocks_tool_choice_is_a_setting_and_comes_back_inside_tool_config():
    """It stands beside the tools there."""
    body = {"modelId": "m", "messages": [], "toolConfig": {"tools": [], "toolChoice": {"auto": {}}}}
    prompt = decode(body, "bedrock")
    assert prompt.settings["toolChoice"] == '{"auto":{}}'
    assert encode(prompt)["toolConfig"] == {"toolChoice": {"auto": {}}}


@pytest.mark.parametrize(
    ("body", "api"),
    [
        ({"messages": [{"role": "user", "content": "x"}]}, "openai-chat"),
        ({"messages": [], "tools": [{"type": "function", "function": {}}]}, "openai-chat"),
        ({"input": "x"}, "openai-responses"),
        ({"instructions": "x"}, "openai-responses"),
        ({"messages": [], "system": "x"}, "anthropic"),
        ({"messages": [], "thinking": {}}, "anthropic"),
        ({"messages": [], "tools": [{"name": "n", "input_schema": {}}]}, "anthropic"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "anthropic"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "cache_control": {}}]}]}, "anthropic"),
        ({"contents": []}, "gemini"),
        ({"modelId": "m", "messages": []}, "bedrock"),
        ({"messages": [], "inferenceConfig": {}}, "bedrock"),
        ({"messages": [3, {"content": [4]}], "tools": [5]}, "openai-chat"),
    ],
)
def test_a_bare_body_tells_its_form(body, api):
    """From the fields it has; chat completions where nothing says otherwise."""
    assert guess_api(body) == api


def test_a_long_result_of_encoded_lines_is_counted_in_the_time_that_its_length_takes():
    """Lines that are all but long enough for an image are not read over again from each of their characters."""

    def seconds(line: str) -> float:
        content = [{"type": "tool_result", "tool_use_id": "a", "content": line * (1_000_000 // len(line))}]
        call = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}
        body = {"model": "claude-opus-4-1", "messages": [call, {"role": "user", "content": content}]}
        began = time.process_time()
        decode(body, "anthropic")
        return time.process_time() - began

    assert seconds("A" * 900 + "\n") < 15 * seconds("A line of words. ")
