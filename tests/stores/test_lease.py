"""Leader election: one works, the others look, and a dead leader is replaced."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cacheprefix.effects import adrive, drive
from cacheprefix.errors import StoreError
from cacheprefix.stores import Elected, MemoryStore, RedisStore, SqliteStore, Store
from cacheprefix.stores import elect as electing

LEADER = """
import sys, time
from cacheprefix.effects import drive
from cacheprefix.stores import RedisStore, SqliteStore, elect
kind, where, seconds = sys.argv[1:]
store = SqliteStore(where) if kind == "sqlite" else RedisStore(where)
turn = drive(elect(store, "job", lambda: store.get("outcome"), lease=float(seconds)))
print(turn.role, flush=True)
time.sleep(60)
"""


def elect(*given: Any, **named: Any) -> Elected[bytes]:
    """Whose turn it is, found out in a thread."""
    return drive(electing(*given, **named))


async def aelect(*given: Any, **named: Any) -> Elected[bytes]:
    """Whose turn it is, found out in a task."""
    return await adrive(electing(*given, **named))


@pytest.fixture(params=["sqlite", "redis"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A store that other processes reach: kind, address and a way to open it."""
    if request.param == "sqlite":
        where, opened = str(tmp_path / "store.db"), SqliteStore(tmp_path / "store.db")
    else:
        where = request.getfixturevalue("valkey").url
        opened = RedisStore(where)
        opened._client.flushall()
    yield request.param, where, opened
    opened.close()


def test_one_leads_and_the_others_get_its_outcome(store: Store) -> None:
    """Of 12 threads one works; all others find what it announced."""
    gate = threading.Barrier(12)
    ran: list[int] = []

    def work(i: int) -> bytes | None:
        gate.wait()
        turn = elect(store, "job", lambda: store.get("outcome"), lease=20)
        if turn.role == "follower":
            return turn.found
        ran.append(i)
        time.sleep(0.05)
        store.set("outcome", b"done")
        assert turn.lease is not None
        turn.lease.release()
        return b"done"

    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(work, range(12))) == {b"done"}
    assert len(ran) == 1


async def test_tasks_elect_too(store: Store) -> None:
    """In tasks the outcome is the same."""
    ran: list[int] = []

    async def work(i: int) -> bytes | None:
        turn = await aelect(store, "job", lambda: store.get("outcome"), lease=20)
        if turn.role == "follower":
            return turn.found
        ran.append(i)
        assert turn.lease is not None
        assert turn.lease.renew()
        await asyncio.sleep(0.05)
        store.set("outcome", b"done")
        assert turn.lease.release()
        return b"done"

    assert set(await asyncio.gather(*(work(i) for i in range(12)))) == {b"done"}
    assert len(ran) == 1


def test_a_leader_that_gave_up_is_followed_at_once(store: Store) -> None:
    """A released lease without an outcome makes the next one leader, long before the lease ends."""
    first = elect(store, "job", lambda: None, lease=30)
    assert first.role == "leader"
    assert first.lease is not None
    timer = threading.Timer(0.1, first.lease.release)
    timer.start()
    second = elect(store, "job", lambda: None, lease=30)
    timer.join()
    assert second.role == "leader"
    assert second.waited < 10


def test_nobody_waits_longer_than_told(store: Store) -> None:
    """A leader that keeps renewing does not hold others for ever."""
    first = elect(store, "job", lambda: None, lease=30)
    assert first.lease is not None
    began = time.monotonic()
    turn = elect(store, "job", lambda: None, lease=30, patience=0.2)
    assert turn.role == "alone"
    assert 0.15 < time.monotonic() - began < 5
    assert first.lease.renew()


def test_an_outcome_that_came_just_before_the_lease_is_not_made_again(store: Store) -> None:
    """Who wins a lease looks once more."""
    store.set("outcome", b"done")
    turn = elect(store, "job", lambda: store.get("outcome"), lease=5)
    assert (turn.role, turn.found) == ("follower", b"done")
    assert elect(store, "job", lambda: None, lease=5).role == "leader"


@pytest.mark.slow
def test_a_leader_killed_by_the_system_is_replaced_after_its_lease(shared: Any) -> None:
    """SIGKILL leaves the lease behind; who waits leads when it ends, and not before."""
    kind, where, store = shared
    command = [sys.executable, "-c", LEADER, kind, where, "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline().strip() == "leader"
        leader.kill()
    turn = elect(store, "job", lambda: store.get("outcome"), lease=2, patience=20)
    assert turn.role == "leader"
    assert turn.waited < 10


def test_a_look_that_fails_gives_the_lease_back() -> None:
    """An error while looking reaches the caller, and the next one may lead."""
    store = MemoryStore()

    def look() -> bytes | None:
        raise StoreError("gone")

    with pytest.raises(StoreError):
        elect(store, "job", look, lease=60)
    assert elect(store, "job", lambda: None, lease=60).role == "leader"


async def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    """Cancelling one who waits takes no lease and disturbs no leader."""
    store = MemoryStore()
    first = elect(store, "job", lambda: None, lease=60)
    waiting = asyncio.create_task(aelect(store, "job", lambda: None, lease=60))
    await asyncio.sleep(0.02)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert first.lease is not None
    assert first.lease.release()
    assert elect(store, "job", lambda: None, lease=60).role == "leader"


def test_a_clock_that_goes_back_makes_nobody_wait() -> None:
    """A waiter whose clock jumps back goes on alone instead of waiting the jump."""
    store = MemoryStore()
    assert elect(store, "job", lambda: None, lease=60).role == "leader"
    times = iter([1_000.0, 500.0])
    assert elect(store, "job", lambda: None, lease=60, clock=lambda: next(times)).role == "alone"


def test_leases_of_different_jobs_are_apart(turned: Callable[[str], Store]) -> None:
    """One leader per key."""
    store = turned("memory")
    assert elect(store, "one", lambda: None, lease=60).role == "leader"
    assert elect(store, "two", lambda: None, lease=60).role == "leader"


class Slow(MemoryStore):
    """Takes its time over a lease: until the test says so."""

    blocking = True

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = threading.Event(), threading.Event()
        self.given_back = threading.Event()

    def acquire(self, key: str, owner: str, ttl: float) -> bool:
        """Take the lease once the test lets it."""
        self.asked.set()
        self.go_on.wait(20)
        return super().acquire(key, owner, ttl)

    def release(self, key: str, owner: str) -> bool:
        """Give it back."""
        given = super().release(key, owner)
        self.given_back.set()
        return given


@pytest.mark.parametrize("taken", ["before it is left", "afterwards"])
async def test_a_lease_that_nobody_waits_for_any_more_is_given_back(taken: str) -> None:
    """A task is cancelled while a thread takes the lease for it: the next one leads at once."""
    store = Slow()
    task = asyncio.create_task(aelect(store, "job", lambda: store.get("outcome"), lease=30))
    await asyncio.to_thread(store.asked.wait, 20)
    if taken == "before it is left":
        store.go_on.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.go_on.set()
    await asyncio.to_thread(store.given_back.wait, 20)
    assert MemoryStore.acquire(store, "job", "another", 30)
