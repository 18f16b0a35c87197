"""A simulated provider: the cache rules of a profile interpreted, and put on HTTP."""

from cacheprefix.server._engine import ProviderCache, Serving
from cacheprefix.server._fleet import Arrival, Outcome, Routing, Setting, play
from cacheprefix.server._latency import Latency
from cacheprefix.server._local_engine import SMOLLM2, LocalEngine, idle_threads, smollm2
from cacheprefix.server._outcome import CacheOutcome, RefusedError
from cacheprefix.server._provider import SimulatedProvider
from cacheprefix.server._records import Log, Record
from cacheprefix.server._schema import sample
from cacheprefix.server._script import (
    Asked,
    Echo,
    Fault,
    Queue,
    Reply,
    Request,
    Rule,
    Rules,
    Script,
    ToolCall,
    fill,
)
from cacheprefix.server._simulator import Simulator

__all__ = [
    "SMOLLM2",
    "Arrival",
    "Asked",
    "CacheOutcome",
    "Echo",
    "Fault",
    "Latency",
    "LocalEngine",
    "Log",
    "Outcome",
    "ProviderCache",
    "Queue",
    "Record",
    "RefusedError",
    "Reply",
    "Request",
    "Routing",
    "Rule",
    "Rules",
    "Script",
    "Serving",
    "Setting",
    "SimulatedProvider",
    "Simulator",
    "ToolCall",
    "fill",
    "idle_threads",
    "play",
    "sample",
    "smollm2",
]
