"""A forked child kicks off a crew that was installed before the fork; CrewAI's own event bus is the application's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
]


@pytest.mark.parametrize("how", [(), ("later",), ("used",)], ids=["before any kickoff", "akickoff", "after a kickoff"])
def test_children_kick_off_a_crew_that_was_installed_before_the_fork(how):
    """Whatever of ours another thread held at the fork: forks, of the same bytes as each other's and the parent's."""
    command = [sys.executable, "-m", "tests.crewai.prefork", *how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["well"] == [True, True], done.stderr[-3000:]
    first, second, parents = told["sent"]
    assert len(first) > 3
    assert first == second == parents
