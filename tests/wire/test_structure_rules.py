"""Each rule of each provider alone: every place that is wrong, in order, and nothing beside it."""

from __future__ import annotations

import pytest

from cacheprefix.wire import structure_errors

USER = {"role": "user", "content": "hello"}
SAID = {"role": "assistant", "content": "I look."}


def _tool_call(id_="a"):
    return {"id": id_, "type": "function", "function": {"name": "look", "arguments": "{}"}}


def _asks(*ids, **more):
    return {"role": "assistant", "content": None, "tool_calls": [_tool_call(id_) for id_ in ids], **more}


def _told(id_="a"):
    return {"role": "tool", "tool_call_id": id_, "content": "found"}


def _tool(name):
    return {"type": "function", "function": {"name": name}}


def _item(id_, kind="function_call", **more):
    return {"type": kind, "call_id": id_, "name": "look", "arguments": "{}", **more}


def _out(id_, kind="function_call_output"):
    return {"type": kind, "call_id": id_, "output": "found"}


REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}


def _text(words):
    return {"type": "text", "text": words}


def _use(id_="a"):
    return {"type": "tool_use", "id": id_, "name": "look", "input": {}}


def _result(id_="a", content="found"):
    return {"type": "tool_result", "tool_use_id": id_, "content": content}


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
CALL = {"functionCall": {"name": "look", "args": {}}}
RESPONSE = {"functionResponse": {"name": "look", "response": {}}}


def _user(*blocks):
    return {"role": "user", "content": list(blocks)}


