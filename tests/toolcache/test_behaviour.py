"""What is kept, for how long, and what comes back."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

from cacheprefix.errors import SetupError
from cacheprefix.stores import MemoryStore, Store
from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec


def test_an_empty_cache_misses_and_counts_it(read, tool) -> None:
    """The first lookup runs the tool and is a miss."""
    cache = ToolResultCache()
    assert cache.call(read, {"path": "a"}, tool) == "content"
    assert (cache.stats().total.hits, cache.stats().total.misses) == (0, 1)


def test_a_repeat_is_a_hit(read, tool) -> None:
    """The second identical call returns the same value without running the tool, and counts."""
    cache = ToolResultCache()
    for _ in range(3):
        assert cache.call(read, {"path": "a"}, tool) == "content"
    assert tool.runs == 1
    assert (cache.stats().total.hits, cache.stats().total.misses) == (2, 1)


def test_other_arguments_or_another_tool_miss(read, tool) -> None:
    """The key holds tool and arguments."""
    cache = ToolResultCache()
    cache.call(read, {"path": "a"}, tool)
    cache.call(read, {"path": "b"}, tool)
    cache.call(ToolSpec("web_scrape", cacheable=True, version="1"), {"path": "a"}, tool)
    assert tool.runs == 3


def test_without_a_time_to_live_nothing_expires(read, tool, clock) -> None:
    """None keeps a result for ever."""
    cache = ToolResultCache(options=ToolCacheOptions(ttl=None, clock=clock))
    cache.call(read, {}, tool)
    clock.seconds += 1e9
    cache.call(read, {}, tool)
    assert tool.runs == 1


def test_an_elapsed_time_to_live_expires(read, tool, clock) -> None:
    """After 300 seconds by default the tool runs again; the lookup is a miss and counts as expired."""
    cache = ToolResultCache(options=ToolCacheOptions(clock=clock))
    cache.call(read, {}, tool)
    clock.seconds += 299
    cache.call(read, {}, tool)
    assert tool.runs == 1
    clock.seconds += 2
    cache.call(read, {}, tool)
    assert tool.runs == 2
    total = cache.stats().total
    assert (total.hits, total.misses, total.expired, total.entries) == (1, 2, 1, 1)


def test_a_time_to_live_of_zero_keeps_nothing(read, tool) -> None:
    """Zero expires at once."""
    cache = ToolResultCache(options=ToolCacheOptions(ttl=0))
    cache.call(read, {}, tool)
    cache.call(read, {}, tool)
    assert tool.runs == 2
    assert cache.stats().total.entries == 0


def test_each_tool_may_have_its_own_time_to_live(tool, clock) -> None:
    """By name or pattern; the first match wins, others have the default."""
    cache = ToolResultCache(options=ToolCacheOptions(ttls={"web_*": 10, "read": None}, clock=clock))
    specs = [
        ToolSpec("web_scrape", cacheable=True, version="1"),
        ToolSpec("read", cacheable=True, version="1"),
        ToolSpec("search_code", cacheable=True, version="1"),
    ]
    for spec in specs:
        cache.call(spec, {}, tool)
    clock.seconds += 11
    for spec in specs:
        cache.call(spec, {}, tool)
    assert tool.runs == 4
    clock.seconds += 1_000
    cache.call(specs[1], {}, tool)
    assert tool.runs == 4


def test_clear_drops_entries_and_counters(read, tool) -> None:
    """Afterwards the cache is as new."""
    cache = ToolResultCache()
    cache.call(read, {}, tool)
    cache.call(read, {}, tool)
    assert cache.clear() == 1
    total = cache.stats().total
    assert (total.entries, total.hits, total.misses, total.bytes) == (0, 0, 0, 0)
    cache.call(read, {}, tool)
    assert tool.runs == 2


def test_clear_of_one_scope_leaves_the_others(read, tool) -> None:
    """A conversation's reset drops its own results only."""
    cache = ToolResultCache()
    cache.call(read, {}, tool, scope="a")
    cache.call(read, {}, tool, scope="b")
    assert cache.clear("a") == 1
    cache.call(read, {}, tool, scope="b")
    assert tool.runs == 2
    cache.call(read, {}, tool, scope="a")
    assert tool.runs == 3


def test_what_was_running_during_a_clear_is_not_kept(read) -> None:
    """A result that was asked for before the reset does not come back after it."""
    cache = ToolResultCache()

    def tool() -> str:
        cache.clear()
        return "of before"

    cache.call(read, {}, tool)
    assert cache.stats().total.entries == 0
    assert cache.call(read, {}, lambda: "of after") == "of after"


def test_a_disabled_cache_keeps_and_counts_nothing(read, tool) -> None:
    """Off is off: every call runs and nothing is written down."""
    cache = ToolResultCache(options=ToolCacheOptions(enabled=False))
    for _ in range(4):
        cache.call(read, {}, tool, conversation="c")
    assert tool.runs == 4
    stats = cache.stats()
    assert (stats.total.entries, stats.total.hits, stats.total.misses) == (0, 0, 0)
    assert not stats.enabled


