"""Mappings that do not grow without end: bounded by the number of items, or by bytes; and such ones of an owner."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from cacheprefix.by_object import ByObject
from cacheprefix.locks import Lock

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


class Generations(Generic[K, V]):
    """Keeps values within ``max_bytes``: when the young half is full, it becomes the old one, and that one goes.

    What is looked up in the old half moves into the young one. Looking up takes no lock.
    """

    def __init__(self, max_bytes: int) -> None:
        self._half = max_bytes // 2
        self._young: dict[K, tuple[V, int]] = {}
        self._old: dict[K, tuple[V, int]] = {}
        self._bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        """Items held."""
        return len(self._young) + len(self._old)

    def get(self, key: K) -> V | None:
        """The value of a key; None when there is none, or no longer."""
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is None:
                return None
            self.put(key, *found)
        return found[0]

    def discard(self, gone: Callable[[V], bool]) -> None:
        """Let every value go of which ``gone`` says so."""
        with self._lock:
            for half in (self._young, self._old):
                for key in [key for key, (value, _) in half.items() if gone(value)]:
                    size = half.pop(key)[1]
                    self._bytes -= size if half is self._young else 0

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value of so many bytes."""
        with self._lock:
            self._young[key] = value, size
            self._bytes += size
            if self._bytes > self._half:
                self._old, self._young, self._bytes = self._young, {}, 0


class PerOwner(Generic[K, V]):
    """``Generations`` of an owner's own, which go with it: nothing of them outlives a session, whose counter it is."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._of: ByObject[Any, Generations[K, V]] = ByObject()
        self._lock = Lock()

    def of(self, owner: object) -> Generations[K, V]:
        """Those of an owner; empty ones each time where it cannot be referred to weakly, since it would be held."""
        try:
            found = self._of.get(owner)
            if found is None:
                with self._lock:
                    found = self._of.get(owner)
                    if found is None:
                        found = self._of[owner] = Generations(self._max)
        except TypeError:
            return Generations(0)
        return found

    def clear(self, owner: object) -> None:
        """Let all that is kept for an owner go."""
        with self._lock:
            self._of.pop(owner)
