"""Fixtures for tests in which garbage must not be collected at any moment."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def by_hand() -> Iterator[None]:
    """Garbage is collected between tests and at no other time.

    LiteLLM keeps a stream in a circle of references, ours or not. Where the collector comes upon it while the same
    thread holds the lock of httpcore's pool, closing the stream waits for that lock for ever.
    """
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.fixture(autouse=True)
def collected(by_hand: None) -> Iterator[None]:
    """What a test has left is gone before the next one."""
    yield
    gc.collect()
