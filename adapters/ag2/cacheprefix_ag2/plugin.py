"""What the entry point ``ag2`` loads: the adapter's hooks, as plain functions of this module."""

from __future__ import annotations

import sys
from typing import Any

from cacheprefix import Session


def cacheprefix_preview(target: object, session: Session, task: object) -> Any:
    """What the first requests of an agent's models, or of several agents', will look like; None for anything else."""
    if "ag2" not in sys.modules:
        return None
    from cacheprefix_ag2.preview import preview

    return preview(target, session, task)


def cacheprefix_wrap(target: object, session: Session) -> Any:
    """An ag2 agent, or a list of them, with the session bound; None for anything else."""
    if "ag2" not in sys.modules:
        return None
    from cacheprefix_ag2.front_door import known, wrap

    return wrap(target, session) if known(target) else None
