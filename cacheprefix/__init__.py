"""Shared, frozen prompt prefixes for agent teams, so that the provider's prompt cache is read, not paid for again.

Names are loaded when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from cacheprefix._version import __version__

if TYPE_CHECKING:
    from cacheprefix._calls import Call, Report
    from cacheprefix._conversation import Conversation
    from cacheprefix._notices import CacheprefixWarning
    from cacheprefix._turn import Turn
    from cacheprefix._wrap import wrap
    from cacheprefix.cache import Breakpoint, Verdict
    from cacheprefix.context import Compaction, RequestBudget, ToolResultBudget
    from cacheprefix.errors import CacheprefixError
    from cacheprefix.hookspecs import hookimpl
    from cacheprefix.prefix import AbortHandle, Fork, ForkPolicy, SharedPrefix
    from cacheprefix.profiles import Profile, Usage
    from cacheprefix.prompt import Prompt, Section
    from cacheprefix.session import Session

_HOMES = {
    "AbortHandle": "prefix",
    "Breakpoint": "cache",
    "CacheprefixError": "errors",
    "CacheprefixWarning": "_notices",
    "Call": "_calls",
    "Compaction": "context",
    "Conversation": "_conversation",
    "Fork": "prefix",
    "ForkPolicy": "prefix",
    "Profile": "profiles",
    "Prompt": "prompt",
    "Report": "_calls",
    "RequestBudget": "context",
    "Section": "prompt",
    "Session": "session",
    "SharedPrefix": "prefix",
    "ToolResultBudget": "context",
    "Turn": "_turn",
    "Usage": "profiles",
    "Verdict": "cache",
    "hookimpl": "hookspecs",
    "wrap": "_wrap",
}

__all__ = [
    "AbortHandle",
    "Breakpoint",
    "CacheprefixError",
    "CacheprefixWarning",
    "Call",
    "Compaction",
    "Conversation",
    "Fork",
    "ForkPolicy",
    "Profile",
    "Prompt",
    "Report",
    "RequestBudget",
    "Section",
    "Session",
    "SharedPrefix",
    "ToolResultBudget",
    "Turn",
    "Usage",
    "Verdict",
    "__version__",
    "hookimpl",
    "wrap",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        message = f"module 'cacheprefix' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(f"cacheprefix.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
