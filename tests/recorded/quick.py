"""What ``make test`` looks at: the examples and tutorials of one environment, run as their reader runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PINS = {"core": "langgraph", **{name: name for name in ("autogen", "crewai", "maf", "ag2", "litellm", "openai_agents")}}
DECIDING = (
    "ag2",
    "agent-framework-core",
    "agent-framework-openai",
    "anthropic",
    "autogen-agentchat",
    "autogen-core",
    "autogen-ext",
    "crewai",
    "deepagents",
    "langchain",
    "langchain-anthropic",
    "langchain-core",
    "langchain-openai",
    "langgraph",
    "litellm",
    "openai",
    "openai-agents",
)
"""Packages whose texts or forms are part of what is sent."""


def differences(environment: str) -> str:
    """What the quick workloads of an environment do otherwise than recorded, a sentence each; empty for nothing.

    Skips where a framework is another version than the tested one: it words its own prompts.
    """
    pins = dict(
        line.strip().split("==")
        for line in (ROOT / "constraints" / f"{PINS[environment]}.txt").read_text("utf-8").splitlines()
        if "==" in line
    )
    for package in DECIDING:
        try:
            found = version(package)
        except PackageNotFoundError:
            continue
        if package in pins and pins[package] != found:
            pytest.skip(f"recorded with {package} {pins[package]}, and {found} is installed")
    command = [sys.executable, "-m", "tests.recorded", environment, "--quick"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=600, check=False)
    said = done.stdout.strip().splitlines()
    if done.returncode == 0 and said:
        return ""
    return "\n".join(said) if done.returncode == 1 and said else done.stderr[-4000:]
