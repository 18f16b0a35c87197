"""How many sessions of this process were made with the very same shared text: what one learns, no other one knows."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from cacheprefix.bounded import Bounded
from cacheprefix.locks import Lock

if TYPE_CHECKING:
    from cacheprefix.layout import SharedPrefix
    from cacheprefix.notices import Notices

_MANY = 20
"""From how many on they are probably made one a request."""
_PREFIXES = 1_000


class MadeSessions:
    """Counts sessions by what they were made with. Thread-safe, bounded."""

    def __init__(self) -> None:
        self._made: Bounded[tuple[str, str, str], int] = Bounded(_PREFIXES)
        self._lock = Lock()

    def add(self, name: str, scope: str | None, prefix: SharedPrefix, notices: Notices) -> None:
        """Count one that was made, and warn of the one that is one too many."""
        if not prefix.text:
            return
        key = name, scope or "", hashlib.sha256(prefix.text.encode("utf-8", "replace")).hexdigest()
        with self._lock:
            made = self._made[key] = self._made.get(key, 0) + 1
        if made == _MANY:
            notices.warn_once(
                "many sessions",
                f"{made} sessions with the very same shared text were made in this process: what one knows of "
                "conversations, tools and costs no other one does, and none reports the whole; make one where the "
                "application starts, and use it for every request",
            )

    def forget(self) -> None:
        """Begin to count anew, for tests."""
        with self._lock:
            self._made.clear()


MADE = MadeSessions()
