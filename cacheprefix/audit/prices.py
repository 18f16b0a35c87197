"""Prices of many calls: a price list is asked once for each model, size and half hour, not once for each call."""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose
from typing import TypeAlias

from cacheprefix.profiles import Profile, Usage, money
from cacheprefix.profiles.prices import PRICE_SPAN, PRICE_STEP, changes_with_time, whole_steps

_Key: TypeAlias = "tuple[str, int, int, float | None]"
"""The model, its profile's identity, the size and the half hour."""


_LARGEST = 2_000_000
"""Tokens, more than any model takes: beyond all sizes at which prices change."""


@dataclass(frozen=True, slots=True)
class _Rates:
    """USD for one token."""

    uncached: float
    read: float


class Prices:
    """What calls cost in USD, the same as ``cacheprefix.profiles.money`` says call by call."""

    def __init__(self) -> None:
        self._rates: dict[_Key, _Rates | None] = {}
        self._flat: dict[tuple[str, int, float | None], bool] = {}
        """Whether a model costs the same for inputs of all sizes, as most do."""
        self._writes: dict[tuple[_Key, str], float] = {}

    def usd(self, usage: Usage, model: str, profile: Profile, at: float | None) -> float | None:
        """The input's cost; None where nobody knows the model's price or the input is unknown.

        ``at`` is when the call was made, in seconds since the epoch; without it, prices are today's.
        """
        if usage.input_tokens is None:
            return None
        when = None
        if at is not None and changes_with_time(model, profile.provider):
            when = at // PRICE_SPAN * PRICE_SPAN
        span = (model, id(profile), when)
        if span not in self._flat:
            small, large = (self._of((*span[:2], size, when), profile) for size in (PRICE_STEP, _LARGEST))
            self._flat[span] = _alike(small, large)
        size = PRICE_STEP if self._flat[span] else whole_steps(usage.input_tokens)
        key = (model, id(profile), size, when)
        rates = self._of(key, profile)
        if rates is None:
            return None
        total = (usage.uncached_tokens or 0) * rates.uncached + (usage.cache_read_tokens or 0) * rates.read
        for ttl, tokens in (usage.cache_write or {}).items():
            if tokens:
                total += tokens * self._write(ttl, key, profile)
        return total

    def _of(self, key: _Key, profile: Profile) -> _Rates | None:
        if key not in self._rates:
            self._rates[key] = _look_up(key, profile)
        return self._rates[key]

    def _write(self, ttl: str, key: _Key, profile: Profile) -> float:
        if (key, ttl) not in self._writes:
            model, _, size, at = key
            usage = Usage(input_tokens=size, cache_read_tokens=0, cache_write={ttl: size})
            self._writes[key, ttl] = (money(usage, model, profile, at=at) or 0.0) / size
        return self._writes[key, ttl]


def _alike(small: _Rates | None, large: _Rates | None) -> bool:
    """Whether two sizes have one price, but for how floats are rounded."""
    if small is None or large is None:
        return small is large
    return isclose(small.uncached, large.uncached) and isclose(small.read, large.read)


def _look_up(key: _Key, profile: Profile) -> _Rates | None:
    model, _, size, at = key
    plain = money(Usage(input_tokens=size, cache_read_tokens=0), model, profile, at=at)
    read = money(Usage(input_tokens=size, cache_read_tokens=size), model, profile, at=at)
    return None if plain is None or read is None else _Rates(plain / size, read / size)
