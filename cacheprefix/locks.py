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
from typing import Protocol


class _Forked(Protocol):
    def after_fork(self) -> None: ...


_locks: weakref.WeakSet[_Lock] = weakref.WeakSet()
_known: weakref.WeakSet[_Forked] = weakref.WeakSet()


class _Lock:
    __slots__ = ("__weakref__", "_lock", "torn")

    def __init__(self) -> None:
        self._lock = self._fresh()
        self.torn = False
        """Whether another thread held it when this process was forked off: what it guards may be half changed."""
        _locks.add(self)

    @staticmethod
    def _fresh() -> threading.Lock:
        return threading.Lock()

    def acquire(self, *, blocking: bool = True) -> bool:
        """Take it; False where it is taken and ``blocking`` is False."""
        return self._lock.acquire(blocking)

    def release(self) -> None:
        """Give it back."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """For a forked child, before anything else runs there: free, whoever held it."""
        # The forking thread goes on in the child: what it holds itself (an RLock) stays its own.
        self.torn = not self._lock.acquire(blocking=False)
        if self.torn:
            self._lock = self._fresh()
        else:
            self._lock.release()


class Lock(_Lock):
    """``threading.Lock`` that nobody holds in a forked child."""

    __slots__ = ()


class RLock(_Lock):
    """``threading.RLock`` that no thread of the parent's holds in a forked child."""

    __slots__ = ()

    @staticmethod
    def _fresh() -> threading.Lock:
        made: threading.Lock = threading.RLock()  # type: ignore[assignment]  # the same methods
        return made


def reset_in_child(thing: _Forked) -> None:
    """Call ``thing.after_fork()`` in every child that this process forks while it lives, when locks are free again."""
    _known.add(thing)


def _reset() -> None:
    for lock in list(_locks):
        lock.renew()
    for thing in list(_known):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)
