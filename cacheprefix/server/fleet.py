"""Sizing: what a fleet of caches of a given lifetime and size would have read from recorded arrivals.

Each replica keeps blocks of prompt prefixes, least recently used out first, deepest of a prompt before its
beginning, as inference engines do. Answers take no time here: what matters is who comes when, and where to.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, TypeVar

from cacheprefix.cache.arrival import Arrival
from cacheprefix.cache.routing import Keys, RoutingKeys
from cacheprefix.calls.fleet_traffic import FleetTraffic
from cacheprefix.errors import SetupError
from cacheprefix.profiles import Profile
from cacheprefix.stores import MemoryStore

Routing = Literal["spread", "sticky", "keys"]

T = TypeVar("T")

RATE = 15
"""Requests a minute that one key serves, where a profile does not say (OpenAI's guide, read 2026-11-21)."""
_MINUTE = 60.0
_CONTINUES = 0.5
"""A prompt of which an earlier one begins more than this share is taken for the same conversation's."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One fleet: lifetime of an unused block in seconds, tokens a replica holds, replicas, and who goes where.

    None lifts a bound. ``spread`` sends requests to the replicas in turn; ``sticky`` sends what continues a
    conversation to the replica that has it, and everything else to the one with the least work so far. ``keys`` is a
    provider that routes by key: requests of one key go to one replica, and those beyond the rate that a key serves to
    any; ``keys`` says how many the conversations of one prefix have (``Caching.routing_keys``). The application is as
    many ``processes``, each of which sees the part of the traffic that comes to it, and a conversation's requests come
    to any of them; ``together`` they count what comes to all, through one store (``Gate(store=...)``).
    """

    ttl: float | None = 300.0
    capacity: int | None = None
    replicas: int = 1
    routing: Routing = "spread"
    keys: Keys = 1
    processes: int = 1
    together: bool = False

    def __post_init__(self) -> None:
        for name in ("ttl", "capacity", "replicas", "processes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SetupError(f"Setting({name}={value!r}): it must be more than 0")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a fleet did. Tokens, but for ``busiest``: the largest replica's share of all input, 1 / replicas at best."""

    setting: Setting
    requests: int
    input_tokens: int
    read_tokens: int
    written_tokens: int
    cost_units: float
    peak_tokens: int
    """The most that one replica held at a time."""
    evicted_tokens: int
    busiest: float

    @property
    def cached_share(self) -> float:
        """Read tokens of all input tokens, 0 to 1."""
        return self.read_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def cost_ratio(self) -> float:
        """Cost against no cache at all."""
        return self.cost_units / self.input_tokens if self.input_tokens else 1.0


def play(arrivals: Iterable[Arrival], setting: Setting, profile: Profile) -> Outcome:
    """Send arrivals, oldest first, through a fleet; prices, minimum and block size are the profile's."""
    fleet = [_Replica(setting.ttl, setting.capacity) for _ in range(setting.replicas)]
    router = _Keyed(fleet, setting, profile) if setting.routing == "keys" else _Router(fleet, setting.routing)
    write = profile.default_ttl.write
    requests = total = read = written = 0
    cost = 0.0
    for arrival in arrivals:
        size = sum(arrival.sizes)
        replica = router.replica(arrival)
        found = replica.read(arrival, profile)
        kept = replica.keep(arrival) if size >= profile.min_tokens else 0
        # What is below the minimum, or was rounded away, is computed again and was held already.
        new = min(kept, size - found)
        replica.load += size
        requests += 1
        total += size
        read += found
        written += new
        cost += found * profile.read + new * write + (size - found - new)
    busiest = max(each.load for each in fleet) / total if total else 0.0
    return Outcome(
        setting,
        requests,
        total,
        read,
        written,
        cost,
        max(each.peak for each in fleet),
        sum(each.evicted for each in fleet),
        busiest,
    )


class _Replica:
    """One cache: blocks by name, oldest use first."""

    def __init__(self, ttl: float | None, capacity: int | None) -> None:
        self._ttl = inf if ttl is None else ttl
        self._capacity = inf if capacity is None else capacity
        self._blocks: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        self._held = 0
        self.peak = self.evicted = self.load = 0

    def read(self, arrival: Arrival, profile: Profile) -> int:
        """Tokens at the beginning that are here."""
        self._expire(arrival.at)
        found = 0
        for name, size in zip(arrival.blocks, arrival.sizes, strict=True):
            if name not in self._blocks:
                break
            found += size
        found -= found % profile.block_tokens
        return found if found >= max(1, profile.min_tokens) else 0

    def keep(self, arrival: Arrival) -> int:
        """Hold all blocks of a prompt; tokens that were not here."""
        new = 0
        # Deepest first, so that the beginning, which others may share, is the most recently used.
        for name, size in zip(reversed(arrival.blocks), reversed(arrival.sizes), strict=True):
            known = self._blocks.pop(name, None)
            if known is None:
                new += size
                self._held += size
            else:
                self._held += size - known[1]
            self._blocks[name] = (arrival.at, size)
        while self._held > self._capacity and self._blocks:
            self._held -= (gone := self._blocks.popitem(last=False)[1][1])
            self.evicted += gone
        self.peak = max(self.peak, self._held)
        return new

    def _expire(self, now: float) -> None:
        blocks = self._blocks
        while blocks:
            name, (used, size) = next(iter(blocks.items()))
            if now - used <= self._ttl:
                return
            del blocks[name]
            self._held -= size


class _Keyed:
    """Finds the replica of a request by its routing key, as a provider does that bounds a key's requests a minute."""

    def __init__(self, fleet: Sequence[_Replica], setting: Setting, profile: Profile) -> None:
        self._fleet = fleet
        self._profile = replace(profile, rate_per_key=profile.rate_per_key or RATE)
        store = MemoryStore()
        self._processes = [
            RoutingKeys(setting.keys, FleetTraffic(store, _raised) if setting.together else None)
            for _ in range(setting.processes)
        ]
        self._talks: dict[Hashable, int] = {}
        self._starts: dict[str, deque[float]] = {}
        self._count = 0

    def replica(self, arrival: Arrival) -> _Replica:
        """That of the key; beyond what one key serves in a minute, any."""
        self._count += 1
        talk = next(_known(arrival, self._talks), self._count)
        for name in arrival.blocks:
            self._talks[name] = talk
        # What all begin with alike is the prefix; a conversation's own blocks follow.
        prefix = str(arrival.blocks[0]) if arrival.blocks else ""
        # As in _Router: a balancer that knows nothing, and the same in every run.
        asks = self._processes[zlib.crc32(b"process %d" % self._count) % len(self._processes)]
        key, _ = asks.key(prefix, self._profile, talk=("", str(talk)), now=arrival.at)
        starts = self._starts.setdefault(key, deque())
        while starts and arrival.at - starts[0] >= _MINUTE:
            starts.popleft()
        served = len(starts) < (self._profile.rate_per_key or RATE)
        if served:
            starts.append(arrival.at)
        return self._fleet[zlib.crc32((key if served else f"{key} beyond {self._count}").encode()) % len(self._fleet)]


def _raised(error: Exception) -> None:
    raise error


class _Router:
    """Finds the replica of a request."""

    def __init__(self, fleet: Sequence[_Replica], routing: Routing) -> None:
        self._fleet = fleet
        self._sticky = routing == "sticky" and len(fleet) > 1
        self._count = 0
        self._home: dict[Hashable, _Replica] = {}

    def replica(self, arrival: Arrival) -> _Replica:
        if not self._sticky:
            self._count += 1
            # Spread as a balancer does that knows nothing, and the same in every run.
            return self._fleet[zlib.crc32(self._count.to_bytes(8, "big")) % len(self._fleet)]
        found = next(_known(arrival, self._home), None) or min(self._fleet, key=lambda each: each.load)
        for name in arrival.blocks:
            self._home[name] = found
        return found


def _known(arrival: Arrival, by_block: Mapping[Hashable, T]) -> Iterator[T]:
    """What an earlier request of the same conversation left under its blocks, the deepest one first."""
    least = len(arrival.blocks) * _CONTINUES
    for depth in range(len(arrival.blocks), 0, -1):
        if depth <= least:
            return
        name = arrival.blocks[depth - 1]
        if name in by_block:
            yield by_block[name]
