"""Who waits for a leader that is lost goes on at once: in 50 ms, where the machine itself is faster than that."""

from __future__ import annotations

import statistics
import threading
import time

import pytest

from cacheprefix.effects import drive
from cacheprefix.layout.gate import Pass, ProcessGate

AT_ONCE = 0.05
LIMIT = 60.0
TRIES = 9


def released(leader: Pass) -> None:
    """It failed, was cancelled or closed: each of these ends so."""
    leader.release(ok=False)


def dropped(leader: Pass) -> None:
    """Nobody holds it any more."""
    leader.__del__()


def woken() -> float:
    """Seconds that this machine takes now to wake a thread by an event."""
    event, took = threading.Event(), [0.0]

    def wait() -> None:
        event.wait(LIMIT)
        took[0] = time.monotonic()

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.01)
    began = time.monotonic()
    event.set()
    thread.join()
    return took[0] - began


def followed(lose: object) -> float:
    """Seconds from the loss of a leader until one who waited for it leads."""
    gate, took = ProcessGate(limit=LIMIT), [0.0]
    leader = drive(gate.entering(b"key"))

    def follow() -> None:
        mine = drive(gate.entering(b"key"))
        took[0] = time.monotonic()
        assert mine.leader
        mine.release(ok=True)

    thread = threading.Thread(target=follow)
    thread.start()
    assert leader.joined(LIMIT)
    time.sleep(0.01)
    began = time.monotonic()
    lose(leader)  # type: ignore[operator]
    thread.join()
    return took[0] - began


@pytest.mark.parametrize("lose", [released, dropped])
def test_siblings_of_a_lost_leader_go_on_at_once(lose):
    """Hardly later than a thread that is woken by an event; on an idle machine within 50 ms."""
    pairs = [(woken(), followed(lose)) for _ in range(TRIES)]
    noise, took = (statistics.median(each) for each in zip(*pairs, strict=True))
    assert took < LIMIT / 100 + 10 * noise
    if max(one for one, _ in pairs) < AT_ONCE / 10:
        assert took < AT_ONCE
