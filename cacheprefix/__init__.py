"""Shared, frozen prompt prefixes for agent teams, so that the provider's prompt cache is read, not paid for again.

Names are loaded when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from cacheprefix._version import __version__

if TYPE_CHECKING:
    from cacheprefix._wrap import preview, wrap
    from cacheprefix.cache import Breakpoint, Verdict
    from cacheprefix.call import Call
    from cacheprefix.calls.pending import PendingCall
    from cacheprefix.calls.report import Report
    from cacheprefix.conversation import Conversation
    from cacheprefix.dry_run import PlannedRequest, Preview
    from cacheprefix.errors import CacheprefixError
    from cacheprefix.history import Compaction, ReadBudget, RequestBudget, ToolResultBudget
    from cacheprefix.hookspecs import hookimpl
    from cacheprefix.keep_alive import KeepAlive
    from cacheprefix.layout import AbortHandle, Fork, ForkPolicy, SharedPrefix
    from cacheprefix.notices import CacheprefixWarning
    from cacheprefix.options import Caching, Gate, History
    from cacheprefix.profiles import Profile, Usage
    from cacheprefix.prompt import Prompt, Section
    from cacheprefix.session import Session

_HOMES = {
    "AbortHandle": "layout",
    "Breakpoint": "cache",
    "Caching": "options",
    "CacheprefixError": "errors",
    "CacheprefixWarning": "notices",
    "Call": "call",
    "Compaction": "history",
    "Conversation": "conversation",
    "Fork": "layout",
    "ForkPolicy": "layout",
    "Gate": "options",
    "History": "options",
    "KeepAlive": "keep_alive",
    "PendingCall": "calls.pending",
    "PlannedRequest": "dry_run",
    "Preview": "dry_run",
    "Profile": "profiles",
    "Prompt": "prompt",
    "ReadBudget": "history",
    "Report": "calls.report",
    "RequestBudget": "history",
    "Section": "prompt",
    "Session": "session",
    "SharedPrefix": "layout",
    "ToolResultBudget": "history",
    "Usage": "profiles",
    "Verdict": "cache",
    "hookimpl": "hookspecs",
    "preview": "_wrap",
    "wrap": "_wrap",
}

__all__ = [
    "AbortHandle",
    "Breakpoint",
    "CacheprefixError",
    "CacheprefixWarning",
    "Caching",
    "Call",
    "Compaction",
    "Conversation",
    "Fork",
    "ForkPolicy",
    "Gate",
    "History",
    "KeepAlive",
    "PendingCall",
    "PlannedRequest",
    "Preview",
    "Profile",
    "Prompt",
    "ReadBudget",
    "Report",
    "RequestBudget",
    "Section",
    "Session",
    "SharedPrefix",
    "ToolResultBudget",
    "Usage",
    "Verdict",
    "__version__",
    "hookimpl",
    "preview",
    "wrap",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cacheprefix' has no attribute {name!r}")
    value = getattr(import_module(f"cacheprefix.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
