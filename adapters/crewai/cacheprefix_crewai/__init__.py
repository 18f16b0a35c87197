"""cacheprefix for CrewAI: the agents and tasks of a crew as forks of one shared prompt prefix.

Names are loaded when they are first used: the entry point imports this package for every session and command,
also where no crew ever runs, and loading CrewAI takes many seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cacheprefix_crewai.asking import ask
    from cacheprefix_crewai.events import cache_event
    from cacheprefix_crewai.installing import Installation, callback, conversation_of, install, session_of, uninstall
    from cacheprefix_crewai.reading import read_tool

_HOMES = {
    "Installation": "installing",
    "ask": "asking",
    "cache_event": "events",
    "callback": "installing",
    "conversation_of": "installing",
    "install": "installing",
    "read_tool": "reading",
    "session_of": "installing",
    "uninstall": "installing",
}

__all__ = [
    "Installation",
    "ask",
    "cache_event",
    "callback",
    "conversation_of",
    "install",
    "read_tool",
    "session_of",
    "uninstall",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cacheprefix_crewai' has no attribute {name!r}")
    value = getattr(import_module(f"cacheprefix_crewai.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
