"""The gate across processes and machines: the leader of a cold prefix is elected through a store."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

from cacheprefix.prefix._gate import FOLLOW, Gate, Pass
from cacheprefix.stores import Store, Turn, aelect, aside, elect

_WARM_SECONDS = 60.0
"""How long others take a prefix for written without having seen it. Shorter than any provider's lifetime, so that
nobody counts on an entry that is gone; ending early costs one more wait for a first token and no money."""

_BEGUN = b"1"


class StoreGate:
    """As ``Gate``, also between the processes that share ``store``.

    Threads and tasks of one process elect among themselves first, so a process asks the store once for all of
    them. A leader that dies is replaced after ``lease`` seconds (a third of ``limit`` by default); one that takes
    longer than that for its first token gets a second leader beside it. Nobody waits longer than ``limit``.
    Whatever the store does wrong goes to ``failed``, and the process goes on as if it were alone.
    """

    def __init__(
        self,
        store: Store,
        limit: float = 30.0,
        *,
        failed: Callable[[Exception], None],
        lease: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit = limit
        self.lease = limit / 3 if lease is None else lease
        self._store = store
        self._failed = failed
        self._clock = clock
        self._local = Gate(limit, clock)

    def enter(self, key: bytes) -> Pass:
        """Become the leader of ``key``, or wait in this thread for the one there is, in whatever process."""
        end = self._clock() + self.limit
        mine = self._local.enter(key)
        if not mine.leader:
            return mine
        name, left = _name(key), max(0.0, end - self._clock())
        try:
            turn = elect(self._store, name, lambda: self._store.get(name), lease=self.lease, patience=left)
        except Exception as error:
            self._failed(error)
            return mine
        except BaseException:
            mine.release(ok=False)
            raise
        return self._passed(mine, name, turn)

    async def aenter(self, key: bytes) -> Pass:
        """``enter`` without blocking the event loop."""
        end = self._clock() + self.limit
        mine = await self._local.aenter(key)
        if not mine.leader:
            return mine
        name, left = _name(key), max(0.0, end - self._clock())
        try:
            turn = await aelect(self._store, name, lambda: self._store.get(name), lease=self.lease, patience=left)
        except Exception as error:
            self._failed(error)
            return mine
        except BaseException:
            mine.release(ok=False)
            raise
        return self._passed(mine, name, turn)

    def _passed(self, mine: Pass, name: str, turn: Turn[bytes]) -> Pass:
        if turn.role == "follower":
            mine.release(ok=True)
            return FOLLOW
        lease = turn.lease
        if lease is None:
            return mine

        def tell(ok: bool) -> None:  # noqa: FBT001 - called by release only
            try:
                if ok:
                    self._store.set(name, _BEGUN, _WARM_SECONDS)
                lease.release()
            except Exception as error:
                self._failed(error)

        def release(ok: bool) -> None:  # noqa: FBT001 - called by Pass only
            mine.release(ok=ok)
            aside(self._store, tell, ok)

        return Pass(release)


def _name(key: bytes) -> str:
    return f"cacheprefix:gate:{hashlib.blake2b(key, digest_size=16).hexdigest()}"
