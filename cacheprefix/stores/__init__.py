"""Where state lives that outlasts a call: one small protocol, kept in memory, in a file or on a server.

Names are loaded when they are first used: most sessions have one store.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cacheprefix.stores.effects import apart, aside, bounded
    from cacheprefix.stores.lease import Elected, Lease, elect
    from cacheprefix.stores.memory import MemoryStore
    from cacheprefix.stores.protocol import Departure, Listener, Store
    from cacheprefix.stores.redis import RedisStore
    from cacheprefix.stores.sqlite import SqliteStore
    from cacheprefix.stores.tool_results import ResultStore, Slice

_HOMES = {
    "Departure": "protocol",
    "Elected": "lease",
    "Lease": "lease",
    "Listener": "protocol",
    "MemoryStore": "memory",
    "RedisStore": "redis",
    "ResultStore": "tool_results",
    "Slice": "tool_results",
    "SqliteStore": "sqlite",
    "Store": "protocol",
    "apart": "effects",
    "aside": "effects",
    "bounded": "effects",
    "elect": "lease",
}

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


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cacheprefix.stores' has no attribute {name!r}")
    value = getattr(import_module(f"cacheprefix.stores.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
