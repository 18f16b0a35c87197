"""Reads beside writes that fail, are cancelled, are killed or never end: nobody gets what was before them."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cacheprefix.errors import StoreError
from cacheprefix.stores import MemoryStore, RedisStore, SqliteStore, Store
from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec

READ = ToolSpec("look", cacheable=True, reads=("path",), version="1")
WRITE = ToolSpec("note", mutates=("path",))


class File:
    """One file behind a cache."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text("old")

    def write(self) -> str:
        self.path.write_text("new")
        return "written"

    def seen(self, cache: ToolResultCache) -> str:
        """What the cache says is in it."""
        return cache.call(READ, {"path": str(self.path)}, self.path.read_text)

    async def aseen(self, cache: ToolResultCache) -> str:
        """The same for a coroutine."""

        async def read() -> str:
            return self.path.read_text()

        return await cache.acall(READ, {"path": str(self.path)}, read)


@pytest.fixture
def file(tmp_path: Path) -> File:
    """A file with its old text."""
    return File(tmp_path / "file.txt")


def eventually(holds: Callable[[], Any]) -> None:
    """Wait, generously, for what another thread or process brings about."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


KILLED = """
import os, signal, sys, time
from pathlib import Path
from cacheprefix.stores import RedisStore, SqliteStore
from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec
where, path = sys.argv[1:]
store = RedisStore(where) if where.startswith("redis") else SqliteStore(where)
def write():
    print("writing", flush=True)
    sys.stdin.readline()
    Path(path).write_text("new")
    os.kill(os.getpid(), signal.SIGKILL)
