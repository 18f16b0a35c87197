"""What the processes of one run tell each other, and the order of the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.transparent.harness import Constructs


@pytest.fixture(scope="session", autouse=True)
def notes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder that all workers have, for what a construct has shown in one of them."""
    own = tmp_path_factory.getbasetemp()
    Constructs.notes = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "transparent"
    Constructs.notes.mkdir(exist_ok=True)
    yield
    Constructs.notes = None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The lists of differences are looked through last, when every construct was run by some worker.

    What is about requests that providers refuse sends such.
    """
    for item in items:
        if any(one in item.name for one in ("that_ask_nothing", "refused_for", "that_a_model_refuses")):
            item.add_marker("invalid_requests")
    items.sort(key=lambda item: item.name.startswith("test_each_listed_difference_is_there"))
