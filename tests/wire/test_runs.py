"""A request that begins like an earlier one is read from where it goes on, and a changed message is still seen."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix.cache import mark, plan_breakpoints
from cacheprefix.profiles import default_registry
from cacheprefix.prompt import estimate_tokens
from cacheprefix.prompt import sections as hashing
from cacheprefix.wire import Memo, decode, redecode
from tests.drawn import examples

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
KINDS = [
    {"role": "user", "content": "plain"},
    {"role": "assistant", "content": "an answer"},
    {"role": "user", "content": [{"type": "text", "text": "block"}]},
    {"role": "user", "content": [{"type": "text", "text": "block", "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1, "b": True}}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"b": True, "a": 1}}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": True, "b": True}}]},
    {"role": "user", "content": "plain", "name": "someone"},
    {"name": "someone", "role": "user", "content": "plain"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "result"},
    {"role": "system", "content": "plain"},
    {"role": "user", "content": "\ud800"},
    {"role": "user", "content": [{"type": "text", "text": "\ud800"}]},
]
BODIES = {"anthropic": "messages", "openai-chat": "messages", "openai-responses": "input"}


def _shape(prompt):
    """Everything that a prompt says, places, digests and markers included."""
    rows = [(s.tier, s.path, s.kind, s.head, s.data, s.digest, s.tokens, s.marker) for s in prompt.sections]
    return rows, prompt.totals, prompt.digests, prompt.marked, prompt.tokens, prompt.settings, prompt.top_marker


def _histories(kinds):
    """Steps that mostly add to a history, and change, cut or shuffle it now and then."""
    step = st.tuples(st.sampled_from(["grow"] * 6 + ["change", "cut", "copy", "swap"]), st.integers(0, 99))
    return st.lists(st.tuples(step, st.sampled_from(KINDS[:kinds])), min_size=4, max_size=20)


@settings(max_examples=examples(60))
@given(st.sampled_from(["anthropic", "openai-chat"]), st.sampled_from([2, 4, len(KINDS)]).flatmap(_histories))
def test_a_history_read_in_parts_is_the_prompt_that_it_is_when_read_whole(api, steps):
    """Whatever was changed in between: in place, in the order of its fields, in the type of a number."""
    memo, history = Memo(), copy.deepcopy(KINDS[:2] * 4)
    for (what, where), message in steps:
        at = where % len(history)
        if what == "change":
            history[at].clear()
            history[at].update(copy.deepcopy(message))
        elif what == "cut":
            del history[max(at, 7) :]
        elif what == "swap":
            history[at], history[-1] = history[-1], history[at]
        else:
            history = copy.deepcopy(history) if what == "copy" else history
            history.append(copy.deepcopy(message))
        body = {"model": "m", "messages": list(history)}
        assert _shape(decode(body, api, memo=memo)) == _shape(decode(body, api))


@pytest.mark.parametrize("api", BODIES)
def test_nothing_is_hashed_twice_that_did_not_change(api, monkeypatch):
    """A hundred turns, breakpoints set on each: every message is hashed once, also the one that was marked."""
    hashed, whole = [], hashing.digest
    monkeypatch.setattr(hashing, "digest", lambda *given: hashed.append(given) or whole(*given))
    memo, history, model = Memo(), [], "claude-sonnet-4-6" if api == "anthropic" else "gpt-5.6"
    profile = default_registry().profile_for(model, api=api)
    for turn in range(100):
        history += [
            {"role": "user", "content": f"{turn} " + "word " * 300},
            {"role": "assistant", "content": f"{turn}"},
        ]
        body = {"model": model, BODIES[api]: list(history)}
        prompt = decode(body, api, memo=memo)
        chosen = plan_breakpoints(prompt, profile, boundary=len(history))
        marked = mark(body, api, prompt, chosen)
        again = redecode(prompt, marked, [one.section for one in chosen], estimate_tokens)
        assert (turn < 4) or chosen
        # A session remembers tens of thousands of prompts: each would hold the shared text once more.
        assert all(one.data is known.data for one, known in zip(again.sections, prompt.sections, strict=True))
        assert _shape(again) == _shape(decode(marked, api))
        del hashed[-len(history) :]
    assert len(hashed) == len(history)


def test_a_message_changed_in_place_deep_in_a_long_history_is_noticed():
    """The very same objects with another word in one of them."""
    memo = Memo()
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": f"{n}"}]} for n in range(50)],
    }
    before = decode(body, "anthropic", memo=memo)
    decode(body, "anthropic", memo=memo)
    body["messages"][20]["content"][0]["text"] = "edited"
    after = decode(body, "anthropic", memo=memo)
    assert [a.path for a, b in zip(after.sections, before.sections, strict=True) if a != b] == [
        "messages[20].content[0]"
    ]
    assert after.sections[19] is before.sections[19]


def test_runs_are_bounded_by_bytes():
    """Of a thousand conversations only the latest are remembered as a whole, and few ends of one."""
    memo = Memo(max_bytes=400_000)
    for number in range(1_000):
        history = [{"role": "user", "content": f"{number} {turn}"} for turn in range(20)]
        decode({"model": "m", "messages": history}, "anthropic", memo=memo)
    assert 0 < len(memo.runs) < 20
    for number in range(20):
        tail = {"role": "user", "content": f"tail {number}"}
        decode({"model": "m", "messages": [*history, tail]}, "anthropic", memo=memo)
    assert len(memo.runs) < 20
