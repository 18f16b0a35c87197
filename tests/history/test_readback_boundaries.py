"""Cut results can be read again in pieces, and a prompt says beforehand what of it is cacheable."""

import pytest

from cacheprefix import Session
from cacheprefix.errors import StoreError
from cacheprefix.history import (
    READ_TOOL_SCHEMA,
    Ledger,
    ReadBudget,
    ToolResultBudget,
    boundaries_of,
    budget_results,
    full_result_reader,
)
from cacheprefix.stores import MemoryStore, ResultStore
from cacheprefix.wire import decode, views_of

CALL = {"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}
MARKER = {"cache_control": {"type": "ephemeral"}}


def test_a_kept_result_is_read_in_pieces_until_its_end():
    """Each piece says where to go on, and together they are the whole."""
    store = ResultStore(MemoryStore())
    text = "".join(chr(97 + n % 26) for n in range(25_000))
    ref = store.put(text)
    read = full_result_reader(store)
    first = read(ref, 0, 10_000)
    assert first.endswith("[characters 0 to 10000 of 25000; read on with offset=10000]")
    parts = [read(ref, at, 10_000).split("\n[")[0] for at in (0, 10_000, 20_000)]
    assert "".join(parts) == text


def test_one_read_never_undoes_the_budget():
    """However much the model asks for, a call returns a bounded piece."""
    store = ResultStore(MemoryStore())
    ref = store.put("x" * 100_000)
    assert len(full_result_reader(store)(ref, 0, 10**9)) < 17_000
    assert len(full_result_reader(store)(ref, -5, -5).split("\n")[0]) == 1


def test_an_unknown_or_foreign_reference_is_an_error_for_the_model():
    """The tool answers in words; another tenant's reference reads nothing."""
    store = ResultStore(MemoryStore())
    ref = store.put("secret", scope="a")
    assert full_result_reader(store, scope="b")(ref).startswith("Error: no result is kept under")
    assert full_result_reader(store, scope="a")(ref) == "secret"

    class Broken:
        def get(self, *_, **__):
            raise StoreError("gone")

    assert full_result_reader(Broken())(ref).startswith("Error: the store cannot be read")


def test_what_the_read_tool_returns_is_not_cut_again():
    """By default the budget leaves the tool's own results alone."""
    call = {"id": "c", "type": "function", "function": {"name": READ_TOOL_SCHEMA["name"], "arguments": "{}"}}
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "line\n" * 3_000},
    ]
    done = budget_results(views_of(messages, "openai-chat"), Ledger(), ToolResultBudget(max_tokens=100))
    assert not done.decisions


@pytest.fixture
def prompt():
    """A body with tools, a marked system text and three messages."""
    body = {
        "model": "claude-sonnet-4-20250514",
        "tools": [{"name": "t", "description": "d" * 400, "input_schema": {"type": "object"}}],
        "system": [{"type": "text", "text": "s" * 4_000, **MARKER}],
        "messages": [
            {"role": "user", "content": "u" * 400},
            {"role": "assistant", "content": "a" * 400},
            {"role": "user", "content": "volatile"},
        ],
    }
    return decode(body, "anthropic")


def test_boundaries_end_each_stable_part_and_add_up(prompt):
    """Tools, the marked system text and the last stable message; prefix and suffix make the whole."""
    found = boundaries_of(prompt, volatile=1)
    assert [boundary.kind for boundary in found.boundaries] == ["tools", "marker", "stable"]
    assert found.boundaries[-1].path.startswith("messages[1]")
    assert found.prefix_tokens + found.suffix_tokens == prompt.tokens
    assert found.prefix_tokens == found.boundaries[-1].tokens


def test_a_prefix_below_the_minimum_is_not_cacheable(prompt):
    """Where the provider caches nothing, the predicted prefix is empty."""
    found = boundaries_of(prompt, volatile=1, minimum=100_000)
    assert (found.sections, found.prefix_tokens, found.suffix_tokens) == (0, 0, prompt.tokens)


def test_an_empty_prompt_has_no_boundaries():
    """Nothing in, zeros out."""
    found = boundaries_of(decode({"model": "m", "messages": []}, "openai-chat"))
    assert (found.boundaries, found.prefix_tokens, found.suffix_tokens) == ((), 0, 0)


def test_a_read_returns_no_more_tokens_than_its_budget():
    """What is left out is read by the next call."""
    store = ResultStore(MemoryStore())
    ref = store.put("word " * 4_000)
    first = full_result_reader(store, budget=ReadBudget(tokens=100), count=lambda text: len(text) // 5)(ref)
    assert 300 < len(first.split("\n[")[0]) <= 504
    end = int(first.rpartition("offset=")[2].rstrip("]"))
    assert full_result_reader(store)(ref, end).startswith(("word " * 4_000)[end : end + 100])


def test_a_hand_written_loop_reads_its_own_conversation_and_no_other():
    """``session.read_tool`` is a plain function; the note names it from then on, and not before."""
    session = Session(budget=ToolResultBudget(max_tokens=100))
    chats = {name: session.conversation(name, api="openai-chat") for name in ("ann", "bob")}
    turn = [{"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c"}]
    chats["bob"].append(turn[0], {**turn[1], "content": "of bob\n" * 3_000})
    assert "read_full_result" not in str(chats["bob"].build_messages())
    read = session.read_tool("ann")
    chats["ann"].append(turn[0], {**turn[1], "content": "of ann\n" * 3_000})
    ref = str(chats["ann"].build_messages()).partition("read_full_result(ref='")[2][:16]
    assert read(ref, 0, 6) == f"of ann\n[characters 0 to 6 of {7 * 3_000}; read on with offset=6]"
    assert session.read_tool("bob")(ref).startswith("Error: no result is kept under")
