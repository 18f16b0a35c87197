"""A child of ``os.fork`` works: no lock of the parent's holds it, and nothing of the parent's is waited for."""

from __future__ import annotations

import ast
import builtins
import functools
import os
import sys
import threading
from pathlib import Path

import pytest

from cacheprefix import Compaction, Gate, Session, SharedPrefix, ToolResultBudget, locks
from cacheprefix.history.shape import Shape
from cacheprefix.profiles import prices
from tests.forking import PATIENCE, all_locks_held, ask, busy, in_child
from tests.syntax import parsed

ROOT = Path(__file__).resolve().parents[2]
HANDBOOK = "The handbook of the house, rule by rule. " * 400
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def session() -> Session:
    """One with every part that has state."""
    return Session(
        SharedPrefix(system=HANDBOOK), compaction=Compaction(20_000), budget=ToolResultBudget(500), tool_cache=True
    )


def test_no_lock_that_another_thread_holds_at_the_fork_holds_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lock there is in the process is held by a thread while it forks; the child asks, decides and reports."""
    monkeypatch.setattr(locks, "_FORK_WAITS", 0.05)
    made = session()
    assert ask(made)
    with all_locks_held() as number:
        assert number > 15
        assert in_child(lambda: ask(made) and ask(made, "And now?"))


@pytest.mark.slow
def test_children_of_a_busy_process_work() -> None:
    """Four threads ask all the time while twenty children are forked off and ask too."""
    made = session()
    with busy(made):
        assert all(in_child(lambda: ask(made)) for _ in range(20))


_LIBRARY = """
import time
begun.set()
time.sleep(0.3)
__version__ = "0"
Usage = dict

def calc_price(*_, **__):
    raise LookupError
"""


def test_a_child_waits_for_no_import_of_a_thread_of_the_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's lock of a module that is just being imported stays taken in a child; the fork waits for its end."""
    begun = threading.Event()
    (tmp_path / "genai_prices.py").write_text(_LIBRARY, "utf-8")
    for name in [one for one in sys.modules if one.partition(".")[0] == "genai_prices"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(builtins, "begun", begun, raising=False)
    monkeypatch.setattr(prices, "_genai", functools.lru_cache(prices._genai.__wrapped__))
    thread = threading.Thread(target=prices.load_price_library)
    thread.start()
    assert begun.wait(PATIENCE)
    try:
        assert in_child(lambda: prices._library() is not None)
    finally:
        thread.join()
        sys.modules.pop("genai_prices", None)


def test_a_child_does_not_wait_for_a_leader_of_the_parents() -> None:
    """The parent leads on a cold prefix when it forks: the child leads for itself."""
    made = Session(SharedPrefix(system=HANDBOOK), gate=Gate(limit=600.0))
    body = {"model": "claude-sonnet-4-6", "max_tokens": 9, "system": HANDBOOK, "messages": []}
    ahead = made.adapter.waiting.queue(body, "anthropic", boundary=1)
    assert ahead.leader
    assert in_child(lambda: made.adapter.waiting.queue(body, "anthropic", boundary=1).leader)
    ahead.release(ok=False)


def test_a_history_that_is_being_read_at_the_fork_can_be_read_in_the_child() -> None:
    """``functools.cached_property`` would hold its lock for all objects of the class (Python 3.10 and 3.11)."""
    begun, done = threading.Event(), threading.Event()

    class Slow(list):  # type: ignore[type-arg]
        def __iter__(self):  # type: ignore[no-untyped-def]
            begun.set()
            done.wait(PATIENCE)
            return super().__iter__()

    thread = threading.Thread(target=lambda: Shape(Slow()).messages)
    thread.start()
    assert begun.wait(PATIENCE)
    try:
        assert in_child(lambda: Shape([]).messages == [])
    finally:
        done.set()
        thread.join()


def test_trees_that_were_being_changed_at_the_fork_start_anew_in_the_child() -> None:
    """And those that were not are kept: the child knows what its parent sent."""
    made = Session(SharedPrefix(system=HANDBOOK))
    assert ask(made)
    model = made.adapter.shared.model
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with model._lock:
            held.set()
            done.wait(PATIENCE)

    assert in_child(lambda: len(model._forest) == 1)
    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(PATIENCE)
    try:
        assert in_child(lambda: len(model._forest) == 0 and ask(made))
    finally:
        done.set()
        thread.join()


UNFORKED = {"cached_property", "Lock", "RLock", "Condition", "Event", "Semaphore", "Barrier"}
TOOLS = {"server", "testing", "cli", "audit", "report", "record", "verify"}
"""They serve, test and read; none of them runs in an application."""


def waits(tree: ast.AST) -> set[str]:
    """What ``threading`` and ``functools`` have that a child may wait for, as far as it is made here."""
    found: set[str] = set()
    asked = {
        id(kind)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
        for kind in node.args
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and id(node) not in asked:
            found |= {node.attr} & UNFORKED if node.value.id in ("threading", "functools") else set()
        elif isinstance(node, ast.ImportFrom) and node.module in ("threading", "functools"):
            found |= {alias.name for alias in node.names} & UNFORKED
    return found


@pytest.mark.slow
def test_the_runtime_makes_no_lock_that_a_forked_child_would_wait_for() -> None:
    """Locks are those of ``cacheprefix.locks``, in the core and in the adapters; others are made anew in the child."""
    house = ROOT / "cacheprefix"
    core = (path for path in house.rglob("*.py") if path.relative_to(house).parts[0] not in TOOLS)
    for path in (*core, *(ROOT / "adapters").rglob("cacheprefix_*/**/*.py")):
        if path.name != "locks.py":
            tree = parsed(path)
            anew = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name == "after_fork"]
            assert waits(tree) <= set().union(*map(waits, anew)), path
