"""Chooses by a lease which of several workers (threads, processes, machines) does some work.

One worker takes the lease and does the work; the others look for its outcome in the store. A leader that was killed is
replaced when its lease ends, and no worker waits longer than its ``patience``.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from cacheprefix.effects import Flow, Sleep
from cacheprefix.locks import Lock, reset_in_child
from cacheprefix.stores.clock import steady
from cacheprefix.stores.effects import Do, aside
from cacheprefix.stores.protocol import Store

T = TypeVar("T")

LEASE_SECONDS = 2.0
"""How long a leader that was killed, or stands still with its whole process, is still waited for: the lease of one that
lives is renewed."""

# Waiters look first after 2 ms and in the end ten times a second: quick for short work, and
# a thousand waiters are ten thousand looks a second at most.
_FIRST_LOOK = 0.002
_SLOWEST_LOOK = 0.1


@dataclass(frozen=True, slots=True)
class Lease:
    """Leadership of ``key`` for ``ttl`` seconds from its acquisition or last renewal."""

    store: Store
    key: str
    owner: str
    ttl: float

    def renew(self) -> bool:
        """Extend by ``ttl``; False when another leader may have started."""
        return self.store.renew(self.key, self.owner, self.ttl)

    def release(self) -> bool:
        """End the lease, so that another worker can lead; False when it had already ended."""
        return self.store.release(self.key, self.owner)


class Renewing:
    """Renews the leases that this process holds, in one thread that lives as long as there are any."""

    def __init__(self, clock: Callable[[], float], failed: Callable[[Exception], None]) -> None:
        self._clock = clock
        self._failed = failed
        self._held: dict[int, tuple[Lease, float, Callable[[], bool]]] = {}
        self._next = 0
        self._running = False
        self._lock = Lock()
        reset_in_child(self)

    def start(self, lease: Lease, limit: float, over: Callable[[], bool] = lambda: False) -> int:
        """Renew a lease from now on, for ``limit`` seconds and until it is ``over``; the number to end it by."""
        with self._lock:
            self._next += 1
            number = self._next
            self._held[number] = (lease, self._clock() + limit, over)
            start, self._running = not self._running, True
        if start:
            threading.Thread(target=self._run, args=(lease.ttl / 4,), name="cacheprefix-lease", daemon=True).start()
        return number

    def end(self, number: int | None) -> None:
        """Renew it no more."""
        if number is not None:
            self._held.pop(number, None)

    def after_fork(self) -> None:
        """In a forked child: the leases are the parent's."""
        self._held, self._running = {}, False

    def _run(self, pause: float) -> None:
        """Renew all leases every ``pause`` seconds, until none is held; those that are over or too old are left out."""
        while True:
            time.sleep(pause)
            with self._lock:
                now = self._clock()
                for number, (_, until, over) in list(self._held.items()):
                    if now > until or over():
                        self._held.pop(number, None)
                if not self._held:
                    self._running = False
                    return
                held = [lease for lease, _, _ in self._held.values()]
            for lease in held:
                try:
                    lease.renew()
                except Exception as error:  # noqa: PERF203 - a lease that ends early costs a second leader, no more
                    self._failed(error)


class _Taking:
    """Takes a lease in whatever thread. Where nobody waits for that any more it is given back, before or afterwards."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._taken = self._left = False

    def __call__(self) -> bool:
        lease = self._lease
        self._taken = lease.store.acquire(lease.key, lease.owner, lease.ttl)
        # Both look behind what both have said: one of the two at least gives it back, and twice is once.
        if self._taken and self._left:
            lease.release()
        return self._taken

    def leave(self) -> None:
        """Nobody waits for it any more. Calls no store that blocks where an event loop runs."""
        self._left = True
        if self._taken:
            aside(self._lease.store, self._lease.release)


@dataclass(frozen=True, slots=True)
class Elected(Generic[T]):
    """What a worker is to do.

    - ``leader``: do the work, announce its outcome where ``look`` finds it, release ``lease``.
    - ``follower``: the outcome is ``found``.
    - ``alone``: waited ``waited`` seconds in vain; do the work without leading anybody.
    """

    role: Literal["leader", "follower", "alone"]
    found: T | None = None
    lease: Lease | None = None
    waited: float = 0.0


def elect(
    store: Store,
    key: str,
    look: Callable[[], T | None],
    *,
    lease: float,
    patience: float | None = None,
    owner: str | None = None,
    clock: Callable[[], float] = steady,
) -> Flow[Elected[T]]:
    """Take the lease or wait up to ``patience`` seconds (default: one lease) for the outcome; a flow, for ``drive``.

    ``look`` asks the store for the leader's outcome and returns None while there is none. It
    is asked once more after the lease was won, because the last leader may just have finished.
    ``owner`` names who leads, for callers of whom at most one at a time contends for a key.

    Raises:
        StoreError: the store failed; the caller does the work as if it were alone.
    """
    held = Lease(store, key, owner or secrets.token_hex(16), lease)
    began = clock()
    allowed = lease if patience is None else patience
    pause = _FIRST_LOOK
    while True:
        taking = _Taking(held)
        try:
            taken = yield Do(store, taking)
        except BaseException:
            # Cancelled, dropped or too late, while a thread still asks: a lease that nobody knows of would hold up all.
            taking.leave()
            raise
        if taken:
            try:
                found = yield Do(store, look)
            except GeneratorExit:
                raise
            except BaseException:
                yield Do(store, held.release)
                raise
            if found is None:
                return Elected("leader", lease=held, waited=clock() - began)
            yield Do(store, held.release)
            return Elected("follower", found, waited=clock() - began)
        found = yield Do(store, look)
        waited = clock() - began
        if found is not None:
            return Elected("follower", found, waited=waited)
        if not 0 <= waited < allowed:
            return Elected("alone", waited=waited)
        # A random factor, so that workers that began together do not ask the store at the same moments.
        yield Sleep(min(pause * random.uniform(0.75, 1.25), allowed - waited))  # noqa: S311 - no secret
        pause = min(pause * 1.5, _SLOWEST_LOOK)
