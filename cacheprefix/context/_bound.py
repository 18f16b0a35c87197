"""Thinking that a provider takes only behind the very prefix it was made under: an edit takes it along."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacheprefix.context._decisions import DropThinking

if TYPE_CHECKING:
    from cacheprefix.context._draft import Draft


def loosen(draft: Draft, end: int, *, moved: bool) -> bool:
    """Take out the thinking that the draft's changes leave behind another prefix; False where it cannot go.

    ``end`` is where an open call begins: its thinking must be sent back as it is. With ``moved`` the front of the
    history changes as well (zones, durable context), so that everything stands behind a change.
    """
    first = 0 if moved else draft.first_change()
    if first is None:
        return True
    views = draft.views
    behind = [at for at in draft.thinking_at if at >= first and (view := views[at]) is not None and not view.pinned]
    if any(at >= end for at in behind):
        return False
    made = [DropThinking(at, one.part) for at in behind if (view := views[at]) is not None for one in view.thinking]
    draft.take(made, [True] * len(views))
    draft.bound.update(behind)
    return True
