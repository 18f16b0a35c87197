"""What all tests share: recorded traces where they are at hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds pyproject.toml."""
    return ROOT


@pytest.fixture(scope="session")
def traces() -> Callable[[str], Path]:
    """``traces("tau_bench")`` is the folder of those recorded runs, or the test is skipped and says why.

    They are not part of the repository: CACHEPREFIX_TRACES names their folder, else ``../shared/traces``.
    """
    base = Path(os.environ.get("CACHEPREFIX_TRACES") or ROOT.parent / "shared" / "traces")

    def folder(name: str) -> Path:
        found = base / name
        if not found.exists():
            pytest.skip(f"no recorded traces {name!r} in {base} (set CACHEPREFIX_TRACES to their folder)")
        return found

    return folder
