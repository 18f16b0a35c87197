"""All that programs send, report and print, in every environment, is what is recorded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The slowest first, so that two of them side by side end together.
ENVIRONMENTS = ("crewai", "core", "autogen", "maf", "ag2", "litellm", "openai_agents")


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_every_scripted_program_does_what_is_recorded(environment):
    """Examples, tutorials, the demonstration and the benchmarks; ``make net ARGS=--write`` records what is meant."""
    python = Path(sys.executable) if environment == "core" else ROOT / f".venv-{environment}" / "bin" / "python"
    assert python.exists(), f"no environment {environment}: make test-more makes them all"
    command = [str(python), "-m", "tests.recorded", environment]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
