"""cacheprefix for CrewAI: the agents and tasks of a crew as forks of one shared prompt prefix.

Names are loaded when they are first used: the entry point imports this package for every session and command,
also where no crew ever runs, and loading CrewAI takes many seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacheprefix.entry_points import lazy

if TYPE_CHECKING:
    from cacheprefix_crewai.asking import ask
    from cacheprefix_crewai.events import cache_event
    from cacheprefix_crewai.installing import Installation, callback, conversation_of, install, session_of, uninstall
    from cacheprefix_crewai.reading import read_tool

__getattr__, __dir__ = lazy(
    globals(),
    {
        "asking": "ask",
        "events": "cache_event",
        "installing": "Installation callback conversation_of install session_of uninstall",
        "reading": "read_tool",
    },
)

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
