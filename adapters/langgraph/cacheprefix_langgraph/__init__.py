"""cacheprefix for LangGraph and LangChain agents.

Names are loaded when they are first used: the entry point imports this package for every session and command,
also where no graph ever runs, and loading LangGraph takes seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacheprefix.entry_points import lazy

if TYPE_CHECKING:
    from cacheprefix_langgraph.asking import aask, ask
    from cacheprefix_langgraph.lasting_context import CommitMiddleware, commit_turn, context_message, pinned
    from cacheprefix_langgraph.middleware import PrefixMiddleware
    from cacheprefix_langgraph.model import wrap_model
    from cacheprefix_langgraph.node import forked
    from cacheprefix_langgraph.reading import read_tool
    from cacheprefix_langgraph.state import PrefixChannel, PrefixState
    from cacheprefix_langgraph.subgraphs import subgraph
    from cacheprefix_langgraph.teams.dag import DagResult, dag_result, prefix_dag
    from cacheprefix_langgraph.teams.memory import MemoryUpdate, SessionMemory, read_update
    from cacheprefix_langgraph.teams.memory_store import FileMemory, MemoryKeeper, StoreMemory
    from cacheprefix_langgraph.teams.outcomes import Outcome
    from cacheprefix_langgraph.teams.remembering import memory_node
    from cacheprefix_langgraph.teams.reports import WorkerReport
    from cacheprefix_langgraph.teams.team import TeamResult, TeamRole, prefix_team, team_result
    from cacheprefix_langgraph.teams.waves import CycleError, DuplicateTaskError, Task, UnknownDependencyError
    from cacheprefix_langgraph.tool_cache import cached_tools
    from cacheprefix_langgraph.verdict_stream import StreamVerdicts

__getattr__, __dir__ = lazy(
    globals(),
    {
        "asking": "aask ask",
        "lasting_context": "CommitMiddleware commit_turn context_message pinned",
        "middleware": "PrefixMiddleware",
        "model": "wrap_model",
        "node": "forked",
        "reading": "read_tool",
        "state": "PrefixChannel PrefixState",
        "subgraphs": "subgraph",
        "teams.dag": "DagResult dag_result prefix_dag",
        "teams.memory": "MemoryUpdate SessionMemory read_update",
        "teams.memory_store": "FileMemory MemoryKeeper StoreMemory",
        "teams.outcomes": "Outcome",
        "teams.remembering": "memory_node",
        "teams.reports": "WorkerReport",
        "teams.team": "TeamResult TeamRole prefix_team team_result",
        "teams.waves": "CycleError DuplicateTaskError Task UnknownDependencyError",
        "tool_cache": "cached_tools",
        "verdict_stream": "StreamVerdicts",
    },
)

__all__ = [
    "CommitMiddleware",
    "CycleError",
    "DagResult",
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
    "UnknownDependencyError",
    "WorkerReport",
    "aask",
    "ask",
    "cached_tools",
    "commit_turn",
    "context_message",
    "dag_result",
    "forked",
    "memory_node",
    "pinned",
    "prefix_dag",
    "prefix_team",
    "read_tool",
    "read_update",
    "subgraph",
    "team_result",
    "wrap_model",
]
