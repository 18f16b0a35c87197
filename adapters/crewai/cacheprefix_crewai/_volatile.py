"""Text for one request alone (time, retrieval, state of a user interface), behind everything that is cached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cacheprefix import Session

Volatile = Callable[[], Mapping[str, str]]
"""Gives texts by name when a request is about to be sent."""


def volatile_text(session: Session, given: Volatile | None) -> str:
    """The texts as they go out; empty without any. What the callable raises is the application's."""
    if given is None:
        return ""
    said = dict(given())
    return session.attempt("volatile context", lambda: session.tail_for("", "", volatile=said), "")
