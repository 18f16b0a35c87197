"""Shared prefixes, forks that extend them, and the policies forks run under."""

from cacheprefix.prefix._fork import Compatibility, Fork, Level, TailPlacement, compatibility
from cacheprefix.prefix._gate import FOLLOW, Gate, Pace, Pass, Worth
from cacheprefix.prefix._policy import AbortHandle, ForkPolicy
from cacheprefix.prefix._shared import SharedPrefix, Tool, tool_of, union_tools
from cacheprefix.prefix._store_gate import StoreGate
from cacheprefix.prefix._tail import VolatileRole, tail_text, with_volatile

__all__ = [
    "FOLLOW",
    "AbortHandle",
    "Compatibility",
    "Fork",
    "ForkPolicy",
    "Gate",
    "Level",
    "Pace",
    "Pass",
    "SharedPrefix",
    "StoreGate",
    "TailPlacement",
    "Tool",
    "VolatileRole",
    "Worth",
    "compatibility",
    "tail_text",
    "tool_of",
    "union_tools",
    "with_volatile",
]
