"""The example runs offline in both layouts, and sharing costs less."""

from __future__ import annotations

import json
import runpy
import sys

import pytest

PATTERNS = [("sequential", "anthropic"), ("concurrent", "openai")]


@pytest.mark.parametrize(("pattern", "api"), PATTERNS)
def test_the_example_runs_offline_in_both_layouts(repository, monkeypatch, capsys, pattern, api):
    """The report of each layout is JSON, and the shared one is the cheaper."""
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "MODEL"):
        monkeypatch.delenv(variable, raising=False)
    units = {}
    for layout in ("unmodified", "shared"):
        monkeypatch.setattr(sys, "argv", ["team", "--layout", layout, "--pattern", pattern, "--api", api, "--json"])
        runpy.run_path(str(repository / "examples" / "maf" / "team.py"), run_name="__main__")
        report = json.loads(capsys.readouterr().out)["report"]
        assert report["failures"] == {}
        units[layout] = report["total"]["cost_units"]
    assert units["shared"] < units["unmodified"] * 0.7
