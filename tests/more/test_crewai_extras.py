"""Each extra of the CrewAI adapter in an environment of its own, with the versions that CrewAI's own extras take."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("", "anthropic", "azure", "bedrock", "gemini", "litellm")


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_alone_brings_what_its_models_need(tmp_path, extra):
    """Installed from the clone as docs/crewai.md says; a crew of three agents sends three forks."""
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    assert uv is not None
    env = tmp_path / "env"
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(env)], check=True)
    python = env / "bin" / "python"
    adapter = f"{ROOT / 'adapters' / 'crewai'}[{extra}]" if extra else str(ROOT / "adapters" / "crewai")
    subprocess.run([uv, "pip", "install", "-q", "--python", str(python), f"{ROOT}[server]", adapter], check=True)
    subprocess.run([uv, "pip", "check", "-q", "--python", str(python)], check=True)
    program = Path(__file__).with_name("crewai_extra.py")
    done = subprocess.run([python, program, extra], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "forks 3" in done.stdout, done.stderr[-2000:]
