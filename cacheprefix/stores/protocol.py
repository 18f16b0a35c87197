"""The protocol of a store: bytes by key with a time to live, generations, and leases.

A result is outdated by *generations*: random tokens, one for each name that results depend on. Equal tokens prove that
nobody called ``bump`` in between. A token that was lost (evicted, expired, in a crash) is replaced by a new one, which
costs a miss and never a stale read; a counter could start again at an old value. Before changing something, a writer
calls ``mark``: until it calls ``bump``, or its time is over because it was killed, no result that depends on it can be
kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Literal, Protocol, TypeAlias, runtime_checkable

Departure: TypeAlias = Literal["evicted", "expired"]
Listener: TypeAlias = Callable[[str, Departure], None]


@runtime_checkable
class Store(Protocol):
    """Bytes by key. Safe for any number of threads, and for several processes when ``shared``.

    Every method may raise ``StoreError``, quickly: callers fail open
    and must not wait for a dead server. Times to live are seconds; ``None`` never expires, and
    zero or less is expired at once.
    """

    @property
    def shared(self) -> bool:
        """Whether other processes read and write the same entries; a store that does not say so is taken to be."""
        return True

    @property
    def blocking(self) -> bool:
        """Whether a call may wait for a disk or a network, so that async callers need a thread; True where unsaid."""
        return True

    def get(self, key: str) -> bytes | None:
        """Return the value of ``key``, or None when it is absent or expired."""
        ...

    def read(self, key: str, names: Sequence[str]) -> tuple[bytes | None, bytes]:
        """Return ``get(key)`` and ``generations(names)`` in one round trip."""
        ...

    def set(self, key: str, value: bytes, ttl: float | None = None) -> None:
        """Keep ``value`` under ``key`` for ``ttl`` seconds, replacing what was there."""
        ...

    def delete(self, key: str) -> bool:
        """Forget ``key``; return whether it was there."""
        ...

    def generations(self, names: Sequence[str]) -> bytes:
        """Return the current generations of ``names``, joined in their order.

        Equal answers prove that no name was bumped in between. A name that the store does not
        know gets a fresh generation.
        """
        ...

    def mark(self, names: Sequence[str], writer: str, ttl: float) -> None:
        """Say that ``writer`` is changing what ``names`` stand for, for ``ttl`` seconds at most.

        Until ``bump(names, writer)``, or the end of that time, ``generations`` and ``read`` answer for these
        names with tokens that match nothing, and afterwards with fresh ones. Called again it extends.
        """
        ...

    def bump(self, names: Sequence[str], writer: str = "") -> None:
        """Give every name a fresh generation, and end ``writer``'s marks on them."""
        ...

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the live entries whose key starts with ``prefix``, each with its bytes."""
        ...

    def clear(self, prefix: str = "") -> int:
        """Forget all entries and generations starting with ``prefix``; return how many entries."""
        ...

    def acquire(self, key: str, owner: str, ttl: float) -> bool:
        """Take the lease ``key`` for ``ttl`` seconds; True when ``owner`` holds it now.

        Idempotent: the holder's own second call extends the lease, so a call that is repeated
        after a lost answer cannot lock its owner out.
        """
        ...

    def renew(self, key: str, owner: str, ttl: float) -> bool:
        """Extend a lease that ``owner`` still holds; False when it is lost."""
        ...

    def release(self, key: str, owner: str) -> bool:
        """Give a lease back; False, and nothing happens, when ``owner`` no longer holds it."""
        ...

    def listen(self, listener: Listener) -> None:
        """Call ``listener(key, "evicted" | "expired")`` for entries that this store object drops.

        Entries that another process or the server drops are not reported.
        """
        ...

    def close(self) -> None:
        """Let go of files and connections. The store is not used afterwards."""
        ...


def is_shared(store: Store) -> bool:
    """Whether other processes read and write a store's entries, or may, as it does not say."""
    # Privacy: a tool that only this process can tell apart has its results kept in no store that others may read.
    return getattr(store, "shared", True)


def is_blocking(store: Store) -> bool:
    """Whether a store's calls may wait for a disk or a network, or it does not say: then an event loop must not."""
    return getattr(store, "blocking", True)


def short(text: str) -> str:
    """A digest that stands for ``text`` in a key: 128 bits, 32 characters."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
