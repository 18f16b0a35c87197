"""Identical calls at the same time: one runs, and nobody waits for nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cacheprefix.stores import MemoryStore
from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec


def together(count: int, work: Any) -> list[Any]:
    """Run ``work(i)`` in so many threads that all start at once."""
    gate = threading.Barrier(count)

    def one(i: int) -> Any:
        gate.wait()
        return work(i)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_sixty_four_threads_run_a_tool_once(read, make) -> None:
    """All get the result; each call is a hit, a miss or joined."""
    cache, tool = ToolResultCache(), make(["content"], seconds=0.1)
    results = together(64, lambda _: cache.call(read, {}, tool))
    assert results == [["content"]] * 64
    assert len({id(r) for r in results}) == 64
    assert tool.runs == 1
    total = cache.stats().total
    assert (total.misses, total.hits + total.joined) == (1, 63)
    assert total.saved_seconds > 63 * 0.05


async def test_two_hundred_and_fifty_six_tasks_run_a_tool_once(read) -> None:
    """The same for tasks of one loop."""
    cache, runs = ToolResultCache(), []

    async def tool() -> list[str]:
        runs.append(1)
        await asyncio.sleep(0.05)
        return ["content"]

    results = await asyncio.gather(*(cache.acall(read, {}, tool) for _ in range(256)))
    assert results == [["content"]] * 256
    assert len({id(r) for r in results}) == 256
    assert len(runs) == 1
    assert cache.stats().total.joined == 255


async def test_threads_and_tasks_join_each_other(read, make) -> None:
    """A task waits for a thread's call and a thread for a task's."""
    cache, tool = ToolResultCache(), make(seconds=0.1)

    async def run() -> Any:
        return await asyncio.to_thread(tool)

    calls = [asyncio.to_thread(cache.call, read, {}, tool) for _ in range(3)]
    calls += [cache.acall(read, {}, run) for _ in range(3)]
    assert await asyncio.gather(*calls) == ["content"] * 6
    assert tool.runs == 1


async def test_a_task_that_leads_is_joined_by_a_thread(read, make) -> None:
    """The leader's loop goes on while the thread waits."""
    cache, tool = ToolResultCache(), make()
    started = asyncio.Event()

    async def run() -> Any:
        started.set()
        await asyncio.sleep(0.1)
        return tool()

    leader = asyncio.create_task(cache.acall(read, {}, run))
    await started.wait()
    assert await asyncio.to_thread(cache.call, read, {}, tool) == "content"
    assert await leader == "content"
    assert tool.runs == 1


async def test_a_sync_call_on_the_loop_does_not_wait_for_a_task_of_that_loop(read, make) -> None:
    """It would wait for what only its own thread can finish: it runs the tool itself."""
    cache, tool = ToolResultCache(options=ToolCacheOptions(lease=20)), make()
    release = asyncio.Event()

    async def run() -> Any:
        await release.wait()
        return "of the task"

    leader = asyncio.create_task(cache.acall(read, {}, run))
    await asyncio.sleep(0.01)
    began = time.monotonic()
    assert cache.call(read, {}, tool) == "content"
    assert time.monotonic() - began < 5
    release.set()
    assert await leader == "of the task"


def test_a_tool_that_calls_itself_does_not_wait_for_itself(read) -> None:
    """Directly, through a task, or through a thread with the same context."""
    cache = ToolResultCache(options=ToolCacheOptions(lease=20))
    depth: list[int] = []

    def tool() -> str:
        depth.append(1)
        return "inner" if len(depth) > 1 else cache.call(read, {}, tool)

    began = time.monotonic()
    assert cache.call(read, {}, tool) == "inner"

    async def atool() -> str:
        depth.append(1)
        if len(depth) > 1:
            return "inner"
        return await asyncio.create_task(cache.acall(read, {"a": 1}, atool))

    async def in_thread() -> Any:
        return await asyncio.to_thread(cache.call, read, {"b": 1}, lambda: "inner")

    depth.clear()
    assert asyncio.run(cache.acall(read, {"a": 1}, atool)) == "inner"
    assert asyncio.run(cache.acall(read, {"b": 1}, in_thread)) == "inner"
    assert time.monotonic() - began < 5


def test_a_leader_that_fails_releases_the_rest(read, make) -> None:
    """Its exception is its own; one of the others leads next and all others get that result."""
    cache, tool = ToolResultCache(), make(seconds=0.1)
    tool.failures = [ValueError("first")]

    def work(_: int) -> Any:
        try:
            return cache.call(read, {}, tool)
        except ValueError as error:
            return error

    results = together(16, work)
    assert sorted(map(str, results)) == ["content"] * 15 + ["first"]
    assert tool.runs == 2


