"""What two prompts share, and where they part."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.prompt import (
    TIERS,
    Prompt,
    chain,
    common_prefix,
    difference,
    estimate_tokens,
    lane_key,
    placed,
    salt,
    shared_characters,
    shared_sections,
    shared_tokens,
    shared_whole_tokens,
)
from cacheprefix.wire import decode

PLACEMENT = {"tool_choice": "messages", "speed": "system", "mcp": "tools", "response_format": "lane", "*": "none"}


def prompt(*messages: Any, tools: list | None = None, system: str | None = None, **fields: Any) -> Prompt:
    """A prompt of user messages; a pair is a role and a content."""
    rows = [
        {"role": one[0], "content": one[1]} if isinstance(one, tuple) else {"role": "user", "content": one}
        for one in messages
    ]
    body = {"model": "m", "messages": rows, **fields}
    if tools is not None:
        body["tools"] = tools
    if system is not None:
        body["system"] = system
    return decode(body, "anthropic")


def tool(name: str = "n", **fields: Any) -> dict:
    """A tool."""
    return {"name": name, "description": "d", "input_schema": {"type": "object"}, **fields}


def call(given: dict) -> dict:
    """A call of a tool."""
    return {"type": "tool_use", "id": "1", "name": "n", "input": given}


drawn = st.builds(
    prompt,
    st.text(max_size=2),
    st.text(max_size=2),
    tools=st.none() | st.lists(st.sampled_from([tool("a"), tool("b")]), max_size=2),
    system=st.none() | st.sampled_from(["s", "t"]),
    tool_choice=st.none() | st.sampled_from(["auto", "any"]),
    speed=st.none() | st.sampled_from(["fast", "slow"]),
    mcp=st.none() | st.sampled_from(["x", "y"]),
)


@given(drawn, drawn)
def test_chain_digests_are_equal_up_to_the_last_shared_section_and_never_after(a, b):
    """Two prompts share exactly the sections up to their last equal chain digest, salts of each tier included."""
    expected = 0
    entered = 0
    for left, right in zip(a.sections, b.sections, strict=False):
        while entered <= TIERS.index(left.tier) and salt(a, PLACEMENT, TIERS[entered]) == salt(
            b, PLACEMENT, TIERS[entered]
        ):
            entered += 1
        if entered <= TIERS.index(left.tier) or left != right:
            break
        expected += 1
    chained = [one == other for one, other in zip(chain(a, PLACEMENT), chain(b, PLACEMENT), strict=False)]
    assert chained == [True] * expected + [False] * (len(chained) - expected)


@pytest.mark.parametrize(
    ("setting", "kept"), [("tool_choice", 2), ("speed", 1), ("mcp", 0), ("temperature", 3), ("response_format", 3)]
)
def test_a_salt_invalidates_its_tier_and_those_after_it(setting, kept):
    """The placement of the setting says from where on; lane settings separate lanes and not digests."""
    one, other = (prompt("x", tools=[tool()], system="s", **{setting: value}) for value in ("a", "b"))
    equal = [left == right for left, right in zip(chain(one, PLACEMENT), chain(other, PLACEMENT), strict=True)]
    assert equal == [True] * kept + [False] * (3 - kept)


def test_a_prompt_without_tools_or_system_carries_their_salts_too():
    """A tier that is empty is passed all the same."""
    one, other = (prompt("x", mcp=value) for value in ("a", "b"))
    assert chain(one, PLACEMENT) != chain(other, PLACEMENT)


@given(st.lists(st.text(max_size=4), min_size=2, max_size=5))
def test_contents_that_run_together_are_not_mistaken_for_one_another(parts):
    """Where one text ends and the next begins is part of the digest."""
    joined = ["".join(parts)]
    shifted = [parts[0] + parts[1][:1], parts[1][1:], *parts[2:]]
    digests = {chain(prompt(*rows), PLACEMENT)[-1] for rows in (parts, joined, shifted)}
    assert len(digests) == len({tuple(rows) for rows in (parts, joined, shifted)})


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"temperature": 1}, True),
        ({"tool_choice": "any"}, True),
        ({"response_format": "json"}, False),
        ({"model": "other"}, False),
    ],
)
def test_the_lane_is_model_provider_scope_and_lane_settings(change, same):
    """Requests that can share at all have one lane key."""
    assert (lane_key(prompt("x", **change), PLACEMENT) == lane_key(prompt("y"), PLACEMENT)) is same


def test_provider_and_scope_separate_lanes():
    """Tenants and providers never share."""
    keys = {
        lane_key(prompt("x"), PLACEMENT, provider=provider, scope=scope)
        for provider in ("", "a", "b")
        for scope in ("", "a", "b")
    }
    assert len(keys) == 9


def test_settings_without_a_place_of_their_own_go_where_the_star_says():
    """And nowhere without a star."""
    one = prompt("x", new_field=1, tool_choice="any")
    assert placed(one, {"*": "lane", "tool_choice": "messages"}, "lane") == {"new_field": "1"}
    assert placed(one, {}, "lane") == {}


# -------------------------------------------------------------------------------------- divergence


@given(st.text(st.characters(), max_size=40), st.text(st.characters(), max_size=40))
def test_shared_characters_is_the_longest_common_beginning(a, b):
    """As counting them one by one finds."""
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert shared_characters(a, b) == expected


@given(drawn, drawn)
def test_shared_sections_are_equal_and_the_next_are_not(a, b):
    """The longest equal beginning of both."""
    shared = shared_sections(a.sections, b.sections)
    assert a.sections[:shared] == b.sections[:shared]
    assert shared in (len(a.sections), len(b.sections)) or a.sections[shared] != b.sections[shared]


@pytest.mark.parametrize(
    ("one", "other", "path", "before", "after", "size"),
    [
        (prompt("the cat sat"), prompt("the dog sat"), "messages[0].content", "the cat sat", "the dog sat", 0),
        (
            prompt("a", ("assistant", "b")),
            prompt("a", ("user", "b")),
            "messages[1].content",
            "assistant: b",
            "user: b",
            0,
        ),
        (prompt("a", "b"), prompt("a", "bc"), "messages[1].content", "b", "bc", 1),
        (
            prompt("x", tools=[tool(), tool("m", description="date YYYY")]),
            prompt("x", tools=[tool(), tool("m", description="date MMMM")]),
            "tools[1].description",
            "date YYYY",
            "date MMMM",
            0,
        ),
        (
            prompt("x", tools=[tool(input_schema={"properties": {"a b": {"enum": ["x", "y"]}}})]),
            prompt("x", tools=[tool(input_schema={"properties": {"a b": {"enum": ["x", "z"]}}})]),
            "tools[0].input_schema.properties['<3 characters, 7faae47c>'].enum[1]",
            "y",
            "z",
            0,
        ),
        # A person's address is no field's name, and what a call is given is content, names included.
        (
            prompt("x", tools=[tool(input_schema={"properties": {"a@b.c": {"enum": ["x", "y"]}}})]),
            prompt("x", tools=[tool(input_schema={"properties": {"a@b.c": {"enum": ["x", "z"]}}})]),
            "tools[0].input_schema.properties['<5 characters, 51d63405>'].enum[1]",
            "y",
            "z",
            0,
        ),
        (
            prompt("x", ("assistant", [call({"alice": 1})])),
            prompt("x", ("assistant", [call({"alice": 2})])),
            "messages[1].content[0].input",
            '{"alice":1}',
            '{"alice":2}',
            0,
        ),
        (
            prompt("x", tools=[tool(strict=1)]),
            prompt("x", tools=[tool(strict=True)]),
            "tools[0].strict",
            "1",
            "true",
            3,
        ),
    ],
)
def test_the_first_difference_is_named_down_to_field_and_character(one, other, path, before, after, size):
    """Path of the later prompt, a few characters of both, and how much longer it got."""
    found = common_prefix(one, other)
    assert (found.path, found.before, found.after, found.size) == (path, before, after, size)
    assert before[: found.offset] == after[: found.offset]
    assert before[found.offset : found.offset + 1] != after[found.offset : found.offset + 1]


def test_changed_key_order_is_shown_at_the_object_it_happened_in():
    """Both spellings are shown, since no single value explains the difference."""
    one, other = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    found = common_prefix(prompt("x", tools=[tool(input_schema=one)]), prompt("x", tools=[tool(input_schema=other)]))
    assert found.path == "tools[0].input_schema"
    assert (found.before, found.after) == ('{"a":1,"b":2}', '{"b":2,"a":1}')


def test_excerpts_are_short_and_around_the_difference():
    """24 characters to either side of a text of any length."""
    found = common_prefix(prompt("a" * 1000 + "x" + "b" * 1000), prompt("a" * 1000 + "y" + "b" * 1000))
    assert found.offset == 1000
    assert found.before == "a" * 24 + "x" + "b" * 23
    assert found.after == "a" * 24 + "y" + "b" * 23


def test_a_continued_prompt_does_not_diverge():
    """One is the beginning of the other: no path, all tokens of the shorter."""
    short, long = prompt("a", "b"), prompt("a", "b", "c")
    for found in (common_prefix(short, long), common_prefix(long, short), common_prefix(short, short)):
        assert found.path is None
        assert (found.sections, found.tokens) == (2, short.tokens)


def test_a_difference_of_sections_alone_can_be_asked_for():
    """Where a tree knows the two sections already."""
    one, other = prompt("ab").sections[0], prompt("ac").sections[0]
    assert difference(one, other, 4, 99).offset == 1
    assert difference(one, other, 4, 99).tokens == 99


@given(st.text(max_size=60), st.text(max_size=60))
def test_shared_tokens_never_exceed_either_section(a, b):
    """Tokens of the common beginning, by the counter given."""
    one, other = prompt(a).sections[0], prompt(b).sections[0]
    tokens = shared_tokens(one, other, estimate_tokens)
    assert 0 <= tokens <= min(one.tokens, other.tokens)
    assert tokens == estimate_tokens(a[: shared_characters(a, b)])


def words(text: str, model: str = "") -> int:
    """A word with the space in front of it is a token, and so is any other character."""
    return len(re.findall(r" ?\w+|\s|[^\w\s]", text))


@pytest.mark.parametrize(
    ("a", "b", "tokens"),
    [
        ("You are planner. Go.", "You are critic. Go.", 2),
        ("Plan it. Now", "Plan it. Not", 3),
        ('role="planner"', 'role="critic"', 3),
        ("a\nb", "a\n\nb", 2),
        ("word", "words", 0),
        ("one", "one two", 1),
        ("x", "y", 0),
    ],
)
def test_a_token_that_is_whole_in_one_text_only_is_not_shared(a, b, tokens):
    """A common beginning may end within a word, or between a word and the space that belongs to it."""
    one, other = prompt(a).sections[0], prompt(b).sections[0]
    assert shared_whole_tokens(one, other, words) == tokens == shared_whole_tokens(other, one, words)


@given(st.text(max_size=60), st.text(max_size=60))
def test_where_every_character_is_a_token_all_common_ones_are_whole(a, b):
    """As in a vocabulary of bytes; and an envelope apart shares none."""
    one, other = prompt(a + "." * 60).sections[0], prompt(b + "." * 60).sections[0]
    expected = min(shared_characters(a + "." * 60, b + "." * 60), one.tokens, other.tokens)
    assert shared_whole_tokens(one, other, lambda text, _model: len(text)) == expected


def test_another_envelope_shares_no_token():
    """The role comes before the text."""
    one, other = prompt(("user", "same")).sections[0], prompt(("assistant", "same")).sections[0]
    assert shared_tokens(one, other, estimate_tokens) == 0
    assert shared_whole_tokens(one, other, estimate_tokens) == 0


def test_long_texts_are_compared_in_parts_at_any_place():
    """Bisection finds the very character."""
    draw = random.Random(7)
    text = "".join(draw.choice("ab") for _ in range(5000))
    for at in (0, 1, 2500, 4998, 4999):
        assert shared_characters(text, text[:at] + "X" + text[at + 1 :]) == at


def gemini(part: dict) -> Prompt:
    """A prompt of one part behind a question."""
    return decode({"model": "m", "contents": [{"role": "user", "parts": [{"text": "x"}, part]}]}, "gemini")


def chat(given: Any) -> Prompt:
    """A prompt that ends with a call whose arguments are no text, as some servers of this API have them."""
    made = {"id": "1", "type": "function", "function": {"name": "n", "arguments": given}}
    return decode({"model": "m", "messages": [{"role": "assistant", "tool_calls": [made]}]}, "openai-chat")


@pytest.mark.parametrize(
    ("made", "path"),
    [
        (
            lambda given: gemini({"functionCall": {"name": "n", "args": given}}),
            "messages[0].content[1].functionCall.args",
        ),
        (
            lambda given: gemini({"functionResponse": {"name": "n", "response": given}}),
            "messages[0].content[1].functionResponse.response",
        ),
        (chat, "messages[0].tool_calls[0].function.arguments"),
    ],
    ids=["args", "response", "arguments"],
)
def test_no_name_that_a_call_was_given_is_in_the_path(made, path):
    """A log holds the path; what differs there is told to who explains the break."""
    found = common_prefix(made({"alice": {"age": 1}}), made({"alice": {"age": 2}}))
    assert found.path == path
    assert (found.before, found.after) == ('{"alice":{"age":1}}', '{"alice":{"age":2}}')
