"""Where state lives that outlasts a call: one small protocol, kept in memory, in a file or on a server."""

from __future__ import annotations

from cacheprefix.stores.effects import Settle, apart, aside, in_a_loop
from cacheprefix.stores.lease import Elected, Lease, aelect, elect
from cacheprefix.stores.memory import MemoryStore
from cacheprefix.stores.protocol import Departure, Listener, Store
from cacheprefix.stores.redis import RedisStore
from cacheprefix.stores.sqlite import SqliteStore
from cacheprefix.stores.tool_results import ResultStore, Slice

__all__ = [
    "Departure",
    "Elected",
    "Lease",
    "Listener",
    "MemoryStore",
    "RedisStore",
    "ResultStore",
    "Settle",
    "Slice",
    "SqliteStore",
    "Store",
    "aelect",
    "apart",
    "aside",
    "elect",
    "in_a_loop",
]