def test_a_tool_that_always_fails_holds_nobody(read, make) -> None:
    """After a second failure everybody runs at once rather than one after the other."""
    cache, tool = ToolResultCache(), make(seconds=0.3)
    tool.failures = [ValueError(str(i)) for i in range(16)]

    def work(_: int) -> str:
        with pytest.raises(ValueError) as caught:
            cache.call(read, {}, tool)
        return str(caught.value)

    began = time.monotonic()
    results = together(16, work)
    assert len(set(results)) == 16
    assert time.monotonic() - began < 16 * 0.3


async def test_a_cancelled_leader_releases_the_rest(read) -> None:
    """Cancelling the task that runs the tool makes another one run it."""
    cache, runs = ToolResultCache(), []

    async def tool() -> str:
        runs.append(1)
        await asyncio.sleep(0.2 if len(runs) == 1 else 0)
        return "content"

    tasks = [asyncio.create_task(cache.acall(read, {}, tool)) for _ in range(5)]
    await asyncio.sleep(0.02)
    tasks[0].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == ["content"] * 4
    assert len(runs) == 2


async def test_a_cancelled_follower_disturbs_nobody(read) -> None:
    """The leader and the other followers get the result."""
    cache, runs = ToolResultCache(), []

    async def tool() -> str:
        runs.append(1)
        await asyncio.sleep(0.05)
        return "content"

    tasks = [asyncio.create_task(cache.acall(read, {}, tool)) for _ in range(5)]
    await asyncio.sleep(0.01)
    tasks[2].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[2], asyncio.CancelledError)
    assert results[:2] + results[3:] == ["content"] * 4
    assert len(runs) == 1


def test_nobody_waits_longer_than_the_lease(read, make) -> None:
    """A leader that hangs costs the others one lease, then they run the tool themselves."""
    cache, hang = ToolResultCache(options=ToolCacheOptions(lease=0.3)), threading.Event()
    leader = threading.Thread(target=cache.call, args=(read, {}, lambda: hang.wait(20)))
    leader.start()
    time.sleep(0.05)
    tool = make()
    began = time.monotonic()
    assert together(4, lambda _: cache.call(read, {}, tool)) == ["content"] * 4
    assert 0.2 < time.monotonic() - began < 3
    hang.set()
    leader.join(20)


async def test_no_task_waits_longer_than_the_lease(read) -> None:
    """The same for tasks."""
    cache, hang = ToolResultCache(options=ToolCacheOptions(lease=0.2)), asyncio.Event()

    async def slow() -> str:
        await hang.wait()
        return "late"

    async def quick() -> str:
        return "content"

    leader = asyncio.create_task(cache.acall(read, {}, slow))
    await asyncio.sleep(0.01)
    began = time.monotonic()
    assert await asyncio.gather(*(cache.acall(read, {}, quick) for _ in range(8))) == ["content"] * 8
    assert time.monotonic() - began < 3
    hang.set()
    assert await leader == "late"


class Leased(MemoryStore):
    """A store as other processes share it, which notes the leases that are taken, renewed and given back."""

    shared = True

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.renewed = threading.Event()
        self.free = threading.Event()

    def acquire(self, key: str, owner: str, ttl: float) -> bool:
        """Take it."""
        self.seconds.append(ttl)
        return super().acquire(key, owner, ttl)

    def renew(self, key: str, owner: str, ttl: float) -> bool:
        """Extend it."""
        self.renewed.set()
        return super().renew(key, owner, ttl)

    def release(self, key: str, owner: str) -> bool:
        """Give it back."""
        self.free.set()
        return super().release(key, owner)


def test_a_leader_that_lives_renews_a_short_lease(read) -> None:
    """One that is killed is waited for as long as its lease lasts, two seconds, and not as long as its tool might."""
    store = Leased()
    assert ToolResultCache(store).call(read, {}, lambda: store.renewed.wait(20)) is True
    assert store.seconds == [2.0]
    assert store.free.is_set()


