"""The store of one process: a bounded map in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from cacheprefix.locks import RLock, reset_in_child
from cacheprefix.stores._clock import steady
from cacheprefix.stores._lru import Lru
from cacheprefix.stores._protocol import Departure, Listener

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
