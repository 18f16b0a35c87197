"""Calls of stores that block, made from an event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from cacheprefix.stores import Store
from cacheprefix.stores.effects import Do, aside
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
