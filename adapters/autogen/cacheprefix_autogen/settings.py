"""A session's settings as configuration, so that components that were dumped and loaded share one again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal
from weakref import WeakValueDictionary

from pydantic import BaseModel

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.adapter import AdapterSession, Lock, Mode, find_text


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


_FOUND = "autogen: found in the agents"
"""Under this name a session keeps the shared text that nobody gave to it."""


def adopt(session: AdapterSession, text: str) -> None:
    """Make a text that stands in most agents' own system texts the shared one."""
    session.adopt_system(text, with_context=True)
    session.beside[_FOUND] = session.prefix.system


def child_of(session: AdapterSession, name: str, prefix: SharedPrefix | None = None) -> AdapterSession:
    """A session for a nested team, to which the shared text is no more given than it was to this one."""
    child = session.child(name, prefix)
    if _FOUND in session.beside:
        child.beside[_FOUND] = session.beside[_FOUND]
    return child


def found_by_us(session: AdapterSession) -> bool:
    """Whether the shared text was found in the agents' own, and not given by the user."""
    return bool(session.prefix.system) and session.beside.get(_FOUND) == session.prefix.system


def shown_to(session: AdapterSession, texts: Sequence[str]) -> bool:
    """Whether an agent with these system texts may be shown the shared one: it was given to all, or it is its own."""
    return not found_by_us(session) or find_text(session.prefix.system, "\n\n".join(texts)) is not None


def durable_texts(prefix: SharedPrefix) -> list[str]:
    """Durable context that the user gave to all agents, one text a key."""
    bare = replace(prefix, system="", roles={})
    return [replace(bare, context={key: value}).text for key, value in prefix.context.items()]


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
    """Let the next component start a session of its own, for tests and long-lived processes."""
    with _LOCK:
        _SESSIONS.clear()
