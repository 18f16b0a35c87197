"""Objects that must start afresh in a forked child.

A lock held by another thread at the moment of ``os.fork`` stays locked in the child for
ever, and a database connection must not be used on both sides. Process pools on Linux fork
by default before Python 3.14, so every object with either registers here.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class _Forked(Protocol):
    def after_fork(self) -> None: ...


_known: weakref.WeakSet[_Forked] = weakref.WeakSet()


def reset_in_child(thing: _Forked) -> None:
    """Call ``thing.after_fork()`` in every child that this process forks while it lives."""
    _known.add(thing)


def _reset() -> None:
    for thing in list(_known):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)
