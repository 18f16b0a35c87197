"""cacheprefix for LiteLLM: completions and routers whose calls are forks of one shared prompt prefix.

Names are loaded when they are first used: the entry point imports this package for every session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacheprefix.entry_points import lazy

if TYPE_CHECKING:
    from cacheprefix_litellm.calls import install, role, unwrap, wrap

__getattr__, __dir__ = lazy(globals(), {"calls": "install role unwrap wrap"})

__all__ = ["install", "role", "unwrap", "wrap"]
