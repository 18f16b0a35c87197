"""Calls in two halves, for frameworks with a hook before and a hook after the tool."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Any

import pytest

from cacheprefix.stores import Store
from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec, repeat_message
from tests.blocking import Hanging


def test_the_first_runs_and_the_second_is_answered(read) -> None:
    """Finish keeps the result; the next attempt has it."""
    cache = ToolResultCache()
    first = cache.begin(read, {"path": "a"})
    assert not first.answered
    first.finish("content")
    assert first.outcome == "miss"
    second = cache.begin(read, {"path": "a"})
    assert (second.answered, second.outcome, second.result) == (True, "hit", "content")
    assert (cache.stats().total.hits, cache.stats().total.misses) == (1, 1)


def test_both_forms_share_entries_and_flights(read, make, shared: Store) -> None:
    """A call waits for an attempt's end and gets its result."""
    cache, tool = ToolResultCache(shared), make("of the call")
    attempt = cache.begin(read, {})
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(cache.call(read, {}, tool)))
    thread.start()
    time.sleep(0.05)
    attempt.finish("of the attempt")
    thread.join(10)
    assert answers == ["of the attempt"]
    assert tool.runs == 0


@pytest.mark.slow
@pytest.mark.parametrize("end", ["fail", "drop"])
def test_a_failed_or_forgotten_attempt_releases_the_rest(read, make, shared: Store, end: str) -> None:
    """Nothing is kept, and who waits runs the tool; the store's lease is given back."""
    cache, tool = ToolResultCache(shared, ToolCacheOptions(lease=20)), make()
    attempt = cache.begin(read, {})
    thread = threading.Thread(target=cache.call, args=(read, {}, tool))
    thread.start()
    time.sleep(0.05)
    if end == "fail":
        attempt.fail(ValueError("broken"))
    del attempt
    gc.collect()
    began = time.monotonic()
    thread.join(20)
    assert time.monotonic() - began < 5
    assert tool.runs == 1
    assert ToolResultCache(shared, ToolCacheOptions(lease=20)).call(read, {}, tool) == "content"
    assert tool.runs == 1


@pytest.mark.slow
def test_writes_outdate_when_they_end_and_when_they_are_forgotten(read, make) -> None:
    """The second half of a write that never came counts as one that did."""
    cache, tool = ToolResultCache(), make()
    for end in ("finish", "fail", "drop"):
        cache.call(read, {}, tool)
        before = tool.runs
        write = cache.begin(ToolSpec("write"), {"path": "/a"})
        cache.call(read, {}, tool)
        if end == "finish":
            write.finish("ok")
        elif end == "fail":
            write.fail()
        del write
        gc.collect()
        cache.call(read, {}, tool)
        assert tool.runs == before + 2


def test_repeats_are_refused(read) -> None:
    """The message is the result."""
    cache = ToolResultCache()
    for _ in range(2):
        attempt = cache.begin(read, {}, conversation="c")
        if not attempt.answered:
            attempt.finish("content")
    refused = cache.begin(read, {}, conversation="c")
    assert refused.answered
    assert refused.outcome == "refused"
    assert refused.result == repeat_message("read", 2)


def test_a_disabled_cache_answers_nothing(read) -> None:
    """The tool runs, and ending the attempt does nothing."""
    cache = ToolResultCache(options=ToolCacheOptions(enabled=False))
    for _ in range(3):
        attempt = cache.begin(read, {}, conversation="c")
        assert not attempt.answered
        attempt.finish("content")
    assert cache.stats().total.misses == 0


def test_ending_twice_is_harmless(read) -> None:
    """The first end counts."""
    cache = ToolResultCache()
    attempt = cache.begin(read, {})
    attempt.finish("first")
    attempt.finish("second")
    attempt.fail()
    assert cache.begin(read, {}).result == "first"


def test_the_same_thread_does_not_wait_for_its_own_attempt(read, tool) -> None:
    """Who began a call and makes it again before its end runs the tool."""
    cache = ToolResultCache(options=ToolCacheOptions(lease=20))
    attempt = cache.begin(read, {})
    began = time.monotonic()
    assert cache.call(read, {}, tool) == "content"
    assert time.monotonic() - began < 5
    attempt.finish("content")


async def test_in_an_event_loop_a_blocking_store_is_not_waited_for(tool) -> None:
    """Who cannot wait runs the tool; what a write changed is told to the store all the same."""
    store = Hanging()
    cache = ToolResultCache(store)
    read = ToolSpec("look", cacheable=True, version="1")

    def look() -> Any:
        return cache.call(read, {}, tool)

    for _ in range(2):
        await asyncio.to_thread(look)
    assert tool.runs == 1
    attempt = cache.begin(read, {})
    assert not attempt.answered
    attempt.finish("anything")
    cache.begin(ToolSpec("note"), {}).finish("written")
    while store.calls.count("bump") < 1:  # noqa: ASYNC110 - a thread's doing
        await asyncio.sleep(0.01)
    for _ in range(300):  # until the store has done what it was told
        await asyncio.to_thread(look)
        if tool.runs == 2:
            break
        await asyncio.sleep(0.01)
    assert tool.runs == 2
    assert not store.in_a_loop


async def test_in_an_event_loop_a_call_of_another_thread_is_not_waited_for(make) -> None:
    """Who would block the loop runs the tool beside the one that runs already."""
    slow, began, end = make("slow"), threading.Event(), threading.Event()

    def run() -> Any:
        began.set()
        end.wait(30)
        return slow()

    cache = ToolResultCache()
    read = ToolSpec("look", cacheable=True, version="1")
    elsewhere = asyncio.create_task(asyncio.to_thread(cache.call, read, {}, run))
    await asyncio.to_thread(began.wait, 30)
    timer = threading.Timer(5, end.set)
    timer.start()
    attempt = cache.begin(read, {})
    assert not attempt.answered
    assert not end.is_set()
    timer.cancel()
    end.set()
    assert await elsewhere == "slow"
