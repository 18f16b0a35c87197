"""Calls of stores that block, made from an event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from cacheprefix.stores.effects import Do


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
