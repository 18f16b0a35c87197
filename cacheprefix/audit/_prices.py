"""Prices of many calls: a price list is asked once for each model and size, not once for each call."""

from __future__ import annotations

from dataclasses import dataclass

from cacheprefix.profiles import Profile, Usage, money

_STEP = 1_000
"""Prices change with the size of the input at whole thousands of tokens (128k, 200k, 272k) and nowhere between."""


@dataclass(frozen=True, slots=True)
class _Rates:
    """USD for one token."""

    uncached: float
    read: float


class Prices:
    """What calls cost in USD, the same as ``cacheprefix.profiles.money`` says call by call."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, int, int], _Rates | None] = {}
        self._writes: dict[tuple[str, int, int, str], float] = {}

    def usd(self, usage: Usage, model: str, profile: Profile) -> float | None:
        """The input's cost; None where nobody knows the model's price or the input is unknown."""
        if usage.input_tokens is None:
            return None
        size = max(1, -(-usage.input_tokens // _STEP)) * _STEP
        key = (model, id(profile), size)
        if key not in self._rates:
            self._rates[key] = self._look_up(size, model, profile)
        rates = self._rates[key]
        if rates is None:
            return None
        total = (usage.uncached_tokens or 0) * rates.uncached + (usage.cache_read_tokens or 0) * rates.read
        for ttl, tokens in (usage.cache_write or {}).items():
            if tokens:
                total += tokens * self._write(ttl, size, model, profile)
        return total

    def _look_up(self, size: int, model: str, profile: Profile) -> _Rates | None:
        plain = money(Usage(input_tokens=size, cache_read_tokens=0), model, profile)
        read = money(Usage(input_tokens=size, cache_read_tokens=size), model, profile)
        return None if plain is None or read is None else _Rates(plain / size, read / size)

    def _write(self, ttl: str, size: int, model: str, profile: Profile) -> float:
        key = (model, id(profile), size, ttl)
        if key not in self._writes:
            usage = Usage(input_tokens=size, cache_read_tokens=0, cache_write={ttl: size})
            self._writes[key] = (money(usage, model, profile) or 0.0) / size
        return self._writes[key]
