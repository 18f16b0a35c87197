"""cacheprefix for the OpenAI Agents SDK: agents, handoffs and agents as tools as forks of one shared prompt prefix.

Names are loaded when they are first used: the entry point imports this package for every session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacheprefix.entry_points import lazy

if TYPE_CHECKING:
    from cacheprefix_openai_agents.models import unwrap, wrap

__getattr__, __dir__ = lazy(globals(), {"models": "unwrap wrap"})

__all__ = ["unwrap", "wrap"]
