"""How long what is written is to live: as the user says, or as the pauses of the run make it cheapest.

A provider sells lifetimes t at different prices. With S tokens of a conversation's last request, N of the new one, a
pause between them, r the price of a token that is read and w(t) that of one that is written:

    cost(t) += w(t) * (N - S) + (r * S  if the entry lived through the pause, else  w(t) * S)

Each request adds to the cost that every lifetime would have had so far; the cheapest one is taken for the next write.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cacheprefix.bounded import Bounded
from cacheprefix.locks import Lock

if TYPE_CHECKING:
    from cacheprefix.profiles import Profile, Ttl
    from cacheprefix.prompt import Api

AUTO = "auto"
_KEEP = 10_000
_OWN = 3
"""Requests of a conversation from which on its own pauses count, and not those of all."""


@dataclass(slots=True)
class _Costs:
    """What each lifetime would have cost one conversation, or all of a model's."""

    requests: int = 0
    tokens: int = 0
    at: float = 0.0
    units: dict[str, float] = field(default_factory=dict)
    written: dict[str, float] = field(default_factory=dict)
    """When what stands there was written last, by lifetime."""


class Lifetimes:
    """Chooses the lifetime of what is written. Thread-safe, bounded."""

    def __init__(self, chosen: str | None = None) -> None:
        self.chosen = chosen
        """A lifetime as providers spell it, ``auto``, or None for the provider's default."""
        self._talks: Bounded[tuple[str, str, str], _Costs] = Bounded(_KEEP)
        self._models: Bounded[str, _Costs] = Bounded(_KEEP)
        self._lock = Lock()

    def choose(
        self, profile: Profile, api: Api, *, model: str, talk: tuple[str, str], tokens: int, now: float
    ) -> Ttl | None:
        """The lifetime for what a request of so many tokens writes; None for the provider's default.

        ``talk`` is the tenant and the id of its conversation, ``now`` in seconds. A lifetime that the provider does not
        have for this API is left out.
        """
        if self.chosen is None:
            return None
        on_offer = offered(profile, api)
        if self.chosen != AUTO:
            return next((ttl for ttl in on_offer if ttl.name == self.chosen), None)
        with self._lock:
            own, every = self._talks.of((model, *talk), _Costs), self._models.of(model, _Costs)
            before = dict(own.units)
            _take(own, on_offer, profile.read, tokens, now)
            every.requests += own.requests > 1
            for name, units in own.units.items():
                every.units[name] = every.units.get(name, 0.0) + units - before.get(name, 0.0)
            known = own if own.requests >= _OWN else every if every.requests else None
        if known is None:
            return None
        # The first of equal ones, which is the provider's default.
        best = min(on_offer, key=lambda ttl: known.units.get(ttl.name, 0.0))
        return None if best.name == profile.default_ttl.name else best


def offered(profile: Profile, api: Api) -> tuple[Ttl, ...]:
    """The lifetimes that a request of an API may ask for."""
    if profile.markers == "openai" and api != "openai-responses":
        # "12h" is taken by the Responses API alone (profiles.toml, openai-5.6, evidence for ttls).
        return profile.ttls[:1]
    return profile.ttls


def _take(own: _Costs, on_offer: tuple[Ttl, ...], read: float, tokens: int, now: float) -> None:
    """Add a request to what each lifetime would have cost."""
    for ttl in on_offer:
        since = own.at if ttl.refreshed_by_read else own.written.get(ttl.name, now)
        lived = own.requests > 0 and (ttl.seconds is None or now - since <= ttl.seconds)
        kept = min(own.tokens, tokens)
        cost = ttl.write * (tokens - kept) + (read if lived else ttl.write) * kept
        own.units[ttl.name] = own.units.get(ttl.name, 0.0) + cost
        if not lived:
            own.written[ttl.name] = now
    own.requests, own.tokens, own.at = own.requests + 1, tokens, now
