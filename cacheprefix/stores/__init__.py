"""Where state lives that outlasts a call: one small protocol, kept in memory, in a file or on a server.

Names are loaded when they are first used: most sessions have one store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacheprefix.lazy_names import lazy

if TYPE_CHECKING:
    from cacheprefix.stores.effects import apart, aside, bounded
    from cacheprefix.stores.lease import Elected, Lease, elect
    from cacheprefix.stores.memory import MemoryStore
    from cacheprefix.stores.protocol import Departure, Listener, Store
    from cacheprefix.stores.redis import RedisStore
    from cacheprefix.stores.sqlite import SqliteStore
    from cacheprefix.stores.tool_results import ResultStore, Slice

__getattr__, __dir__ = lazy(
    globals(),
    {
        "stores.effects": "apart aside bounded",
        "stores.lease": "Elected Lease elect",
        "stores.memory": "MemoryStore",
        "stores.protocol": "Departure Listener Store",
        "stores.redis": "RedisStore",
        "stores.sqlite": "SqliteStore",
        "stores.tool_results": "ResultStore Slice",
    },
)

__all__ = [
    "Departure",
    "Elected",
    "Lease",
    "Listener",
    "MemoryStore",
    "RedisStore",
    "ResultStore",
    "Slice",
    "SqliteStore",
    "Store",
    "apart",
    "aside",
    "bounded",
    "elect",
]
