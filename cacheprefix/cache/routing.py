"""Routing keys: which requests should reach the same machine, and when one key is too few."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from math import ceil, log2
from typing import TYPE_CHECKING, Literal

from cacheprefix.bounded import Bounded
from cacheprefix.locks import Lock

if TYPE_CHECKING:
    from cacheprefix.profiles import Profile

Keys = Literal["auto"] | int
"""How many keys the requests of one prefix have: a number, or ``auto`` for as many as its traffic needs."""

MINUTE = 60.0
_TELL = 10.0
"""Seconds between two words of a process to the others of its fleet."""
_STARTS = 6_000
"""Requests of a minute that are counted at most: a hundred a second."""
_PREFIXES = 1_000
_TALKS = 50_000


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one process knows of a prefix's requests."""

    prefix: str
    requests: int
    """In the last minute."""
    keys: int
    limit: int
    """Requests a minute that one key serves."""
    at: float
    """When it was counted, by the session's clock."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """What all processes of a fleet know of it together."""

    requests: int
    keys: int


Tell = Callable[[Traffic, Callable[[Learnt | None], None]], None]
"""Tells the other processes of a fleet of this one's traffic, without waiting; what all have is then learnt of it, or
None where it is not known."""


@dataclass(slots=True)
class _Counted:
    """The requests of one prefix in the last minute, and its keys so far."""

    starts: deque[float]
    first: float
    """When its first request came: before a minute is over, no rate is known."""
    told: float
    """When the fleet was told last."""
    keys: int = 1
    telling: bool = False
    news: str = ""

    def count(self, now: float) -> int:
        """Requests of the last minute, this one among them."""
        self.starts.append(now)
        while now - self.starts[0] > MINUTE:
            self.starts.popleft()
        return len(self.starts)


class RoutingKeys:
    """The routing key of each conversation: one for a prefix, or several where its traffic is more than one serves.

    Which of them goes by a digest of the conversation, the same in every process. Thread-safe, bounded.

    Args:
        keys: a number, or ``auto``.
        tell: the way to the other processes of a fleet; without one each counts its own requests alone.
    """

    def __init__(self, keys: Keys = "auto", tell: Tell | None = None) -> None:
        self.keys = keys
        self._tell = tell
        self._traffic: Bounded[str, _Counted] = Bounded(_PREFIXES)
        self._talks: Bounded[tuple[str, str, str], int] = Bounded(_TALKS)
        self._lock = Lock()

    def key(self, prefix: str, profile: Profile, *, talk: tuple[str, str], now: float) -> tuple[str, str]:
        """The key of a request, and what the user should know of it (empty for nothing).

        ``prefix`` is the shared prefix's own key, ``talk`` the tenant and id of its conversation. A conversation that
        has a key keeps it, also when there are more keys later: what it wrote lies behind that one. In a fleet, where
        each process must find the same one without knowing who asked before, it goes by the number of keys alone.
        """
        limit = profile.rate_per_key
        if self.keys != "auto" or limit is None:
            count = 1 if self.keys == "auto" else self.keys
            return _named(prefix, shard(*talk, count)), ""
        with self._lock:
            counted = self._traffic.of(prefix, lambda: _Counted(deque(maxlen=_STARTS), now, now))
            rate = counted.count(now)
            if now - counted.first >= MINUTE:
                self._grow(counted, keys_for(rate, limit, counted.keys), rate, limit)
            said, counted.news = counted.news, ""
            mine = None
            if self._tell and abs(now - counted.told) >= (MINUTE if counted.telling else _TELL):
                counted.telling, counted.told = True, now
                mine = Traffic(prefix, rate, counted.keys, limit, now)
            number = shard(*talk, counted.keys)
            if self._tell is None:
                number = self._talks.of((prefix, *talk), lambda: number)
        if self._tell and mine:
            self._tell(mine, partial(self._learn, counted, limit))
        return _named(prefix, number), said

    def _learn(self, counted: _Counted, limit: int, found: Learnt | None) -> None:
        with self._lock:
            counted.telling = False
            if found is not None:
                self._grow(counted, found.keys, found.requests, limit)

    def _grow(self, counted: _Counted, keys: int, rate: int, limit: int) -> None:
        if keys > counted.keys:
            counted.keys = keys
            counted.news = (
                f"{rate} requests in a minute are more than the {limit} that one routing key serves: "
                f"{'conversations' if self._tell else 'new conversations'} are spread over {keys} keys, each always on "
                "the same one"
            )


def keys_for(rate: int, limit: int, keys: int) -> int:
    """How many keys so many requests a minute need, where one serves ``limit`` and there are ``keys`` so far."""
    # OpenAI sends more than about 15 requests a minute for one prefix and key to other machines, whose caches are
    # cold (prompt caching guide, read 2026-11-21).
    # A power of two: then half of the conversations stay where they were, or would have been.
    return keys if rate <= limit * keys else 2 ** ceil(log2(rate / limit))


def _named(prefix: str, number: int) -> str:
    return f"{prefix}-{number}" if number else prefix


def shard(scope: str, conversation: str, keys: int) -> int:
    """Which of so many keys a conversation has: by its tenant and id alone, so the same in every process."""
    digest = blake2b(f"{scope}\0{conversation}\0key".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % keys
