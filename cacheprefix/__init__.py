"""Shared, frozen prompt prefixes for agent teams, so that the provider's prompt cache is read, not paid for again.

Names are loaded when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacheprefix._version import __version__
from cacheprefix.lazy_names import lazy

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

__getattr__, __dir__ = lazy(
    globals(),
    {
        "_wrap": "preview wrap",
        "cache": "Breakpoint Verdict",
        "call": "Call",
        "calls.pending": "PendingCall",
        "calls.report": "Report",
        "conversation": "Conversation",
        "dry_run": "PlannedRequest Preview",
        "errors": "CacheprefixError",
        "history": "Compaction ReadBudget RequestBudget ToolResultBudget",
        "hookspecs": "hookimpl",
        "keep_alive": "KeepAlive",
        "layout": "AbortHandle Fork ForkPolicy SharedPrefix",
        "notices": "CacheprefixWarning",
        "options": "Caching Gate History",
        "profiles": "Profile Usage",
        "prompt": "Prompt Section",
        "session": "Session",
    },
)

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
