"""Context variables that keep nothing alive behind the block they were set for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class BlockVar(Generic[T]):
    """A ``ContextVar``, None by default, whose value is let go everywhere when it is reset.

    Whatever is started inside a block copies its context: a pooled connection, an event loop's handles, a thread of the
    framework's. A plain variable's value then lives as long as they do, a whole session with its prompts; of this
    one's they keep an empty list.
    """

    def __init__(self, name: str) -> None:
        self._var: ContextVar[list[T] | None] = ContextVar(name, default=None)

    def get(self) -> T | None:
        """The value in force here; None outside its block."""
        held = self._var.get()
        return held[0] if held else None

    def set(self, value: T | None) -> Token[list[T] | None]:
        """Put a value in force, until ``reset`` is given the token."""
        return self._var.set(None if value is None else [value])

    def reset(self, token: Token[list[T] | None]) -> None:
        """End the block in the context that began it; what was started inside sees nothing any more."""
        held = self._var.get()
        self._var.reset(token)
        if held is not None and held is not self._var.get():
            held.clear()

    @contextmanager
    def within(self, value: T | None) -> Iterator[None]:
        """A block in which a value is in force."""
        token = self.set(value)
        try:
            yield
        finally:
            self.reset(token)


def inside(block: Callable[[], AbstractContextManager[object]], call: Callable[..., Any], like: Any) -> Any:
    """``call`` inside a block that is entered anew each time, as a function like ``like``: asynchronous where it is."""

    @functools.wraps(like)
    def sync(*given: Any, **named: Any) -> Any:
        with block():
            return call(*given, **named)

    @functools.wraps(like)
    async def later(*given: Any, **named: Any) -> Any:
        with block():
            return await call(*given, **named)

    return later if inspect.iscoroutinefunction(like) else sync


def within(
    block: Callable[[], AbstractContextManager[object]], stream: Callable[..., Any]
) -> Callable[..., AsyncIterator[Any]]:
    """An asynchronous generator function, each step of which is taken inside a block that is entered anew.

    Between two steps the block is left: what reads the stream is not inside.
    """

    @functools.wraps(stream)
    async def stepped(*given: Any, **named: Any) -> AsyncIterator[Any]:
        end = object()
        events = stream(*given, **named)
        try:
            while True:
                with block():
                    event = await anext(events, end)
                if event is end:
                    return
                yield event
        finally:
            await events.aclose()

    return stepped
