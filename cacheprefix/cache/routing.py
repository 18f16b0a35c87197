"""Routing keys: which requests should reach the same machine, and when one key is too few."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cacheprefix.profiles import Profile


@dataclass(frozen=True, slots=True)
class RoutingAdvice:
    """How to key requests that share one prefix."""

    field: str | None
    """Body field, or ``header:NAME``; None where the provider has no such key."""
    keys: int
    """One, or several where one machine would overflow; each is warmed once for itself."""
    reason: str


def routing_advice(profile: Profile, calls_per_minute: float | None = None) -> RoutingAdvice:
    """How many keys requests with one prefix need: one, or as many as keep each below the provider's rate.

    OpenAI sends more than about 15 requests a minute for one prefix and key to other machines, whose caches are
    cold (prompt caching guide, read 2026-11-21).
    """
    if profile.routing_key is None:
        return RoutingAdvice(None, 0, f"{profile.name} has no routing key")
    rate = profile.rate_per_key
    if rate is None or calls_per_minute is None or calls_per_minute <= rate:
        return RoutingAdvice(profile.routing_key, 1, "one key for all requests that share the prefix")
    count = ceil(calls_per_minute / rate)
    return RoutingAdvice(
        profile.routing_key,
        count,
        f"{calls_per_minute:g} calls a minute are more than the {rate} that one key serves: {count} keys, each "
        "conversation always on the same one",
    )
