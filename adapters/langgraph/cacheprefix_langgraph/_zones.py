"""Project and memory texts before the history, shown anew only when the prefix is rewritten anyway.

``session.conversation(thread_id).set_zone(name, text)`` sets them. Which text is shown stands in the ledger, as an
insertion before the first message, so that forks and resumed threads repeat it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from cacheprefix import Conversation
from cacheprefix.context import MessageView


def has_zones(state: Conversation) -> bool:
    """Whether the application has set any."""
    return bool(state.state.zones)


def show_zones(state: Conversation, views: Sequence[MessageView], *, rewritten: bool) -> bool:
    """Record the zones' texts as shown, where that breaks nothing; whether anything changed.

    Nothing breaks before the thread's first answer, and behind a compaction that rewrites the prefix (``rewritten``).
    """
    texts = [zone.text() for zone in state.state.zones if zone.shown]
    if not texts or not views:
        return False
    value = json.dumps(["user", "\n\n".join(texts)])
    inserts, actions = state.ledger.section("inserts"), state.ledger.section("actions")
    mark = f"{views[0].digest}~zones"
    known = sorted(key for key in inserts if key.startswith(mark))
    live = [key for key in known if f"{key}/i" not in actions]
    if live and inserts[live[-1]] == value:
        return False
    if not rewritten and (live or any(view.role == "assistant" for view in views)):
        return False
    entries = [("actions", f"{key}/i", "d") for key in live]
    entries.append(("inserts", f"{mark}{len(known):04}", value))
    state.merge(state.ledger.record(entries))
    return True
