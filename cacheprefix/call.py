"""One observed model request, as hooks, reports and applications get it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cacheprefix.cache import Verdict
from cacheprefix.profiles import Amount, Profile, Usage
from cacheprefix.prompt import Layout, Reason
from cacheprefix.prompt.reasons import Unsure


@dataclass(frozen=True, slots=True)
class Call:
    """One observed model request. Times are seconds of the session's clock, counts are tokens."""

    index: int
    agent: str
    conversation: str
    model: str
    profile: Profile
    input_tokens: int
    """Tokens of the prompt by the session's counter."""
    shared_tokens: int
    """Those in common with the best earlier prompt of the lane."""
    first_of_agent: bool
    usage: Usage
    """As reported; every field may be None."""
    verdict: Verdict
    unmodified_units: float | None
    """Estimated cost of the request as the application made it, in cost units."""
    units: float
    """Cost of the request as sent: by the reported usage, else by the expectation."""
    paid: Amount
    """USD of the reported usage, as ``money`` tells them."""
    started_at: float
    first_token_at: float | None
    ended_at: float
    purpose: str = ""
    prefix: str = ""
    """Key of the shared prefix that was in force: a digest, see ``SharedPrefix.key``."""
    layout: Layout = "observed"
    """``fork``, ``own`` (the application's own, by a decision of ours) or ``observed`` (only measured)."""
    reasons: tuple[Reason, ...] = ()
    """Why it went out as it did."""
    unsure: Mapping[Unsure, float] = field(default_factory=dict)
    """Cost units by which ``unmodified_units`` may be off, by what nobody knows."""
    cut: bool = False
    """Whether its answer was broken off, as where a stream's reader stops: then the provider says no usage."""

    @property
    def unsure_units(self) -> float:
        """Cost units by which ``unmodified_units`` may be off in all."""
        return sum(self.unsure.values())

    @property
    def money(self) -> float | None:
        """USD of the reported usage, where a price is known. See ``profiles.load_price_library`` for event loops."""
        return self.paid.usd
