"""How one request is laid out: the shared prefix, forks that extend it, their policies, and the gate before it."""

from cacheprefix.layout.fork import Compatibility, Fork, TailPlacement, compatibility
from cacheprefix.layout.framing import NEXT, ONE_CALL, unframed
from cacheprefix.layout.gate import FOLLOW, Pace, Pass, ProcessGate, Worth
from cacheprefix.layout.policy import AbortHandle, ForkPolicy
from cacheprefix.layout.prefix import SharedPrefix, Tool, context_block, tool_of, union_tools
from cacheprefix.layout.shared_text import SearchedText, find_text, majority_text, mostly_holds
from cacheprefix.layout.store_gate import StoreGate
from cacheprefix.layout.tail import RoleAs, VolatileRole, said_with_authority, tail_text, with_volatile

__all__ = [
    "FOLLOW",
    "NEXT",
    "ONE_CALL",
    "AbortHandle",
    "Compatibility",
    "Fork",
    "ForkPolicy",
    "Pace",
    "Pass",
    "ProcessGate",
    "RoleAs",
    "SearchedText",
    "SharedPrefix",
    "StoreGate",
    "TailPlacement",
    "Tool",
    "VolatileRole",
    "Worth",
    "compatibility",
    "context_block",
    "find_text",
    "majority_text",
    "mostly_holds",
    "said_with_authority",
    "tail_text",
    "tool_of",
    "unframed",
    "union_tools",
    "with_volatile",
]
