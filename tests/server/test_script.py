"""What the simulated model says, and that it says it again."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from cacheprefix.server import Asked, Echo, Queue, Reply, Request, Rule, Rules, fill, sample
from cacheprefix.wire import decode

CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def request(*messages: dict, api: str = "openai-chat") -> Request:
    """What a script sees of a conversation."""
    body = {"model": "m", "messages": list(messages)}
    return Request(api, body, decode(body, api), Asked(), 0)


def user(text: str) -> dict:
    """A user message."""
    return {"role": "user", "content": text}


def said(text: str) -> dict:
    """An answer."""
    return {"role": "assistant", "content": text}


def calling(text: str | None = None, count: int = 1) -> dict:
    """An answer with tool calls."""
    return {"role": "assistant", "content": text, "tool_calls": [CALL] * count}


RESULT = {"role": "tool", "tool_call_id": "c", "content": "found"}


@pytest.mark.parametrize(
    ("messages", "rounds"),
    [
        ([user("look")], 0),
        ([user("look"), calling(), RESULT], 1),
        ([user("look"), calling("I look"), RESULT], 1),
        ([user("look"), calling(count=2), RESULT, RESULT], 1),
        ([user("look"), calling(), RESULT, calling(), RESULT], 2),
        ([user("look"), calling(), RESULT, user("You are the critic.")], 1),
        ([user("look"), calling(), RESULT, calling(), RESULT, user("role"), user("task")], 2),
        ([user("plan"), calling(), RESULT, said("The plan."), user("You are the critic.")], 0),
        ([user("plan"), calling(), RESULT, said("The plan."), calling(), RESULT, user("role")], 1),
        ([user("plan"), calling(), RESULT, said("The plan.")], 0),
        ([user("plan"), calling(), RESULT, user("and now?"), calling(), RESULT], 1),
        ([user("look"), calling(), RESULT, user('<role name="critic">'), calling(), RESULT], 2),
        ([user("plan"), calling(), RESULT, said("The plan."), user('<role name="critic">'), calling(), RESULT], 1),
    ],
)
def test_rounds_count_the_tool_rounds_that_end_the_conversation(messages, rounds):
    """Also where a fork's role stands behind the results."""
    assert request({"role": "system", "content": "s"}, *messages).rounds == rounds


def test_rounds_are_counted_in_anthropics_form_too():
    """Results are blocks of a user message there."""
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "found"}
    messages = [
        user("look"),
        {"role": "assistant", "content": [{"type": "text", "text": "I look"}, use, use]},
        {"role": "user", "content": [result, result, {"type": "text", "text": "You are the critic."}]},
    ]
    assert request(*messages, api="anthropic").rounds == 1
    messages[-1]["content"][-1]["text"] = '<role name="critic">'
    messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    assert request(*messages, api="anthropic").rounds == 2


def test_the_tail_ends_at_the_models_own_last_message():
    """Rules look at what is new."""
    asked = request(user("old"), said("answer"), user("new"), user("newer"))
    assert asked.tail == "answer\nnew\nnewer"
    assert asked.text.startswith("old")


def test_echo_differs_with_the_last_message_only():
    """And has the length asked for."""
    echo = Echo(50)
    one, same, other = (echo(request(user(early), said("a"), user(late))).text for early, late in ["ab", "cb", "cd"])
    assert one == same != other
    assert len(one) == 200


def test_a_queue_gives_its_replies_and_then_the_last_again():
    """Plain text stands for a reply."""
    queue = Queue(["a", Reply("b")])
    assert [queue(request(user("x"))).text for _ in range(3)] == ["a", "b", "b"]


def test_a_queue_can_go_on_with_another_script():
    """``then`` answers what is left."""
    queue = Queue(["a"], then=lambda asked: Reply(asked.tail))
    assert [queue(request(user("x"))).text for _ in range(2)] == ["a", "x"]


