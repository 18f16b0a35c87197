"""Context variables that keep nothing alive behind the block they were set for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Block(Generic[T]):
    """A block in which a value is in force."""

    __slots__ = ("ended", "outer", "token", "value")

    def __init__(self, value: T | None, outer: _Block[T] | None) -> None:
        self.value = value
        self.outer = outer
        self.ended = False
        self.token: Token[_Block[T] | None] | None = None

    def end(self) -> None:
        """Let the value go."""
        self.value, self.ended = None, True


class BlockVar(Generic[T]):
    """A ``ContextVar``, None by default, whose value is let go everywhere when it is reset.

    Whatever is started inside a block copies its context: a pooled connection, an event loop's handles, a thread of the
    framework's. A plain variable's value then lives as long as they do, a whole session with its prompts; of this
    one's they keep an empty block. ``kept`` is for a value that tasks started inside go on with behind the block.

    A block of a generator may end out of turn, or in another context than it began in: where the generator is dropped,
    or another task closes it. The value is then in force nowhere, whatever ``kept`` says: the code that runs there next
    may serve another user.
    """

    def __init__(self, name: str, *, kept: bool = False) -> None:
        self._var: ContextVar[_Block[T] | None] = ContextVar(name, default=None)
        self._kept = kept

    def get(self) -> T | None:
        """The value in force here; None outside its block."""
        block = self._block()
        return None if block is None else block.value

    def set(self, value: T | None) -> _Block[T]:
        """Put a value in force, until ``reset`` is given what this returns."""
        made = _Block(value, self._block())
        made.token = self._var.set(made)
        return made

    def reset(self, block: _Block[T]) -> None:
        """End a block; what was started inside sees nothing any more, unless its value is kept."""
        token, block.token = block.token, None
        in_turn = token is not None and self._var.get() is block
        if token is not None and in_turn:
            try:
                self._var.reset(token)
            except ValueError:
                # A copy of the context that the block began in.
                in_turn = False
        if not (in_turn and self._kept):
            block.end()

    def stretched(self, value: T | None) -> _Block[T]:
        """A block that is entered by ``stretch``, as often as a stream is read, and is over with its ``end``."""
        return _Block(value, self._block())

    @contextmanager
    def stretch(self, block: _Block[T]) -> Iterator[None]:
        """A part of a block: what was started in it goes on with the value behind it, what comes behind does not."""
        token = self._var.set(block)
        try:
            yield
        finally:
            try:
                self._var.reset(token)
            except ValueError:
                # Closed in another context than it was read in.
                block.end()

    def _block(self) -> _Block[T] | None:
        """The innermost block here that has not ended."""
        block = self._var.get()
        while block is not None and block.ended:
            block = block.outer
        return block

    @contextmanager
    def within(self, value: T | None) -> Iterator[None]:
        """A block in which a value is in force."""
        block = self.set(value)
        try:
            yield
        finally:
            self.reset(block)


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
