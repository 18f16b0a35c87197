"""The gate across processes: one leader in all of them, replaced when it dies, and nobody stuck."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cacheprefix import Gate, Session
from cacheprefix.effects import adrive, drive
from cacheprefix.errors import StoreError
from cacheprefix.layout import StoreGate, Worth, store_gate
from cacheprefix.server import Latency, SimulatedProvider
from cacheprefix.stores import MemoryStore, SqliteStore

sys.path.insert(0, str(Path(__file__).parent))
# One process that has imported everything and forks the others off, long before any thread of this one exists there.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["gate_worker"])


class Worker:
    """Another process at the gate."""

    def __init__(self, where: str, limit: float, lease: float, url: str) -> None:
        from gate_worker import serve

        self.line, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=serve, args=(theirs, where, limit, lease, url), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, command: str, given: str) -> None:
        self.line.send((command, given))

    def answer(self) -> Any:
        assert self.line.poll(60), "the worker does not answer"
        return self.line.recv()

    def ask(self, command: str, given: str) -> Any:
        self.send(command, given)
        return self.answer()

    def end(self) -> None:
        self.line.close()
        self.process.kill()
        self.process.join(30)
        self.process.close()


ALWAYS = Worth()
Start = Callable[..., list[Worker]]


@pytest.fixture
def start() -> Iterator[Start]:
    """``start(count, where)`` starts worker processes."""
    with ExitStack() as stack:

        def make(count: int, where: str, *, limit: float = 20.0, lease: float = 1.0, url: str = "") -> list[Worker]:
            made = [Worker(where, limit, lease, url) for _ in range(count)]
            for each in made:
                stack.callback(each.end)
            return made

        yield make


@pytest.mark.slow
def test_processes_follow_one_leader_and_a_killed_one_is_replaced(where, start):
    """Two wait behind the first; SIGKILL gives the lead to exactly one of them; its first token frees the last."""
    first, second, third, late = start(4, where, lease=3.0)
    assert first.ask("enter", "key")["leads"]
    for each in (second, third):
        each.send("enter", "key")
    time.sleep(0.2)
    os.kill(first.process.pid or 0, signal.SIGKILL)
    began = time.monotonic()
    # Of the two that wait one leads after the lease; the other goes on waiting for it.
    done = {}
    threads = [threading.Thread(target=lambda w=w: done.update({w: w.answer()})) for w in (second, third)]
    for thread in threads:
        thread.start()
    while not done:
        time.sleep(0.01)
    assert time.monotonic() - began < 40
    (leader,) = done
    assert done[leader]["leads"]
    assert leader.ask("release", "ok")["seconds"] < 5
    for thread in threads:
        thread.join(60)
    assert sorted(answer["leads"] for answer in done.values()) == [False, True]
    # The prefix is known to be warm now, so that nobody waits at all.
    assert not late.ask("enter", "key")["leads"]
    assert late.ask("enter", "other")["leads"]


@pytest.mark.slow
def test_a_leader_that_lives_leads_beyond_its_lease(where, start):
    """Its lease is renewed while its answer is awaited; by default it is no longer than two seconds without that."""
    assert StoreGate(MemoryStore(), 20.0, failed=lambda error: None).lease <= 2
    first, second = start(2, where, lease=0.5)
    assert first.ask("enter", "key")["leads"]
    second.send("enter", "key")
    assert not second.line.poll(3)
    first.ask("release", "ok")
    assert not second.answer()["leads"]


@pytest.mark.slow
def test_a_leader_that_failed_is_replaced_at_once(where, start):
    """Release without success hands the lead over before the lease ends."""
    first, second = start(2, where, lease=15.0)
    assert first.ask("enter", "key")["leads"]
    second.send("enter", "key")
    time.sleep(0.1)
    first.ask("release", "failed")
    found = second.answer()
    assert found["leads"]
    assert found["seconds"] < 10


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False], ids=["store", "no store"])
def test_workers_on_one_cold_prefix_write_it_once(start, tmp_path, shared):
    """On the wire: with a common store three processes pay for one write and read it twice; without, three writes."""
    # Without a store all have to ask before the first answer begins.
    latency = Latency(base=0.3 if shared else 3.0, uncached=0.0, cached=0.0, output=0.0, scale=1.0)
    with SimulatedProvider("anthropic", latency=latency) as provider:
        workers = [start(1, str(tmp_path / ("one.db" if shared else f"{i}.db")), url=provider.url)[0] for i in range(3)]
        for each in workers:
            each.ask("ready", "")
        for i, each in enumerate(workers):
            each.send("ask", f"role{i}")
        reads = sorted(each.answer()["read"] for each in workers)
        systems = {json.dumps(record.json["system"]) for record in provider.requests}
    assert len(systems) == 1
    assert [read > 0 for read in reads] == ([False, True, True] if shared else [False] * 3)


class Down(MemoryStore):
    """A store that always fails."""

    def acquire(self, key: str, owner: str, ttl: float) -> bool:
        raise StoreError("down")


def test_a_store_that_is_down_leaves_the_gate_of_this_process(caplog):
    """Everybody goes on as without a store, threads of one process still follow one leader, and it is said once."""
    with pytest.warns(UserWarning, match="gate store"):
        session = Session(gate=Gate(limit=5.0, store=Down()))
        leader = session.adapter.waiting.follow((b"k", ALWAYS))
    assert leader.leader
    found = []
    thread = threading.Thread(target=lambda: found.append(session.adapter.waiting.follow((b"k", ALWAYS)).leader))
    thread.start()
    leader.release(ok=True)
    thread.join(60)
    assert found == [False]
    assert session.failures == {"gate store": 1}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store may take as long for a call as a busy machine does."""
    monkeypatch.setattr(store_gate, "CALL_SECONDS", 30.0)


