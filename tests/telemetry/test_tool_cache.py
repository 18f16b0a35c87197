"""The tool cache's statistics as metrics, read by OpenTelemetry's own reader."""

from __future__ import annotations

import gc

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from cacheprefix import Session
from cacheprefix.adapter import Request
from cacheprefix.errors import StoreError
from cacheprefix.stores import MemoryStore
from cacheprefix.telemetry import Telemetry
from cacheprefix.telemetry.tool_cache import ASK_SECONDS, TOOLS
from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec

LOOK = ToolSpec("look", cacheable=True)


class Counting(MemoryStore):
    """A store that counts how often it is asked what it holds, and fails on demand."""

    def __init__(self, *, shared=False):
        super().__init__()
        self.shared = shared
        self.walks = 0
        self.down = False

    def sizes(self, prefix):
        """As the store itself, counted."""
        self.walks += 1
        if self.down:
            raise StoreError("the store is down")
        return super().sizes(prefix)


class Read:
    """Telemetry whose metrics are read from memory."""

    def __init__(self):
        self.reader = InMemoryMetricReader()
        self.plugin = Telemetry(None, MeterProvider([self.reader]), spans="off")

    def session(self, store=None, **options):
        """A bound session with a tool cache."""
        return self.plugin.bind(Session(tool_cache=ToolResultCache(store, ToolCacheOptions(**options))))

    def collect(self):
        """One collection: the values of the tool cache's metrics by name, tool and what else tells them apart."""
        data = self.reader.get_metrics_data()
        found = {}
        for metric in (m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics):
            for point in metric.data.data_points:
                told = dict(point.attributes)
                key = (metric.name.removeprefix("cacheprefix.tool_cache."), told.pop("gen_ai.tool.name", None))
                found[(*key, *told.values())] = point.value
        return found


@pytest.fixture
def read():
    """Telemetry into memory, shut down after the test."""
    made = Read()
    yield made
    made.reader.shutdown()


def call(session, *queries, tool=LOOK, answer="found"):
    """Calls of a tool through the session's cache."""
    for query in queries:
        session.tool_cache.call(tool, {"query": query}, lambda: answer)


def test_the_metrics_are_the_statistics(read):
    """Hits, misses, evictions, entries, bytes and saved time by tool, as ``stats()`` has them."""
    session = read.session(max_entries=2)
    call(session, "a", "a", "b", "c")
    told, stats = read.collect(), session.adapter.tool_calls.stats().tools["look"]
    assert told["calls", "look", "hit"] == stats.hits == 1
    assert told["calls", "look", "miss"] == stats.misses == 3
    assert told["calls", "look", "joined"] == told["calls", "look", "refused"] == 0
    assert told["dropped", "look", "evicted"] == stats.evicted == 1
    assert told["entries", "look"] == stats.entries == 2
    assert told["size", "look"] == stats.bytes > 0
    assert told["saved", "look"] == stats.saved_seconds


def test_an_expired_result_is_counted_and_no_longer_held(read):
    """By the time that the cache goes by."""
    now = [0.0]
    session = read.session(store=MemoryStore(clock=lambda: now[0]), ttl=5.0, clock=lambda: now[0])
    call(session, "a")
    assert read.collect()["entries", "look"] == 1
    now[0] = 6.0
    call(session, "b")
    told = read.collect()
    assert (told["dropped", "look", "expired"], told["entries", "look"]) == (1, 1)


def test_no_argument_and_no_result_is_told(read):
    """Tools' names are all that is."""
    session = read.session()
    call(session, "secret question", answer="secret answer")
    assert "secret" not in read.reader.get_metrics_data().to_json()


def test_one_collection_asks_the_cache_once(read):
    """However many instruments there are: a large store is slow to walk."""
    store = Counting()
    session = read.session(store=store)
    call(session, "a")
    for asked in (1, 2, 3):
        read.collect()
        assert store.walks == asked


