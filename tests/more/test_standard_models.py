"""LangChain's standard tests of chat models pass observed and forked where they pass without us."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("langchain_tests", reason="LangChain's standard tests are in the core's environment")

TESTS = Path(__file__).with_name("standard_models.py")
PLUGINS = ("benchmark", "codspeed", "recording", "socket", "syrupy", "cacheprovider")
"""What the package brings, and nothing here uses."""

SETTINGS = """[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = session
asyncio_default_test_loop_scope = session
"""
"""One event loop for all tests of a layer: LangChain shares the clients of its models, which belong to one."""


def outcomes(layer: str, folder: Path) -> tuple[set[str], set[str]]:
    """Names of the tests that pass in a layer, and of those that do not and are not left out."""
    report, settings = folder / f"{layer}.xml", folder / "pytest.ini"
    settings.write_text(SETTINGS, encoding="utf-8")
    without = [part for name in PLUGINS for part in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(settings), *without, f"--junitxml={report}", str(TESTS)]
    environment = {**os.environ, "CACHEPREFIX_LAYER": layer}
    done = subprocess.run(command, env=environment, cwd=TESTS.parents[2], capture_output=True, text=True, check=False)
    assert report.exists(), done.stdout + done.stderr
    passed, failed = set(), set()
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        results = {child.tag for child in case}
        if results & {"failure", "error"}:
            failed.add(name)
        elif "skipped" not in results:
            passed.add(name)
    return passed, failed


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What passes without us."""
    passed, failed = outcomes("plain", tmp_path_factory.mktemp("plain"))
    assert (len(passed) > 100, failed) == (True, set())
    return passed


@pytest.mark.parametrize("layer", ["observed", "forked"])
def test_the_same_standard_tests_pass_plain_observed_and_forked(plain, layer, tmp_path):
    """None fails, and those that are left out are left out without us too."""
    assert outcomes(layer, tmp_path) == (plain, set())
