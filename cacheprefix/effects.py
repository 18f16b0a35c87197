"""Work that waits for something, written once for callers in a thread and in a task.

A *flow* is a generator that yields *effects*, the things that it waits for, and is sent what came of each. ``drive``
does every effect in the thread that it is called in, ``adrive`` awaits it.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, wait
from inspect import isawaitable
from typing import Any, Protocol, TypeVar, cast

T = TypeVar("T")
_LOOK = 0.005
"""Seconds after which a task of trio's looks again whether a future is done: none tells it."""


class Effect(Protocol):
    """Something that a flow waits for, in both forms."""

    def now(self) -> Any:
        """Do it in this thread and return its value."""
        ...

    def later(self) -> Awaitable[Any]:
        """Do it without blocking the event loop."""
        ...


Flow = Generator[Effect, Any, T]


def drive(flow: Flow[T]) -> T:
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


async def adrive(flow: Flow[T]) -> T:
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


class Call:
    """Call a function; in a task, what it gives is awaited where it can be."""

    __slots__ = ("_arguments", "_function")

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._function = function
        self._arguments = arguments

    def now(self) -> Any:
        """Call it."""
        return self._function(*self._arguments)

    async def later(self) -> Any:
        """Call it, a coroutine function or a plain one."""
        value = self._function(*self._arguments)
        return await value if isawaitable(value) else value


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
        import asyncio  # noqa: PLC0415 - as in in_a_loop

        await (trio_here() or asyncio).sleep(self._seconds)


class Promise(Future[T]):
    """A future that whoever makes it fulfils: a thread, or a task."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = running_loop()

    @property
    def stands_still(self) -> bool:
        """Whether its task goes on only when the loop runs again, if ever: ``run_until_complete`` left it behind."""
        return not self.done() and self._loop is not None and not self._loop.is_running()


class Until:
    """Wait at most ``seconds`` for a future of any thread, which is left as it is; whether it is done by then.

    A thread that runs an event loop waits for nobody: what it waited for may be a task of that loop. Nor does anybody
    wait for a promise that stands still.
    """

    __slots__ = ("_future", "_seconds")

    def __init__(self, future: Future[Any], seconds: float) -> None:
        self._future = future
        self._seconds = seconds

    def now(self) -> bool:
        """Wait in this thread."""
        if not in_a_loop() and not self._in_vain:
            wait([self._future], timeout=self._seconds)
        return self._future.done()

    async def later(self) -> bool:
        """Wait in this task."""
        if self._in_vain:
            return self._future.done()
        trio = trio_here()
        if trio is not None:
            ends = time.monotonic() + self._seconds
            while not self._future.done() and (left := ends - time.monotonic()) > 0:
                await trio.sleep(min(left, _LOOK))
            return self._future.done()
        import asyncio  # noqa: PLC0415 - as in in_a_loop

        loop = asyncio.get_running_loop()
        waiter = loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        def told(_: object) -> None:
            # A loop that was closed meanwhile has nobody left to wake.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(wake)

        self._future.add_done_callback(told)
        # Not ``wait_for``, which before Python 3.12 drops a cancellation that comes when the future is just done.
        await asyncio.wait([waiter], timeout=self._seconds)
        return self._future.done()

    @property
    def _in_vain(self) -> bool:
        return isinstance(self._future, Promise) and self._future.stands_still


class MayBlock:
    """Whether what blocks may be done here: not in a thread that runs an event loop, and in a task always (aside)."""

    __slots__ = ()

    def now(self) -> bool:
        """Look at this thread."""
        return not in_a_loop()

    async def later(self) -> bool:
        """A task hands it to a thread."""
        return True


def in_a_loop() -> bool:
    """Whether an event loop runs in this thread, so that nobody may wait here."""
    return running_loop() is not None or trio_here() is not None


def running_loop() -> Any:
    """The event loop of asyncio's that runs in this thread; None for none."""
    # Who runs a loop has imported it; who does not is spared it, the largest module that a session would import.
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return None if running is None else running()


def trio_here() -> Any:
    """The module ``trio`` in a task of its own, where nothing of asyncio may be awaited; else None."""
    # The SDKs' asynchronous clients run there too, and whoever runs one has imported it.
    trio = sys.modules.get("trio")
    return trio if trio is not None and trio.lowlevel.in_trio_task() else None
