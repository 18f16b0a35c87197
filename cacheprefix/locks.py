"""Locks that are free in a forked child, and objects that start afresh there.

A lock held by another thread at the moment of ``os.fork`` stays locked in the child for ever, and a database
connection must not be used on both sides. gunicorn, Celery and process pools fork (before Python 3.14 the pools do so
by default on Linux), so every lock of the runtime is one of these, and whatever else belongs to one process registers
with ``reset_in_child``.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, overload

T = TypeVar("T")


class _Forked(Protocol):
    def after_fork(self) -> None: ...


class _Resting(_Forked, Protocol):
    def before_fork(self) -> None: ...

    def forked(self) -> None: ...


_locks: weakref.WeakSet[RLock] = weakref.WeakSet()
_known: weakref.WeakSet[_Forked] = weakref.WeakSet()
_resting: weakref.WeakSet[_Resting] = weakref.WeakSet()


_REENTRANT: Any = type(threading.RLock())


class RLock(_REENTRANT):  # type: ignore[misc]  # which type checkers call final, and is not
    """``threading.RLock`` that no thread of the parent's holds in a forked child.

    Of the interpreter's own class: where a signal's handler raises (Ctrl-C), it does so between functions written in
    Python, and a lock that is released by one could stay taken for ever.
    """

    __slots__ = ("torn",)

    def __init__(self) -> None:
        # Nothing to the interpreter's own; gevent puts one that is written in Python in its place.
        super().__init__()
        self.torn = False
        """Whether another thread held it when this process was forked off: what it guards may be half changed."""
        _locks.add(self)

    @property
    def mine(self) -> bool:
        """Whether this thread holds it."""
        return bool(self._is_owned())

    def renew(self) -> None:
        """For a forked child, before anything else runs there: free, whoever held it."""
        # The forking thread goes on in the child: what it holds itself stays its own.
        self.torn = not self.acquire(blocking=False)
        if self.torn:
            self._at_fork_reinit()
        else:
            self.release()


_FORK_WAITS = 10.0
"""Seconds that a fork waits for an ``Unforked`` lock."""
Lock = RLock
"""For what is entered once; it may be entered again, by what the garbage collector runs in the middle."""


class Guarded:
    """What one lock guards."""

    _lock: RLock

    @property
    def busy(self) -> bool:
        """Whether this thread is changing or reading it: what the garbage collector runs by then finds it half done."""
        return self._lock.mine


def reset_in_child(thing: _Forked) -> None:
    """Call ``thing.after_fork()`` in every child that this process forks while it lives, when locks are free again."""
    _known.add(thing)


def rest_while_forking(thing: _Resting) -> None:
    """Call ``thing.before_fork()`` before this process forks, and then ``forked()`` here and ``after_fork()`` there.

    For what a child could not do without even if it leaves it alone, as a library keeps it for the whole process.
    """
    _resting.add(thing)
    _known.add(thing)


class Unforked(RLock):
    """A lock that a fork waits for, so that what it guards is not half done in the child."""

    __slots__ = ("_rests",)

    def __init__(self) -> None:
        super().__init__()
        self._rests = False
        rest_while_forking(self)

    def before_fork(self) -> None:
        """Take it, unless that takes longer than a fork may wait."""
        self._rests = not self.mine and self.acquire(timeout=_FORK_WAITS)

    def forked(self) -> None:
        """Give it back."""
        if self._rests and self.mine:
            self._rests = False
            self.release()

    def after_fork(self) -> None:
        """In the child, where the forking thread has it too: give it back."""
        self.forked()


def _rest() -> None:
    for thing in list(_resting):
        thing.before_fork()


def _go_on() -> None:
    for thing in list(_resting):
        thing.forked()


def _reset() -> None:
    for lock in list(_locks):
        lock.renew()
    for thing in list(_known):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_rest, after_in_parent=_go_on, after_in_child=_reset)

IMPORTS = Unforked()
"""Held while a request imports a library: Python's own lock of a module that another thread imports at the fork would
hold the child for ever."""


class once(Generic[T]):  # noqa: N801 - used like ``functools.cached_property``
    """``functools.cached_property`` without its lock (before Python 3.12), for which a forked child may wait."""

    def __init__(self, work: Callable[[Any], T]) -> None:
        self._work = work
        self.__doc__ = work.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> once[T]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> T: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        if owner is None:
            return self
        found = owner.__dict__[self._work.__name__] = self._work(owner)
        return found
