"""What the entry point ``maf`` loads: the adapter's hooks, as plain functions of this module."""

from __future__ import annotations

from typing import Any

from cacheprefix import Session


def cacheprefix_preview(target: object, session: Session, task: object) -> Any:
    """What the first requests of an agent's or a workflow's models will look like."""
    if not _of_the_framework(target):
        return None
    from cacheprefix_maf.preview import preview

    return preview(target, session, task)


def cacheprefix_wrap(target: object, session: Session) -> object | None:
    """Wrap an agent or a workflow of Microsoft Agent Framework."""
    if not _of_the_framework(target):
        return None
    from cacheprefix_maf.front_door import known, wrap

    return wrap(target, session) if known(target) else None


def _of_the_framework(target: object) -> bool:
    return any(base.__module__.partition(".")[0] == "agent_framework" for base in type(target).__mro__)
