"""The seven faults of the cache that this one learnt from, each absent here."""

from __future__ import annotations

import pytest

from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec


def test_an_expired_lookup_is_a_miss(read, tool, clock) -> None:
    """It lowers the hit rate, instead of counting as nothing."""
    cache = ToolResultCache(options=ToolCacheOptions(clock=clock))
    cache.call(read, {}, tool)
    clock.seconds += 301
    cache.call(read, {}, tool)
    assert cache.stats().total.hit_rate == 0.0
    assert cache.stats().total.expired == 1


def test_an_entry_that_is_read_often_outlives_one_that_is_not(read, make) -> None:
    """Eviction goes by last use and not by age."""
    cache = ToolResultCache(options=ToolCacheOptions(max_entries=2))
    often, rarely = make(), make()
    cache.call(read, {"path": "often"}, often)
    cache.call(read, {"path": "rarely"}, rarely)
    for _ in range(1_000):
        cache.call(read, {"path": "often"}, often)
    cache.call(read, {"path": "new"}, make())
    cache.call(read, {"path": "often"}, often)
    assert often.runs == 1


def test_a_hundred_thousand_expiries_of_one_key_leave_nothing_behind(clock) -> None:
    """No queue grows with every write."""
    from cacheprefix.stores import MemoryStore

    store = MemoryStore(clock=clock)
    for _ in range(100_000):
        store.set("k", b"1", 1)
        clock.seconds += 2
    assert store.get("k") is None
    assert len(store._entries) == 0
    assert len(store._entries._expiry) <= 65


def test_replacing_an_entry_at_the_bound_evicts_no_other(read, tool, clock) -> None:
    """A refreshed result takes its own place."""
    cache = ToolResultCache(options=ToolCacheOptions(max_entries=3, ttl=None, ttls={"web_scrape": 10}, clock=clock))
    cache.call(ToolSpec("web_scrape", cacheable=True, version="1"), {}, tool)
    for path in ("a", "b"):
        cache.call(read, {"path": path}, tool)
    clock.seconds += 11
    cache.call(ToolSpec("web_scrape", cacheable=True, version="1"), {}, tool)
    stats = cache.stats()
    assert (stats.total.entries, stats.total.evicted, stats.tools["read"].entries) == (3, 0, 2)


@pytest.mark.parametrize(
    "name", ["edit", "delete_path", "move_path", "copy_path", "create_directory", "set_working_directory"]
)
def test_an_edit_is_never_answered_from_the_cache(name: str, make) -> None:
    """A repeat in a later turn edits again."""
    cache, tool = ToolResultCache(), make("Edited")
    for turn in range(3):
        cache.new_turn("c")
        cache.call(ToolSpec(name), {"path": "/a"}, tool, conversation="c")
        assert tool.runs == turn + 1


def test_a_read_after_a_write_is_not_stale(make) -> None:
    """Within the time to live, without any declaration beyond the tools' names."""
    cache, tool = ToolResultCache(), make("old")
    cache.call(ToolSpec("read", cacheable=True, version="1"), {"path": "a"}, tool)
    cache.call(ToolSpec("write"), {"path": "a", "text": "new"}, lambda: "ok")
    tool.result = "new"
    assert cache.call(ToolSpec("read", cacheable=True, version="1"), {"path": "a"}, tool) == "new"


def test_half_a_second_is_not_never() -> None:
    """Short times to live are shown as what they are."""
    assert "TTL: 500ms" in str(ToolResultCache(options=ToolCacheOptions(ttl=0.5)).stats())
