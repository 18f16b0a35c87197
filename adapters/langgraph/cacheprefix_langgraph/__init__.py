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
    from cacheprefix_langgraph._dag import DagResult, DagState, dag_result, prefix_dag
    from cacheprefix_langgraph._live import StreamVerdicts
    from cacheprefix_langgraph._memory import MemoryUpdate, SessionMemory, read_update
    from cacheprefix_langgraph._memory_store import FileMemory, MemoryKeeper, StoreMemory
    from cacheprefix_langgraph._middleware import PrefixMiddleware
    from cacheprefix_langgraph._model import wrap_model
    from cacheprefix_langgraph._node import forked
    from cacheprefix_langgraph._outcomes import Outcome
    from cacheprefix_langgraph._remember import extract_memory, memory_node
    from cacheprefix_langgraph._reports import WorkerReport
    from cacheprefix_langgraph._state import PrefixChannel, PrefixState
    from cacheprefix_langgraph._subgraph import subgraph
    from cacheprefix_langgraph._team import TeamResult, TeamRole, TeamState, prefix_team, progress, team_result
    from cacheprefix_langgraph._toolcache import cached_tools
    from cacheprefix_langgraph._waves import CycleError, DuplicateTaskError, Task, UnknownDependencyError

_HOMES = {
    "CommitMiddleware": "_context",
    "CycleError": "_waves",
    "DagResult": "_dag",
    "DagState": "_dag",
    "DuplicateTaskError": "_waves",
    "FileMemory": "_memory_store",
    "MemoryKeeper": "_memory_store",
    "MemoryUpdate": "_memory",
    "Outcome": "_outcomes",
    "PrefixChannel": "_state",
    "PrefixMiddleware": "_middleware",
    "PrefixState": "_state",
    "SessionMemory": "_memory",
    "StoreMemory": "_memory_store",
    "StreamVerdicts": "_live",
    "Task": "_waves",
    "TeamResult": "_team",
    "TeamRole": "_team",
    "TeamState": "_team",
    "UnknownDependencyError": "_waves",
    "WorkerReport": "_reports",
    "aask": "_ask",
    "ask": "_ask",
    "cached_tools": "_toolcache",
    "commit_turn": "_context",
    "context_message": "_context",
    "dag_result": "_dag",
    "extract_memory": "_remember",
    "forked": "_node",
    "memory_node": "_remember",
    "pinned": "_context",
    "prefix_dag": "_dag",
    "prefix_team": "_team",
    "progress": "_team",
    "read_update": "_memory",
    "subgraph": "_subgraph",
    "team_result": "_team",
    "wrap_model": "_model",
}

__all__ = [
    "CommitMiddleware",
    "CycleError",
    "DagResult",
    "DagState",
    "DuplicateTaskError",
    "FileMemory",
    "MemoryKeeper",
    "MemoryUpdate",
    "Outcome",
    "PrefixChannel",
    "PrefixMiddleware",
    "PrefixState",
    "SessionMemory",
    "StoreMemory",
    "StreamVerdicts",
    "Task",
    "TeamResult",
    "TeamRole",
    "TeamState",
    "UnknownDependencyError",
    "WorkerReport",
    "aask",
    "ask",
    "cached_tools",
    "commit_turn",
    "context_message",
    "dag_result",
    "extract_memory",
    "forked",
    "memory_node",
    "pinned",
    "prefix_dag",
    "prefix_team",
    "progress",
    "read_update",
    "subgraph",
    "team_result",
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
