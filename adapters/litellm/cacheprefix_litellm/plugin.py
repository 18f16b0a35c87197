"""What the entry point ``litellm`` loads: the adapter's hooks, as plain functions of this module."""

from __future__ import annotations

from cacheprefix import Session


def cacheprefix_wrap(target: object, session: Session) -> object | None:
    """Wrap ``litellm.completion``, ``litellm.acompletion`` or a router."""
    # Of the function or of the router's class; LiteLLM takes seconds to import, which others need not wait for.
    if str(getattr(target, "__module__", "")).partition(".")[0] != "litellm":
        return None
    from cacheprefix_litellm.calls import kind_of, wrap

    return wrap(target, session) if kind_of(target) else None
