"""What providers refuse a request for, rule by rule and in each of the five wire forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.wire import structure_errors

USER = {"role": "user", "content": "hello"}


def chat(*messages, **more):
    """A chat body."""
    return {"messages": list(messages), **more}


def calling(*ids, **more):
    """An assistant message of OpenAI's chat that calls tools."""
    calls = [{"id": id_, "type": "function", "function": {"name": "look", "arguments": "{}"}} for id_ in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


def told(id_, content="found"):
    """A tool's answer in OpenAI's chat."""
    return {"role": "tool", "tool_call_id": id_, "content": content}


def items(*given_, **more):
    """A responses body."""
    return {"input": list(given_), **more}


def call(id_):
    """A function call item."""
    return {"type": "function_call", "call_id": id_, "name": "look", "arguments": "{}"}


def output(id_):
    """Its output."""
    return {"type": "function_call_output", "call_id": id_, "output": "found"}


REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]}


def use(*ids, before=(), behind=()):
    """An assistant message of Anthropic's that calls tools."""
    blocks = [{"type": "tool_use", "id": id_, "name": "look", "input": {}} for id_ in ids]
    return {"role": "assistant", "content": [*before, *blocks, *behind]}


def result(*ids, before=(), behind=()):
    """The results in a user message of Anthropic's."""
    blocks = [{"type": "tool_result", "tool_use_id": id_, "content": "found"} for id_ in ids]
    return {"role": "user", "content": [*before, *blocks, *behind]}


def text(words):
    """A text block of Anthropic's."""
    return {"type": "text", "text": words}


def gemini(role, *parts):
    """A content of Gemini's."""
    return {"role": role, "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


CALL = {"functionCall": {"name": "look", "args": {}}}
RESPONSE = {"functionResponse": {"name": "look", "response": {}}}


def bedrock(role, *blocks):
    """A message of Converse's."""
    return {"role": role, "content": [{"text": block} if isinstance(block, str) else block for block in blocks]}


def used(id_):
    """A call in Converse's form."""
    return {"toolUse": {"toolUseId": id_, "name": "look", "input": {}}}


def returned(id_):
    """Its result."""
    return {"toolResult": {"toolUseId": id_, "content": [{"text": "found"}]}}


TOOL = {"type": "function", "function": {"name": "look"}}
CONFIG = {"toolConfig": {"tools": [{"toolSpec": {"name": "look"}}]}}

TAKEN = [
    ("openai-chat", chat(USER, {"role": "assistant", "content": ""}, USER)),
    ("openai-chat", chat(USER, calling("a", "b"), told("b"), told("a"), USER)),
    ("openai-chat", chat(USER, calling("a"), told("a"), calling("a"), told("a", ""))),
    ("openai-chat", chat(USER, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "look"}})),
    ("openai-chat", chat(USER, {"role": "assistant", "content": None, "refusal": "no"})),
    ("openai-responses", items(USER, REASONING, SAID, call("a"), call("b"), output("b"), output("a"), SAID)),
    ("openai-responses", {"input": "hello"}),
    ("openai-responses", items(output("a"), previous_response_id="resp_1")),
    ("openai-responses", items(USER, {"type": "web_search_call", "id": "ws_1"}, SAID)),
    ("anthropic", chat(USER, use("a", "b"), result("a"), result("b", behind=[text("and?")]), USER)),
    ("anthropic", chat({"role": "assistant", "content": "I begin."}, USER, use("a"), result("a"))),
    ("anthropic", chat(USER, {"role": "assistant", "content": "It is"})),
    ("anthropic", chat(USER, {"role": "system", "content": "Be brief."})),
    (
        "gemini",
        {"contents": [gemini("user", "hi"), gemini("model", "x", CALL, CALL), gemini("user", RESPONSE, RESPONSE)]},
    ),
    ("gemini", {"contents": "hello"}),
    (
        "bedrock",
        {
            "messages": [bedrock("user", "hi"), bedrock("assistant", used("a")), bedrock("user", returned("a"))],
            **CONFIG,
        },
    ),
]

