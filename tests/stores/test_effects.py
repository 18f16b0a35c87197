"""Calls of stores that block, made from an event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from cacheprefix.errors import StoreError
from cacheprefix.stores import Store
from cacheprefix.stores.effects import Do, Within, aside, bounded
from cacheprefix.stores.protocol import is_shared


async def test_a_store_is_asked_where_the_loops_own_threads_are_all_busy():
    """Sync tools may wait in them for the very result that the store's call would deliver."""
    store, busy = SimpleNamespace(blocking=True), threading.Event()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as threads:
        loop.set_default_executor(threads)
        waiting = loop.run_in_executor(None, busy.wait)
        try:
            assert await asyncio.wait_for(Do(store, lambda: "found").later(), 20) == "found"
        finally:
            busy.set()
            await waiting


class Unsaid(Store):
    """A user's own store, derived from the protocol, that says neither whether it blocks nor whether it is shared."""


@pytest.mark.parametrize("store", [Unsaid(), SimpleNamespace()], ids=["derived", "like one"])
async def test_a_store_that_does_not_say_that_it_answers_at_once_is_asked_in_a_thread(store):
    """An event loop would stand still for as long as its server does; and others may read what it keeps."""
    here, told = threading.get_ident(), asyncio.get_running_loop().create_future()
    assert await Do(store, threading.get_ident).later() != here
    aside(store, lambda: told.get_loop().call_soon_threadsafe(told.set_result, threading.get_ident()))
    assert await told != here
    assert is_shared(store)


def run(flow):
    """Do what a flow asks for, in this thread; what it came to, and what it asked for."""
    asked, send, value = [], flow.send, None
    while True:
        try:
            effect = send(value)
        except StopIteration as end:
            return end.value, asked
        asked.append(effect)
        try:
            send, value = flow.send, effect.now() if isinstance(effect, Do) else f"done: {effect}"
        except StoreError as error:
            send, value = flow.throw, error


def test_each_store_call_of_a_bounded_flow_is_limited_and_all_else_goes_through():
    """A server that is asked twice and hangs the second time; the flow itself says what that means."""
    store, hangs, seconds = SimpleNamespace(blocking=True), threading.Event(), iter([20.0, 0.01])

    def flow():
        first = yield Do(store, lambda: "found")
        between = yield "something else"
        try:
            yield Do(store, lambda: hangs.wait(5))
        except StoreError as error:
            return first, between, str(error)
        return None

    found, asked = run(bounded(flow(), lambda: next(seconds)))
    hangs.set()
    assert found == ("found", "done: something else", "the store did not answer within 0.01 s")
    assert [type(one) for one in asked] == [Within, str, Within]


def test_a_bounded_flow_that_is_closed_closes_the_flow_in_it():
    """What it holds is let go, and nothing goes on."""
    ended = []

    def flow():
        try:
            yield Do(SimpleNamespace(blocking=True), list)
        finally:
            ended.append("closed")

    bounds = bounded(flow(), lambda: 1.0)
    next(bounds)
    bounds.close()
    assert ended == ["closed"]
