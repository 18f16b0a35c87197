"""Cancels a coroutine at a point of choice, of all at which one of its tasks waits, as ``task.cancel()`` does."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any

PATIENCE = 60.0
"""Seconds after which what was left behind hangs."""
LEFT = 2.0
"""Seconds that tasks have to end when the one that was cancelled has."""


async def until_led(flights: Mapping[Any, Any], over: asyncio.Event) -> None:
    """Until somebody leads, or it is over."""
    while not flights and not over.is_set():  # noqa: ASYNC110 - nothing tells when somebody does
        await asyncio.sleep(0)


class Points:
    """Counts how often tasks wait while ``run`` is under way, and cancels it at the ``at``-th time."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.seen = 0
        self._root: asyncio.Task[Any] | None = None

    async def run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> bool:
        """Run to the end, or to the point and whatever it does when it is cancelled; whether it was cancelled."""
        loop = asyncio.get_running_loop()
        before, mine = loop.get_task_factory(), asyncio.all_tasks()

        def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
            made = asyncio.Task(self._counted(coroutine), loop=loop, **options)
            # One that is cancelled before its first step never comes to it.
            made.add_done_callback(lambda _: coroutine.close())
            return made

        loop.set_task_factory(factory)
        try:
            self._root = asyncio.create_task(work())
            await asyncio.wait({self._root}, timeout=PATIENCE)
        finally:
            loop.set_task_factory(before)
        assert self._root.done(), f"it hangs after it was cancelled at point {self.at}"
        left = asyncio.all_tasks() - mine
        if left:
            # A framework's own may never end: AutoGen's runtime, cancelled at the wrong moment, waits for messages on.
            await asyncio.wait(left, timeout=LEFT)
        if self._root.cancelled():
            return True
        # An error of the application's own; a cancellation may come too late, or end a part of it alone.
        self._root.result()
        return self.seen >= self.at

    async def _counted(self, coroutine: Awaitable[Any]) -> Any:
        return await self._watched(coroutine)

    @types.coroutine
    def _watched(self, coroutine: Awaitable[Any]) -> Generator[Any, Any, Any]:
        steps, error = coroutine.__await__(), None
        while True:
            try:
                waits = steps.send(None) if error is None else steps.throw(error)  # type: ignore[attr-defined]
            except StopIteration as end:
                return end.value
            error = None
            self.seen += 1
            if self.seen == self.at and self._root is not None:
                self._root.cancel()
            try:
                yield waits
            except BaseException as raised:
                # Whatever it is, it is the coroutine's.
                error = raised
