"""The three stores, the server for one of them, and a clock that tests may turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cacheprefix.stores import MemoryStore, RedisStore, SqliteStore, Store


class Hand:
    """A clock that moves when a test says so."""

    def __init__(self, seconds: float = 1_000.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Hand:
    """A steady clock in the test's hand."""
    return Hand()


@pytest.fixture
def wall() -> Hand:
    """A wall clock in the test's hand."""
    return Hand(1_700_000_000.0)


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each store in turn, empty."""
    made: Store
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "sqlite":
        made = SqliteStore(tmp_path / "store.db")
    else:
        made = RedisStore(request.getfixturevalue("valkey").url)
        made._client.flushall()
    yield made
    made.close()


@pytest.fixture
def turned(tmp_path: Path, clock: Hand, wall: Hand) -> Iterator[Callable[[str], Store]]:
    """``turned("memory" | "sqlite")`` makes a store whose clocks are in the test's hand."""
    made: list[Store] = []

    def make(kind: str) -> Store:
        if kind == "memory":
            made.append(MemoryStore(clock=clock))
        else:
            made.append(SqliteStore(tmp_path / "turned.db", clock=clock, wall=wall))
        return made[-1]

    yield make
    for each in made:
        each.close()
