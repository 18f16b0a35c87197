"""Every example runs offline in both layouts, and sharing never costs more."""

from __future__ import annotations

import json
import runpy
import sys

import pytest

NAMES = (
    "memory_extraction",
    "nested",
    "resume",
    "round_robin",
    "selector",
    "side_question",
    "specialists",
    "tools_and_budget",
    "waves",
)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_offline_in_both_layouts(repository, monkeypatch, capsys, name):
    """The report of each layout is JSON, and the shared one is the cheaper."""
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "MODEL"):
        monkeypatch.delenv(variable, raising=False)
    folder = repository / "examples" / "autogen"
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "_run", raising=False)
    units = {}
    for layout in ("unmodified", "shared"):
        monkeypatch.setattr(sys, "argv", [name, "--layout", layout, "--json"])
        runpy.run_path(str(folder / f"{name}.py"), run_name="__main__")
        report = json.loads(capsys.readouterr().out)["report"]
        assert report["failures"] == {}
        units[layout] = report["total"]["cost_units"]
    assert units["shared"] < units["unmodified"]
