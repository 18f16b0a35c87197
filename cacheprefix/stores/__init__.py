"""Where state lives that outlasts a call: one small protocol, kept in memory, in a file or on a server."""

from __future__ import annotations

from cacheprefix.stores._effects import Settle, apart, aside, in_a_loop
from cacheprefix.stores._lease import Lease, Turn, aelect, elect
from cacheprefix.stores._memory import MemoryStore
from cacheprefix.stores._protocol import Departure, Listener, Store
from cacheprefix.stores._redis import RedisStore
from cacheprefix.stores._results import ResultStore, Slice
from cacheprefix.stores._sqlite import SqliteStore

__all__ = [
    "Departure",
    "Lease",
    "Listener",
    "MemoryStore",
    "RedisStore",
    "ResultStore",
    "Settle",
    "Slice",
    "SqliteStore",
    "Store",
    "Turn",
    "aelect",
    "apart",
    "aside",
    "elect",
    "in_a_loop",
]
