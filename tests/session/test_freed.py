"""What is done and gone is let go: a dropped session is freed, with its prompts, and so are its adapters' parts."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import pytest

from cacheprefix import Compaction, Gate, Session, SharedPrefix, ToolResultBudget
from cacheprefix.bodies import Role, fork_body
from cacheprefix.stores import MemoryStore

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


@pytest.mark.slow
def test_no_text_of_a_forgotten_conversation_is_in_memory():
    """Neither in prompt trees nor in what was read, viewed or cut before; another one's are, and it goes on.

    In a process of its own, since all that is in memory is looked through: the frameworks of other tests are not.
    """
    script = Path(__file__).with_name("forgetting.py")
    shown = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=300)
    assert (shown.stdout, shown.returncode) == ("openai-chat, openai-responses, anthropic\n", 0), shown.stderr


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


@pytest.mark.slow
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
