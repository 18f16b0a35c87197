"""Every example runs offline in both layouts, and sharing never costs more."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

NAMES = (
    "memory_extraction",
    "nested",
    "resume",
    "round_robin",
    "selector",
    "side_question",
    "specialists",
    "tools_and_budget",
    "waves",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_offline_in_both_layouts(repository, name):
    """The report of each layout is JSON, and the shared one is the cheaper."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "ANTHROPIC_"))}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    units = {}
    for layout in ("unmodified", "shared"):
        done = subprocess.run(
            [sys.executable, f"examples/autogen/{name}.py", "--layout", layout, "--json"],
            cwd=repository,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)["report"]
        assert report["failures"] == {}
        units[layout] = report["total"]["cost_units"]
    assert units["shared"] < units["unmodified"]
