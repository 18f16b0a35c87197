"""Keeps full tool results outside the prompt, to be read back in pieces.

Of a cut tool result the prompt has a part and a reference; the whole text is kept here. The reference depends on the
text alone, so it is the same in every fork, process and replay. The key in the store also depends on the scope, so a
reference that leaks to another tenant reads nothing there.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from cacheprefix.effects import in_a_loop
from cacheprefix.errors import StoreError
from cacheprefix.locks import RLock, reset_in_child
from cacheprefix.stores.clock import steady
from cacheprefix.stores.protocol import Store, is_blocking, short

E = TypeVar("E", bound=Exception)

# Seconds for which a store that failed is not asked; waiting texts are written again after as long.
_COOLDOWN = 1.0
# Most bytes of texts that wait in memory to be written; beyond them ``put`` fails and results stay whole.
_MOST_WAITING = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of a kept text. ``offset`` and ``total`` count characters of the whole text."""

    text: str
    offset: int
    total: int


class ResultStore:
    """Keeps texts in any ``Store``, each under a reference made from its content.

    ``ttl`` is in seconds; None keeps a text until the store needs the room. Methods raise
    ``StoreError`` when the store fails, and then nothing was kept: a
    caller must not replace a result by a reference that cannot be read back. After a failure ``put`` raises at once
    for a second, so that one large turn waits once.

    In an event loop ``put`` never waits for a store that blocks: the text is readable here at once and written by a
    thread, tried again until the store takes it. While a text waits, another process does not find it yet; ``flush``
    waits for that, and the end of the process tries once more.
    """

    def __init__(self, store: Store, *, ttl: float | None = None, namespace: str = "cacheprefix") -> None:
        self._store = store
        self._lock = RLock()
        self._waiting: dict[str, bytes] = {}
        self._deleted: set[str] = set()
        """Of those that waited, for the thread that may be writing them."""
        self._held = 0
        self._writing = False
        self._quiet_until = float("-inf")
        self._listeners: list[weakref.WeakMethod[Callable[[Exception], None]]] = []
        reset_in_child(self)
        _all.add(self)
        self._ttl = ttl
        self._namespace = namespace

    def put(self, text: str, *, scope: str = "") -> str:
        """Keep ``text`` and return its reference: 16 characters, the same for the same text."""
        ref, data = _encode(text)
        key = self._key(ref, scope)
        if steady() < self._quiet_until:
            raise self._told(StoreError("the store of full texts failed a moment ago, and is asked again soon"))
        if is_blocking(self._store) and in_a_loop():
            self._write_later(key, data)
        else:
            self._deleted.discard(key)
            try:
                self._store.set(key, data, self._ttl)
            except Exception as error:
                self._quiet_until = steady() + _COOLDOWN
                self._told(error)
                raise
        return ref

    def get(self, ref: str, offset: int = 0, limit: int | None = None, *, scope: str = "") -> Slice | None:
        """Return ``limit`` characters (None: all) from ``offset`` on; None when the text is gone.

        A text whose bytes are damaged counts as gone. An offset beyond the end gives an empty piece.
        """
        key = self._key(ref, scope)
        waiting = self._waiting.get(key)
        return _cut(ref, self._store.get(key) if waiting is None else waiting, offset, limit)

    def delete(self, ref: str, *, scope: str = "") -> bool:
        """Forget a text; return whether it was there."""
        key = self._key(ref, scope)
        waiting = self._delete_waiting([key])
        return self._store.delete(key) or bool(waiting)

    def clear(self, *, scope: str | None = None) -> int:
        """Forget all texts of a scope (None: of every scope); return how many."""
        prefix = f"{self._namespace}:r:" + ("" if scope is None else f"{{{short(scope)}}}:")
        waiting = self._delete_waiting([key for key in list(self._waiting) if key.startswith(prefix)])
        return self._store.clear(prefix) + waiting

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait up to ``timeout`` seconds until all texts are written; return whether they are."""
        end = steady() + timeout
        while self._waiting and steady() < end:
            time.sleep(0.01)
        return not self._waiting

    def on_failure(self, told: Callable[[Exception], None]) -> None:
        """Call a bound method whenever keeping a text fails, also in the thread; its object is referenced weakly."""
        self._listeners.append(weakref.WeakMethod(told))

    def after_fork(self) -> None:
        """In a forked child: forget the waiting texts, which the parent writes."""
        self._waiting, self._deleted, self._held, self._writing = {}, set(), 0, False

    def _delete_waiting(self, keys: Iterable[str]) -> int:
        """Forget those of these texts that wait, also where one is just being written; how many."""
        with self._lock:
            found = [key for key in keys if self._forget(key)]
            self._deleted.update(found)
        return len(found)

    def _write_later(self, key: str, data: bytes) -> None:
        """Keep a text here until a thread has written it into the store."""
        with self._lock:
            self._forget(key)
            if self._held + len(data) > _MOST_WAITING:
                raise self._told(StoreError(f"{self._held} bytes of full texts wait for the store already"))
            self._waiting[key] = data
            self._deleted.discard(key)
            self._held += len(data)
            if self._writing:
                return
            self._writing = True
        threading.Thread(target=self._write_waiting, name="cacheprefix-results", daemon=True).start()

    def _write_waiting(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._writing = False
                    self._deleted.clear()
                    return
            if not self._write_all():
                time.sleep(_COOLDOWN)

    def _write_all(self) -> bool:
        """Write all that waits; whether the store took it."""
        try:
            for key, data in list(self._waiting.items()):
                if key not in self._waiting:
                    continue
                self._store.set(key, data, self._ttl)
                with self._lock:
                    if self._waiting.get(key) is data:
                        self._forget(key)
                    deleted = key in self._deleted
                if deleted:
                    # Privacy: deleted, or cleared with its scope, while it was being written.
                    self._store.delete(key)
        except Exception as error:
            self._quiet_until = steady() + _COOLDOWN
            self._told(error)
            return False
        return True

    def _told(self, error: E) -> E:
        for one in tuple(self._listeners):
            told = one()
            if told is None:
                self._listeners.remove(one)
            else:
                told(error)
        return error

    def _forget(self, key: str) -> bool:
        data = self._waiting.pop(key, None)
        self._held -= 0 if data is None else len(data)
        return data is not None

    def _key(self, ref: str, scope: str) -> str:
        # Hashed, as the reference comes from a model and may be any text.
        return f"{self._namespace}:r:{{{short(scope)}}}:{short(ref)}"


_all: weakref.WeakSet[ResultStore] = weakref.WeakSet()


@atexit.register
def _write_the_rest() -> None:
    """At the end of the process, try a last time to write the waiting texts."""
    for results in list(_all):
        results._write_all()  # noqa: SLF001 - the same module


def _encode(text: str) -> tuple[str, bytes]:
    data = text.encode("utf-8", "surrogatepass")
    return _reference(data), data


def _reference(data: bytes) -> str:
    # 80 bits in base32: half as many model tokens as in hex.
    return base64.b32encode(hashlib.blake2b(data, digest_size=10).digest()).decode().lower()


def _cut(ref: str, data: bytes | None, offset: int, limit: int | None) -> Slice | None:
    if data is None or _reference(data) != ref:
        return None
    text = data.decode("utf-8", "surrogatepass")
    offset = max(offset, 0)
    end = None if limit is None else offset + max(limit, 0)
    return Slice(text[offset:end], offset, len(text))
