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


_NEAR = 64
"""Sections at a request's end among which a role's text is looked for."""


@dataclass(slots=True)
class _Role:
    text: str
    data: bytes
    fresh: int = 0
    """Requests in which this text was input that is not read from the cache."""
    again: int = 0
    """Requests, as those of a loop, that read it with what stands in front of it."""


class Placement:
    """The role texts that stood behind what is shared, and how often. Thread-safe, bounded."""

    def __init__(self) -> None:
        self._roles: dict[str, _Role] = {}
        self._lock = Lock()

    def told(self, role: str, text: str) -> None:
        """This role's text goes behind what is shared. One that changes from request to request starts anew."""
        known = self._roles.get(role)
        if role and text and (known is None or known.text != text):
            with self._lock:
                if known is not None or len(self._roles) < _ROLES:
                    self._roles[role] = _Role(text, text.encode("utf-8", "surrogatepass"))

    def sent(self, role: str, sections: Sequence[Section], read: int) -> None:
        """A request of a role goes out, of which ``read`` whole sections should be read from the cache."""
        known = self._roles.get(role)
        if known is None:
            return
        fresh = any(known.data in one.data for one in sections[max(read, len(sections) - _NEAR) :])
        with self._lock:
            known.fresh += fresh
            known.again += not fresh

    def advice(self, profile: Profile, model: str, count: CountTokens) -> str:
        """What cards would cost instead, in cost units; empty where they would not cost clearly less."""
        with self._lock:
            roles = [(one.text, one.fresh, one.again) for one in self._roles.values() if one.fresh or one.again]
        if len(roles) < 2:
            return ""
        sizes = [count(text, model) for text, _, _ in roles]
        calls = sum(fresh + again for _, fresh, again in roles)
        today = sum(size * (fresh + again * profile.read) for size, (_, fresh, again) in zip(sizes, roles, strict=True))
        cards = sum(sizes) * (profile.default_ttl.write + (calls - 1) * profile.read)
        if cards >= _WORTH * today:
            return ""
        return (
            f"tail placement: the role texts of {len(roles)} agents cost about {today:,.0f} cost units over {calls} "
            f"requests; with SharedPrefix(roles=...) and Caching(tail='cards') they would cost about {cards:,.0f}"
        )
