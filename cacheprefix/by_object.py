"""Keeps something for objects of the application's or a framework's: they may be equal to others, or have no hash."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class ByObject(Generic[K, V]):
    """Values by the very object that they are of; it keeps no object alive, and goes on without those that are gone.

    Privacy: by equality one user's tool or session would stand for another's of a class that compares names or ids.
    """

    def __init__(self) -> None:
        self._of: dict[int, tuple[weakref.ref[K], V]] = {}

    def get(self, key: K) -> V | None:
        """The value of an object; None without one."""
        found = self._of.get(id(key))
        return None if found is None or found[0]() is not key else found[1]

    def items(self) -> list[tuple[K, V]]:
        """All objects that are still there, with their values."""
        found = [(held(), value) for held, value in list(self._of.values())]
        return [(key, value) for key, value in found if key is not None]

    def pop(self, key: K) -> V | None:
        """Let an object's value go, and give it; None without one."""
        found = self.get(key)
        self._of.pop(id(key), None)
        return found

    def clear(self) -> None:
        """Let the values of all objects go."""
        self._of.clear()

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def __setitem__(self, key: K, value: V) -> None:
        at = id(key)
        self._of[at] = weakref.ref(key, lambda _: self._of.pop(at, None)), value
