"""Tools that count their runs, a clock in the test's hand, and a server for shared stores."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cacheprefix.stores import RedisStore, SqliteStore, Store
from cacheprefix.toolcache import ToolSpec

READ = ToolSpec("read", cacheable=True, version="1")


class Tool:
    """A tool that counts its runs and may take a while or fail."""

    def __init__(self, result: Any = "content", *, seconds: float = 0.0) -> None:
        self.result = result
        self.seconds = seconds
        self.runs = 0
        self.failures: list[BaseException] = []
        self._lock = threading.Lock()

    def __call__(self) -> Any:
        with self._lock:
            self.runs += 1
            error = self.failures.pop(0) if self.failures else None
        time.sleep(self.seconds)
        if error is not None:
            raise error
        return self.result


class Hand:
    """A clock that moves when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def read() -> ToolSpec:
    """A tool of the ready-made allow list."""
    return READ


@pytest.fixture
def make() -> type[Tool]:
    """``make(result, seconds=…)`` is a counting tool."""
    return Tool


@pytest.fixture
def tool() -> Tool:
    """A counting tool that answers at once."""
    return Tool()


@pytest.fixture
def clock() -> Hand:
    """A steady clock in the test's hand."""
    return Hand()


@pytest.fixture
def shared(where: str) -> Iterator[Store]:
    """A shared store, open."""
    store: Store = RedisStore(where) if where.startswith("redis") else SqliteStore(where)
    yield store
    store.close()
