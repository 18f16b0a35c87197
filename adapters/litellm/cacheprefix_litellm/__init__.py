"""cacheprefix for LiteLLM: completions and routers whose calls are forks of one shared prompt prefix.

Names are loaded when they are first used: the entry point imports this package for every session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cacheprefix_litellm.calls import install, role, unwrap, wrap

__all__ = ["install", "role", "unwrap", "wrap"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        message = f"module 'cacheprefix_litellm' has no attribute {name!r}"
        raise AttributeError(message)
    from cacheprefix_litellm import calls  # noqa: PLC0415 - see above

    return getattr(calls, name)
