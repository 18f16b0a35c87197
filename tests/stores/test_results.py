"""Full tool results, kept outside the prompt."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheprefix import History, Session
from cacheprefix.errors import StoreError
from cacheprefix.stores import MemoryStore, ResultStore, Slice, SqliteStore, Store
from tests.blocking import Hanging

TEXT = st.text(st.characters(codec=None), max_size=200)


def test_a_text_is_read_back_in_pieces(store: Store) -> None:
    """Pieces count characters, know the total, and say which is the last."""
    results = ResultStore(store)
    text = "".join(f"line {i} with ü\n" for i in range(100))
    ref = results.put(text)
    first = results.get(ref, 0, 50)
    assert first == Slice(text[:50], 0, len(text))
    rest = results.get(ref, 50)
    assert rest is not None
    assert first.text + rest.text == text
    assert results.get(ref, 10_000) == Slice("", 10_000, len(text))
    assert results.get(ref, -5, 3) == Slice("lin", 0, len(text))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=TEXT, offset=st.integers(0, 250), limit=st.one_of(st.none(), st.integers(0, 250)))
def test_any_text_survives(text: str, offset: int, limit: int | None) -> None:
    """Every text, also one with lone surrogates, comes back as it was, whole and cut."""
    results = ResultStore(MemoryStore())
    piece = results.get(results.put(text), offset, limit)
    end = None if limit is None else offset + limit
    assert piece == Slice(text[offset:end], offset, len(text))


def test_the_reference_depends_on_the_text_alone() -> None:
    """The same in every store and scope, so that prompts that show it are the same bytes."""
    one, two = ResultStore(MemoryStore()), ResultStore(MemoryStore(), namespace="other", ttl=5)
    assert one.put("text") == two.put("text", scope="tenant") == "h5eqvkvx43eiqxds"
    assert one.put("text") != one.put("text ")


def test_a_reference_reads_nothing_in_another_scope(store: Store) -> None:
    """A reference that leaks to another tenant is of no use there."""
    results = ResultStore(store)
    ref = results.put("secret", scope="tenant a")
    assert results.get(ref, scope="tenant b") is None
    assert results.get(ref) is None
    assert results.get(ref, scope="tenant a") == Slice("secret", 0, 6)


def test_keys_hold_no_text_and_no_scope(store: Store) -> None:
    """Who reads the store's keys learns neither tenant nor reference."""
    results = ResultStore(store)
    ref = results.put("secret", scope="tenant a")
    assert all(word not in key for key in store.sizes() for word in ("tenant", "secret", ref))


def test_damaged_bytes_count_as_gone(store: Store) -> None:
    """A text is returned only when it is the one that the reference names."""
    results = ResultStore(store)
    ref = results.put("the text")
    (key,) = store.sizes()
    store.set(key, b"another text")
    assert results.get(ref) is None
    store.set(key, b"\xff\xfe")
    assert results.get(ref) is None


def test_a_reference_that_a_model_invented_is_gone(store: Store) -> None:
    """Any string may be asked for."""
    results = ResultStore(store)
    for ref in ("", "../../etc/passwd", "*", "\ud800", "x" * 10_000):
        assert results.get(ref) is None


def test_a_text_expires() -> None:
    """After the time to live it is gone."""
    now = [0.0]
    results = ResultStore(MemoryStore(clock=lambda: now[0]), ttl=10)
    ref = results.put("text")
    now[0] = 11
    assert results.get(ref) is None


def test_texts_are_forgotten_one_by_one_or_by_scope(store: Store) -> None:
    """Delete takes one, clear a scope or all, and other entries of the store stay."""
    results = ResultStore(store)
    store.set("cacheprefix:other", b"1")
    one, two = results.put("one", scope="a"), results.put("two", scope="a")
    results.put("three", scope="b")
    assert results.delete(one, scope="a")
    assert not results.delete(one, scope="a")
    assert results.clear(scope="a") == 1
    assert results.get(two, scope="a") is None
    assert results.clear() == 1
    assert set(store.sizes()) == {"cacheprefix:other"}


async def test_in_an_event_loop_nobody_waits_for_the_store() -> None:
    """A text is readable here at once, under the reference that it has anywhere, and elsewhere when it is written."""
    store = Hanging(seconds=1)
    results, elsewhere = ResultStore(store), ResultStore(store)
    refs = [results.put(f"text {number}", scope="s") for number in range(3)]
    assert [results.get(ref, scope="s").text for ref in refs] == ["text 0", "text 1", "text 2"]
    assert not store.in_a_loop
    store.seconds = 0.05
    assert await asyncio.to_thread(results.flush)
    assert await asyncio.to_thread(lambda: elsewhere.get(refs[2], scope="s").text) == "text 2"
    assert refs[0] == await asyncio.to_thread(elsewhere.put, "text 0")


