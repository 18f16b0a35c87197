"""cacheprefix for OpenAI's and Anthropic's own clients: calls as forks of one shared prompt prefix.

Names are loaded when they are first used: the entry point imports this package for every session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cacheprefix_sdk.client import role, wrap

__all__ = ["role", "wrap"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        message = f"module 'cacheprefix_sdk' has no attribute {name!r}"
        raise AttributeError(message)
    from cacheprefix_sdk import client  # noqa: PLC0415 - see above

    return getattr(client, name)
