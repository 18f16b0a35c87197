"""The simulated provider's answers to calls, for what they would have cost laid out otherwise."""

from __future__ import annotations

from typing import NamedTuple

from cacheprefix.profiles import Profile, Usage, cost_units
from cacheprefix.prompt import CountTokens, Prompt
from cacheprefix.server import ProviderCache, RefusedError, Serving

CAPACITY_TOKENS = 20_000_000
"""Tokens a simulated cache keeps, so that a log of any length fits into memory (about 80 MB of text)."""


class Served(NamedTuple):
    """One simulated request under way."""

    usage: Usage
    serving: Serving | None
    """None where the rules answer with an error."""

    def begun(self, at: float) -> None:
        """Its answer's first token went out."""
        if self.serving is not None:
            self.serving.begun(at)

    def ended(self, at: float) -> None:
        """Its answer ended."""
        if self.serving is not None:
            self.serving.ended(at)

    def units(self, profile: Profile) -> float:
        """What it cost, in cost units."""
        return cost_units(self.usage, profile)


class Timed(NamedTuple):
    """One call as the provider saw it. Seconds."""

    prompt: Prompt
    profile: Profile
    scope: str
    at: float
    started: float
    ended: float
    known: bool = True
    """Whether the log says when the answer came."""


class Simulation:
    """One simulated cache for every row of rules that a log needs."""

    def __init__(self, count: CountTokens) -> None:
        self._count = count
        self._caches: dict[int, ProviderCache] = {}
        self.refused = 0

    def clear(self) -> None:
        """Nothing is asked any more: the memory goes."""
        for cache in self._caches.values():
            cache.clear()

    def begin(self, prompt: Prompt, profile: Profile, now: float, scope: str) -> Served:
        """Ask the cache that follows ``profile``; a request the rules refuse is taken as wholly uncached."""
        cache = self._caches.get(id(profile))
        if cache is None:
            # The cache holds its profile, so the id stays its own.
            cache = self._caches[id(profile)] = ProviderCache(
                profile, count=self._count, capacity_tokens=CAPACITY_TOKENS
            )
        try:
            serving = cache.begin(prompt, now, scope=scope)
        except RefusedError:
            self.refused += 1
            return Served(Usage(input_tokens=prompt.tokens, cache_read_tokens=0), None)
        outcome = serving.outcome
        usage = Usage(
            input_tokens=outcome.input_tokens,
            cache_read_tokens=outcome.read_tokens,
            cache_write=dict(outcome.write_tokens),
        )
        return Served(usage, serving)
