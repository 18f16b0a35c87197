"""A session made in an event loop reads no file there, and the detector that says so finds what does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from cacheprefix.stores import SqliteStore
from cacheprefix.toolcache import ToolResultCache, ToolSpec
from tests.blocking import Detector, Hanging

PROGRAM = """
import asyncio, sys, threading
sys.path.insert(0, {root!r})
{imports}
from tests.blocking import Detector
detector = Detector()

async def first():
    return Session()

async def configured():
    return given_or_configured(None)

detector.start()
for make in (first, first, configured):
    asyncio.run(make())
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join()
detector.stop()
print(len(detector.found), *detector.found)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        "from cacheprefix import Session\nfrom cacheprefix.adapter import given_or_configured",
        "from cacheprefix.adapter import given_or_configured\nimport cacheprefix\nSession = cacheprefix.Session",
    ],
)
def test_a_session_made_in_an_event_loop_reads_no_file_there(imports: str, repository: Path) -> None:
    """Entry points, profiles, prices and the nearest configuration are read once, when the module is imported."""
    code = PROGRAM.format(root=str(repository), imports=imports)
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "0"


def test_entry_points_are_read_once_a_process(repository: Path) -> None:
    """Not at every session."""
    code = """
import importlib.metadata as metadata
reads = []
read = metadata.PathDistribution.read_text
metadata.PathDistribution.read_text = lambda self, name: reads.append(name) or read(self, name)
from cacheprefix import Session
Session()
before = len(reads)
for _ in range(3):
    Session()
print(before > 0, len(reads) - before)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "True 0"


async def test_the_detector_finds_what_blocks(blocking_calls: Detector, tmp_path: Path) -> None:
    """A store's call in the event loop is found, one in a thread is not, and what a test asks of a store is its own."""
    store = await asyncio.to_thread(SqliteStore, tmp_path / "store.db")
    cache, read = ToolResultCache(store), ToolSpec("look", cacheable=True)

    async def look() -> str:
        return "seen"

    await cache.acall(read, {}, look)
    store.get("k")
    assert not blocking_calls.found
    cache.call(read, {}, lambda: "seen")
    assert "sqlite.py" in blocking_calls.found[0]
    blocking_calls.found.clear()
    store.close()


async def test_the_hanging_store_knows_an_event_loop() -> None:
    """Its calls are told apart by where they are made."""
    store = Hanging(0)
    await asyncio.to_thread(store.get, "k")
    assert (store.calls, store.in_a_loop) == (["get"], [])
    store.get("k")
    assert len(store.in_a_loop) == 1
