"""cacheprefix for OpenAI's and Anthropic's own clients: calls as forks of one shared prompt prefix.

Names are loaded when they are first used: the entry point imports this package for every session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacheprefix.entry_points import lazy

if TYPE_CHECKING:
    from cacheprefix_sdk.client import role, wrap

__getattr__, __dir__ = lazy(globals(), {"client": "role wrap"})

__all__ = ["role", "wrap"]