async def test_a_task_that_is_cancelled_while_its_result_is_kept_gives_its_lease_back(read) -> None:
    """Other processes need not wait for it."""
    store = Leased()
    store.blocking, kept = True, threading.Event()
    store.set = lambda *_: (kept.set(), time.sleep(0.1))

    async def tool() -> str:
        return "content"

    task = asyncio.create_task(ToolResultCache(store).acall(read, {}, tool))
    await asyncio.to_thread(kept.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(store.free.wait, 20)


def test_results_that_cannot_be_shared_are_made_for_each(read) -> None:
    """A generator belongs to one caller, so every caller gets his own."""
    cache = ToolResultCache()

    def tool() -> Any:
        time.sleep(0.05)
        return (i for i in range(3))

    results = together(6, lambda _: cache.call(read, {}, tool))
    assert [list(r) for r in results] == [[0, 1, 2]] * 6


@pytest.mark.slow
def test_a_forgotten_call_that_is_collected_under_a_lock_blocks_nobody(read) -> None:
    """The collector may end an abandoned attempt in a thread that just holds the cache's own lock."""
    cache = ToolResultCache()
    attempt = cache.begin(read, {}, conversation="c")
    done = threading.Event()

    def collect() -> None:
        nonlocal attempt
        engine = cache._engine
        with cache._lock, engine._lock, engine.flights._lock, cache._counters._lock:
            del attempt
            gc.collect()
        done.set()

    threading.Thread(target=collect, daemon=True).start()
    assert done.wait(10)
    assert cache.call(read, {}, lambda: "content") == "content"


def test_a_result_that_lands_between_look_and_start_is_taken(read, make) -> None:
    """Who looked just before another call ended does not run the tool again."""
    from cacheprefix.stores import MemoryStore

    class Interrupted(MemoryStore):
        between: Any = None

        def read(self, key: str, names: Any) -> tuple[bytes | None, bytes]:
            found = super().read(key, names)
            between, self.between = self.between, None
            if between is not None:
                between()
            return found

    store = Interrupted()
    cache, tool = ToolResultCache(store), make()

    def other_call() -> None:
        thread = threading.Thread(target=cache.call, args=(read, {}, tool))
        thread.start()
        thread.join(10)

    store.between = other_call
    assert cache.call(read, {}, tool) == "content"
    assert tool.runs == 1


def test_different_calls_do_not_wait_for_each_other(read, make) -> None:
    """Only identical ones join."""
    cache = ToolResultCache(options=ToolCacheOptions(lease=20))
    gate = threading.Barrier(8)

    def meet() -> str:
        gate.wait(10)
        return "met"

    assert together(8, lambda i: cache.call(read, {"i": i}, meet)) == ["met"] * 8


def test_calls_that_are_not_cached_do_not_join(make) -> None:
    """Two identical edits at once are two edits."""
    cache, tool = ToolResultCache(), make(seconds=0.05)
    together(4, lambda _: cache.call(ToolSpec("edit"), {}, tool))
    assert tool.runs == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_its_parents_calls(read, make) -> None:
    """A call that the parent had in flight runs in the child, at once."""
    cache, hang = ToolResultCache(options=ToolCacheOptions(lease=30)), threading.Event()
    leader = threading.Thread(target=cache.call, args=(read, {}, lambda: hang.wait(30)))
    leader.start()
    time.sleep(0.05)
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os._exit(0 if cache.call(read, {}, lambda: "content") == "content" else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert time.monotonic() - began < 10
    hang.set()
    leader.join(30)


async def test_a_loop_that_ends_in_the_middle_releases_the_rest(read, make) -> None:
    """A leader whose coroutine is thrown away does not hold a thread."""
    cache, tool = ToolResultCache(options=ToolCacheOptions(lease=20)), make()

    async def never() -> str:
        await asyncio.get_running_loop().create_future()
        return "never"

    leading = cache.acall(read, {}, never)
    leading.send(None)
    waiting = asyncio.create_task(asyncio.to_thread(cache.call, read, {}, tool))
    await asyncio.sleep(0.05)
    leading.close()
    del leading
    gc.collect()
    began = time.monotonic()
    assert await waiting == "content"
    assert time.monotonic() - began < 5


def test_nobody_waits_for_a_call_whose_loop_stands_still(read) -> None:
    """A task that was left behind by ``run_until_complete`` goes on when the loop is run again, if ever."""
    cache, loop = ToolResultCache(), asyncio.new_event_loop()

    async def leads() -> asyncio.Future[str]:
        task = asyncio.ensure_future(cache.acall(read, {}, lambda: asyncio.sleep(0.01, "theirs")))
        await asyncio.sleep(0)
        return task

    async def mine() -> str:
        return "mine"

    try:
        left, began = loop.run_until_complete(leads()), time.monotonic()
        # In a thread of its own: the one that leads would not wait for itself.
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: asyncio.run(cache.acall(read, {}, mine))).result() == "mine"
            assert pool.submit(cache.call, read, {}, lambda: "mine").result() == "mine"
        assert time.monotonic() - began < 10
        assert loop.run_until_complete(left) == "theirs"
    finally:
        loop.close()
