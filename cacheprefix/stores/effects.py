"""Store calls as effects of a flow (see ``cacheprefix.effects``), and store calls that nobody waits for."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar, cast

from cacheprefix.effects import Flow, Until, in_a_loop, trio_here
from cacheprefix.errors import StoreError
from cacheprefix.locks import reset_in_child
from cacheprefix.stores.protocol import Store, is_blocking

T = TypeVar("T")


class _Workers:
    # Store calls get threads of their own: the loop's default executor may be full of sync
    # tools that wait for the very result which the store call would deliver.
    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        reset_in_child(self)

    def pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(8, thread_name_prefix="cacheprefix-store")
        return self._pool

    def after_fork(self) -> None:
        self._pool = None


_workers = _Workers()


class Do:
    """Call a store's method; in a thread when the caller is async and the store blocks."""

    __slots__ = ("_arguments", "_blocking", "_method")

    def __init__(self, store: Store, method: Callable[..., Any], *arguments: Any) -> None:
        self._blocking = is_blocking(store)
        self._method = method
        self._arguments = arguments

    def now(self) -> Any:
        """Call it."""
        return self._method(*self._arguments)

    async def later(self) -> Any:
        """Call it without blocking the event loop."""
        if not self._blocking:
            return self._method(*self._arguments)
        if trio_here() is not None:
            return await _in_trio(self._method, *self._arguments)
        import asyncio  # noqa: PLC0415 - as in in_a_loop

        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_workers.pool(), self._method, *self._arguments)

    def within(self, seconds: float) -> Do:
        """The same call with a limit of ``seconds`` seconds."""
        return Within(seconds, self._blocking, self._method, self._arguments)


class Within(Do):
    """As ``Do`` with a limit in seconds, after which it raises ``StoreError``; a late answer is ignored.

    A store that does not block answers at once and is called directly, without a limit.
    """

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float, blocking: bool, method: Callable[..., Any], arguments: Sequence[Any]) -> None:  # noqa: FBT001
        self._blocking, self._method, self._arguments = blocking, method, tuple(arguments)
        self._seconds = seconds

    def now(self) -> Any:
        """Wait for it in this thread."""
        if not self._blocking:
            return super().now()
        work = _workers.pool().submit(self._method, *self._arguments)
        wait([work], timeout=self._seconds)
        if not work.done():
            raise _late(self._seconds)
        return work.result()

    async def later(self) -> Any:
        """Wait for it in this task."""
        if not self._blocking:
            return super().now()
        if trio_here() is not None:
            return await _in_trio(self._method, *self._arguments, seconds=self._seconds)
        import asyncio  # noqa: PLC0415 - as in in_a_loop

        work = asyncio.ensure_future(super().later())
        try:
            done, _ = await asyncio.wait([work], timeout=self._seconds)
        except BaseException:
            work.cancel()
            raise
        if not done:
            work.cancel()
            raise _late(self._seconds)
        return work.result()


class Settle(Do):
    """As ``Do``, for calls that must be completed: cancelling the caller ends its wait and not the call."""

    __slots__ = ()

    async def later(self) -> Any:
        """Do it without blocking the event loop, to its end."""
        if not self._blocking:
            return self.now()
        if trio_here() is not None:
            return await _in_trio(self.now)
        import asyncio  # noqa: PLC0415 - as in in_a_loop

        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(_workers.pool(), self.now))


def _late(seconds: float) -> StoreError:
    return StoreError(f"the store did not answer within {seconds:.2g} s")


async def _in_trio(work: Callable[..., Any], *arguments: Any, seconds: float = math.inf) -> Any:
    """What a call in a thread gives to a task of trio's within ``seconds``; it goes on where the task is cancelled."""
    done = _workers.pool().submit(work, *arguments)
    if not await Until(done, seconds).later():
        raise _late(seconds)
    return done.result()


def bounded(flow: Flow[T], seconds: Callable[[], float]) -> Flow[T]:
    """A flow whose store calls are each limited to ``seconds()`` seconds, asked when the call begins."""
    try:
        effect = next(flow)
        while True:
            try:
                value = yield effect.within(seconds()) if isinstance(effect, Do) else effect
            except GeneratorExit:  # noqa: PERF203 - what an effect raises belongs to the flow
                flow.close()
                raise
            except BaseException as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(value)
    except StopIteration as end:
        return cast("T", end.value)


def apart(store: Store, work: Callable[..., None], *arguments: Any) -> None:
    """Call a store's work without waiting: in a thread where the store blocks, whoever calls."""
    if is_blocking(store):
        with contextlib.suppress(RuntimeError):
            _workers.pool().submit(work, *arguments)
            return
    work(*arguments)


def aside(store: Store, work: Callable[..., object], *arguments: Any) -> None:
    """Call a store's work whose result nobody needs: in a thread where it would block an event loop, else here."""
    if is_blocking(store) and in_a_loop():
        # An interpreter that is ending takes no more work.
        with contextlib.suppress(RuntimeError):
            _workers.pool().submit(work, *arguments)
            return
    work(*arguments)
