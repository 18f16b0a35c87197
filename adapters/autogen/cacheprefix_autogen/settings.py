"""A session's settings as configuration, so that components that were dumped and loaded share one again."""

from __future__ import annotations

from typing import Any, Literal
from weakref import WeakValueDictionary

from pydantic import BaseModel

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.adapter import AdapterSession, Lock, Mode


class PrefixSettings(BaseModel):
    """What of a session stands in a component's configuration; plugins, policies and totals do not.

    Components with equal settings share a session within a process; ``name`` keeps teams apart.
    """

    system: str = ""
    tools: list[dict[str, Any]] = []
    roles: dict[str, str] = {}
    context: dict[str, str] = {}
    mode: Mode = "fork"
    tail: Literal["tail", "cards"] = "tail"
    name: str = ""
    scope: str = ""
    """The tenant; components of two tenants never share a session."""


_SESSIONS: WeakValueDictionary[str, AdapterSession] = WeakValueDictionary()
"""Those that some component still holds."""
_LOCK = Lock()


def settings_of(session: AdapterSession, scope: str | None = None) -> PrefixSettings:
    """The settings that make a session like this one, for a tenant of its own where ``scope`` is given."""
    prefix = session.prefix
    return PrefixSettings(
        system=prefix.system,
        tools=[dict(tool.native) for tool in prefix.tools if isinstance(tool.native, dict)],
        roles=dict(prefix.roles),
        context=dict(prefix.context),
        mode=session.asked_mode,
        tail=session.tail,
        name=session.name,
        scope=session.scope if scope is None else scope,
    )


def session_of_settings(settings: PrefixSettings) -> AdapterSession:
    """The session of these settings in this process; made at the first call."""
    key = settings.model_dump_json()
    with _LOCK:
        found = _SESSIONS.get(key)
        if found is None:
            made = Session(
                SharedPrefix(
                    system=settings.system,
                    tools=tuple(settings.tools),
                    roles=settings.roles,
                    context=settings.context,
                ),
                mode=settings.mode,
                caching=Caching(scope=settings.scope, tail=settings.tail),
                name=settings.name,
            )
            found = _SESSIONS[key] = made.adapter
        return found


def forget_sessions() -> None:
    """Let the next component start a session of its own: for tests that play another process."""
    with _LOCK:
        _SESSIONS.clear()
