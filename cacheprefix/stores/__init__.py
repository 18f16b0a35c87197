"""Where state lives that outlasts a call: one small protocol, kept in memory, in a file or on a server."""

from __future__ import annotations

from cacheprefix.stores._effects import as_async
from cacheprefix.stores._memory import MemoryStore
from cacheprefix.stores._protocol import AsyncStore, Departure, Listener, Store
from cacheprefix.stores._results import ResultStore, Slice

__all__ = [
    "AsyncStore",
    "Departure",
    "Listener",
    "MemoryStore",
    "ResultStore",
    "Slice",
    "Store",
    "as_async",
]