def _model(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def _turn(role, *parts):
    return {"role": role, "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


def _used(id_="a"):
    return {"toolUse": {"toolUseId": id_, "name": "look", "input": {}}}


def _returned(id_="a"):
    return {"toolResult": {"toolUseId": id_, "content": [{"text": "found"}]}}


def _spec(name):
    return {"toolSpec": {"name": name}}


T = {"text": "hi"}

CHAT = [
    ({}, [("messages", "at least one message")]),
    ({"messages": "hello"}, [("messages", "at least one message")]),
    ({"messages": b"hello"}, [("messages", "at least one message")]),
    ({"messages": [{"role": role, "content": "x"} for role in ("system", "developer", "user", "assistant")]}, []),
    ({"messages": [USER, {"role": "function", "name": "look", "content": "x"}]}, []),
    ({"messages": [7, {"role": None}, USER]}, [("messages[0]", "found int"), ("messages[1].role", "found None")]),
    ({"messages": [{"role": "robot"}]}, [("messages[0].role", "system, developer, user, assistant, tool, function")]),
    ({"messages": [USER, _asks("a"), {"role": "robot"}, _told()]},
     [("messages[2]", "the results of the calls 'a'"), ("messages[2].role", "found 'robot'"),
      ("messages[3]", "answers the call 'a'")]),
    ({"messages": [USER, _asks("a", "b"), USER, USER]}, [("messages[2]", "of the calls 'a', 'b' belong")]),
    ({"messages": [USER, _asks("a", "b")]}, [("messages[2]", "missing: the results of the calls 'a', 'b'")]),
    ({"messages": [USER, {**SAID, "tool_calls": "look"}]}, [("messages[1].tool_calls", "at least one call")]),
    ({"messages": [USER, {**SAID, "tool_calls": []}, USER]}, [("messages[1].tool_calls", "at least one call")]),
    ({"messages": [USER, {**SAID, "tool_calls": None}]}, []),
    ({"messages": [USER, {**SAID, "tool_calls": [7, _tool_call(""), _tool_call(5)]}]},
     [("messages[1].tool_calls[0].id", "has an id"), ("messages[1].tool_calls[1].id", "has an id"),
      ("messages[1].tool_calls[2].id", "has an id")]),
    ({"messages": [USER, _asks("a", "b", "a"), _told("a"), _told("b")]},
     [("messages[1].tool_calls[2].id", "two calls of one message have the id 'a'")]),
    *(({"messages": [USER, {"role": "assistant", "content": None, name: "x"}]}, [])
      for name in ("function_call", "audio", "refusal")),
    ({"messages": [USER, {"role": "assistant", "content": []}]}, [("messages[1].content", "at least one block")]),
    ({"messages": [USER, {**_asks("a"), "content": []}, _told()]}, []),
    ({"messages": [USER, _asks("a"), {"role": "tool", "tool_call_id": "a", "content": []}]},
     [("messages[2].content", "at least one block")]),
    ({"messages": [USER], "tools": "look"}, [("tools", "at least one tool")]),
    ({"messages": [USER], "tools": None, "tool_choice": None, "parallel_tool_calls": None}, []),
    ({"messages": [USER], "parallel_tool_calls": False}, [("parallel_tool_calls", "only allowed when tools")]),
    ({"messages": [USER], "functions": [{"name": "look"}], "parallel_tool_calls": False}, []),
    ({"messages": [USER], "tools": [_tool("look")], "tool_choice": "required"}, []),
    ({"messages": [USER], "tools": [_tool("look")], "tool_choice": {"type": "auto"}}, []),
    ({"messages": [USER], "tools": [{"type": "custom", "custom": {"name": "sql"}}, 7],
      "tool_choice": {"type": "custom", "custom": {"name": "sql"}}}, []),
    ({"messages": [USER], "tools": [_tool("look")], "tool_choice": {
        "type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [_tool("look"), _tool("x"), 7]}}},
     [("tool_choice", "names the tool 'x'")]),
    ({"messages": [USER], "tools": [_tool("look")], "tool_choice": {"type": "allowed_tools", "tools": [_tool("x")]}},
     [("tool_choice", "names the tool 'x'")]),
    ({"messages": [USER], "tools": [_tool("look")], "tool_choice": {"type": "allowed_tools", "allowed_tools": 7}}, []),
]  # fmt: skip

RESPONSES = [
    ({}, [("input", "at least one item")]),
    ({"input": b"hello"}, [("input", "at least one item")]),
    ({"input": 7, "conversation": "c"}, [("input", "at least one item")]),
    *(({name: "x"}, []) for name in ("previous_response_id", "conversation", "prompt")),
    *(({"input": [_out("a")], name: "x"}, []) for name in ("previous_response_id", "conversation", "prompt")),
    ({"input": [_out("a"), _out(7)]}, [("input[0]", "answers the call 'a'"), ("input[1]", "answers the call 7")]),
    ({"input": [_item("a"), _out("a"), _out("a")]}, [("input[2]", "answers the call 'a'")]),
    ({"input": [_item("a", "custom_tool_call"), _out("a", "custom_tool_call_output")]}, []),
    ({"input": [{"type": "mcp_call", "id": "m"}, {"type": "web_search_call", "id": "w"}]}, []),
    ({"input": [USER, {"role": "user", "id": "m", "content": "x"}, {"role": "user", "id": "m", "content": "x"}]},
     [("input[2].id", "two items have the id 'm'")]),
    ({"input": [USER, {"type": "item_reference", "id": "m"}, {"type": "item_reference", "id": "m"}]}, []),
    ({"input": [USER, {"id": "m"}, {"id": "m", "type": None}]}, []),
    ({"input": [USER, REASONING, _item("a"), _out("a")]}, []),
    ({"input": [USER, REASONING, {"type": "message", **SAID}]}, []),
    ({"input": [USER, REASONING, SAID]}, []),
    ({"input": [USER, REASONING, {"type": "item_reference", "id": "x"}]}, []),
    ({"input": [USER, _item("a"), REASONING, _out("a")]}, [("input[2]", "without the item that was made from it")]),
    ({"input": [USER, REASONING, 7]}, [("input[1]", "without the item"), ("input[2]", "found int")]),
    ({"input": [USER, REASONING]}, [("input[1]", "without the item")]),
    ({"input": [_item("a"), SAID, _out("a")]}, []),
    ({"input": [_item("a"), _item("b"), USER, _out("a"), _out("b")]},
     [("input[2]", "stands between the calls 'a', 'b' and their results")]),
    ({"input": [_item("a"), _item("a"), _out("a")]}, [("input[1].call_id", "two open calls have the id 'a'")]),
    ({"input": [_item("a"), _out("a"), _item("a"), _out("a")]}, []),
    ({"input": [_item("a"), _item("b"), _out("a")]}, [("input[3]", "missing: the results of the calls 'b'")]),
    ({"input": [{"role": role, "content": "x"} for role in ("user", "assistant", "system", "developer")]}, []),
    ({"input": [{"role": "tool", "content": None}]},
     [("input[0].role", "found 'tool'"), ("input[0].content", "found null")]),
    ({"input": "x", "tool_choice": {"type": "function", "name": "y"}}, [("tool_choice", "'y', which is not among")]),
    ({"input": [USER], "tools": [{"type": "function", "name": "look"}],
      "tool_choice": {"type": "function", "name": "look"}}, []),
    ({"input": [USER], "tools": [{"type": "function", "name": "look"}],
      "tool_choice": {"type": "function", "name": "x"}}, [("tool_choice", "names the tool 'x'")]),
    ({"input": [USER], "tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, []),
    ({"input": [USER], "tools": [{"type": "function", "name": "look"}], "tool_choice": {
        "type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]}},
     [("tool_choice", "names the tool 'x'")]),
]  # fmt: skip

ANTHROPIC = [
    ({}, [("messages", "at least one message")]),
    ({"messages": [USER], "system": "x"}, []),
    ({"messages": [USER], "system": [_text("x"), _text(" "), {"type": "text"}, 7]},
     [("system[1]", "non-whitespace"), ("system[2]", "non-empty")]),
    ({"messages": [7, {"role": "tool"}]}, [("messages[0].role", "found None"), ("messages[1].role", "'tool'")]),
    ({"messages": [{"role": "user", "content": None}, {"role": "user", "content": []}]},
     [("messages[0].content", "all messages have content"), ("messages[1].content", "all messages have content")]),
    ({"messages": [USER, {"role": "assistant", "content": ""}]}, []),
    ({"messages": [USER, {"role": "assistant", "content": []}]}, []),
    ({"messages": [USER, {"role": "assistant", "content": None}]}, [("messages[1].content", "all messages have")]),
    ({"messages": [USER, {"role": "assistant", "content": ""}, USER]}, [("messages[1].content", "all messages have")]),
    ({"messages": [_user(7, _text(""), _text("x"))]}, [("messages[0].content[1]", "non-empty")]),
    ({"messages": [{"role": "user", "content": " \n"}]}, [("messages[0].content", "non-whitespace")]),
    ({"messages": [USER, _model(_use()), _user(_result(content=[_text("x"), _text(""), 7, {"type": "image"}]))]},
     [("messages[2].content[0].content[1]", "non-empty")]),
    ({"messages": [USER, _model(_use()), _user(_result(content="")), _model(_use("b")),
                   _user(_result("b", None))]}, []),
    ({"messages": [USER, _model(_text("x"), THOUGHT), USER]}, [("messages[1].content[1]", "cannot be thinking")]),
    ({"messages": [USER, _model({"type": "redacted_thinking", "data": "x"}), USER]},
     [("messages[1].content[0]", "cannot be thinking")]),
    ({"messages": [USER, _model(THOUGHT, _text("x")), USER, USER]}, []),
    # One turn in several messages.
    ({"messages": [USER, _model(_text("x")), _model(_use()), _user(_result()), USER]}, []),
    ({"messages": [USER, _model(_use(), _use("b")), _user(_result()), _user(_text("x")), _user(_result("b"))]},
     [("messages[3].content[0]", "the results of a turn come first")]),
    ({"messages": [USER, _model(_use(), _use("b")), _user(_result("b"))]},
     [("messages[2].content[0]", "tool_use 'a' has no tool_result")]),
    ({"messages": [USER, _model(_use(), _use("b"))]}, [("messages", "tool_use 'a', 'b' has no tool_result")]),
    ({"messages": [USER, _model(_use()), {"role": "user", "content": ""}, USER]},
     [("messages[2].content", "all messages have content"), ("messages[3].content", "tool_use 'a' has no")]),
    ({"messages": [USER, _model(_use()), {"role": "user", "content": ""}]},
     [("messages[2].content", "all messages have content"), ("messages", "tool_use 'a' has no")]),
    ({"messages": [_user(_result())]}, [("messages[0].content[0]", "has no tool_use in the previous message")]),
    ({"messages": [_user(_text("x"), _result())]}, [("messages[0].content[1]", "has no tool_use")]),
    ({"messages": [USER, _model(_use()), _user(_result(), _result())]},
     [("messages[2].content[1]", "has no tool_use in the previous message")]),
    ({"messages": [USER, _model(_use()), _user(_result()), SAID, _user(_result())]},
     [("messages[4].content[0]", "has no tool_use in the previous message")]),
    ({"messages": [USER, _model(_use()), USER, SAID, USER]}, [("messages[2].content", "tool_use 'a' has no")]),
    ({"messages": [USER, _model(_result(), _text("x")), USER]}, [("messages[1].content[0]", "only be in user")]),
    ({"messages": [USER, _model(_use(), _text("x")), _user(_result())]},
     [("messages[1].content[1]", "behind a tool_use")]),
    ({"messages": [USER, _model(_use(), {"type": "server_tool_use"}), _user(_result())]}, []),
    ({"messages": [USER, _model(_use("a-B_9"), _use("ö")), _user(_result("a-B_9"), _result("ö"))]},
     [("messages[1].content[1].id", "letters, digits, _ and -, found 'ö'")]),
    ({"messages": [USER, _model(_use(), _use()), _user(_result(), _result())]},
     [("messages[1].content[1].id", "ids must be unique: 'a'")]),
    # A system message among the others.
    ({"messages": [USER, SAID, {"role": "system", "content": "x"}, USER]}, []),
    ({"messages": [USER, SAID, {"role": "system", "content": "x"}]}, [("messages[2]", "a system message follows")]),
    ({"messages": [USER, SAID, {"role": "system", "content": "x"}, SAID]}, [("messages[2]", "follows a user's")]),
    ({"messages": [USER, {"role": "system", "content": "x"}, SAID]}, []),
    ({"messages": [{"role": "system", "content": "x"}, USER]}, [("messages[0]", "use the top-level 'system'")]),
    ({"messages": [USER, _model(_text("x"), _use()), {"role": "system", "content": "x"}, _user(_result())]},
     [("messages[2]", "between a tool_use and its tool_result")]),
    # Thinking in a loop of tools.
    ({"messages": [USER, _model(THOUGHT, _use()), _user(_result())], "thinking": {"type": "enabled"}}, []),
    ({"messages": [USER, _model({"type": "redacted_thinking"}, _use()), _user(_result())],
      "thinking": {"type": "enabled"}}, []),
    ({"messages": [USER, _model(_use()), _user(_result(), _text("x"))], "thinking": {"type": "enabled"}}, []),
    ({"messages": [USER, _model(_text("x"), THOUGHT, _use()), _user(_result())], "thinking": {"type": "enabled"}},
     [("messages[1].content[0]", "starts with a thinking block")]),
    ({"messages": [USER, SAID, _model(THOUGHT, _use()), _user(_result())], "thinking": {"type": "enabled"}}, []),
    ({"messages": [USER, _model(_use()), _user(_result())], "thinking": {"type": "adaptive"}}, []),
    ({"messages": [USER, SAID, {"role": "user", "content": ""}], "thinking": {"type": "enabled"}},
     [("messages[2].content", "all messages have content")]),
    ({"messages": [USER, _model(_use()), _user(_result())], "thinking": "enabled"}, []),
    ({"messages": [USER, _model(_use()), _user(_result()), SAID, USER], "thinking": {"type": "enabled"}}, []),
    ({"messages": [_model(_use()), _user(_result())], "thinking": {"type": "enabled"}},
     [("messages[0].content[0]", "starts with a thinking block")]),
    ({"messages": [_user(_result())], "thinking": {"type": "enabled"}},
     [("messages[0].content[0]", "has no tool_use")]),
    # A begun answer.
    ({"messages": [USER, SAID], "thinking": {"type": "enabled"}}, [("messages[1]", "while thinking is enabled")]),
    ({"messages": [USER, SAID], "thinking": {"type": "disabled"}}, []),
    ({"messages": [USER, SAID], "thinking": "enabled"}, []),
    ({"messages": [USER, {"role": "assistant", "content": "It is\n"}]}, [("messages[1]", "trailing whitespace")]),
    ({"messages": [USER, _model(_text("It is "), {"type": "image"})]}, []),
    *(({"messages": [USER, _model({"type": kind}, _text("x "))], "thinking": {"type": "enabled"}}, [])
      for kind in ("server_tool_use", "mcp_tool_use")),
    # Tools.
    ({"messages": [USER], "tools": [{"name": "b"}, {"name": "a"}, {"name": "b"}, {"name": "a"}, {"name": "c"}, 7]},
     [("tools", "unique: 'a'"), ("tools", "unique: 'b'")]),
    ({"messages": [USER], "tool_choice": {"type": "any"}}, [("tool_choice", "only be specified while providing")]),
    ({"messages": [USER], "tool_choice": {"type": "auto"}}, []),
    ({"messages": [USER], "tool_choice": "any"}, []),
    ({"messages": [USER], "tools": [{"name": "a"}], "tool_choice": {"type": "any"}}, []),
    ({"messages": [USER], "tools": [{"name": "a"}], "tool_choice": {"type": "tool", "name": "a"}}, []),
    ({"messages": [USER], "tool_choice": {"type": "tool", "name": "a"}}, [("tool_choice", "names the tool 'a'")]),
    ({"messages": [USER], "tools": [{"name": "a"}], "tool_choice": {"type": "auto", "name": "x"}}, []),
]  # fmt: skip

GEMINI = [
    ({}, [("contents", "at least one content")]),
    ({"contents": 7}, [("contents", "at least one content")]),
    ({"contents": _turn("user", "hi")}, []),
    ({"contents": {"parts": [{"text": "hi"}]}}, []),
    ({"contents": [{"parts": [{"text": "hi"}]}, _turn("model", CALL), _turn("function", RESPONSE)]}, []),
    ({"contents": [_turn("user", "x"), _turn("robot", "x"), _turn("user", "x")]}, [("contents[1].role", "'robot'")]),
    ({"contents": [_turn("robot"), _turn("user", "x")]}, [("contents[0].role", "'robot'")]),
    ({"contents": [7, {"role": "user"}, {"role": "user", "parts": "hi"}]},
     [("contents[0].parts", "at least one part"), ("contents[1].parts", "at least one part"),
      ("contents[2].parts", "at least one part")]),
    ({"contents": [_turn("user", 7, "x", "", {})]},
     [("contents[0].parts[0]", "a part has data"), ("contents[0].parts[2]", "a part has data"),
      ("contents[0].parts[3]", "a part has data")]),
    ({"contents": [_turn("user", "x"), _turn("model", CALL, CALL), _turn("user", RESPONSE), _turn("model", "y")]},
     [("contents[2]", "holds 1 function responses where 2 calls")]),
    ({"contents": [_turn("user", "x"), _turn("model", CALL), _turn("user", RESPONSE), _turn("user", RESPONSE)]},
     [("contents[3]", "holds 1 function responses where 0 calls")]),
    ({"contents": [_turn("user", "x"), _turn("model", CALL), _turn("user", RESPONSE, "and?")]},
     [("contents[2]", "share a turn with nothing else")]),
    ({"contents": [_turn("user", "x"), _turn("model", CALL), _turn("user", RESPONSE), _turn("model", CALL),
                   _turn("user", RESPONSE)]}, []),
    ({"contents": [_turn("user", "x"), _turn("model", {"function_call": {"name": "look"}}),
                   _turn("user", {"function_response": {"name": "look"}})]}, []),
    ({"contents": [_turn("user", "x"), _turn("model", CALL, CALL)]}, [("contents[2]", "the responses of 2 function")]),
    ({"contents": [_turn("model", CALL), _turn("user", RESPONSE)]}, [("contents[0]", "is not the first turn")]),
    ({"contents": [_turn("model", "x"), _turn("user", "y")]}, []),
    ({"contents": [_turn("user", "x"), _turn("model", "y"), _turn("model", CALL), _turn("user", RESPONSE)]},
     [("contents[2]", "immediately after a user turn")]),
    ({"contents": "x", "tools": "y"}, []),
    ({"contents": [_turn("user", "x")], "tools": [
        7, {"functionDeclarations": [{"name": "b"}, {"name": "a"}, 7]},
        {"function_declarations": [{"name": "c"}, {"name": "b"}, {"name": "a"}]}]},
     [("tools", "duplicate function declaration: 'a'"), ("tools", "duplicate function declaration: 'b'")]),
]  # fmt: skip

CONFIG = {"toolConfig": {"tools": [_spec("look")]}}
BEDROCK = [
    *((body, [("messages", "at least one message")]) for body in ({}, {"messages": []}, {"messages": 7})),
    ({"messages": [_user(T)], "system": [T, {"text": " "}, {"text": None}, {"cachePoint": {}}, 7]},
     [("system[1]", "blank"), ("system[2]", "blank")]),
    ({"messages": [7, {"role": "system"}, _user(T)]}, [("messages[0].role", "None"), ("messages[1].role", "'system'")]),
    ({"messages": [_model(T)]}, [("messages[0]", "start with a user message")]),
    ({"messages": [_user(T), _model(T), _model(T), _user(T)]}, [("messages[2]", "must alternate")]),
    ({"messages": [_user(T), _model(T), _user(T)]}, []),
    ({"messages": [_user({"cachePoint": {"type": "default"}})]}, [("messages[0].content", "at least one content")]),
    ({"messages": [{"role": "user", "content": "hello"}]}, [("messages[0].content", "at least one content")]),
    ({"messages": [_user(T, {"text": "\n"}, 7)]}, [("messages[0].content[1]", "blank")]),
    ({"messages": [_user(T), _model(_used()), _user(_returned(), T)], **CONFIG}, []),
    ({"messages": [_user(T), _model(_used(), _used("b")), _user(_returned("b"), _returned())], **CONFIG}, []),
    ({"messages": [_user(T), _model(_used(), _used("b")), _user(_returned("b"))], **CONFIG},
     [("messages[2]", "expected toolResult blocks for 'a'")]),
    ({"messages": [_user(T), _model(_used()), _user(T), _model(T), _user(T)], **CONFIG},
     [("messages[2]", "expected toolResult blocks for 'a'")]),
    ({"messages": [_user(T), _model(_used(), _used("b"))], **CONFIG},
     [("messages[2]", "expected toolResult blocks for 'a', 'b'")]),
    ({"messages": [_user(T), _model(_used()), _user(_returned(), _returned())], **CONFIG},
     [("messages[2]", "toolResult for 'a' has no toolUse")]),
    ({"messages": [_user(T), _model(_used(), _used()), _user(_returned(), _returned())], **CONFIG},
     [("messages[1]", "two toolUse blocks of one message have one id")]),
    ({"messages": [_user(T), _model(_used()), _user(_returned())]}, [("toolConfig", "must be defined")]),
    ({"messages": [_user(T), _model(_used()), _user(_returned()), _model(T), _user(T)]},
     [("toolConfig", "must be defined")]),
    ({"messages": [_user(_returned())]},
     [("messages[0]", "toolResult for 'a' has no toolUse"), ("toolConfig", "must be defined")]),
    ({"messages": [_user(T), _model({"toolUse": 7}), _user({"toolResult": 7})]}, []),
    ({"messages": [_user(T)], "toolConfig": {"tools": [_spec("b"), _spec("a"), _spec("b"), _spec("a"), _spec("c"), 7]}},
     [("toolConfig.tools", "'a' is already defined"), ("toolConfig.tools", "'b' is already defined")]),
    ({"messages": [_user(T)], "toolConfig": "x"}, []),
]  # fmt: skip

BY_API = {
    "openai-chat": CHAT,
    "openai-responses": RESPONSES,
    "anthropic": ANTHROPIC,
    "gemini": GEMINI,
    "bedrock": BEDROCK,
}


@pytest.mark.parametrize(
    ("api", "number"), [(api, number) for api, rules in BY_API.items() for number in range(len(rules))]
)
def test_every_place_that_is_wrong_is_named_and_no_other(api, number):
    """In the order of the request, with what is wrong there."""
    body, wrong = BY_API[api][number]
    found = structure_errors(body, api)
    assert [error.path for error in found] == [path for path, _ in wrong], list(map(str, found))
    for error, (_, said) in zip(found, wrong, strict=True):
        assert said in str(error)


@pytest.mark.parametrize(
    ("api", "body", "where"),
    [
        ("anthropic", {"messages": [USER, SAID]}, "messages[1]"),
        ("anthropic", {"messages": [USER, _model(_text("x"))], "thinking": {"type": "enabled"}}, "messages[1]"),
        ("gemini", {"contents": [_turn("user", "x"), _turn("model", "y")]}, "contents[1]"),
        ("bedrock", {"messages": [_user(T), _model(T)]}, "messages[1]"),
    ],
)
def test_a_begun_answer_is_named_where_it_stands(api, body, where):
    """Where the model takes none; once."""
    assert [error.path for error in structure_errors(body, api, prefill=False)] == [where]


@pytest.mark.parametrize(
    ("api", "body", "where"),
    [
        ("anthropic", {"messages": [USER, _model(_use())]}, ["messages", "messages[1]"]),
        ("gemini", {"contents": [_turn("user", "x"), _turn("model", CALL)]}, ["contents[2]"]),
        ("bedrock", {"messages": [_user(T), _model(_used())], **CONFIG}, ["messages[2]"]),
    ],
)
def test_calls_at_the_end_miss_their_results(api, body, where):
    """Whether or not an answer may be begun."""
    assert [error.path for error in structure_errors(body, api, prefill=False)] == where


def test_a_system_message_is_named_where_no_model_takes_it():
    """Whatever else would be said of its place."""
    body = {"messages": [{"role": "system", "content": "x"}, USER, SAID, {"role": "system", "content": "x"}, USER]}
    found = structure_errors(body, "anthropic", mid_system=False)
    assert [error.path for error in found] == ["messages[0].role", "messages[3].role"]
    assert "not supported on this model" in str(found[0])
