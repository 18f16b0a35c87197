"""``wrap``: one call for anything an installed adapter knows."""

from __future__ import annotations

from typing import Any

from cacheprefix.adapter import given_or_configured
from cacheprefix.errors import SetupError
from cacheprefix.session import Session


def wrap(target: Any, session: Session | None = None) -> Any:
    """Bind a session to a framework's object: a chat model, an agent, a team, a crew.

    The installed adapters are asked who knows the object. Without a session one is made as
    ``Session.from_config()`` does; the result carries it where its adapter says. Raises ``SetupError`` when nobody
    knows the object, and ``ConfigError``.
    """
    bound = given_or_configured(session)
    found = bound.plugins.call_first("wrap", target=target, session=bound.session)
    if found is not None:
        return found
    adapters = [info for info in bound.plugins.loaded if "wrap" in info.hooks]
    names = ", ".join(info.name for info in adapters) or "none"
    kind = f"{type(target).__module__}.{type(target).__qualname__}"
    message = (
        f"no installed adapter can wrap a {kind} (adapters found: {names}); "
        "install cacheprefix-langgraph, -autogen, -crewai or -sdk, or use the adapter's own front door"
    )
    raise SetupError(message)
