"""Project and memory texts before the history, shown anew only when the prefix is rewritten anyway.

``session.conversation(thread_id).set_zone(name, text)`` sets them. Which text is shown stands in the ledger, as an
insertion before the first message, so that forks and resumed threads repeat it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from cacheprefix import Conversation
from cacheprefix.adapter import MessageView


def has_zones(state: Conversation) -> bool:
    """Whether the application has set any."""
    return bool(state.state.zones)


def show_zones(state: Conversation, views: Sequence[MessageView], *, rewritten: bool) -> bool:
    """Record the zones' texts as shown, where that breaks nothing; whether anything changed.

    Nothing breaks before the thread's first answer, and behind a compaction that rewrites the prefix (``rewritten``).
    """
    fresh = _fresh(state, views)
    if fresh is None or (not rewritten and (fresh.live or any(view.role == "assistant" for view in views))):
        return False
    entries = [("actions", f"{key}/i", "d") for key in fresh.live]
    state.merge(state.ledger.record([*entries, ("inserts", fresh.address, fresh.value)]))
    return True


def zones_wait(state: Conversation, views: Sequence[MessageView]) -> bool:
    """Whether the next rewrite of the prefix shows other texts than stand before the history now."""
    return _fresh(state, views) is not None


class _Fresh(NamedTuple):
    """The zones' texts where they are not what is shown."""

    address: str
    value: str
    live: list[str]
    """Addresses of what is shown."""


def _fresh(state: Conversation, views: Sequence[MessageView]) -> _Fresh | None:
    texts = [zone.text() for zone in state.state.zones if zone.shown]
    if not texts or not views:
        return None
    value = json.dumps(["user", "\n\n".join(texts)])
    inserts, actions = state.ledger.section("inserts"), state.ledger.section("actions")
    mark = f"{views[0].digest}~zones"
    known = sorted(key for key in inserts if key.startswith(mark))
    live = [key for key in known if f"{key}/i" not in actions]
    if live and inserts[live[-1]] == value:
        return None
    return _Fresh(f"{mark}{len(known):04}", value, live)