REFUSED = [
    # OpenAI chat
    ("openai-chat", chat(), "at least one message"),
    ("openai-chat", chat("hello", USER), "messages[0]: expected an object, found str"),
    ("openai-chat", chat(USER, calling("a"), told("a", None)), "messages[2].content: expected text or a list"),
    ("openai-chat", chat(USER, told("a")), "messages[1]: answers the call 'a'"),
    ("openai-chat", chat(USER, calling("a"), told("a"), told("a")), "messages[3]: answers the call 'a'"),
    ("openai-chat", chat(USER, calling("a")), "missing: the results of the calls 'a'"),
    ("openai-chat", chat(USER, calling("a"), USER, told("a")), "messages[2]: stands where the results"),
    (
        "openai-chat",
        chat(USER, calling("a", "b"), told("a"), USER),
        "messages[3]: stands where the results of the calls 'b'",
    ),
    ("openai-chat", chat(USER, calling("a", "a"), told("a")), "two calls of one message"),
    ("openai-chat", chat(USER, calling(None)), "a call has an id"),
    ("openai-chat", chat(USER, calling()), "at least one call"),
    ("openai-chat", chat(USER, {"role": "assistant", "content": None}), "found null"),
    ("openai-chat", chat({"role": "user", "content": []}), "at least one block"),
    ("openai-chat", chat({"role": "robot", "content": "x"}), "messages[0].role"),
    ("openai-chat", chat(USER, tools=[]), "tools: expected a list of at least one tool"),
    ("openai-chat", chat(USER, tool_choice="none"), "tool_choice: is only allowed when tools are specified"),
    ("openai-chat", chat(USER, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "x"}}), "'x'"),
    # OpenAI responses
    ("openai-responses", {"input": []}, "at least one item"),
    ("openai-responses", items("hello"), "input[0]: expected an object, found str"),
    ("openai-responses", items(USER, output("a")), "input[1]: answers the call 'a'"),
    ("openai-responses", items(USER, call("a")), "missing: the results of the calls 'a'"),
    ("openai-responses", items(USER, call("a"), USER, output("a")), "input[2]: stands between the calls 'a'"),
    ("openai-responses", items(USER, call("a"), call("b"), output("a"), USER, output("b")), "input[4]: stands between"),
    ("openai-responses", items(USER, REASONING, USER), "input[1]: is reasoning without"),
    ("openai-responses", items(USER, REASONING), "input[1]: is reasoning without"),
    ("openai-responses", items(USER, REASONING, SAID, REASONING, SAID), "two items have the id 'rs_1'"),
    ("openai-responses", items(USER, call("a"), call("a"), output("a")), "two open calls have the id 'a'"),
    ("openai-responses", items({"role": "user", "content": []}), "at least one block"),
    # Anthropic
    ("anthropic", chat(), "at least one message"),
    ("anthropic", chat(USER, result("a")), "no tool_use in the previous message"),
    ("anthropic", chat(USER, use("a")), "no tool_result immediately after"),
    ("anthropic", chat(USER, use("a"), USER), "no tool_result immediately after"),
    ("anthropic", chat(USER, use("a"), USER, result("a")), "results of a turn come first"),
    ("anthropic", chat(USER, use("a"), result("a", before=[text("see")])), "results of a turn come first"),
    ("anthropic", chat(USER, use("a", behind=[text("I look.")]), result("a")), "text stands behind a tool_use"),
    ("anthropic", chat(USER, use("a"), result("a"), use("a"), result("a")), "ids must be unique"),
    ("anthropic", chat(USER, use("a b"), result("a b")), "letters, digits"),
    ("anthropic", chat({"role": "user", "content": ""}), "all messages have content"),
    ("anthropic", chat({"role": "user", "content": [text("")]}), "must be non-empty"),
    ("anthropic", chat({"role": "user", "content": [text(" \n")]}), "non-whitespace"),
    ("anthropic", chat(USER, system=[text("")]), "system[0]: text content blocks must be non-empty"),
    (
        "anthropic",
        chat(USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}, USER),
        "final block",
    ),
    ("anthropic", chat(USER, {"role": "assistant", "content": "It is "}), "trailing whitespace"),
    ("anthropic", chat({"role": "system", "content": "x"}, USER), "top-level 'system'"),
    ("anthropic", chat(USER, use("a"), {"role": "system", "content": "x"}, result("a")), "between a tool_use"),
    ("anthropic", chat(USER, tools=[{"name": "look"}, {"name": "look"}]), "tool names must be unique"),
    ("anthropic", chat(USER, tools=[{"name": "look"}], tool_choice={"type": "tool", "name": "x"}), "'x'"),
    # Gemini
    ("gemini", {"contents": []}, "at least one content"),
    ("gemini", {"contents": [gemini("user")]}, "at least one part"),
    ("gemini", {"contents": [gemini("user", "")]}, "a text is not empty"),
    ("gemini", {"contents": [gemini("user", "x"), gemini("model", CALL), gemini("user", "y")]}, "0 function responses"),
    ("gemini", {"contents": [gemini("user", "x"), gemini("model", CALL)]}, "missing: the responses of 1"),
    ("gemini", {"contents": [gemini("user", RESPONSE)]}, "holds 1 function responses"),
    ("gemini", {"contents": [gemini("model", CALL), gemini("user", RESPONSE)]}, "not the first turn"),
    (
        "gemini",
        {"contents": [gemini("user", "x"), gemini("model", "y"), gemini("model", CALL), gemini("user", RESPONSE)]},
        "immediately after a user turn",
    ),
    # Bedrock Converse
    ("bedrock", {"messages": [bedrock("assistant", "x"), bedrock("user", "y")]}, "start with a user message"),
    ("bedrock", {"messages": [bedrock("user", "x"), bedrock("user", "y")]}, "must alternate"),
    ("bedrock", {"messages": [bedrock("user")]}, "at least one content block"),
    ("bedrock", {"messages": [bedrock("user", " ")]}, "messages[0].content[0]: the text field is blank"),
    ("bedrock", {"messages": [bedrock("user", returned("a"))], **CONFIG}, "no toolUse in the previous turn"),
    ("bedrock", {"messages": [bedrock("user", "x"), bedrock("assistant", used("a"))], **CONFIG}, "expected toolResult"),
    (
        "bedrock",
        {"messages": [bedrock("user", "x"), bedrock("assistant", used("a")), bedrock("user", returned("a"))]},
        "toolConfig: must be defined",
    ),
]


