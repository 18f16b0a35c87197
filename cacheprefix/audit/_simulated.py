"""The simulated provider's answer for every call: it stands in where a log has no usage."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from cacheprefix.audit._order import Answers
from cacheprefix.profiles import Profile, Usage, cost_units
from cacheprefix.prompt import CountTokens, Prompt
from cacheprefix.server import ProviderCache, RefusedError, Serving

CAPACITY_TOKENS = 20_000_000
"""Tokens a simulated cache keeps, so that a log of any length fits into memory (about 80 MB of text)."""

KEPT_SECTIONS = 100_000
"""Sections of the latest calls that are kept while none of them needs an answer."""


@dataclass(frozen=True, slots=True)
class Served:
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


@dataclass(frozen=True, slots=True)
class Timed:
    """One call as the provider saw it. Seconds."""

    prompt: Prompt
    profile: Profile
    scope: str
    at: float
    started: float
    ended: float
    known: bool = True
    """Whether the log says when the answer came."""


class StandIn:
    """Answers for the calls of a log that report no cached tokens.

    Nothing is simulated while every call reports its own; the latest calls are kept, so that the first call
    which needs an answer finds the cache as they left it.
    """

    def __init__(self, count: CountTokens) -> None:
        self._simulation = Simulation(count)
        self._answers = Answers()
        self._kept: deque[Timed] | None = deque()
        self._sections = 0

    @property
    def refused(self) -> int:
        """Requests that the rules would have answered with an error."""
        return self._simulation.refused

    def call(self, call: Timed, *, needed: bool) -> Usage | None:
        """Take a call in, and say what its usage would be where that is ``needed``."""
        if self._kept is not None:
            if not needed:
                self._keep(call)
                return None
            kept, self._kept = self._kept, None
            for earlier in kept:
                self._play(earlier)
        return self._play(call)

    def _keep(self, call: Timed) -> None:
        kept = self._kept
        if kept is None:
            return
        kept.append(call)
        self._sections += len(call.prompt.sections)
        while self._sections > KEPT_SECTIONS and len(kept) > 1:
            self._sections -= len(kept.popleft().prompt.sections)

    def _play(self, call: Timed) -> Usage:
        self._answers.until(call.at)
        served = self._simulation.begin(call.prompt, call.profile, call.at, call.scope)
        self._answers.at(call.started, served.begun, known=call.known)
        self._answers.at(call.ended, served.ended, known=call.known)
        return served.usage


class Simulation:
    """One simulated cache for every row of rules that a log needs."""

    def __init__(self, count: CountTokens) -> None:
        self._count = count
        self._caches: dict[int, ProviderCache] = {}
        self.refused = 0

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
