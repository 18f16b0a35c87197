"""The pytest plugin that the entry point ``cacheprefix`` loads. Costs an import of this file until a test uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cacheprefix.testing.recorder import PrefixRecorder
    from cacheprefix.testing.snapshot import PrefixSnapshot

OPTION = "--cacheprefix-update"
_WRITTEN = pytest.StashKey[list[Path]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--cacheprefix-update``."""
    group = parser.getgroup("cacheprefix", "prompt prefixes")
    group.addoption(OPTION, action="store_true", default=False, help="write the snapshots of prompt prefixes anew")


@pytest.fixture
def prefix_recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[PrefixRecorder]:
    """Record the prompts that a test sends: every model request over httpx, a session's, or a simulated provider's."""
    from cacheprefix.testing.recorder import PrefixRecorder

    recorder = PrefixRecorder(setenv=monkeypatch.setenv)
    with recorder:
        yield recorder


@pytest.fixture
def prefix_snapshot(request: pytest.FixtureRequest) -> PrefixSnapshot:
    """Compare a frozen prefix with the one committed beside the test; ``--cacheprefix-update`` writes it."""
    from cacheprefix.testing.snapshot import PrefixSnapshot

    written = request.config.stash.setdefault(_WRITTEN, [])
    return PrefixSnapshot(
        request.path.parent / "__cacheprefix__" / request.path.stem,
        request.node.name,
        update=bool(request.config.getoption(OPTION)),
        on_write=written.append,
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the snapshots that were written."""
    for path in config.stash.get(_WRITTEN, []):
        terminalreporter.write_line(f"cacheprefix: wrote {path}")
