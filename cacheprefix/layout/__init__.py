"""How one request is laid out: the shared prefix, forks that extend it, their policies, and the gate before it."""

from cacheprefix.layout.fork import Compatibility, Fork, Level, TailPlacement, compatibility
from cacheprefix.layout.gate import FOLLOW, Gate, Pace, Pass, Worth
from cacheprefix.layout.policy import AbortHandle, ForkPolicy
from cacheprefix.layout.prefix import SharedPrefix, Tool, tool_of, union_tools
from cacheprefix.layout.shared_text import common_text, find_text, majority_text
from cacheprefix.layout.store_gate import StoreGate
from cacheprefix.layout.tail import VolatileRole, tail_text, with_volatile

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
    "common_text",
    "compatibility",
    "find_text",
    "majority_text",
    "tail_text",
    "tool_of",
    "union_tools",
    "with_volatile",
]
