"""How long a simulated answer takes: the time to first token falls with what is read from the cache."""

from __future__ import annotations

from dataclasses import dataclass

from cacheprefix.server.outcome import CacheOutcome


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds. The defaults are of the order of a hosted model; they are no measurement of one.

    ``scale`` 0 answers at once and only reports the modelled times; 1 sleeps for as long as modelled.
    """

    base: float = 0.25
    """What every request waits, whatever its size."""

    uncached: float = 0.00025
    """A token that is computed, written to the cache or not."""

    cached: float = 0.00001
    """A token that is read from the cache."""

    output: float = 0.012
    """A token of the answer."""

    scale: float = 0.0

    def first_token(self, outcome: CacheOutcome) -> float:
        """Modelled seconds to the first token."""
        computed = outcome.input_tokens - outcome.read_tokens
        return self.base + computed * self.uncached + outcome.read_tokens * self.cached

    def rest(self, output_tokens: int) -> float:
        """Modelled seconds from the first to the last token."""
        return max(0, output_tokens - 1) * self.output