class Hung(MemoryStore):
    """A store whose calls end only when they are let go."""

    blocking = True

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.asked = 0

    def _hang(self) -> None:
        self.asked += 1
        assert self.let_go.wait(120)

    def acquire(self, key: str, owner: str, ttl: float) -> bool:
        self._hang()
        return super().acquire(key, owner, ttl)

    def set(self, key: str, value: bytes, ttl: float | None = None) -> None:
        self._hang()
        super().set(key, value, ttl)


@pytest.fixture
def hung() -> Iterator[Hung]:
    """A store that hangs until the test has ended."""
    store = Hung()
    yield store
    store.let_go.set()


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("worth", [ALWAYS, Worth(0.2, usual=0.1)], ids=["always", "little"])
def test_a_store_that_hangs_is_left_behind_while_it_hangs(hung, worth, later):
    """One call is waited for and counted; the leader leads its own process, and the next ones do not ask at all."""
    errors: list[Exception] = []
    gate = StoreGate(hung, 600.0, failed=errors.append)

    def enter(key: bytes) -> Any:
        return asyncio.run(adrive(gate.entering(key, worth))) if later else drive(gate.entering(key, worth))

    leader = enter(b"k")
    assert leader.leader
    assert enter(b"other").leader
    assert [type(error) for error in errors] == [StoreError]
    assert "did not answer" in str(errors[0])
    assert hung.asked == 1
    assert not hung.let_go.is_set()


def test_a_leader_does_not_wait_for_a_store_to_be_told(hung):
    """Its siblings go, and it goes on, while the store hangs over what it is told."""
    hung.let_go.set()
    errors: list[Exception] = []
    leader = drive(StoreGate(hung, 600.0, failed=errors.append).entering(b"k"))
    hung.let_go.clear()
    leader.release(ok=True)
    assert not hung.let_go.is_set()
    assert not errors


def test_a_store_that_goes_down_while_leading_is_survived():
    """The release that cannot be told is counted; those of this process go on."""
    store = MemoryStore()
    errors: list[Exception] = []
    gate = StoreGate(store, failed=errors.append)
    leader = drive(gate.entering(b"k"))
    store.set = lambda *_: (_ for _ in ()).throw(StoreError("down"))  # type: ignore[method-assign, assignment]
    leader.release(ok=True)
    assert len(errors) == 1
    assert isinstance(errors[0], StoreError)


def test_nobody_waits_longer_than_the_limit(patient, tmp_path):
    """A leader in another process that neither answers nor dies is left behind."""
    store = SqliteStore(tmp_path / "gate.db")
    others = StoreGate(store, 60.0, failed=_raise)
    slow: list[Exception] = []
    assert drive(others.entering(b"k")).leader
    began = time.monotonic()
    # A store is given no longer than the limit, which a busy machine may take for one call.
    mine = drive(StoreGate(store, 0.3, failed=slow.append).entering(b"k"))
    assert time.monotonic() - began < 10
    mine.release(ok=True)
    store.close()


def test_one_who_waited_in_vain_tells_the_others_that_the_prefix_is_written():
    """They do not wait for the leader that is still not answered."""
    store = MemoryStore()
    hanging, second, third = (StoreGate(store, limit, failed=_raise) for limit in (600.0, 0.3, 600.0))
    leader = drive(hanging.entering(b"k"))
    behind = drive(second.entering(b"k"))
    assert not behind.followed
    behind.release(ok=True)
    assert drive(third.entering(b"k")).followed
    leader.release(ok=False)


async def test_tasks_wait_without_blocking_the_loop_and_a_cancelled_one_holds_nobody(patient, tmp_path):
    """The async form: a follower of another gate on the same file goes when that one's first token is there."""
    store = SqliteStore(tmp_path / "gate.db")
    ahead, behind = (StoreGate(store, 20.0, failed=_raise) for _ in range(2))
    leader = await adrive(ahead.entering(b"k"))
    cancelled = asyncio.create_task(adrive(behind.entering(b"k")))
    await asyncio.sleep(0.05)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    follower = asyncio.create_task(adrive(behind.entering(b"k")))
    await asyncio.sleep(0.05)
    assert not follower.done()
    leader.release(ok=True)
    assert not (await asyncio.wait_for(follower, 60)).leader
    store.close()


def _raise(error: Exception) -> None:
    raise error