def test_at_the_bound_the_oldest_leaves_and_the_new_one_is_there(read, make) -> None:
    """The number of entries stays at the bound."""
    cache = ToolResultCache(options=ToolCacheOptions(max_entries=3))
    tools = [make(f"content {i}") for i in range(4)]
    for i, tool in enumerate(tools):
        cache.call(read, {"path": str(i)}, tool)
    assert cache.stats().total.entries == 3
    assert cache.stats().total.evicted == 1
    cache.call(read, {"path": "3"}, tools[3])
    assert tools[3].runs == 1
    cache.call(read, {"path": "0"}, tools[0])
    assert tools[0].runs == 2


def test_bytes_are_bounded_for_text_and_for_objects(read) -> None:
    """Large results push out others; the statistics say how many bytes are kept."""

    class Thing:
        def __init__(self) -> None:
            self.text = "x" * 4_000

    cache = ToolResultCache(options=ToolCacheOptions(max_bytes=10_000))
    for i in range(10):
        cache.call(read, {"path": f"text {i}"}, lambda: "x" * 4_000)
        cache.call(read, {"path": f"object {i}"}, Thing)
    stats = cache.stats()
    assert 0 < stats.total.bytes <= 20_000
    assert stats.total.entries == 4
    assert stats.tools["read"].evicted == 16


def test_errors_are_never_kept(read, tool) -> None:
    """What the tool raises reaches the caller as it is, and the next call runs the tool again."""
    error = KeyError("broken")
    tool.failures = [error]
    cache = ToolResultCache()
    with pytest.raises(KeyError) as caught:
        cache.call(read, {}, tool)
    assert caught.value is error
    assert cache.call(read, {}, tool) == "content"
    assert tool.runs == 2


@dataclasses.dataclass
class _Result:
    text: str
    is_error: bool = False
    status: str = "success"


@pytest.mark.parametrize(
    "result",
    [
        "[error] no such file",
        "  [Error] no such file",
        {"isError": True, "content": []},
        {"is_error": True},
        _Result("no such file", is_error=True),
        _Result("no such file", status="error"),
    ],
)
def test_results_that_report_an_error_are_never_kept(read, make, result: Any) -> None:
    """Frameworks return many failures as results."""
    tool = make(result)
    cache = ToolResultCache()
    for _ in range(2):
        assert cache.call(read, {}, tool) == result
    assert tool.runs == 2


@pytest.mark.parametrize("result", ["an [error] in the log", {"isError": False}, _Result("fine"), "", None, 0, []])
def test_results_that_only_look_like_it_are_kept(read, make, result: Any) -> None:
    """Also empty results are results."""
    tool = make(result)
    cache = ToolResultCache()
    for _ in range(2):
        assert cache.call(read, {}, tool) == result
    assert tool.runs == 1


@pytest.mark.parametrize(
    "result",
    [
        "text",
        "\ud800 lone surrogate",
        b"bytes",
        None,
        True,
        1.5,
        [1, "2", {"three": [None]}],
        {"nested": {"list": [1, 2]}},
        (1, 2),
        {1: "int key"},
        {"nan": float("inf")},
        {1, 2},
        _Result("object"),
        2**80,
    ],
)
def test_a_hit_equals_the_first_result_in_value_and_type(read, make, result: Any) -> None:
    """Nothing comes back as something else, whether JSON can hold it or not."""
    cache = ToolResultCache()
    tool = make(result)
    first, second = cache.call(read, {}, tool), cache.call(read, {}, tool)
    assert tool.runs == 1
    assert first is result
    assert second == result
    assert type(second) is type(result)


@pytest.mark.parametrize("result", [{"list": [1]}, [[1]], _Result("object"), ({"inside": []},)])
def test_every_caller_gets_a_copy_of_its_own(read, make, result: Any) -> None:
    """Changing a result, the first one or a later one, changes nobody else's."""
    cache = ToolResultCache()
    tool = make(result)
    first = cache.call(read, {}, tool)
    as_text = repr(first)
    second = cache.call(read, {}, tool)
    for changed in (first, second):
        if isinstance(changed, dict):
            changed["list"].append(2)
        elif isinstance(changed, list):
            changed[0].append(2)
        elif isinstance(changed, tuple):
            changed[0]["inside"].append(2)
        else:
            changed.text = "changed"
        assert repr(cache.call(read, {}, tool)) == as_text
    assert tool.runs == 1


def test_what_cannot_be_copied_is_not_kept(read) -> None:
    """A generator or a lock belongs to one caller."""
    cache = ToolResultCache()
    for make in (lambda: (i for i in range(3)), threading.Lock):
        one, two = cache.call(read, {"x": str(make)}, make), cache.call(read, {"x": str(make)}, make)
        assert one is not two
    assert cache.stats().total.entries == 0


