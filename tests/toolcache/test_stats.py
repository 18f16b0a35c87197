"""What the cache says about itself."""

from __future__ import annotations

import dataclasses

import pytest

from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec


def test_a_new_cache_in_words() -> None:
    """Without calls there is no rate."""
    assert str(ToolResultCache().stats()) == (
        "Tool result cache: enabled\nEntries: 0, Hits: 0, Misses: 0, Hit rate: n/a\nTTL: 300s"
    )


def test_a_used_cache_in_words(read, tool) -> None:
    """The rate has one decimal."""
    cache = ToolResultCache(options=ToolCacheOptions(ttl=None))
    for arguments in ({"a": 1}, {"a": 1}, {"a": 2}):
        cache.call(read, arguments, tool)
    assert str(cache.stats()) == (
        "Tool result cache: enabled\nEntries: 2, Hits: 1, Misses: 2, Hit rate: 33.3%\nTTL: never"
    )


def test_a_disabled_cache_in_words() -> None:
    """Off is shown."""
    assert str(ToolResultCache(options=ToolCacheOptions(enabled=False)).stats()).startswith(
        "Tool result cache: disabled\n"
    )


@pytest.mark.parametrize(
    ("ttl", "words"),
    [(None, "never"), (300, "300s"), (0.5, "500ms"), (0.0015, "1.5ms"), (1.5, "1.5s"), (0, "0s"), (86_400.0, "86400s")],
)
def test_a_time_to_live_in_words(ttl: float | None, words: str) -> None:
    """Half a second is not "never"."""
    assert str(ToolResultCache(options=ToolCacheOptions(ttl=ttl)).stats()).endswith(f"\nTTL: {words}")


def test_counts_are_kept_by_tool(read, make) -> None:
    """Each tool has its own row; the total is their sum."""
    cache = ToolResultCache()
    search, tool = ToolSpec("search_code", cacheable=True, version="1"), make("12345")
    for spec in (read, read, read, search, search):
        cache.call(spec, {}, tool)
    stats = cache.stats()
    assert list(stats.tools) == ["read", "search_code"]
    assert (stats.tools["read"].hits, stats.tools["search_code"].hits, stats.total.hits) == (2, 1, 3)
    assert stats.tools["read"].entries == 1
    assert stats.tools["read"].bytes > 5
    assert stats.total.bytes == stats.tools["read"].bytes + stats.tools["search_code"].bytes
    assert stats.tools["read"].hit_rate == pytest.approx(2 / 3)


def test_saved_seconds_are_those_of_the_first_run(read, clock) -> None:
    """Every hit saves what the run took."""
    cache = ToolResultCache(options=ToolCacheOptions(clock=clock))

    def tool() -> str:
        clock.seconds += 7
        return "content"

    for _ in range(3):
        cache.call(read, {}, tool)
    assert cache.stats().tools["read"].saved_seconds == pytest.approx(14)


def test_saved_seconds_are_known_to_other_processes(read, clock, shared) -> None:
    """They stand in the entry."""

    def tool() -> str:
        clock.seconds += 7
        return "content"

    ToolResultCache(shared, ToolCacheOptions(clock=clock)).call(read, {}, tool)
    other = ToolResultCache(shared, ToolCacheOptions(clock=clock))
    other.call(read, {}, tool)
    assert other.stats().total.saved_seconds == pytest.approx(7)


def test_a_snapshot_does_not_change(read, tool) -> None:
    """Statistics are values."""
    cache = ToolResultCache()
    stats = cache.stats()
    cache.call(read, {}, tool)
    assert stats.total.misses == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.total.misses = 5  # type: ignore[misc]


def test_invented_tool_names_do_not_pile_up(tool) -> None:
    """Beyond a thousand names they share one row, and nothing is lost from the total."""
    cache = ToolResultCache(options=ToolCacheOptions(allow=["*"]))
    for i in range(1_200):
        cache.call(ToolSpec(f"tool {i}"), {}, tool)
    stats = cache.stats()
    assert stats.total.misses == 1_200
    assert stats.total.entries == 1_200
    assert sum(1 for t in stats.tools.values() if t.misses) <= 1_001


def test_entries_of_another_process_are_counted(read, tool, shared) -> None:
    """The store is shared, so is what it holds; names that this process does not know are summed up."""
    ToolResultCache(shared).call(read, {}, tool)
    stats = ToolResultCache(shared).stats()
    assert stats.total.entries == 1
    assert stats.total.misses == 0
