"""The store of one process: a bounded map in memory, the least recently used first to go, with times to live."""

from __future__ import annotations

import heapq
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from cacheprefix.locks import RLock, reset_in_child
from cacheprefix.stores.clock import steady
from cacheprefix.stores.protocol import Departure, Listener

V = TypeVar("V")

# Below this many stale heap items a rebuild costs more than it frees.
_HEAP_SLACK = 64


class Lru(Generic[V]):
    """Values by key, at most ``max_entries`` and ``max_bytes`` of them (None: no bound).

    Reading makes an entry the most recent; replacing one evicts no other to make room. Expired
    entries are removed on the next write and when they are looked up, so they never evict
    live ones. A value larger than ``max_bytes`` is not kept. Not safe for threads: the
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
        """Return the value of ``key``, which becomes the most recent; None where there is none, or its time is over."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        until = entry[3]
        if until is not None:
            now = self._clock()
            # Before its time too: the clock was set back, so that the entry's age is unknown.
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


# Generations are 8 bytes each and forgetting one only costs misses; this many are about 10 MB.
_MAX_GENERATIONS = 65_536


class MemoryStore:
    """Entries in this process's memory, least recently used first out; for threads and tasks.

    ``max_entries`` and ``max_bytes`` (values only) bound the entries, None lifts a bound.
    Generations and leases are kept beside them and do not count. ``clock`` returns seconds and
    should be monotonic, so that setting the wall clock changes nothing.
    """

    shared = False
    blocking = False

    def __init__(
        self,
        *,
        max_entries: int | None = 4_096,
        max_bytes: int | None = 64 * 1024 * 1024,
        clock: Callable[[], float] = steady,
    ) -> None:
        self._clock = clock
        self._lock = RLock()
        self._entries: Lru[bytes] = Lru(max_entries, max_bytes, clock, self._dropped)
        # Oldest out first, whatever its use: a forgotten generation is a miss, and hits read many.
        self._generations: dict[str, bytes] = {}
        # name -> writer -> when his mark ends by itself
        self._marks: dict[str, dict[str, float]] = {}
        self._leases: dict[str, tuple[str, float, float]] = {}
        self._listeners: list[Listener] = []
        reset_in_child(self)

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._entries)} entries, {self._entries.bytes} bytes)"

    def get(self, key: str) -> bytes | None:
        """See ``Store.get``."""
        with self._lock:
            return self._entries.get(key)

    def read(self, key: str, names: Sequence[str]) -> tuple[bytes | None, bytes]:
        """See ``Store.read``."""
        with self._lock:
            return self._entries.get(key), self._joined(names)

    def set(self, key: str, value: bytes, ttl: float | None = None) -> None:
        """See ``Store.set``."""
        with self._lock:
            self._entries.put(key, value, len(value), ttl)

    def delete(self, key: str) -> bool:
        """See ``Store.delete``."""
        with self._lock:
            return self._entries.pop(key) is not None

    def generations(self, names: Sequence[str]) -> bytes:
        """See ``Store.generations``."""
        with self._lock:
            return self._joined(names)

    def mark(self, names: Sequence[str], writer: str, ttl: float) -> None:
        """See ``Store.mark``."""
        with self._lock:
            until = self._clock() + ttl
            for name in names:
                self._fresh(name)
                self._marks.setdefault(name, {})[writer] = until

    def bump(self, names: Sequence[str], writer: str = "") -> None:
        """See ``Store.bump``."""
        with self._lock:
            for name in names:
                self._fresh(name)
                marks = self._marks.get(name)
                if marks is not None:
                    marks.pop(writer, None)
                    if not marks:
                        del self._marks[name]

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """See ``Store.sizes``."""
        with self._lock:
            self._entries.sweep()
            return dict(self._entries.sizes(prefix))

    def clear(self, prefix: str = "") -> int:
        """See ``Store.clear``."""
        with self._lock:
            for name in [name for name in self._generations if name.startswith(prefix)]:
                del self._generations[name]
            return self._entries.clear(prefix)

    def acquire(self, key: str, owner: str, ttl: float) -> bool:
        """See ``Store.acquire``."""
        with self._lock:
            now = self._clock()
            held = self._leases.get(key)
            if held is not None and held[0] != owner and held[1] <= now < held[2]:
                return False
            if len(self._leases) > 1_024:
                self._leases = {k: v for k, v in self._leases.items() if v[1] <= now < v[2]}
            self._leases[key] = (owner, now, now + ttl)
            return True

    def renew(self, key: str, owner: str, ttl: float) -> bool:
        """See ``Store.renew``."""
        with self._lock:
            now = self._clock()
            held = self._leases.get(key)
            if held is None or held[0] != owner or not held[1] <= now < held[2]:
                return False
            self._leases[key] = (owner, now, now + ttl)
            return True

    def release(self, key: str, owner: str) -> bool:
        """See ``Store.release``."""
        with self._lock:
            held = self._leases.get(key)
            if held is None or held[0] != owner:
                return False
            del self._leases[key]
            return True

    def listen(self, listener: Listener) -> None:
        """See ``Store.listen``."""
        self._listeners.append(listener)

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self.clear()
            self._leases.clear()

    def after_fork(self) -> None:
        """Leave the parent's leases alone: their leaders do not exist in the child."""
        self._leases = {}
        # Those who were writing do not exist here; what they changed meanwhile counts as changed.
        marked, self._marks = self._marks, {}
        for name in marked:
            self._fresh(name)

    def _joined(self, names: Sequence[str]) -> bytes:
        if self._marks:
            return b"".join([os.urandom(8) if self._written(n) else self._token(n) for n in names])
        try:
            return b"".join(map(self._generations.__getitem__, names))
        except KeyError:
            return b"".join(map(self._token, names))

    def _token(self, name: str) -> bytes:
        return self._generations.get(name) or self._fresh(name)

    def _written(self, name: str) -> bool:
        """Whether somebody is writing under a name: an unended mark is there. Ended ones are removed."""
        marks = self._marks.get(name)
        if marks is None:
            return False
        now = self._clock()
        alive = {writer: until for writer, until in marks.items() if now < until}
        if alive:
            self._marks[name] = alive
        else:
            del self._marks[name]
        return bool(alive)

    def _fresh(self, name: str) -> bytes:
        token = self._generations[name] = os.urandom(8)
        if len(self._generations) > _MAX_GENERATIONS:
            del self._generations[next(iter(self._generations))]
        return token

    def _dropped(self, key: str, why: Departure) -> None:
        for listener in self._listeners:
            listener(key, why)