def test_objects_stay_in_this_process(read, make, shared: Store) -> None:
    """With a shared store an object is kept beside it, and nothing is pickled into it."""
    cache = ToolResultCache(shared)
    tool = make(_Result("object"))
    for _ in range(2):
        assert cache.call(read, {}, tool) == _Result("object")
    assert tool.runs == 1
    assert shared.sizes() == {}
    other = ToolResultCache(shared)
    other.call(read, {}, tool)
    assert tool.runs == 2


def test_a_codec_takes_objects_to_a_shared_store(read, make, shared: Store) -> None:
    """With a codec another cache on the store finds the object."""

    class ResultCodec:
        def encode(self, result: Any) -> bytes | None:
            return result.text.encode() if isinstance(result, _Result) else None

        def decode(self, data: bytes) -> Any:
            return _Result(data.decode())

    tool = make(_Result("object"))
    for _ in range(2):
        cache = ToolResultCache(shared, ToolCacheOptions(codec=ResultCodec()))
        assert cache.call(read, {}, tool) == _Result("object")
    assert tool.runs == 1


def test_the_observer_hears_of_every_call(read, make) -> None:
    """One event per call with tool, outcome and saved seconds; a failing observer disturbs nothing."""
    heard: list[tuple[str, str, bool]] = []
    cache = ToolResultCache(options=ToolCacheOptions(observe=lambda e: heard.append((e.tool, e.outcome, e.failed))))
    tool = make()
    cache.call(read, {}, tool, conversation="c")
    cache.call(read, {}, tool, conversation="c")
    cache.call(read, {}, tool, conversation="c")
    cache.call(ToolSpec("bash"), {}, tool)
    cache.call(ToolSpec("clock", mutates=False), {}, tool)
    tool.failures = [ValueError()]
    with pytest.raises(ValueError):
        cache.call(read, {"other": 1}, tool)
    assert heard == [
        ("read", "miss", False),
        ("read", "hit", False),
        ("read", "refused", False),
        ("bash", "written", False),
        ("clock", "bypassed", False),
        ("read", "miss", True),
    ]

    def broken(_: object) -> None:
        raise RuntimeError("observer")

    assert ToolResultCache(options=ToolCacheOptions(observe=broken)).call(read, {}, tool) == "content"


@pytest.mark.parametrize(
    ("config", "enabled", "ttl"),
    [
        ({}, True, 300.0),
        ({"ttl_secs": 0}, True, None),
        ({"ttl_secs": 60}, True, 60.0),
        ({"enabled": False}, False, 300.0),
    ],
)
def test_a_configuration_file_may_say_it(config: dict[str, Any], *, enabled: bool, ttl: float | None) -> None:
    """Omitted means enabled and 300 seconds; 0 means never."""
    cache = ToolResultCache.from_config(config)
    assert (cache.enabled, cache.ttl) == (enabled, ttl)


@pytest.mark.parametrize(
    "config", [{"ttl": "soon"} | {"ttl_secs": "soon"}, {"enabled": 1}, {"tll_secs": 5}, {"lease": 0}]
)
def test_a_wrong_configuration_is_refused(config: dict[str, Any]) -> None:
    """A typo is an error at set-up and not a silent default."""
    with pytest.raises(SetupError):
        ToolResultCache.from_config(config)


def test_entries_of_others_in_the_store_are_left_alone(read, tool) -> None:
    """A store may hold other things: clear and the statistics look at the cache's own part."""
    store = MemoryStore()
    store.set("cacheprefix:r:text", b"full result")
    cache = ToolResultCache(store)
    cache.call(read, {}, tool)
    assert cache.stats().total.entries == 1
    assert cache.clear() == 1
    assert store.get("cacheprefix:r:text") == b"full result"


async def test_the_async_form_behaves_the_same(read, make) -> None:
    """Miss, hit, error and copies, and the two forms share entries."""
    cache = ToolResultCache()
    tool = make({"list": [1]})

    async def run() -> Any:
        return tool()

    assert await cache.acall(read, {}, run) == {"list": [1]}
    (await cache.acall(read, {}, run))["list"].append(2)
    assert cache.call(read, {}, tool) == {"list": [1]}
    assert tool.runs == 1
    tool.failures = [KeyError("broken")]
    with pytest.raises(KeyError):
        await cache.acall(read, {"other": 1}, run)
    assert await ToolResultCache(options=ToolCacheOptions(enabled=False)).acall(read, {}, run) == {"list": [1]}


async def test_the_async_form_works_on_shared_stores(read, make, shared: Store) -> None:
    """Files and servers too."""
    cache = ToolResultCache(shared)
    tool = make()

    async def run() -> Any:
        return tool()

    for _ in range(3):
        assert await cache.acall(read, {}, run) == "content"
    assert tool.runs == 1
