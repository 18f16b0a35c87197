"""Chooses by a lease which of several workers (threads, processes, machines) does some work.

One worker takes the lease and does the work; the others look for its outcome in the store. A leader that was killed is
replaced when its lease ends, and no worker waits longer than its ``patience``.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from cacheprefix.effects import Flow, Sleep
from cacheprefix.stores.clock import steady
from cacheprefix.stores.effects import Do
from cacheprefix.stores.protocol import Store

T = TypeVar("T")

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
        if (yield Do(store, store.acquire, key, held.owner, lease)):
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