async def test_a_store_that_fails_later_is_tried_until_it_takes_the_text(tmp_path: Path) -> None:
    """Another process holds the file: the first failure is counted, then results stay whole, and nothing is lost."""
    store = SqliteStore(tmp_path / "store.db", timeout=0.05)
    results = ResultStore(store)
    session = Session(history=History(results=results))
    lock = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    with pytest.warns(UserWarning, match="full tool results: the store failed"):
        ref = results.put("text")
        while not session.failures:  # noqa: ASYNC110 - counted by a thread
            await asyncio.sleep(0.01)
    with pytest.raises(StoreError, match="a moment ago"):
        results.put("another")
    assert results.get(ref).text == "text"
    lock.execute("ROLLBACK")
    lock.close()
    assert await asyncio.to_thread(results.flush, 60)
    assert await asyncio.to_thread(lambda: ResultStore(store).get(ref).text) == "text"
    assert session.failures["full tool results"] >= 2
    store.close()


def test_after_one_failure_the_rest_of_a_turn_waits_no_more() -> None:
    """A thread waits once, and each text that is not kept is counted."""
    asked: list[str] = []

    class Gone(MemoryStore):
        def set(self, key: str, value: bytes, ttl: float | None = None) -> None:
            asked.append(key)
            raise StoreError("gone")

    results = ResultStore(Gone())
    session = Session(history=History(results=results))
    with pytest.warns(UserWarning, match="results stay whole"):
        for number in range(8):
            with pytest.raises(StoreError):
                results.put(f"text {number}")
    assert len(asked) == 1
    assert session.failures["full tool results"] == 8


async def test_texts_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that takes nothing fills no memory: beyond the bound results stay whole."""
    release = threading.Event()

    class Stuck(Hanging):
        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            return (lambda *given: release.wait(60) and found(*given)) if name == "set" else found

    monkeypatch.setattr("cacheprefix.stores.tool_results._MOST_WAITING", 1_000)
    results = ResultStore(Stuck())
    refs = [results.put(character * 400) for character in "ab"]
    with pytest.raises(StoreError, match="wait for the store already"):
        results.put("c" * 400)
    assert results.put("a" * 400) == refs[0]
    release.set()
    assert await asyncio.to_thread(results.flush, 60)
    assert results._held == 0


def test_what_waits_at_the_end_of_a_process_is_written(tmp_path: Path) -> None:
    """A program that ends right after its event loop leaves no reference that nobody can read."""
    import subprocess
    import sys

    code = """
import asyncio, sys, time
from cacheprefix.stores import ResultStore, SqliteStore
class Slow(SqliteStore):
    def set(self, *given):
        time.sleep(0.3)
        super().set(*given)
results = ResultStore(Slow(sys.argv[1]))
async def main():
    for number in range(2):
        print(results.put(f"text {number}"))
asyncio.run(main())
"""
    command = [sys.executable, "-c", code, str(tmp_path / "store.db")]
    refs = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    store = SqliteStore(tmp_path / "store.db")
    assert [ResultStore(store).get(ref).text for ref in refs] == ["text 0", "text 1"]
    store.close()


class Writing(MemoryStore):
    """A store that writes only when the test lets it."""

    blocking = True

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def set(self, *given: Any) -> None:
        """Write, later."""
        self.begun.set()
        self.go_on.wait(20)
        super().set(*given)


@pytest.mark.parametrize("way", ["delete", "clear"])
async def test_a_text_that_is_forgotten_while_it_is_written_stays_forgotten(way: str) -> None:
    """The thread is just writing it, or will come to it: in the end the store holds none."""
    store = Writing()
    results = ResultStore(store)
    refs = [results.put(f"{number} is a secret", scope="alice") for number in range(3)]
    await asyncio.to_thread(store.begun.wait, 20)
    if way == "clear":
        assert results.clear(scope="alice") == 3
    else:
        assert all(results.delete(ref, scope="alice") for ref in refs)
    store.go_on.set()
    await asyncio.to_thread(_written, results)
    assert not store.sizes()


def _written(results: ResultStore) -> None:
    """Wait for the thread that writes."""
    end = time.monotonic() + 20
    while results._writing and time.monotonic() < end:
        time.sleep(0.01)
