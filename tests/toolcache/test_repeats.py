"""An agent that repeats itself is told so."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cacheprefix.toolcache import RepeatDetector, ToolCacheOptions, ToolResultCache, ToolSpec, repeat_message


def say(detector: RepeatDetector, *calls: str) -> list[bool]:
    """Whether each of these calls, one after the other, was let through."""
    answers = []
    for call in calls:
        allowed = detector.start(call.encode())
        if allowed:
            detector.finish(call.encode())
        answers.append(allowed)
    return answers


def test_the_third_identical_call_is_refused() -> None:
    """At the threshold and not before, and it stays refused."""
    assert say(RepeatDetector(2), *"aaaa") == [True, True, False, False]
    assert say(RepeatDetector(1), *"aa") == [True, False]
    assert say(RepeatDetector(3), *"aaaa") == [True, True, True, False]


def test_calls_are_counted_apart() -> None:
    """Another call is another count."""
    assert say(RepeatDetector(2), *"abab") == [True] * 4
    assert say(RepeatDetector(2), *"ababa") == [True] * 4 + [False]


def test_the_window_forgets() -> None:
    """After enough other calls an old one does not count any more."""
    assert say(RepeatDetector(2), *"aabcda") == [True] * 6


def test_zero_switches_it_off() -> None:
    """No call is ever refused."""
    assert all(say(RepeatDetector(0), *"a" * 50))


def test_parallel_calls_count_once() -> None:
    """The model has not seen an answer between them."""
    detector = RepeatDetector(2)
    assert [detector.start(b"a") for _ in range(10)] == [True] * 10
    for _ in range(10):
        detector.finish(b"a")
    assert say(detector, *"aa") == [True, False]


def test_a_write_that_the_answer_may_depend_on_starts_again(read, tool) -> None:
    """Reading after every edit is no loop, whoever wrote and however often the same; a loop without any is."""
    cache = ToolResultCache()
    for _ in range(5):
        assert cache.call(read, {"path": "a"}, tool, conversation="c") == "content"
        cache.call(ToolSpec("write"), {"path": "a"}, tool, conversation="another")
    answers = [cache.call(read, {"path": "a"}, tool, conversation="c") for _ in range(3)]
    assert answers == ["content", "content", repeat_message("read", 2)]


def test_hits_count_too(read, tool) -> None:
    """Being answered from the cache does not hide a loop."""
    cache = ToolResultCache()
    answers = [cache.call(read, {"path": "a"}, tool, conversation="c") for _ in range(3)]
    assert answers[:2] == ["content", "content"]
    assert answers[2] == repeat_message("read", 2)
    assert tool.runs == 1
    assert cache.stats().tools["read"].refused == 1


def test_the_message_is_an_error_that_says_what_to_do() -> None:
    """It names tool and count, and begins as errors do."""
    message = repeat_message("read", 2)
    assert message.startswith("[error] Repeated identical call to read")
    assert "2 times" in message
    assert "different" in message


@pytest.mark.parametrize("name", ["x" * 10_000, "ü" * 200, "\U0001f600" * 100, "\ud800", ""])
def test_long_and_odd_names_are_cut_safely(name: str) -> None:
    """On a character's border, at 256 bytes."""
    message = repeat_message(name, 2)
    assert len(message.encode()) < 256 + 250


def test_the_message_can_become_the_frameworks_own_result(read, tool) -> None:
    """Callers wrap it in what their agents expect."""
    cache = ToolResultCache(options=ToolCacheOptions(repeats=1))
    cache.call(read, {}, tool, conversation="c")
    refused: Any = cache.call(read, {}, tool, conversation="c", repeated=lambda text: {"content": text})
    assert refused == {"content": repeat_message("read", 1)}


async def test_the_async_form_refuses_too(read, make) -> None:
    """One count for both forms."""
    cache, tool = ToolResultCache(), make()

    async def run() -> Any:
        return tool()

    await cache.acall(read, {}, run, conversation="c")
    cache.call(read, {}, tool, conversation="c")
    assert await cache.acall(read, {}, run, conversation="c") == repeat_message("read", 2)


@pytest.mark.parametrize("name", ["bash", "next_page", "read"])
def test_tools_that_are_not_declared_cacheable_are_never_refused(make, name) -> None:
    """The next page, a job's state, the same command again: only its author can say that the answer stays the same."""
    cache, tool = ToolResultCache(), make()
    answers = [cache.call(ToolSpec(name), {"query": "x"}, tool, conversation="c") for _ in range(9)]
    assert (answers, tool.runs) == (["content"] * 9, 9)


def test_failed_calls_count(read, make) -> None:
    """A loop of errors is a loop."""
    cache, tool = ToolResultCache(), make()
    tool.failures = [ValueError() for _ in range(5)]
    for _ in range(2):
        with pytest.raises(ValueError):
            cache.call(read, {}, tool, conversation="c")
    assert cache.call(read, {}, tool, conversation="c").startswith("[error]")


def test_conversations_are_counted_apart_and_only_when_named(read, tool) -> None:
    """Three agents that read the same file are no loop, and a caller who names no conversation is not watched."""
    cache = ToolResultCache()
    for who in "abc" * 2:
        assert cache.call(read, {}, tool, conversation=who) == "content"
    for _ in range(5):
        assert cache.call(read, {}, tool) == "content"
    cache.new_turn("a")
    assert cache.call(read, {}, tool, conversation="a") == "content"
    assert cache.call(read, {}, tool, conversation="b").startswith("[error]")


def test_a_new_turn_covers_all_agents_of_a_thread(read, tool) -> None:
    """The user spoke to all of them, and to nobody in another thread."""
    cache = ToolResultCache(options=ToolCacheOptions(repeats=1))
    for who in ("t/a", "t/b", "t", "t2/a"):
        cache.call(read, {}, tool, conversation=who)
    cache.new_turn("t")
    answers = [cache.call(read, {}, tool, conversation=who) for who in ("t/a", "t/b", "t", "t2/a")]
    assert answers == ["content"] * 3 + [repeat_message("read", 1)]


def test_the_threshold_is_configurable(read, tool) -> None:
    """And 0 switches it off."""
    cache = ToolResultCache(options=ToolCacheOptions(repeats=0))
    for _ in range(10):
        assert cache.call(read, {}, tool, conversation="c") == "content"
    cache = ToolResultCache(options=ToolCacheOptions(repeats=4))
    answers = [cache.call(read, {}, tool, conversation="c") for _ in range(5)]
    assert answers.index(repeat_message("read", 4)) == 4


def test_clear_forgets_repeats(read, tool) -> None:
    """A reset conversation begins anew."""
    cache = ToolResultCache()
    for _ in range(2):
        cache.call(read, {}, tool, conversation="c")
    cache.clear()
    assert cache.call(read, {}, tool, conversation="c") == "content"


def test_a_parallel_batch_is_no_loop(read, make) -> None:
    """64 identical calls of one agent at the same time all get the result."""
    cache, tool = ToolResultCache(), make(seconds=0.2)
    gate = threading.Barrier(64)

    def one(_: int) -> Any:
        gate.wait()
        return cache.call(read, {}, tool, conversation="c")

    with ThreadPoolExecutor(64) as pool:
        assert set(pool.map(one, range(64))) == {"content"}


def test_conversations_do_not_pile_up(read, tool) -> None:
    """Only so many are remembered."""
    cache = ToolResultCache()
    for i in range(5_000):
        cache.call(read, {}, tool, conversation=str(i))
    assert len(cache._conversations) <= 4_096
