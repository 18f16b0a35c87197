"""cacheprefix for the OpenAI Agents SDK: agents, handoffs and agents as tools as forks of one shared prompt prefix.

Names are loaded when they are first used: the entry point imports this package for every session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cacheprefix_openai_agents.models import unwrap, wrap

__all__ = ["unwrap", "wrap"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        message = f"module 'cacheprefix_openai_agents' has no attribute {name!r}"
        raise AttributeError(message)
    from cacheprefix_openai_agents import models  # noqa: PLC0415 - see above

    return getattr(models, name)
