"""The tool cache's statistics as observable metrics."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from cacheprefix.locks import Lock
from cacheprefix.telemetry.attributes import METRICS, Value
from cacheprefix.toolcache import CacheStats, ToolResultCache, ToolStats

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

    from cacheprefix.calls.tool_calls import ToolCalls
    from cacheprefix.session import Session

ASK_SECONDS = 10.0
"""How often a store that other processes share is asked what it holds: that walks all of its keys."""
TOOLS = 100
"""Tools told apart; a model may make up names, and each is a series of its own that never ends."""
REST = "other"
"""What all further tools are counted as."""

_Row = tuple[str, Mapping[str, Value], Callable[[ToolStats], float]]
_ENTRIES = "cacheprefix.tool_cache.entries"
_BYTES = "cacheprefix.tool_cache.size"
_ERRORS = "cacheprefix.tool_cache.store.errors"
_CALLS, _DROPPED = "cacheprefix.tool_cache.calls", "cacheprefix.tool_cache.dropped"
_COUNTERS: tuple[_Row, ...] = (
    (_CALLS, {"cacheprefix.outcome": "hit"}, lambda row: row.hits),
    (_CALLS, {"cacheprefix.outcome": "joined"}, lambda row: row.joined),
    (_CALLS, {"cacheprefix.outcome": "miss"}, lambda row: row.misses),
    (_CALLS, {"cacheprefix.outcome": "refused"}, lambda row: row.refused),
    (_DROPPED, {"cacheprefix.reason": "expired"}, lambda row: row.expired),
    (_DROPPED, {"cacheprefix.reason": "outdated"}, lambda row: row.outdated),
    (_DROPPED, {"cacheprefix.reason": "evicted"}, lambda row: row.evicted),
    ("cacheprefix.tool_cache.saved", {}, lambda row: row.saved_seconds),
)
_GAUGES: tuple[_Row, ...] = ((_ENTRIES, {}, lambda row: row.entries), (_BYTES, {}, lambda row: row.bytes))


@dataclass(slots=True)
class _Watched:
    """One cache, the sessions that use it, and what it said last."""

    cache: ToolResultCache
    users: list[weakref.ref[ToolCalls]] = field(default_factory=list)
    asked: float | None = None
    last: CacheStats | None = None


class ToolCaches:
    """Tells the caches of any number of sessions, each cache once, together by tool.

    One collection asks each cache once, however many instruments there are. Counters never go down: not when a
    cache is cleared, nor when a session is gone; what its cache counted until then is told by the next collection.
    """

    def __init__(self, meter: Meter) -> None:
        from opentelemetry.metrics import Observation  # noqa: PLC0415 - an extra

        self._observation = Observation
        self._clock: Callable[[], float] = time.monotonic
        self._lock = Lock()
        self._watched: dict[int, _Watched] = {}
        self._sums: dict[tuple[str, int], float] = {}
        self._errors = 0
        self._tools: set[str] = set()
        self._served: set[str] = set()
        for name in dict.fromkeys(row[0] for row in _COUNTERS):
            meter.create_observable_counter(name, [partial(self._counted, name)], *METRICS[name])
        meter.create_observable_counter(_ERRORS, [self._failed], *METRICS[_ERRORS])
        for name, _, _ in _GAUGES:
            meter.create_observable_gauge(name, [partial(self._held, name)], *METRICS[name])

    def watch(self, session: Session, cache: ToolResultCache) -> None:
        """Tell this session's cache too."""
        owner = session.adapter.tool_calls
        with self._lock:
            one = self._watched.setdefault(id(cache), _Watched(cache))
            if not any(known() is owner for known in one.users):
                one.users.append(weakref.ref(owner))

    def _counted(self, name: str, _: CallbackOptions) -> Iterator[Observation]:
        """The sums of a counter by tool, over all caches that are watched."""
        with self._lock:
            self._refresh(name)
            told = [
                self._observation(self._sums.get((tool, place), 0), {"gen_ai.tool.name": tool, **attributes})
                for place, (row, attributes, _) in enumerate(_COUNTERS)
                if row == name
                for tool in sorted(self._tools)
            ]
        yield from told

    def _failed(self, _: CallbackOptions) -> Iterator[Observation]:
        with self._lock:
            self._refresh(_ERRORS)
            told = self._observation(self._errors)
        yield told

    def _held(self, name: str, _: CallbackOptions) -> Iterator[Observation]:
        """What the caches hold now, by tool, in the unit of a gauge."""
        with self._lock:
            self._refresh(name)
            read = next(value for row, _, value in _GAUGES if row == name)
            # A tool whose entries are gone holds none, which is not the same as not being told any more.
            sums = dict.fromkeys(self._tools, 0.0)
            for one in self._watched.values():
                for tool, stats in one.last.tools.items() if one.last is not None else ():
                    sums[self._name(tool)] = sums.get(self._name(tool), 0.0) + read(stats)
            told = [self._observation(int(held), {"gen_ai.tool.name": tool}) for tool, held in sorted(sums.items())]
        yield from told

    def _refresh(self, name: str) -> None:
        """Ask the caches when an instrument is read that was already: then this is another collection."""
        if self._served and name not in self._served:
            self._served.add(name)
            return
        self._served = {name}
        now = self._clock()
        for key, one in list(self._watched.items()):
            if all(known() is None for known in one.users):
                del self._watched[key]
            elif one.cache.shared and one.asked is not None and now - one.asked < ASK_SECONDS:
                continue
            one.asked = now
            said = one.cache.stats()
            self._add(one.last, said)
            one.last = said

    def _add(self, before: CacheStats | None, now: CacheStats) -> None:
        """Add what a cache counted since it was last asked."""
        errors = 0 if before is None else before.store_errors
        self._errors += now.store_errors - (errors if now.store_errors >= errors else 0)
        for tool, row in now.tools.items():
            name = self._name(tool)
            old = ToolStats() if before is None else before.tools.get(tool, ToolStats())
            # A cache that was cleared counts from zero again; all of its counts tell it, not each for itself.
            cleared = any(read(row) < read(old) for _, _, read in _COUNTERS)
            for place, (_, _, read) in enumerate(_COUNTERS):
                more = read(row) - (0 if cleared else read(old))
                self._sums[name, place] = self._sums.get((name, place), 0) + more

    def _name(self, tool: str) -> str:
        if tool in self._tools:
            return tool
        name = tool if len(self._tools - {REST}) < TOOLS else REST
        self._tools.add(name)
        return name
