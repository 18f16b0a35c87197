"""LangChain's standard tests of chat models pass observed and forked where they pass without us."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("langchain_tests", reason="LangChain's standard tests are in the core's environment")

TESTS = Path(__file__).with_name("standard_models.py")
PLUGINS = ("benchmark", "codspeed", "recording", "socket", "syrupy", "cacheprovider")
"""What the package brings, and nothing here uses."""


def passed(layer: str, folder: Path) -> set[str]:
    """Names of the tests that pass in a layer."""
    report, settings = folder / f"{layer}.xml", folder / "pytest.ini"
    settings.write_text("[pytest]\nasyncio_mode = auto\n", encoding="utf-8")
    without = [part for name in PLUGINS for part in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(settings), *without, f"--junitxml={report}", str(TESTS)]
    environment = {**os.environ, "CACHEPREFIX_LAYER": layer}
    done = subprocess.run(command, env=environment, cwd=TESTS.parents[2], capture_output=True, text=True, check=False)
    assert report.exists(), done.stdout + done.stderr
    cases = ET.parse(report).iter("testcase")
    return {f"{case.get('classname')}.{case.get('name')}" for case in cases if not len(case)}


def test_the_same_standard_tests_pass_plain_observed_and_forked(tmp_path):
    """The sets are equal, and most of the tests are in them."""
    layers = ("plain", "observed", "forked")
    with ThreadPoolExecutor(len(layers)) as pool:
        plain, observed, forked = pool.map(lambda layer: passed(layer, tmp_path), layers)
    assert len(plain) > 60
    assert (plain - observed, observed - plain) == (set(), set())
    assert (plain - forked, forked - plain) == (set(), set())
