"""Whether what the requests of a conversation share is long enough to be cached."""

from __future__ import annotations

from collections.abc import Callable

from cacheprefix.errors import named
from cacheprefix.layout.team import Team
from cacheprefix.locks import Lock
from cacheprefix.prompt.reasons import Reason, reason
from cacheprefix.services import Services
from cacheprefix.unnamed import common_key

_KEEP = 10_000
"""Conversations remembered at most."""


class WorthSharing:
    """The conversations whose requests are forks, by id, model and prefix: once one is, its layout must not change.

    A set of such keys, thread-safe and bounded; adapters may keep keys of their own in it.
    """

    def __init__(self) -> None:
        self._known: set[tuple[str, str, str]] = set()
        self._lock = Lock()

    def __contains__(self, key: tuple[str, str, str]) -> bool:
        return key in self._known

    def add(self, key: tuple[str, str, str]) -> None:
        """Remember a key; all others are forgotten first where there are too many."""
        with self._lock:
            if len(self._known) > _KEEP:
                self._known.clear()
            self._known.add(key)

    def moved(self, conversation: str, role: str, model: str) -> bool:
        """Whether a role has left its own layout in a conversation, where its text was longer than what it shared."""
        return (f"{conversation}\0{role}", model, "moved") in self._known

    def move(self, conversation: str, role: str, model: str) -> None:
        """Remember that it has."""
        self.add((f"{conversation}\0{role}", model, "moved"))

    def refusal(self, team: Team, services: Services, conversation: str, model: str, shared: int) -> Reason | None:
        """Why requests of a conversation that share so many tokens are no forks; None where they may be."""
        size = services.count(team.prefix.text, model)
        if self.holds(team, services, conversation, model, lambda: shared - size):
            return None
        profile = services.profile(model)
        if profile.control == "none":
            return reason("no_cache", profile.name)
        return reason("prefix_below_minimum", profile.name, shared=shared, minimum=profile.min_tokens)

    def holds(self, team: Team, services: Services, conversation: str, model: str, tokens: Callable[[], int]) -> bool:
        """Whether requests of a conversation are to become forks. What is left alone is noted once.

        ``tokens`` counts what the next request shares beside the prefix's own text.
        """
        key = (common_key(conversation), model, team.key)
        if key in self._known:
            return True
        profile, note = services.profile(model), services.notices.note
        # A provider without a cache charges the same for any layout.
        if profile.control == "none":
            note(f"{named(model)}: {profile.name} has no prompt cache, requests are left as they are")
            return False
        # Below its minimum a provider caches nothing, so that sharing would gain nothing.
        if tokens() + services.count(team.prefix.text, model) < profile.min_tokens:
            more = " (role texts given as SharedPrefix(roles=...) with Caching(tail='cards') are shared)"
            note(
                f"{named(model)}: requests share fewer tokens than the minimum of {profile.min_tokens:,} that "
                f"{profile.name} caches, and are left as they are until they share more{more * (team.tail == 'tail')}"
            )
            return False
        self.add(key)
        return True
