"""Whether role texts would cost less as cards in the shared system text than behind what is shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cacheprefix.locks import Lock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cacheprefix.profiles import Profile
    from cacheprefix.prompt import CountTokens, Section

_ROLES = 1_000
_WORTH = 0.9
"""The share of today's cost that cards must stay under, since their text stands in front of every request."""
_WORTH_SAYING = 0.02
"""The share of all that was paid that they must save: for less nobody changes a program."""


_NEAR = 64
"""Sections at a request's end among which a role's text is looked for."""


@dataclass(slots=True)
class _Role:
    text: str
    data: bytes
    fresh: float = 0.0
    """Requests in which this text was input that is not read from the cache; parts of one where blocks end in it."""
    again: float = 0.0
    """Requests, as those of a loop, that read it with what stands in front of it."""


class Placement:
    """The role texts that stood behind what is shared, and how often. Thread-safe, bounded."""

    def __init__(self) -> None:
        self._roles: dict[str, _Role] = {}
        self._longest = 0.0
        """Tokens of the longest request of such a role."""
        self._lock = Lock()

    def told(self, role: str, text: str) -> None:
        """This role's text goes behind what is shared. One that changes from request to request starts anew."""
        known = self._roles.get(role)
        if role and text and (known is None or known.text != text):
            with self._lock:
                if known is not None or len(self._roles) < _ROLES:
                    self._roles[role] = _Role(text, text.encode("utf-8", "surrogatepass"))

    def sent(self, role: str, sections: Sequence[Section], totals: Sequence[float], read: float) -> None:
        """A request of a role goes out, of which ``read`` tokens should be read from the cache.

        ``totals`` are the tokens up to and with each section.
        """
        known = self._roles.get(role)
        # One without a message is refused by the provider.
        if known is None or not totals:
            return
        near = range(max(0, len(sections) - _NEAR), len(sections))
        at = next((at for at in near if totals[at] > read and known.data in sections[at].data), None)
        # A provider's rule: reads end with a block, so that of a text that is read the last tokens mostly are not.
        fresh = 0.0 if at is None else min(1.0, (totals[at] - read) / (totals[at] - (totals[at - 1] if at else 0)))
        with self._lock:
            self._longest = max(self._longest, totals[-1])
            known.fresh += fresh
            known.again += 1 - fresh

    def advice(self, profile: Profile, model: str, count: CountTokens, *, paid: float) -> str:
        """How to save with cards; empty where that is little beside all that was ``paid``, in cost units."""
        with self._lock:
            roles = [(one.text, one.fresh, one.again) for one in self._roles.values() if one.fresh or one.again]
        if len(roles) < 2:
            return ""
        sizes = [count(text, model) for text, _, _ in roles]
        # A provider's rule: of requests shorter than that it caches nothing, cards or not.
        if self._longest + sum(sizes) < profile.min_tokens:
            return ""
        calls = sum(fresh + again for _, fresh, again in roles)
        today = sum(size * (fresh + again * profile.read) for size, (_, fresh, again) in zip(sizes, roles, strict=True))
        cards = sum(sizes) * (profile.default_ttl.write + (calls - 1) * profile.read)
        if cards >= _WORTH * today or today - cards < _WORTH_SAYING * paid:
            return ""
        return (
            f"the texts of {len(roles)} roles, each in its own requests alone, cost about {today:,.0f} cost units over "
            f"{calls:,.0f} requests. If all may read them, give them to SharedPrefix(roles={{name: text}}) and set "
            f"Caching(tail='cards'): about {cards:,.0f}"
        )
