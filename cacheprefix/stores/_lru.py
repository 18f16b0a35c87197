"""A bounded map with a true least-recently-used order and times to live."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from cacheprefix.stores._protocol import Departure

V = TypeVar("V")

# Below this many stale heap items a rebuild costs more than it frees.
_HEAP_SLACK = 64


class Lru(Generic[V]):
    """Values by key, at most ``max_entries`` and ``max_bytes`` of them (None: no bound).

    Reading makes an entry the most recent; replacing one never evicts another for its place.
    Expired entries leave on the next write and when they are looked up, so they never push
    out live ones. A value larger than ``max_bytes`` is not kept. Not safe for threads: the
    owner holds a lock.
    """

    __slots__ = ("_bytes", "_clock", "_entries", "_expiry", "_serial", "dropped", "max_bytes", "max_entries")

    def __init__(
        self,
        max_entries: int | None,
        max_bytes: int | None,
        clock: Callable[[], float],
        dropped: Callable[[str, Departure], None] | None = None,
    ) -> None:
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.dropped = dropped
        self._clock = clock
        # key -> (value, bytes, from, until, serial)
        self._entries: OrderedDict[str, tuple[V, int, float, float | None, int]] = OrderedDict()
        self._expiry: list[tuple[float, int, str]] = []
        self._bytes = 0
        self._serial = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        """The bytes of all entries, as given to ``put``."""
        return self._bytes

    def get(self, key: str) -> V | None:
        """Return the live value of ``key`` and make it the most recent."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        until = entry[3]
        if until is not None:
            now = self._clock()
            # A clock that went back to before the entry was made proves nothing about its age.
            if not entry[2] <= now < until:
                self._drop(key, "expired")
                return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: str, value: V, size: int, ttl: float | None) -> None:
        """Keep ``value``, counted with ``size`` bytes, for ``ttl`` seconds (None: for ever)."""
        now = self._clock()
        self.sweep(now)
        self.pop(key)
        if ttl is not None and ttl <= 0:
            return
        if self.max_bytes is not None and size > self.max_bytes:
            return
        self._serial += 1
        until = None if ttl is None else now + ttl
        self._entries[key] = (value, size, now, until, self._serial)
        self._bytes += size
        if until is not None:
            heapq.heappush(self._expiry, (until, self._serial, key))
            if len(self._expiry) > 2 * len(self._entries) + _HEAP_SLACK:
                self._expiry = [(e[3], e[4], k) for k, e in self._entries.items() if e[3] is not None]
                heapq.heapify(self._expiry)
        while (self.max_entries is not None and len(self._entries) > self.max_entries) or (
            self.max_bytes is not None and self._bytes > self.max_bytes
        ):
            self._drop(next(iter(self._entries)), "evicted")

    def pop(self, key: str) -> V | None:
        """Forget ``key`` and return what it held."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._bytes -= entry[1]
        return entry[0]

    def sweep(self, now: float | None = None) -> int:
        """Forget every expired entry; return how many."""
        now = self._clock() if now is None else now
        gone = 0
        while self._expiry and self._expiry[0][0] <= now:
            _, serial, key = heapq.heappop(self._expiry)
            entry = self._entries.get(key)
            if entry is not None and entry[4] == serial:
                self._drop(key, "expired")
                gone += 1
        return gone

    def sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield key and bytes of the entries whose key starts with ``prefix``."""
        for key, entry in self._entries.items():
            if key.startswith(prefix):
                yield key, entry[1]

    def clear(self, prefix: str = "") -> int:
        """Forget the entries whose key starts with ``prefix``; return how many."""
        doomed = [key for key, _ in self.sizes(prefix)]
        for key in doomed:
            self.pop(key)
        if not self._entries:
            self._expiry.clear()
        return len(doomed)

    def _drop(self, key: str, why: Departure) -> None:
        self.pop(key)
        if self.dropped is not None:
            self.dropped(key, why)
