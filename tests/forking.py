"""Children of ``os.fork``, and what threads of their parent are doing while they are forked off."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest

from cacheprefix import Session, locks
from cacheprefix.bodies import Role, fork_body

PATIENCE = 60.0
"""Seconds after which a child hangs; a healthy one needs a few milliseconds, or as long as its application."""


def in_child(work: Callable[[], bool], around: AbstractContextManager[object] | None = None) -> bool:
    """Whether ``work`` is true in a child that is forked off inside ``around``; fails the test where it hangs."""
    with warnings.catch_warnings(), around or nullcontext():
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        child = os.fork()
        if child == 0:
            code = 2
            try:
                code = 0 if work() else 1
            except BaseException:
                # Nobody else would tell it: the child ends here, whatever it was in the middle of.
                traceback.print_exc()
            finally:
                os._exit(code)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status == 0
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


def ask(made: Session, text: str = "Look into it.", *, role: str = "critic", conversation: str = "one") -> bool:
    """One request of a role, from the layout to the report; whether it went through ours and not past it."""
    body = {
        "model": "claude-sonnet-4-6",
        "max_tokens": 9,
        "system": made.prefix.system,
        "messages": [{"role": "user", "content": text}],
    }
    fork = fork_body(made.adapter, body, "anthropic", Role(role, f"You are the {role}.", conversation=conversation))
    turn = fork.begin(fork.queue())
    turn.first_token()
    turn.finish({"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 0})
    return turn.call is not None and bool(str(made.report())) and not made.failures


@contextmanager
def all_locks_held() -> Iterator[int]:
    """While the block runs another thread holds every lock of the runtime; their number."""
    held, done = threading.Event(), threading.Event()
    found = list(locks._locks)

    def hold() -> None:
        for lock in found:
            lock.acquire()
        held.set()
        done.wait(PATIENCE)
        for lock in found:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(PATIENCE)
    try:
        yield len(found)
    finally:
        done.set()
        thread.join()


@contextmanager
def busy(made: Session, threads: int = 4) -> Iterator[None]:
    """While the block runs so many threads ask in the session all the time."""
    stop = threading.Event()

    def work(name: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            ask(made, f"question {number % 20} of {name}")

    running = [threading.Thread(target=work, args=(name,)) for name in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in running:
            thread.join()
