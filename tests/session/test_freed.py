"""What is done and gone is let go: a dropped session is freed, with its prompts, and so are its adapters' parts."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from typing import Any

import pytest

from cacheprefix import Compaction, Gate, History, Session, SharedPrefix, ToolResultBudget
from cacheprefix.bodies import Role, fork_body
from cacheprefix.prompt import Api
from cacheprefix.stores import MemoryStore, ResultStore

HANDBOOK = "handbook " * 1_000


def talk(session: Session, number: int = 0, *, conversation: str = "one") -> None:
    """A conversation of forty messages with a tool result, all of its own words."""
    history: list[dict[str, Any]] = []
    for index in range(20):
        history.append({"role": "user", "content": f"{number}: question {index} " + "lorem ipsum " * 40})
        history.append({"role": "assistant", "content": f"{number}: answer {index} " * 20})
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    history += [
        {"role": "user", "content": "last"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": f"{number}: a long result. " * 200},
    ]
    body = {"model": "gpt-4o", "messages": [{"role": "system", "content": HANDBOOK}, *history]}
    fork = fork_body(session.adapter, body, "openai-chat", Role("critic", "You criticise.", conversation))
    turn = fork.begin(fork.queue())
    turn.first_token()
    turn.finish({"prompt_tokens": 5})
    assert session.failures == {}


def made(**options: Any) -> Session:
    """A session with every part that remembers."""
    return Session(
        SharedPrefix(system=HANDBOOK),
        compaction=Compaction(3_000),
        budget=ToolResultBudget(200),
        tool_cache=True,
        **options,
    )


def test_a_conversation_that_has_ended_is_freed_when_it_is_forgotten():
    """With its decisions; the next one of that id starts anew, and others stay."""
    session = made()
    for name in ("one", "two"):
        talk(session, conversation=name)
    ended, other = (weakref.ref(session.conversation(name)) for name in ("one", "two"))
    assert ended().ledger
    session.forget("one")
    gc.collect()
    assert ended() is None
    assert other() is session.conversation("two")
    assert not session.conversation("one").ledger


def held(*marks: str) -> set[tuple[str, str]]:
    """The marks that stand in texts in memory, with what holds them."""
    gc.collect()
    found = set()
    for each in gc.get_objects():
        parts = gc.get_referents(each)
        for part in parts:
            # The garbage collector does not know of tuples and dicts that can be in no circle.
            if isinstance(part, (tuple, dict)) and not gc.is_tracked(part):
                parts.extend(gc.get_referents(part))
            text = part.decode("utf-8", "replace") if isinstance(part, bytes) else part
            if isinstance(text, str):
                found |= {(mark, type(each).__qualname__) for mark in marks if mark in text and text != mark}
    return found


def told(session: Session, api: Api, conversation: str, mark: str) -> None:
    """A conversation whose every text has these words in it; the role is the application's."""
    history: list[dict[str, Any]] = []
    result = f"{mark}: a long result. " * 200
    for index in range(20):
        history.append({"role": "user", "content": f"{mark}: question {index} " + "lorem ipsum " * 40})
        if index % 5:
            history.append({"role": "assistant", "content": f"{mark}: answer {index} " * 20})
        elif api == "anthropic":
            use = {"type": "tool_use", "id": f"c{index}", "name": "read", "input": {"page": f"{mark} {index}"}}
            history.append({"role": "assistant", "content": [use]})
            given = {"type": "tool_result", "tool_use_id": f"c{index}", "content": result}
            history.append({"role": "user", "content": [given]})
            history.append({"role": "assistant", "content": f"{mark}: {index}"})
        else:
            call = {"name": "read", "arguments": f'{{"page": "{mark} {index}"}}'}
            if api == "openai-responses":
                history.append({"type": "function_call", "call_id": f"c{index}", **call})
                history.append({"type": "function_call_output", "call_id": f"c{index}", "output": result})
            else:
                calls = [{"id": f"c{index}", "type": "function", "function": call}]
                history.append({"role": "assistant", "content": None, "tool_calls": calls})
                history.append({"role": "tool", "tool_call_id": f"c{index}", "content": result})
        body: dict[str, Any] = {"model": "claude-sonnet-4-6" if api == "anthropic" else "gpt-4o"}
        body["input" if api == "openai-responses" else "messages"] = list(history)
        if api == "anthropic":
            body["max_tokens"] = 50
        if history[-1]["role" if "role" in history[-1] else "type"] == "assistant":
            history.append({"role": "user", "content": f"{mark}: and then?"})
            body["input" if api == "openai-responses" else "messages"] = list(history)
        fork = fork_body(session.adapter, body, api, Role("critic", "You criticise.", conversation))
        turn = fork.begin(fork.queue())
        turn.first_token()
        turn.finish({"input_tokens": 5, "output_tokens": 1} if api != "openai-chat" else {"prompt_tokens": 5})
    assert session.failures == {}


@pytest.mark.parametrize(
    ("api", "limits"),
    [
        ("openai-chat", {}),
        ("openai-responses", {"compaction": Compaction(3_000)}),
        ("anthropic", {"budget": ToolResultBudget(200)}),
    ],
)
def test_no_text_of_a_forgotten_conversation_is_in_memory(api, limits):
    """Neither in prompt trees nor in what was read, viewed or cut before; another one's are, and it goes on.

    The store of full texts is its owner's: what stands there may be asked for by whoever has the history.
    """
    kept = MemoryStore()
    session = Session(SharedPrefix(system=HANDBOOK), history=History(results=ResultStore(kept)), **limits)
    marks = {name: f"mark-of-{name}-{api}-x" for name in ("one", "two")}
    for name, mark in marks.items():
        told(session, api, name, mark)
    session.forget("one")
    kept.clear("")
    assert {mark for mark, _ in held(*marks.values())} == {marks["two"]}
    told(session, api, "two", marks["two"])
    told(session, api, "one", marks["one"])
    session.forget("one")
    session.forget("two")
    kept.clear("")
    assert not held(*marks.values())


@pytest.mark.parametrize("options", [{}, {"gate": Gate(store=MemoryStore())}], ids=["plain", "gate store"])
def test_a_dropped_session_is_freed(options):
    """With its conversations, trees and histories; nothing in a module holds it."""
    session = made(**options)
    talk(session)
    child = session.child("inner")
    talk(child)
    held = [weakref.ref(one) for one in (session, child, session.adapter.shared.model, session.conversation("one"))]
    del session, child
    gc.collect()
    assert [one() for one in held] == [None] * 4


def test_sessions_made_and_dropped_leave_no_memory():
    """One a request, as a web application may do: thirty more leave less than one of them takes."""
    talk(made())
    gc.collect()
    tracemalloc.start()
    try:
        kept = made()
        talk(kept)
        one, _ = tracemalloc.get_traced_memory()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(30):
            talk(made(), number)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert one > 100_000
    assert after - before < one


def test_a_counter_that_cannot_be_held_weakly_is_not_held():
    """Its messages are read each time; it is freed with whoever made it."""
    from cacheprefix.wire import views_of

    class Count:
        __slots__ = ()

        def __call__(self, text: str) -> int:
            return len(text)

    message = {"role": "user", "content": "hello"}
    (first,), (second,) = views_of([message], "openai-chat", Count()), views_of([message], "openai-chat", Count())
    assert first == second
    assert first.tokens >= 5
