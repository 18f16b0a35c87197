"""What the entry point ``maf`` loads: the adapter's hooks, as plain functions of this module."""

from __future__ import annotations

from cacheprefix import Session


def cacheprefix_wrap(target: object, session: Session) -> object | None:
    """Wrap an agent or a workflow of Microsoft Agent Framework."""
    if not any(base.__module__.partition(".")[0] == "agent_framework" for base in type(target).__mro__):
        return None
    from cacheprefix_maf.front_door import known, wrap

    return wrap(target, session) if known(target) else None
