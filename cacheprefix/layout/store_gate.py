"""The gate across processes and machines: the leader of a cold prefix is elected through a store."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from functools import partial

from cacheprefix.effects import Flow, MayBlock
from cacheprefix.layout.gate import ALWAYS, Pass, ProcessGate, Worth
from cacheprefix.stores import Elected, Lease, Store, apart, bounded, elect
from cacheprefix.stores.lease import LEASE_SECONDS, Renewing

CALL_SECONDS = 1.0
"""How long one call of the store may take, and less where waiting pays less: about a first token."""

_LEAST_CALL = 0.1

REST_SECONDS = 10.0
"""How long a store that failed, or took longer, is not asked any more."""

_WARM_SECONDS = 60.0
"""How long others take a prefix for written without having seen it. Shorter than any provider's lifetime, so that
nobody counts on an entry that is gone; ending early costs one more wait for a first token and no money."""

_BEGUN = b"1"


class StoreGate:
    """As ``ProcessGate``, also between the processes that share ``store``.

    Threads and tasks of one process elect among themselves first, so a process asks the store once for all of them. A
    leader's lease of ``lease`` seconds is renewed in the background until the others may go, ``limit`` seconds at
    most and no longer than its answer is read, so that only the leader of a process that was killed or stands still
    is replaced when it ends. Whatever the store does wrong goes to ``failed``, and the process goes on as if it were
    alone, for ``REST_SECONDS`` without asking it; no call of it is waited for longer than ``CALL_SECONDS``, and no
    release at all.
    """

    def __init__(
        self,
        store: Store,
        limit: float = 30.0,
        *,
        failed: Callable[[Exception], None],
        lease: float = LEASE_SECONDS,
    ) -> None:
        self.limit = limit
        self.lease = lease
        self._store = store
        self._failed = failed
        self._local = ProcessGate(limit)
        self._renewing = Renewing(time.monotonic, failed)
        self._rests_until = 0.0

    def entering(self, key: bytes, worth: Worth = ALWAYS) -> Flow[Pass]:
        """Become the leader of ``key``, or wait for the one there is, in whatever process."""
        began = time.monotonic()
        mine = yield from self._local.entering(key, worth)
        if not mine.leader or time.monotonic() < self._rests_until or not (yield MayBlock()):
            return mine
        name, left, call = _name(key), self._left(worth, began), self._call(worth, began)
        look = partial(self._store.get, name)
        election = elect(self._store, name, look, lease=self.lease, patience=left)
        try:
            turn: Elected[bytes] = yield from bounded(election, call)
        except Exception as error:
            return self._alone(mine, error, began)
        except BaseException:
            mine.release(ok=False)
            raise
        return self._passed(mine, name, turn, began)

    def _left(self, worth: Worth, began: float) -> float:
        """Seconds to wait for another process's leader, of whom no more is known than what this one's took."""
        most = min(worth.left(), self.limit)
        return max(0.0, most - (time.monotonic() - began))

    def _call(self, worth: Worth, began: float) -> Callable[[], float]:
        """How long the next call may take, so that what is waited in all is about what waiting pays."""
        return lambda: max(_LEAST_CALL, min(CALL_SECONDS, self._left(worth, began)))

    def _alone(self, mine: Pass, error: Exception, began: float) -> Pass:
        """The store failed: this request leads those of its own process."""
        self._rests_until = time.monotonic() + REST_SECONDS
        self._failed(error)
        mine.waited = time.monotonic() - began
        return mine

    def _renew(self, lease: Lease, mine: Pass) -> int:
        flight = mine.flight
        return self._renewing.start(lease, self.limit, lambda: flight is not None and flight.left_unread)

    def _passed(self, mine: Pass, name: str, turn: Elected[bytes], began: float) -> Pass:
        """What the election among all processes comes to: a follower's pass, or a leader's that tells the others."""
        waited = time.monotonic() - began
        if turn.role == "follower":
            mine.release(ok=True)
            return Pass(worth=mine.worth, waited=waited, followed=True)
        # Without a lease it waited in vain: it goes on and leads those of this process. It writes the prefix all the
        # same, so the others need not wait for the leader that is still awaited.
        lease, process = turn.lease, os.getpid()
        renewed = None if lease is None else self._renew(lease, mine)

        def tell(ok: bool) -> None:  # noqa: FBT001 - called by release only
            try:
                if ok:
                    self._store.set(name, _BEGUN, _WARM_SECONDS)
                if lease is not None:
                    lease.release()
            except Exception as error:
                self._failed(error)

        def release(ok: bool) -> None:  # noqa: FBT001 - called by Pass only
            mine.release(ok=ok)
            self._renewing.end(renewed)
            if (ok or lease is not None) and os.getpid() == process:  # in a forked child the lease is the parent's
                apart(self._store, tell, ok)

        def dropped() -> None:
            # The lease ends by itself: a store may not be asked from wherever the garbage collector runs.
            self._renewing.end(renewed)
            mine.release(ok=False)

        far = lease is not None
        return Pass(release, dropped=dropped, flight=mine.flight, worth=mine.worth, waited=waited, far=far)


def _name(key: bytes) -> str:
    return f"cacheprefix:gate:{hashlib.blake2b(key, digest_size=16).hexdigest()}"
