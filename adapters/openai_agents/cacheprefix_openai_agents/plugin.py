"""What the entry point ``openai_agents`` loads: the adapter's hooks, as plain functions of this module."""

from __future__ import annotations

from cacheprefix import Session


def cacheprefix_wrap(target: object, session: Session) -> object | None:
    """Wrap an agent with all that it can hand off to or call, a model, or a provider of models."""
    if not any(base.__module__.partition(".")[0] == "agents" for base in type(target).__mro__):
        return None
    from cacheprefix_openai_agents.models import known, wrap

    return wrap(target, session) if known(target) else None
