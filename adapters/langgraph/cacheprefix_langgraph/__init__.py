"""cacheprefix for LangGraph and LangChain agents.

Names are loaded when they are first used: the entry point imports this package for every session and command,
also where no graph ever runs, and loading LangGraph takes seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cacheprefix_langgraph._ask import aask, ask
    from cacheprefix_langgraph._context import CommitMiddleware, commit_turn, context_message, pinned
    from cacheprefix_langgraph._live import StreamVerdicts
    from cacheprefix_langgraph._middleware import PrefixMiddleware
    from cacheprefix_langgraph._model import wrap_model
    from cacheprefix_langgraph._node import forked
    from cacheprefix_langgraph._state import PrefixState
    from cacheprefix_langgraph._subgraph import subgraph
    from cacheprefix_langgraph._toolcache import cached_tools

_HOMES = {
    "CommitMiddleware": "_context",
    "PrefixMiddleware": "_middleware",
    "PrefixState": "_state",
    "StreamVerdicts": "_live",
    "aask": "_ask",
    "ask": "_ask",
    "cached_tools": "_toolcache",
    "commit_turn": "_context",
    "context_message": "_context",
    "forked": "_node",
    "pinned": "_context",
    "subgraph": "_subgraph",
    "wrap_model": "_model",
}

__all__ = [
    "CommitMiddleware",
    "PrefixMiddleware",
    "PrefixState",
    "StreamVerdicts",
    "aask",
    "ask",
    "cached_tools",
    "commit_turn",
    "context_message",
    "forked",
    "pinned",
    "subgraph",
    "wrap_model",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        message = f"module 'cacheprefix_langgraph' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(f"cacheprefix_langgraph.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
