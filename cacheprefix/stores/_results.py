"""Full tool results, kept outside the prompt and read back in pieces.

A budgeted tool result shows its head and a reference; the whole text lives here. The
reference depends on the text alone, so it is the same in every fork, process and replay,
while the place where the text is kept depends on the scope, so a reference that leaks to
another tenant reads nothing there.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass

from cacheprefix.stores._protocol import Store


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of a kept text. ``offset`` and ``total`` count characters of the whole text."""

    text: str
    offset: int
    total: int

    @property
    def complete(self) -> bool:
        """Whether the piece reaches the end of the text."""
        return self.offset + len(self.text) >= self.total


class ResultStore:
    """Texts by content, in any ``Store``.

    ``ttl`` is in seconds; None keeps a text until the store needs the room. Methods raise
    ``StoreError`` when the store fails, and then nothing was kept: a
    caller must not replace a result by a reference that cannot be read back.
    """

    def __init__(self, store: Store, *, ttl: float | None = None, namespace: str = "cacheprefix") -> None:
        self._store = store
        self._ttl = ttl
        self._namespace = namespace

    def put(self, text: str, *, scope: str = "") -> str:
        """Keep ``text`` and return its reference: 16 characters, the same for the same text."""
        ref, data = _encode(text)
        self._store.set(self._key(ref, scope), data, self._ttl)
        return ref

    def get(self, ref: str, offset: int = 0, limit: int | None = None, *, scope: str = "") -> Slice | None:
        """Return ``limit`` characters (None: all) from ``offset`` on; None when the text is gone.

        A text whose bytes are damaged counts as gone. An offset beyond the end gives an empty piece.
        """
        return _cut(ref, self._store.get(self._key(ref, scope)), offset, limit)

    def delete(self, ref: str, *, scope: str = "") -> bool:
        """Forget a text; return whether it was there."""
        return self._store.delete(self._key(ref, scope))

    def clear(self, *, scope: str | None = None) -> int:
        """Forget all texts of a scope (None: of every scope); return how many."""
        prefix = f"{self._namespace}:r:" + ("" if scope is None else f"{{{_hash(scope)}}}:")
        return self._store.clear(prefix)

    def _key(self, ref: str, scope: str) -> str:
        # The reference comes from a model, so it is hashed like everything else in a key.
        return f"{self._namespace}:r:{{{_hash(scope)}}}:{_hash(ref)}"


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _encode(text: str) -> tuple[str, bytes]:
    data = text.encode("utf-8", "surrogatepass")
    return _reference(data), data


def _reference(data: bytes) -> str:
    # 80 bits in base32: half the model tokens of the same bits in hex.
    return base64.b32encode(hashlib.blake2b(data, digest_size=10).digest()).decode().lower()


def _cut(ref: str, data: bytes | None, offset: int, limit: int | None) -> Slice | None:
    if data is None or _reference(data) != ref:
        return None
    text = data.decode("utf-8", "surrogatepass")
    offset = max(offset, 0)
    end = None if limit is None else offset + max(limit, 0)
    return Slice(text[offset:end], offset, len(text))