def test_the_first_fitting_rule_decides():
    """By pattern, by round, anywhere in the prompt, or by a function of the request."""
    rules = Rules(
        [
            Rule("critic", Reply("round one"), round=1),
            Rule("critic", lambda asked: Reply(f"critic {asked.rounds}")),
            Rule("handbook", Reply("by handbook"), anywhere=True),
        ],
        default=Queue(["default"]),
    )
    assert rules(request(user("You are the critic."))).text == "critic 0"
    assert rules(request(user("x"), calling(), RESULT, user("critic"))).text == "round one"
    assert rules(request({"role": "system", "content": "the handbook"}, said("a"), user("x"))).text == "by handbook"
    assert rules(request(user("x"))).text == "default"


@given(st.text(max_size=30), st.integers(0, 200))
def test_fill_reaches_its_length_and_never_cuts_what_was_given(text, tokens):
    """Four characters a token."""
    filled = fill(text, tokens)
    assert filled == fill(text, tokens)
    assert filled.startswith(text)
    assert len(filled) == max(len(text), tokens * 4)


class Leaf(BaseModel):
    kind: Literal["leaf"]
    weight: int = Field(ge=3, le=7)
    ratio: float = Field(gt=0, lt=1)
    tag: str = Field(min_length=5, max_length=6)


class Tree(BaseModel):
    name: str
    leaves: list[Leaf] = Field(min_length=2)
    left: Tree | None
    children: list[Tree]
    either: int | str
    table: dict[str, int]
    pair: tuple[int, str]
    flag: bool
    nothing: None


def test_a_sample_is_valid_for_its_schema():
    """References, recursion, bounds, unions, enums: what pydantic writes, pydantic accepts."""
    assert Tree.model_validate(sample(Tree.model_json_schema())).leaves[0].weight == 3


NAMES = st.sampled_from(["a", "b", "c"])


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict]:
    """Schemas made of others."""
    objects = st.dictionaries(NAMES, inner, max_size=3).map(
        lambda found: {"type": "object", "properties": found, "required": list(found)}
    )
    arrays = st.tuples(inner, st.integers(0, 3)).map(
        lambda pair: {"type": "array", "items": pair[0], "minItems": pair[1]}
    )
    unions = st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options})
    return st.one_of(objects, arrays, unions)


LEAVES = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "string"}, {"type": ["string", "null"]}]),
    st.lists(st.integers() | st.text(max_size=3), min_size=1, max_size=3).map(lambda values: {"enum": values}),
    st.integers(-50, 50).flatmap(
        lambda low: st.integers(low, low + 9).map(lambda high: {"type": "integer", "minimum": low, "maximum": high})
    ),
    st.integers(0, 9).map(lambda least: {"type": "string", "minLength": least, "maxLength": least + 2}),
)


@given(st.recursive(LEAVES, schemas, max_leaves=12))
def test_any_schema_has_a_sample_that_fits(schema):
    """Checked by a plain validator of the keywords used."""
    value = sample(schema)
    assert sample(schema) == value
    assert fits(value, schema)


def fits(value: Any, schema: dict) -> bool:
    """Whether a value is valid for a schema of the kinds drawn here."""
    if "enum" in schema:
        return value in schema["enum"]
    if "anyOf" in schema:
        return any(fits(value, option) for option in schema["anyOf"])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    checks = {
        "object": lambda: (
            isinstance(value, dict)
            and set(schema["required"]) <= set(value)
            and all(fits(value[name], inner) for name, inner in schema["properties"].items())
        ),
        "array": lambda: (
            isinstance(value, list)
            and len(value) >= schema["minItems"]
            and all(fits(one, schema["items"]) for one in value)
        ),
        "integer": lambda: type(value) is int and schema["minimum"] <= value <= schema["maximum"],
        "string": lambda: (
            isinstance(value, str) and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf)
        ),
        "boolean": lambda: isinstance(value, bool),
        "null": lambda: value is None,
    }
    return any(checks[kind]() for kind in kinds)


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, True, None, {"$ref": "#/nowhere"}, {"anyOf": []}])
def test_a_schema_that_says_nothing_has_a_sample_too(schema):
    """The server never fails on what a client sends."""
    TypeAdapter(Any).dump_json(sample(schema))
