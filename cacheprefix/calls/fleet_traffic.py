"""What all processes of a fleet ask in a minute, prefix by prefix, through the store that they share."""

from __future__ import annotations

import os
from collections.abc import Callable
from secrets import token_hex
from typing import Any

from cacheprefix.cache.routing import MINUTE, Learnt, Traffic, keys_for
from cacheprefix.prompt import dumps, loads
from cacheprefix.stores import Store, apart

_LEASE = 5.0
"""Seconds after which a process that was killed while it wrote is written past."""
_KEPT = 600.0
"""Seconds after the last word of any process until a prefix's traffic is forgotten."""


class FleetTraffic:
    """Adds up the requests that each process counted, and says how many routing keys they need together.

    One small entry a prefix: each process writes its own count there every few seconds, under a lease, away from the
    requests. No process is asked whether it lives: a count that is a minute old is dropped. Whatever the store does
    wrong goes to ``failed``, and each process goes by its own count.
    """

    def __init__(self, store: Store, failed: Callable[[Exception], None]) -> None:
        self._store = store
        self._failed = failed
        self._token = token_hex(16)

    def __call__(self, mine: Traffic, learn: Callable[[Learnt | None], None]) -> None:
        """Tell the others of this process's traffic, and ``learn`` what all have; None where that is not known."""
        apart(self._store, self._told, mine, learn)

    def _told(self, mine: Traffic, learn: Callable[[Learnt | None], None]) -> None:
        found: Learnt | None = None
        try:
            found = self._joined(mine)
        except Exception as error:
            self._failed(error)
        finally:
            learn(found)

    def _joined(self, mine: Traffic) -> Learnt | None:
        """Add this process's requests to the fleet's, and read what all ask; None while another process writes."""
        name = f"cacheprefix:traffic:{mine.prefix}"
        # In a forked child the token is the parent's.
        owner = f"{self._token}-{os.getpid()}"
        if not self._store.acquire(name, owner, _LEASE):
            # Another process is just writing.
            return None
        try:
            shared = _read(self._store.get(name), mine)
            seen = {who: told for who, told in shared["seen"].items() if abs(mine.at - told[1]) < MINUTE}
            seen[owner] = [mine.requests, mine.at]
            rate = sum(told[0] for told in seen.values())
            keys = max(mine.keys, shared["keys"])
            # Before a minute is over, nobody knows what is asked in one.
            if mine.at - shared["since"] >= MINUTE:
                keys = keys_for(rate, mine.limit, keys)
            self._store.set(name, dumps({"since": shared["since"], "keys": keys, "seen": seen}, "traffic"), _KEPT)
            return Learnt(rate, keys)
        finally:
            self._store.release(name, owner)


def _read(data: bytes | None, mine: Traffic) -> dict[str, Any]:
    if data is None:
        return {"since": mine.at, "keys": 1, "seen": {}}
    found: dict[str, Any] = loads(data, "traffic")
    return found