def test_a_shared_store_is_asked_every_ten_seconds_at_most(read):
    """Its statistics walk all keys of all processes."""
    store, now = Counting(shared=True), [100.0]
    session = read.session(store=store)
    read.plugin._tool_caches._clock = lambda: now[0]
    call(session, "a")
    read.collect()
    call(session, "b")
    assert (read.collect()["entries", "look"], store.walks) == (1, 1)
    now[0] += ASK_SECONDS
    assert (read.collect()["entries", "look"], store.walks) == (2, 2)


def test_tools_made_up_by_a_model_do_not_fill_the_metrics(read):
    """Beyond a hundred names they are told together, and nothing is lost."""
    session = read.session()
    for number in range(TOOLS + 30):
        call(session, "a", tool=ToolSpec(f"tool-{number}", cacheable=True))
    told = read.collect()
    names = {key[1] for key in told} - {None}
    assert len(names) == TOOLS + 1
    assert told["calls", "other", "miss"] == told["entries", "other"] == 30
    assert sum(value for key, value in told.items() if key[0] == "calls") == TOOLS + 30


def test_counters_go_on_when_the_cache_is_cleared(read):
    """A counter that went down would be counted again by whoever adds up its rises."""
    session = read.session()
    call(session, "a", "a", "a")
    read.collect()
    session.tool_cache.clear()
    assert read.collect()["calls", "look", "hit"] == 2
    call(session, "a", "a")
    told = read.collect()
    assert (told["calls", "look", "hit"], told["calls", "look", "miss"], told["entries", "look"]) == (3, 2, 1)
    session.tool_cache.clear()
    call(session, "b", "c")
    told = read.collect()
    assert (told["calls", "look", "hit"], told["calls", "look", "miss"], told["entries", "look"]) == (3, 4, 2)
    session.tool_cache.clear()
    call(session, "b")
    assert read.collect()["calls", "look", "miss"] == 5


def test_sessions_add_up_and_a_common_cache_counts_once(read):
    """Also for children, and for a session that is bound twice."""
    cache = ToolResultCache()
    first, second = (read.plugin.bind(Session(tool_cache=cache)) for _ in range(2))
    read.plugin.bind(first)
    read.plugin.bind(first.child("team"))
    call(first, "a")
    call(second, "a")
    third = read.session()
    call(third, "a")
    told = read.collect()
    assert (told["calls", "look", "miss"], told["calls", "look", "hit"], told["entries", "look"]) == (2, 1, 2)


def test_a_session_that_is_gone_is_told_once_more_and_let_go(read):
    """A program that makes a session for each request neither loses its counts nor keeps it."""
    for _ in range(3):
        session = read.session()
        call(session, "a", "a")
        del session
    gc.collect()
    for _ in range(2):
        assert read.collect()["calls", "look", "hit"] == 3
    assert not read.plugin._tool_caches._watched
    assert read.collect()["entries", "look"] == 0


def test_a_store_that_is_down_stops_no_collection(read):
    """Its failures are a counter, and the other counters stay."""
    store = Counting()
    session = read.session(store=store)
    call(session, "a", "a")
    read.collect()
    store.down = True
    told = read.collect()
    assert (told["calls", "look", "hit"], told["entries", "look"]) == (1, 0)
    assert told["store.errors", None] == session.adapter.tool_calls.stats().store_errors - 1 == 1
    store.down = False
    call(session, "b")
    assert read.collect()["entries", "look"] == 2


def test_binding_a_plugin_of_the_session_counts_its_calls_once(read):
    """``plugins=[telemetry]`` and ``bind`` may both be said; without a cache nothing of one is told."""
    session = read.plugin.bind(Session(plugins=[read.plugin]))
    session.adapter.begin(Request({"model": "gpt-4.1", "messages": []}, "openai-chat")).finish({"prompt_tokens": 3})
    data = read.reader.get_metrics_data()
    metrics = {m.name: m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    assert [point.value for point in metrics["cacheprefix.calls"].data.data_points] == [1]
    assert not any(name.startswith("cacheprefix.tool_cache.") for name in metrics)
