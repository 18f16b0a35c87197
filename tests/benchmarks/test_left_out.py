"""Benchmarks without their recorded data say where it is to be had, fetch nothing, and end with a code of their own."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["traces", "compaction"])
def test_a_benchmark_without_its_data_says_where_it_is_to_be_had(tmp_path, name):
    """By repository, commit and folder; 77 is neither success nor failure."""
    environment = {**os.environ, "CACHEPREFIX_TRACES": str(tmp_path / "absent")}
    command = [sys.executable, "-m", f"benchmarks.bench_{name}"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (77, "")
    for origin in ("lmcache-agent-trace at 16a14ad", "sierra-research/tau-bench at 59a200c", "CACHEPREFIX_TRACES"):
        assert origin in ran.stderr
