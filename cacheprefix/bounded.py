"""A mapping that does not grow without end."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(OrderedDict[K, V]):
    """Keeps the ``limit`` items that were set last, or asked for by ``of``; the oldest one gives way to a new one.

    Looking one up does not make it younger. Not thread-safe by itself.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self.limit:
            self.popitem(last=False)

    def of(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key, made when there is none; either way it is the youngest now."""
        if key in self:
            self.move_to_end(key)
            return self[key]
        made = self[key] = make()
        return made