cache = ToolResultCache(store, ToolCacheOptions(lease=1.0))
cache.call(ToolSpec("note", mutates=("path",)), {"path": path}, write)
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_nothing_stale(where: str, shared: Store, file: File) -> None:
    """Read while it wrote, and again when it was dead: the new text, and kept again once its lease is over."""
    cache = ToolResultCache(shared)
    assert [file.seen(cache), file.seen(cache)] == ["old", "old"]
    command = [sys.executable, "-c", KILLED, where, str(file.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == "writing\n"
        assert [file.seen(cache) for _ in range(3)] == ["old"] * 3
        hits = cache.stats().total.hits
        writer.stdin.write("go\n")
        writer.stdin.flush()
        assert writer.wait(60) == -signal.SIGKILL
    assert file.seen(cache) == "new"
    assert cache.stats().total.hits == hits
    eventually(lambda: file.seen(cache) == "new" and cache.stats().total.hits > hits)


def test_a_long_write_is_marked_to_its_end(shared: Store, file: File) -> None:
    """Its mark is renewed while it runs, so that one killed at the end of many leases leaves nothing stale either."""
    marked = threading.Event()
    renewals: list[str] = []

    writer = ToolResultCache(shared, ToolCacheOptions(lease=0.3))
    mark = shared.mark

    def counted(names: Any, who: str, ttl: float) -> None:
        mark(names, who, ttl)
        renewals.append(who)
        if len(renewals) >= 4:
            marked.set()

    shared.mark = counted  # type: ignore[method-assign]

    def write() -> str:
        assert marked.wait(60)
        names = writer._planner._read_names("", None)
        assert shared.generations(names) != shared.generations(names)
        return file.write()

    writer.call(WRITE, {"path": str(file.path)}, write)
    assert len(set(renewals)) == 1
    assert file.seen(writer) == "new"
    assert file.seen(ToolResultCache(shared)) == "new"


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_write_whose_task_is_cancelled_goes_on_being_one(kind: str, tmp_path: Path, file: File) -> None:
    """Its thread does not end with the task: what is read before it ends is not kept."""
    store: Store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "store.db")
    cache, go, begun, done = ToolResultCache(store), threading.Event(), threading.Event(), threading.Event()

    def write() -> None:
        begun.set()
        go.wait(60)
        file.write()
        done.set()

    task = asyncio.create_task(cache.acall(WRITE, {"path": str(file.path)}, lambda: asyncio.to_thread(write)))
    await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await file.aseen(cache) == "old"
    go.set()
    await asyncio.to_thread(done.wait, 60)
    assert await file.aseen(cache) == "new"
    store.close()


async def test_a_write_that_times_out_goes_on_being_one(file: File) -> None:
    """A tool that gives up on its own thread says TimeoutError, and the thread may still write."""
    cache, go = ToolResultCache(), threading.Event()

    async def write() -> None:
        await asyncio.wait_for(asyncio.to_thread(lambda: go.wait(60) and file.write()), 0.01)

    with pytest.raises(asyncio.TimeoutError):
        await cache.acall(WRITE, {"path": str(file.path)}, write)
    assert await file.aseen(cache) == "old"
    go.set()
    while file.path.read_text() != "new":  # noqa: ASYNC110 - a thread's doing
        await asyncio.sleep(0.01)
    assert await file.aseen(cache) == "new"


async def test_a_cancelled_second_invalidation_is_done_all_the_same(tmp_path: Path, file: File) -> None:
    """It waits for a free thread when the task is cancelled; it is not lost with the task."""
    from cacheprefix.stores import effects

    store, hold, waiting = SqliteStore(tmp_path / "store.db"), threading.Event(), threading.Event()
    cache, other = ToolResultCache(store), ToolResultCache(SqliteStore(tmp_path / "store.db"))
    await asyncio.to_thread(file.seen, other)
    bumped = threading.Event()
    bump = store.bump

    def told(names: Any, writer: str = "") -> None:
        bump(names, writer)
        bumped.set()

    store.bump = told  # type: ignore[method-assign]

    async def write() -> str:
        file.write()
        for _ in range(8):
            effects._workers.pool().submit(hold.wait, 60)
        waiting.set()
        return "written"

    task = asyncio.create_task(cache.acall(WRITE, {"path": str(file.path)}, write))
    while not waiting.is_set():  # noqa: ASYNC110 - set by the task
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(file.seen, other) == "new"
    hold.set()
    assert await asyncio.to_thread(bumped.wait, 60)
    assert await asyncio.to_thread(file.seen, other) == "new"
    store.close()


@pytest.mark.slow
def test_a_locked_file_keeps_no_other_process_on_the_old_text(tmp_path: Path, file: File) -> None:
    """A backup holds the lock during the whole write: the others read the new text, before and after it lets go."""
    cache = ToolResultCache(SqliteStore(tmp_path / "store.db", timeout=0.05))
    other = ToolResultCache(SqliteStore(tmp_path / "store.db"))
    assert [file.seen(other), file.seen(other)] == ["old", "old"]
    lock = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    cache.call(WRITE, {"path": str(file.path)}, file.write)
    assert file.seen(other) == "new"
    lock.execute("COMMIT")
    lock.close()
    assert file.seen(other) == "new"
    eventually(lambda: not cache._engine._owed)
    assert [file.seen(cache), file.seen(other)] == ["new", "new"]


class Deaf(RedisStore):
    """A server that cannot be reached when a write ends."""

    deaf = False

    def bump(self, names: Any, writer: str = "") -> None:
        if self.deaf:
            raise StoreError("gone")
        super().bump(names, writer)


def test_what_a_server_did_not_hear_is_told_without_another_call(valkey: Any, file: File) -> None:
    """The mark holds others off meanwhile; when the server is back it hears of the end by itself."""
    store = Deaf(valkey.url)
    store._client.flushall()
    cache, other = ToolResultCache(store), ToolResultCache(RedisStore(valkey.url))
    file.seen(other)
    store.deaf = True
    cache.call(WRITE, {"path": str(file.path)}, file.write)
    assert [file.seen(other) for _ in range(2)] == ["new", "new"]
    hits = other.stats().total.hits
    store.deaf = False
    eventually(lambda: file.seen(other) == "new" and other.stats().total.hits > hits)
    store.close()


def test_a_call_that_is_dropped_half_way_stays_marked(file: File) -> None:
    """A front door with two hooks that never comes to the second: nobody knows what the tool did."""
    cache = ToolResultCache()
    attempt = cache.begin(WRITE, {"path": str(file.path)})
    del attempt
    assert [file.seen(cache), file.write(), file.seen(cache)] == ["old", "written", "new"]


async def test_what_the_store_is_still_to_hear_of_a_write_answers_nobody_of_its_process(file: File) -> None:
    """In an event loop a thread tells the store, which may take its time: the write is over before it has heard."""
    store = Busy()
    cache = ToolResultCache(store)
    assert [await asyncio.to_thread(file.seen, cache) for _ in range(2)] == ["old", "old"]
    attempt = cache.begin(WRITE, {"path": str(file.path)})
    attempt.finish(file.write())
    assert await asyncio.to_thread(file.seen, cache) == "new"
    store.free.set()
    await asyncio.to_thread(eventually, lambda: file.seen(cache) == "new" and cache.stats().total.hits > 1)


async def test_a_cancelled_write_that_the_store_did_not_hear_of_stays_marked(file: File) -> None:
    """Its thread goes on when the store is back: what is read until then is not kept."""
    store = Refusing()
    cache, other = ToolResultCache(store), ToolResultCache(store)
    begun, go = threading.Event(), threading.Event()

    def write() -> None:
        begun.set()
        go.wait(60)
        file.write()

    async def threaded() -> None:
        await asyncio.to_thread(write)

    store.refuses = True
    task = asyncio.create_task(cache.acall(WRITE, {"path": str(file.path)}, threaded))
    await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.refuses = False
    await asyncio.to_thread(eventually, lambda: not cache._engine._owed)
    assert await asyncio.to_thread(file.seen, other) == "old"
    go.set()
    await asyncio.to_thread(eventually, lambda: file.path.read_text() == "new")
    assert await asyncio.to_thread(file.seen, other) == "new"


class Busy(MemoryStore):
    """A store that takes its time for what it is told of writes."""

    blocking = True

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def mark(self, names: Any, writer: str, ttl: float) -> None:
        self.free.wait(60)
        super().mark(names, writer, ttl)

    def bump(self, names: Any, writer: str = "") -> None:
        self.free.wait(60)
        super().bump(names, writer)


class Refusing(MemoryStore):
    """A store that other processes share, which takes no mark and no end of one as long as it refuses."""

    shared = True
    refuses = False

    def mark(self, names: Any, writer: str, ttl: float) -> None:
        if self.refuses:
            raise StoreError("gone")
        super().mark(names, writer, ttl)

    def bump(self, names: Any, writer: str = "") -> None:
        if self.refuses:
            raise StoreError("gone")
        super().bump(names, writer)


def test_marks_end_with_their_writes(shared: Store, file: File) -> None:
    """After a write, also one that raised, results are kept again at once, and no thread stays behind for long."""
    others = set(threading.enumerate())
    cache = ToolResultCache(shared, ToolCacheOptions(lease=0.3))

    def fail() -> None:
        raise ValueError("no")

    for write in (file.write, fail):
        try:
            cache.call(WRITE, {"path": str(file.path)}, write)
        except ValueError:
            assert write is fail
        before = cache.stats().total.hits
        assert [file.seen(cache) for _ in range(2)] == ["new", "new"]
        assert cache.stats().total.hits == before + 1
    assert cache._engine._writing == {}
    eventually(lambda: not any(t.name == "cacheprefix-tool-cache" for t in {*threading.enumerate()} - others))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_takes_over_no_writes(file: File) -> None:
    """What the parent is writing is the parent's; the child keeps what it reads, and nothing from before."""
    cache, begun, go = ToolResultCache(), threading.Event(), threading.Event()
    file.seen(cache)

    def write() -> None:
        begun.set()
        go.wait(60)

    writer = threading.Thread(target=cache.call, args=(WRITE, {"path": str(file.path)}, write))
    writer.start()
    assert begun.wait(60)
    child = os.fork()
    if child == 0:
        file.write()
        seen = [file.seen(cache), file.seen(cache)]
        os._exit(0 if seen == ["new", "new"] and cache.stats().total.hits == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    go.set()
    writer.join(60)
