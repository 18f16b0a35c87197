"""One flow of work for sync and async callers.

A flow is a generator that yields *effects*: things to do that wait for something. The sync
driver does each in place, the async driver awaits it, and the logic stands only once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar, cast

from cacheprefix.locks import reset_in_child
from cacheprefix.stores._protocol import AsyncStore, Store

T = TypeVar("T")


class Effect(Protocol):
    """Something a flow waits for, in both forms."""

    def now(self) -> Any:
        """Do it in this thread and return its value."""
        ...

    def later(self) -> Awaitable[Any]:
        """Do it without blocking the event loop."""
        ...


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
        self._blocking = store.blocking
        self._method = method
        self._arguments = arguments

    def now(self) -> Any:
        """Call it."""
        return self._method(*self._arguments)

    async def later(self) -> Any:
        """Call it without blocking the event loop."""
        if not self._blocking:
            return self._method(*self._arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_workers.pool(), self._method, *self._arguments)


class Sleep:
    """Wait for some seconds."""

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def now(self) -> None:
        """Sleep in this thread."""
        time.sleep(self._seconds)

    async def later(self) -> None:
        """Sleep in this task."""
        await asyncio.sleep(self._seconds)


def drive(flow: Generator[Effect, Any, T]) -> T:
    """Run a flow to its end in this thread."""
    try:
        effect = next(flow)
        while True:
            try:
                value = effect.now()
            except BaseException as error:  # noqa: PERF203 - what an effect raises belongs to the flow
                effect = flow.throw(error)
            else:
                effect = flow.send(value)
    except StopIteration as end:
        return cast("T", end.value)


async def adrive(flow: Generator[Effect, Any, T]) -> T:
    """Run a flow to its end in this task."""
    try:
        effect = next(flow)
        while True:
            try:
                value = await effect.later()
            except GeneratorExit:  # noqa: PERF203 - as in drive
                # Nobody waits any more, and a dying coroutine may not await: no further effects.
                flow.close()
                raise
            except BaseException as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(value)
    except StopIteration as end:
        return cast("T", end.value)


def aside(store: Store, work: Callable[..., None], *arguments: Any) -> None:
    """Do a store's work that nobody waits for: here, or in a thread where it would block an event loop."""
    try:
        asyncio.get_running_loop()
        if store.blocking:
            _workers.pool().submit(work, *arguments)
            return
    except RuntimeError:
        # No event loop here, or an interpreter that is ending and takes no more work.
        pass
    work(*arguments)


class _AsyncView:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, key: str) -> bytes | None:
        return cast("bytes | None", await Do(self._store, self._store.get, key).later())

    async def read(self, key: str, names: Sequence[str]) -> tuple[bytes | None, bytes]:
        return cast("tuple[bytes | None, bytes]", await Do(self._store, self._store.read, key, names).later())

    async def set(self, key: str, value: bytes, ttl: float | None = None) -> None:
        await Do(self._store, self._store.set, key, value, ttl).later()

    async def delete(self, key: str) -> bool:
        return cast("bool", await Do(self._store, self._store.delete, key).later())

    async def generations(self, names: Sequence[str]) -> bytes:
        return cast("bytes", await Do(self._store, self._store.generations, names).later())

    async def bump(self, names: Sequence[str]) -> None:
        await Do(self._store, self._store.bump, names).later()

    async def sizes(self, prefix: str = "") -> dict[str, int]:
        return cast("dict[str, int]", await Do(self._store, self._store.sizes, prefix).later())

    async def clear(self, prefix: str = "") -> int:
        return cast("int", await Do(self._store, self._store.clear, prefix).later())

    async def acquire(self, key: str, owner: str, ttl: float) -> bool:
        return cast("bool", await Do(self._store, self._store.acquire, key, owner, ttl).later())

    async def renew(self, key: str, owner: str, ttl: float) -> bool:
        return cast("bool", await Do(self._store, self._store.renew, key, owner, ttl).later())

    async def release(self, key: str, owner: str) -> bool:
        return cast("bool", await Do(self._store, self._store.release, key, owner).later())

    async def close(self) -> None:
        await Do(self._store, self._store.close).later()


def as_async(store: Store) -> AsyncStore:
    """Return the coroutine form of a store; one that blocks works in a few threads of its own."""
    return _AsyncView(store)
