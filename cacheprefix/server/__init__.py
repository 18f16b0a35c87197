"""A simulated provider: the cache rules of a profile interpreted, and put on HTTP."""

from cacheprefix.cache.arrival import Arrival
from cacheprefix.server.engine import ProviderCache, Serving
from cacheprefix.server.fleet import Outcome, Setting, play
from cacheprefix.server.latency import Latency
from cacheprefix.server.local_engine import SMOLLM2, LocalEngine, idle_threads, smollm2
from cacheprefix.server.outcome import CacheOutcome, RefusedError
from cacheprefix.server.provider import SimulatedProvider
from cacheprefix.server.request_log import Record
from cacheprefix.server.schema_values import sample
from cacheprefix.server.script import Asked, Echo, Fault, Queue, Reply, Request, Rule, Rules, Script, ToolCall, fill
from cacheprefix.server.simulator import Simulator

__all__ = [
    "SMOLLM2",
    "Arrival",
    "Asked",
    "CacheOutcome",
    "Echo",
    "Fault",
    "Latency",
    "LocalEngine",
    "Outcome",
    "ProviderCache",
    "Queue",
    "Record",
    "RefusedError",
    "Reply",
    "Request",
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
