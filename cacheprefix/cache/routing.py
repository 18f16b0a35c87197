"""Routing keys: which requests should reach the same machine, and when one key is too few."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil, log2
from typing import TYPE_CHECKING, Literal

from cacheprefix.bounded import Bounded
from cacheprefix.locks import Lock

if TYPE_CHECKING:
    from cacheprefix.profiles import Profile

Keys = Literal["auto"] | int
"""How many keys the requests of one prefix have: a number, or ``auto`` for as many as its traffic needs."""

_MINUTE = 60.0
_STARTS = 6_000
"""Requests of a minute that are counted at most: a hundred a second."""
_PREFIXES = 1_000
_TALKS = 50_000


@dataclass(slots=True)
class _Traffic:
    """The requests of one prefix in the last minute, and its keys so far."""

    starts: deque[float]
    first: float
    """When its first request came: before a minute is over, no rate is known."""
    keys: int = 1

    def rate(self, now: float) -> int | None:
        """Requests of the last minute; None while there was no whole one."""
        self.starts.append(now)
        while now - self.starts[0] > _MINUTE:
            self.starts.popleft()
        return len(self.starts) if now - self.first >= _MINUTE else None


class RoutingKeys:
    """The routing key of each conversation: one for a prefix, or several where its traffic is more than one serves.

    Which of them goes by a digest of the conversation, the same in every process. Thread-safe, bounded.
    """

    def __init__(self, keys: Keys = "auto") -> None:
        self.keys = keys
        self._traffic: Bounded[str, _Traffic] = Bounded(_PREFIXES)
        self._talks: Bounded[tuple[str, str, str], int] = Bounded(_TALKS)
        self._lock = Lock()

    def key(self, prefix: str, profile: Profile, *, talk: tuple[str, str], now: float) -> tuple[str, str]:
        """The key of a request, and what the user should know of it (empty for nothing).

        ``prefix`` is the shared prefix's own key, ``talk`` the tenant and id of its conversation. A conversation that
        has a key keeps it, also when there are more keys later: what it wrote lies behind that one.
        """
        with self._lock:
            said = self._counted(prefix, profile, now) if self.keys == "auto" else ""
            count = self._traffic[prefix].keys if self.keys == "auto" else self.keys
            which = (prefix, *talk)
            known = self._talks.get(which)
            number = self._talks[which] = shard(*talk, count) if known is None else known
        return (f"{prefix}-{number}" if number else prefix), said

    def _counted(self, prefix: str, profile: Profile, now: float) -> str:
        """Take a request into a prefix's traffic; says where that has more keys from now on."""
        traffic = self._traffic.of(prefix, lambda: _Traffic(deque(maxlen=_STARTS), now))
        rate, limit = traffic.rate(now), profile.rate_per_key
        if rate is None or limit is None or rate <= limit * traffic.keys:
            return ""
        # OpenAI sends more than about 15 requests a minute for one prefix and key to other machines, whose caches are
        # cold (prompt caching guide, read 2026-11-21).
        # A power of two: then half of the conversations that are still to come stay where they would have been.
        traffic.keys = 2 ** ceil(log2(rate / limit))
        return (
            f"{rate} requests in a minute are more than the {limit} that one routing key serves: new conversations "
            f"are spread over {traffic.keys} keys, each always on the same one"
        )


def shard(scope: str, conversation: str, keys: int) -> int:
    """Which of so many keys a conversation has: by its tenant and id alone, so the same in every process."""
    digest = blake2b(f"{scope}\0{conversation}\0key".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % keys
