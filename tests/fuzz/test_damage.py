"""Damaged requests, usages and logs: no crash, no hang, typed errors only."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from checks import check_body, check_log
from damage import BODIES, USAGES, damaged, log_bytes, torn
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawn import examples

SEEDS = st.integers(0, 2**32)


@settings(max_examples=examples(150), deadline=None)
@given(api=st.sampled_from(sorted(BODIES)), seed=SEEDS)
def test_a_damaged_body_is_read_or_refused(api, seed):
    """What is read can be written again, marked and judged; what is not is refused by a typed error."""
    check_body(damaged(BODIES[api], seed), api, USAGES[api])


@settings(max_examples=examples(100), deadline=None)
@given(api=st.sampled_from(sorted(BODIES)), seed=SEEDS)
def test_a_damaged_usage_is_no_reason_to_fail(api, seed):
    """A provider that reports nonsense costs its report and no more."""
    check_body(BODIES[api], api, damaged({"usage": USAGES[api]}, seed).get("usage"))


@settings(max_examples=examples(60), deadline=None)
@given(seed=SEEDS)
def test_a_torn_log_is_read_as_far_as_it_goes(tmp_path_factory, seed):
    """Changed, missing and repeated bytes break lines, never the audit."""
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    path.write_bytes(torn(log_bytes(), seed))
    check_log(path)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed (make fuzz does)")
def test_a_guided_fuzzer_finds_nothing_in_a_few_seconds(tmp_path):
    """Coverage-guided bytes through the same checks; make fuzz runs it for longer."""
    fuzzer = Path(__file__).parent / "fuzz_bytes.py"
    done = subprocess.run(
        [sys.executable, str(fuzzer), "-max_total_time=5", "-timeout=10", f"-artifact_prefix={tmp_path}/"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
