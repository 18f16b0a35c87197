"""Leader first: requests that start together on a cold prefix wait until one of them has written it.

An entry can be read only once the first answer has begun (Anthropic's documentation says so, and a simulated
fan-out without a gate reads nothing). One request goes ahead; the others follow its first token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from cacheprefix.locks import Lock, reset_in_child


class Pass:
    """Leave to go on. The leader releases the others, by success or by failure; followers have nothing to do."""

    def __init__(self, release: Callable[[bool], None] | None = None) -> None:
        self._release = release
        self._lock = Lock()

    @property
    def leader(self) -> bool:
        """Whether others may be waiting for this request."""
        return self._release is not None

    def release(self, *, ok: bool) -> None:
        """Let the others go: with ``ok`` all of them, without it the next one leads. Only the first call counts."""
        with self._lock:
            release, self._release = self._release, None
        if release is not None:
            release(ok)


FOLLOW = Pass()
"""A pass of someone nobody waits for."""


class Gate:
    """One leader a key at a time. For threads and tasks alike; waiting is bounded by ``limit`` seconds."""

    def __init__(self, limit: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._flights: dict[bytes, Future[bool]] = {}
        self._lock = Lock()
        reset_in_child(self)

    def after_fork(self) -> None:
        """In a forked child: the parent's leaders lead nobody there."""
        self._flights = {}

    def enter(self, key: bytes) -> Pass:
        """Become the leader of ``key``, or wait in this thread for the one there is."""
        end = self._clock() + self.limit
        while True:
            flight = self._lead(key)
            if isinstance(flight, Pass):
                return flight
            try:
                if flight.result(timeout=max(0.0, end - self._clock())):
                    return FOLLOW
            except FutureTimeoutError:
                return FOLLOW

    async def aenter(self, key: bytes) -> Pass:
        """``enter`` without blocking the event loop."""
        end = self._clock() + self.limit
        while True:
            flight = self._lead(key)
            if isinstance(flight, Pass):
                return flight
            try:
                waiting = asyncio.shield(asyncio.wrap_future(flight))
                if await asyncio.wait_for(waiting, timeout=max(0.0, end - self._clock())):
                    return FOLLOW
            except (asyncio.TimeoutError, FutureTimeoutError):
                return FOLLOW

    def _lead(self, key: bytes) -> Pass | Future[bool]:
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                return flight
            mine: Future[bool] = Future()
            self._flights[key] = mine

        def release(ok: bool) -> None:  # noqa: FBT001 - called by Pass only
            with self._lock:
                if self._flights.get(key) is mine:
                    del self._flights[key]
            mine.set_result(ok)

        return Pass(release)
