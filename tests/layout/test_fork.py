"""Fork identity and the check before a fork is sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.layout import Fork, compatibility, tail_text
from cacheprefix.prompt import chain
from cacheprefix.wire import decode

PLACEMENT = {
    "response_format": "lane",
    "tool_choice": "messages",
    "parallel_tool_calls": "tools",
    "*": "none",
}
texts = st.text(max_size=40)
messages = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), texts), max_size=6)


def prompt(history, system="S", tools=("a",), **settings):
    """A chat prompt."""
    body = {
        "model": "m",
        "tools": [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools],
        "messages": [{"role": "system", "content": system}, *({"role": r, "content": t} for r, t in history)],
        **settings,
    }
    return decode(body, "openai-chat")


@given(messages, texts, texts, messages)
def test_every_fork_begins_with_the_sections_of_its_prefix(history, system, role, own):
    """Byte for byte, in cache order, with equal chain digests (invariant 1)."""
    parent = prompt(history, system)
    whole = prompt([*history, *own, ("user", role)], system)
    fork = Fork("r", parent, whole.sections[len(parent.sections) :])
    assert fork.sections[: len(parent.sections)] == parent.sections
    assert [s.data for s in fork.sections] == [s.data for s in whole.sections]
    assert chain(whole, PLACEMENT)[: len(parent.sections)] == chain(parent, PLACEMENT)
    assert compatibility(parent, whole, PLACEMENT).level == "safe"


@pytest.mark.parametrize(
    ("changed", "level", "reason"),
    [
        ({"system": "T"}, "unsafe", "part at system"),
        ({"tools": ("b",)}, "unsafe", "part at tools"),
        ({"response_format": {"type": "json_object"}}, "unsafe", "response_format separates"),
        ({"parallel_tool_calls": False}, "unsafe", "parallel_tool_calls invalidates the tools tier"),
        ({"tool_choice": "none"}, "warns", "tool_choice invalidates the messages tier"),
        ({"temperature": 0.5}, "safe", ""),
    ],
)
def test_the_check_names_what_separates_a_fork_from_its_parent(changed, level, reason):
    """Nothing shared is unsafe; a salted tier is a warning; sampling does not matter."""
    history = [("user", "hello")]
    found = compatibility(prompt(history), prompt([*history, ("user", "role")], **changed), PLACEMENT)
    assert found.level == level
    assert bool(found) == (level != "unsafe")
    assert reason in "; ".join(found.reasons)


def test_a_shared_part_below_the_minimum_is_a_warning():
    """The bytes match, but the provider will not keep them."""
    parent = prompt([("user", "short")])
    found = compatibility(parent, parent, PLACEMENT, min_tokens=1024)
    assert found.level == "warns"
    assert "below the provider's minimum of 1024" in found.reasons[0]


def test_an_edited_message_is_unsafe_at_its_path():
    """The place is named as in the body."""
    found = compatibility(prompt([("user", "a"), ("user", "b")]), prompt([("user", "x"), ("user", "b")]), PLACEMENT)
    assert found.level == "unsafe"
    assert "messages[1].content" in found.reasons[0]


@given(texts, texts)
def test_a_tail_says_role_then_tools_then_volatile_text(role, instruction):
    """And nothing at all when there is nothing to say."""
    text = tail_text(role, instruction, tools=["read"], volatile={"now": "12:00"})
    assert text.index("Tools you may use in this role: read.") < text.index("<now>")
    assert not instruction or instruction in text
    assert tail_text(role, "") == ""
    assert tail_text(role, instruction, card=True).startswith("You now speak as")
