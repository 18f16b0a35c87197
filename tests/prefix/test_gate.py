"""The gate: one leader, the rest behind its first token, nobody stuck."""

import asyncio
import threading
import time

from cacheprefix.prefix import Gate


def run_threads(count, work):
    """Start threads."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_followers_wait_for_the_leader_and_then_all_go():
    """Fifteen threads arrive and stay until the leader's first token."""
    gate = Gate()
    leader = gate.enter(b"k")
    assert leader.leader
    through = []
    waiting = threading.Barrier(16)

    def follow(number):
        waiting.wait(5)
        through.append(number)
        gate.enter(b"k")
        through.append(number)

    threads = run_threads(15, follow)
    waiting.wait(5)
    while len(through) < 15:
        time.sleep(0.001)
    assert len(through) == 15
    leader.release(ok=True)
    for thread in threads:
        thread.join(5)
    assert len(through) == 30


def test_when_the_leader_fails_the_next_one_leads():
    """Failure is passed on to exactly one of the waiting."""
    gate = Gate()
    leader = gate.enter(b"k")
    seen = []
    entered = threading.Event()

    def follow(number):
        entered.set()
        mine = gate.enter(b"k")
        seen.append(mine.leader)
        mine.release(ok=True)

    (thread,) = run_threads(1, follow)
    entered.wait(5)
    leader.release(ok=False)
    thread.join(5)
    assert seen == [True]


def test_waiting_is_bounded():
    """A leader that hangs holds nobody for longer than the limit."""
    gate = Gate(limit=0.05)
    leader = gate.enter(b"k")
    assert not gate.enter(b"k").leader
    leader.release(ok=True)


def test_keys_do_not_wait_for_each_other():
    """Another prefix has its own leader."""
    gate = Gate()
    assert gate.enter(b"a").leader
    assert gate.enter(b"b").leader


def test_a_pass_is_released_once():
    """First token, end and failure may all report; the first counts."""
    gate = Gate()
    leader = gate.enter(b"k")
    leader.release(ok=True)
    second = gate.enter(b"k")
    leader.release(ok=False)
    assert second.leader
    assert not leader.leader


def test_tasks_wait_without_blocking_the_loop_and_a_cancelled_one_frees_nobody_early():
    """The loop goes on while tasks wait; cancelling a follower does not release the others."""

    async def go():
        gate = Gate()
        leader = await gate.aenter(b"k")
        tasks = [asyncio.create_task(gate.aenter(b"k")) for _ in range(10)]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in tasks)
        tasks[0].cancel()
        await asyncio.sleep(0.01)
        assert sum(task.done() for task in tasks) == 1
        leader.release(ok=True)
        done = await asyncio.gather(*tasks[1:])
        return [mine.leader for mine in done]

    assert asyncio.run(go()) == [False] * 9
