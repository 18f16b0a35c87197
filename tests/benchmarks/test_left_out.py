"""Benchmarks without their recorded data say where it is to be had, fetch nothing, and end with a code of their own."""

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("at_hand", [None, "mooncake/conversation_trace.jsonl.gz", "tau_bench/gpt-4o-airline.json.gz"])
@pytest.mark.parametrize("name", ["traces", "compaction"])
def test_a_benchmark_without_its_data_says_where_it_is_to_be_had(tmp_path, name, at_hand):
    """By repository, commit and folder, also where some of it is at hand; 77 is neither success nor failure."""
    if at_hand:
        (tmp_path / at_hand).parent.mkdir()
        (tmp_path / at_hand).write_bytes(b"")
    environment = {**os.environ, "CACHEPREFIX_TRACES": str(tmp_path if at_hand else tmp_path / "absent")}
    command = [sys.executable, "-m", f"benchmarks.bench_{name}"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (77, "")
    for origin in ("lmcache-agent-trace at 16a14ad", "sierra-research/tau-bench at 59a200c", "CACHEPREFIX_TRACES"):
        assert origin in ran.stderr
    needed = ran.stderr.splitlines()[0]
    assert "who_and_when/Hand-Crafted.json.gz" in needed
    assert ("tau_bench/gpt-4o-airline.json.gz" in needed) is (at_hand != "tau_bench/gpt-4o-airline.json.gz")
