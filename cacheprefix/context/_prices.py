"""What a compaction costs now and saves later, in cost units (1 uncached input token = 1)."""

from __future__ import annotations

from dataclasses import dataclass

from cacheprefix.errors import SetupError


@dataclass(frozen=True, slots=True)
class Prices:
    """Token prices of one model relative to its uncached input, and whether the cache is still there.

    ``read`` and ``write`` come from the provider's profile (Anthropic 0.1 and 1.25, OpenAI before
    GPT-5.6 0.1 to 0.5 and 1.0). ``cold`` says that the entry's lifetime has passed, so that the next
    request is written anew whatever it holds.
    """

    read: float = 0.1
    write: float = 1.25
    cold: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.read <= 1 or self.write < 0:
            raise SetupError(f"prices are relative to one uncached token: read {self.read}, write {self.write}")


@dataclass(frozen=True, slots=True)
class Estimate:
    """The price of a compaction. ``break_even`` is in turns; None when it never pays."""

    rewrite: float
    """Cost units that the next request costs more than it would without; negative when it costs less."""
    saving: float
    """Cost units that every later request costs less."""

    @property
    def break_even(self) -> float | None:
        """Turns after which the compaction has paid for itself."""
        if self.rewrite <= 0:
            return 0.0
        return self.rewrite / self.saving if self.saving > 0 else None

    def pays(self, turns: float) -> bool:
        """Whether it pays within a number of turns."""
        return self.break_even is not None and self.break_even <= turns


def estimate(before: int, after: int, kept: int, prices: Prices, *, asked: int = 0) -> Estimate:
    """Price of going from ``before`` to ``after`` tokens with the first ``kept`` unchanged.

    Everything behind the first change is written anew; what stands before it is still read. ``asked`` are the input
    tokens of a request that is made for the summary first.
    """
    if prices.cold:
        without, with_ = before * prices.write, (after + asked) * prices.write
    else:
        without = before * prices.read
        with_ = (kept + asked) * prices.read + (after - kept) * max(prices.write, prices.read)
    return Estimate(with_ - without, (before - after) * prices.read)
