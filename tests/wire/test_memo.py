"""Append-only histories cost what is new, and a changed message is never missed."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.prompt import estimate_tokens
from cacheprefix.wire import Memo, decode

BODY = {
    "model": "m",
    "system": "s",
    "tools": [{"name": "n", "input_schema": {}}],
    "messages": [{"role": "user", "content": f"message {n}"} for n in range(20)],
}


def test_unchanged_units_are_the_very_same_sections():
    """Equality is then a matter of identity."""
    memo = Memo()
    first = decode(BODY, "anthropic", memo=memo)
    longer = {**BODY, "messages": [*BODY["messages"], {"role": "user", "content": "new"}]}
    second = decode(copy.deepcopy(longer), "anthropic", memo=memo)
    assert all(one is other for one, other in zip(first.sections, second.sections, strict=False))
    assert len(second.sections) == len(first.sections) + 1


def test_only_new_messages_are_counted_again():
    """Counting is what costs; a growing conversation counts each message once."""
    counted: list[str] = []

    def count(text: str, model: str) -> int:
        counted.append(text)
        return estimate_tokens(text, model)

    memo = Memo()
    for length in range(1, 21):
        decode({"model": "m", "messages": BODY["messages"][:length]}, "anthropic", count=count, memo=memo)
    assert len(counted) == 20


def test_a_message_changed_in_place_is_noticed():
    """The same objects with another content give another prompt."""
    memo = Memo()
    body = copy.deepcopy(BODY)
    before = decode(body, "anthropic", memo=memo)
    body["messages"][3]["content"] = "edited"
    body["tools"][0]["input_schema"]["type"] = "object"
    after = decode(body, "anthropic", memo=memo)
    differing = [one.path for one, other in zip(after.sections, before.sections, strict=True) if one != other]
    assert differing == ["tools[0]", "messages[3].content"]


def test_a_marker_that_moves_is_noticed():
    """Equal content, another marker."""
    memo = Memo()
    block = {"type": "text", "text": "x"}
    plain, marked = (
        decode({"model": "m", "messages": [{"role": "user", "content": [one]}]}, "anthropic", memo=memo)
        for one in (block, {**block, "cache_control": {"type": "ephemeral"}})
    )
    assert plain == marked
    assert (plain.sections[0].marker, marked.sections[0].marker is None) == (None, False)


def test_the_same_message_at_another_place_has_its_own_path():
    """And in another model or form it is another section."""
    memo = Memo()
    message = {"role": "user", "content": "x"}
    twice = decode({"model": "m", "messages": [message, message]}, "anthropic", memo=memo)
    assert [one.path for one in twice.sections] == ["messages[0].content", "messages[1].content"]
    other = decode({"model": "m", "messages": [message]}, "openai-chat", memo=memo)
    assert other.sections[0] == twice.sections[0]


@given(st.lists(st.lists(st.sampled_from(["a", "b", "cc"]), max_size=5), max_size=8), st.integers(0, 4000))
def test_a_memo_never_changes_what_is_decoded(conversations, limit):
    """Whatever was seen before, and however small it is."""
    memo = Memo(max_bytes=limit)
    for texts in conversations:
        body = {"model": "m", "messages": [{"role": "user", "content": text} for text in texts]}
        assert decode(body, "anthropic", memo=memo) == decode(body, "anthropic")


def test_a_memo_is_bounded():
    """Two generations: what is not used any more goes."""
    memo = Memo(max_bytes=100_000)
    for number in range(2000):
        decode({"model": "m", "messages": [{"role": "user", "content": f"{number}" * 50}]}, "anthropic", memo=memo)
    assert len(memo) < 300


def test_what_is_used_stays_while_others_go():
    """A system prompt survives any number of conversations."""
    memo = Memo(max_bytes=100_000)
    first = decode(BODY, "anthropic", memo=memo).sections[0]
    for number in range(500):
        body = {**BODY, "messages": [{"role": "user", "content": f"{number}" * 50}]}
        assert decode(body, "anthropic", memo=memo).sections[0] is first
