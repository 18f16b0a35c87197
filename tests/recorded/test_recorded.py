"""What the core's examples send, report and print is what is recorded; ``make test-more`` looks at all programs."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DECIDING = (
    "anthropic", "deepagents", "langchain", "langchain-anthropic", "langchain-core", "langchain-openai", "langgraph",
    "openai",
)  # fmt: skip
"""Packages whose texts or forms are part of what is sent."""


def test_programs_send_report_and_print_what_is_recorded():
    """Section by section of each request; where a change is meant, ``make net ARGS=--write`` records it."""
    lines = (ROOT / "constraints" / "langgraph.txt").read_text("utf-8").splitlines()
    pins = dict(line.strip().split("==") for line in lines if "==" in line)
    for package in DECIDING:
        try:
            found = version(package)
        except PackageNotFoundError:
            continue
        if package in pins and pins[package] != found:
            pytest.skip(f"recorded with {package} {pins[package]}, and {found} is installed")
    command = [sys.executable, "-m", "tests.recorded", "core", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-4_000:]
