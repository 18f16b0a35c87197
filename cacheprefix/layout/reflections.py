"""Requests from which an application leaves out a role's tools, once it has their results: with them, or without."""

from __future__ import annotations

from collections.abc import Callable

from cacheprefix.layout.economics import Reflection, reflected
from cacheprefix.profiles import Profile
from cacheprefix.prompt.reasons import Reason, reason


class Reflections:
    """What a role's requests of one conversation have cost so far, with its tools and as the application makes them.

    Such a request reads nothing of the one before it, and pays for no tools; with them it reads that one. Sent without,
    it reads only what was sent so before; once what sending them with the tools has lost comes to what that costs, it
    is sent without.
    """

    def __init__(self) -> None:
        self._size = 0
        """Tokens of the role's last request as it was sent, tools included."""
        self._bare = 0
        """Those of the last one that the application made without the tools; without us it was sent so."""
        self._bare_sent = 0
        """Those of the last one that was sent so."""
        self._lost = 0.0
        """What sending them with the tools has cost more than without us, by now."""

    def sent(self, size: int) -> None:
        """A request of ``size`` tokens goes out with the tools that the application gave it."""
        self._size = size

    def weigh(self, size: int, bare: Callable[[bool], int], rules: Profile, *, changed: bool) -> Reason | None:
        """Why the application's own request goes out, without the tools; None where that of ``size`` tokens does.

        ``bare`` counts the application's own; it is told whether the provider caches only what is marked. ``changed``
        says whether what would go out is anything else than that.
        """
        # Who caches only what is marked reads nothing of the application's own requests.
        marked = rules.markers is not None and not rules.implicit_breakpoint
        known, own = self._size, bare(marked)
        before, sent = (0, 0) if marked else (self._bare, self._bare_sent)
        one = Reflection(size, min(known, size), own, before, sent, self._lost)
        ours, theirs, keeps = reflected(one, read=rules.read, least=rules.min_tokens, block=rules.block_tokens)
        self._size, self._bare = size, own
        if keeps or not changed:
            self._lost = max(0.0, self._lost + ours - theirs)
            return None
        self._size, self._bare_sent, self._lost = known, own, 0.0
        return reason("little_to_share", cost=round(ours), saved=round(theirs))
