"""Identical calls in flight: one runs, the others wait for its result."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from cacheprefix.effects import Promise, Until
from cacheprefix.locks import RLock
from cacheprefix.toolcache.codec import Kept


class Flight:
    """One running call. ``done`` gives what it kept, or None where its result cannot be shared."""

    __slots__ = ("done", "thread")

    def __init__(self) -> None:
        self.done: Promise[Kept | None] = Promise()
        self.thread = threading.get_ident()


# The flights that the present call stack leads, so that a tool that calls itself does not wait
# for itself; tasks and threads started with a copied context inherit it.
_leading: ContextVar[tuple[Flight, ...]] = ContextVar("cacheprefix_leading", default=())


class Flights:
    """The running calls of this process, by key and generation.

    By generation too, since a call that begins after a write must not get the result of one
    that began before it.
    """

    def __init__(self) -> None:
        # Re-entrant like all locks of this room: the collector may end a forgotten call anywhere,
        # also in a thread that holds the lock.
        self._lock = RLock()
        self._running: dict[tuple[str, bytes], Flight] = {}

    def enter(self, key: str, stamp: bytes) -> tuple[Flight, bool]:
        """Return the flight of this call, and whether the caller leads it."""
        with self._lock:
            flight = self._running.get((key, stamp))
            if flight is not None:
                return flight, False
            flight = self._running[key, stamp] = Flight()
            return flight, True

    def leave(self, key: str, stamp: bytes, flight: Flight, kept: Kept | None) -> None:
        """End a flight and give everybody who joined it what it kept."""
        with self._lock:
            if self._running.get((key, stamp)) is flight:
                del self._running[key, stamp]
        flight.done.set_result(kept)

    def after_fork(self) -> None:
        """Forget the parent's flights: their threads do not exist in the child."""
        self._running = {}


class Join(Until):
    """Effect: wait up to ``seconds`` for a running call, unless the caller runs it itself; gives whether it ended."""

    __slots__ = ("_flight",)

    def __init__(self, flight: Flight, seconds: float) -> None:
        super().__init__(flight.done, seconds)
        self._flight = flight

    def now(self) -> bool:
        """Wait in this thread."""
        mine = self._flight in _leading.get() or self._flight.thread == threading.get_ident()
        return not mine and super().now()

    async def later(self) -> bool:
        """Wait in this task. Cancelling it leaves the flight alone."""
        return self._flight not in _leading.get() and await super().later()


@dataclass(frozen=True, slots=True)
class Ran:
    """How a tool ended: its result, or what it raised.

    Carried as a value because a StopIteration cannot travel through a generator.
    """

    result: Any = None
    error: BaseException | None = None

    def outcome(self) -> Any:
        """Return the result or raise the tool's own exception."""
        if self.error is not None:
            raise self.error
        return self.result


class Run:
    """Effect: run the tool itself."""

    __slots__ = ("_flight", "_run")

    def __init__(self, run: Callable[[], Any], flight: Flight | None = None) -> None:
        self._run = run
        self._flight = flight

    def now(self) -> Ran:
        """Run it in this thread. What it raises comes back as a value, as what it returns does."""
        token = _leading.set((*_leading.get(), self._flight)) if self._flight else None
        try:
            return Ran(self._run())
        except BaseException as error:
            return Ran(error=error)
        finally:
            if token is not None:
                _leading.reset(token)

    async def later(self) -> Ran:
        """``now`` in this task, for a function that is awaited or a plain one."""
        token = _leading.set((*_leading.get(), self._flight)) if self._flight else None
        try:
            result = self._run()
            return Ran(await result if inspect.isawaitable(result) else result)
        except GeneratorExit:
            # The task is thrown away, and its coroutine may not go on.
            raise
        except BaseException as error:
            return Ran(error=error)
        finally:
            if token is not None:
                _leading.reset(token)