@pytest.mark.parametrize(("api", "body"), TAKEN)
def test_what_a_provider_takes_has_no_error(api, body):
    """Also what looks odd: empty answers on OpenAI, results in another order, a call that the provider runs itself."""
    assert structure_errors(body, api) == []


@pytest.mark.parametrize(("api", "body", "said"), REFUSED)
def test_what_a_provider_refuses_is_named_with_its_place(api, body, said):
    """The first error says where and what."""
    assert said in "; ".join(map(str, structure_errors(body, api)))


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("anthropic", chat(USER, {"role": "assistant", "content": "It is"})),
        ("gemini", {"contents": [gemini("user", "x"), gemini("model", "It is")]}),
        ("bedrock", {"messages": [bedrock("user", "x"), bedrock("assistant", "It is")]}),
    ],
)
def test_a_begun_answer_is_refused_where_the_model_takes_none(api, body):
    """And only there."""
    assert structure_errors(body, api, prefill=True) == []
    assert len(structure_errors(body, api, prefill=False)) == 1


def test_a_paused_turn_of_the_providers_own_tools_goes_back_as_it_is():
    """It ends with an assistant message, which is no beginning of an answer."""
    use_ = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    assert structure_errors(chat(USER, {"role": "assistant", "content": [use_]}), "anthropic", prefill=False) == []


def test_behind_a_call_of_the_providers_own_tools_without_a_result_nothing_is_said():
    """Results of the application's tools may come there, where the same turn called those too."""
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    call = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}]}

    def errors(blocks, then):
        return structure_errors(chat(USER, {"role": "assistant", "content": blocks}, then), "anthropic")

    assert len(errors([search], USER)) == 1
    assert errors([search, found], USER) == errors([search, call], result) == []


def test_a_system_message_among_others_is_for_models_that_take_it():
    """Anthropic's older models answer 400."""
    body = chat(USER, {"role": "system", "content": "Be brief."})
    assert len(structure_errors(body, "anthropic", mid_system=False)) == 1


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "content",
                    "parts",
                    "type",
                    "id",
                    "call_id",
                    "tool_calls",
                    "toolUse",
                    "toolResult",
                    "text",
                    "name",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    body=st.dictionaries(
        st.sampled_from(["messages", "input", "contents", "system", "tools", "tool_choice", "toolConfig", "thinking"]),
        _JSON,
    ),
    api=st.sampled_from(["openai-chat", "openai-responses", "anthropic", "gemini", "bedrock"]),
)
def test_anything_can_be_asked_about(body, api):
    """Whatever stands in the body, the answer is a list of errors and no exception."""
    assert isinstance(structure_errors(body, api), list)
