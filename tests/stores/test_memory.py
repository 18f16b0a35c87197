"""The store of one process."""

from __future__ import annotations

import os
import threading

import pytest

from cacheprefix.stores import MemoryStore


def test_the_least_recently_used_goes_first() -> None:
    """Reading an entry keeps it; the one that was not read leaves."""
    store = MemoryStore(max_entries=2)
    store.set("old", b"1")
    store.set("new", b"2")
    store.get("old")
    store.set("third", b"3")
    assert set(store.sizes()) == {"old", "third"}


def test_bytes_are_bounded() -> None:
    """Entries leave until the values fit, and one that can never fit is not kept."""
    store = MemoryStore(max_bytes=10)
    store.set("a", b"12345")
    store.set("b", b"12345")
    store.set("c", b"1")
    assert set(store.sizes()) == {"b", "c"}
    store.set("huge", b"1" * 11)
    assert store.get("huge") is None
    assert set(store.sizes()) == {"b", "c"}


def test_listeners_hear_why_an_entry_left(clock) -> None:
    """Eviction and expiry are told apart; deletion is the caller's own doing and not told."""
    store = MemoryStore(max_entries=1, clock=clock)
    heard: list[tuple[str, str]] = []
    store.listen(lambda key, why: heard.append((key, why)))
    store.set("a", b"1")
    store.set("b", b"1", 5)
    clock.seconds += 6
    store.get("b")
    store.set("c", b"1")
    store.delete("c")
    assert heard == [("a", "evicted"), ("b", "expired")]


def test_generations_are_bounded_and_forgetting_one_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest names leave, and come back with another generation."""
    monkeypatch.setattr("cacheprefix.stores.memory._MAX_GENERATIONS", 10)
    store = MemoryStore()
    first = store.generations(["first"])
    for i in range(50):
        store.bump([f"n{i}"])
    assert len(store._generations) <= 10
    assert store.generations(["first"]) != first


def test_old_leases_do_not_pile_up(clock) -> None:
    """Leases that nobody gave back are swept out after their end."""
    store = MemoryStore(clock=clock)
    for i in range(5_000):
        store.acquire(f"l{i}", "one", 1)
        clock.seconds += 1
    assert len(store._leases) < 1_100


def test_a_lease_survives_no_clock_that_went_back(clock) -> None:
    """When the clock stands before the lease began nobody is kept waiting by it."""
    store = MemoryStore(clock=clock)
    assert store.acquire("l", "one", 5)
    clock.seconds -= 500
    assert store.acquire("l", "two", 5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_inherit_a_held_lock() -> None:
    """A lock that another thread of the parent held is free in the child."""
    store = MemoryStore()
    store.set("k", b"1")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with store._lock:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    child = os.fork()
    if child == 0:
        os._exit(0 if store.get("k") == b"1" else 1)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert status == 0
