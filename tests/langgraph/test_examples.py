"""Every LangGraph example runs offline in both layouts, and sharing never costs more."""

from __future__ import annotations

import json
import runpy
import sys

import pytest

NAMES = (
    "agent_middleware",
    "compaction",
    "dag",
    "deep_agents",
    "human_in_the_loop",
    "memory",
    "send_fan_out",
    "side_question",
    "supervisor",
    "swarm",
    "team",
    "volatile_context",
)

pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
"""langgraph-supervisor still calls LangGraph's older function."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_offline_in_both_layouts(repository, monkeypatch, capsys, name):
    """The report of each layout is JSON, and the shared one is the cheaper."""
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "MODEL"):
        monkeypatch.delenv(variable, raising=False)
    folder = repository / "examples" / "langgraph"
    monkeypatch.syspath_prepend(str(folder))
    for module in ("_run", "_rows", "_workers"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    units = {}
    for layout in ("unmodified", "shared"):
        monkeypatch.setattr(sys, "argv", [name, "--layout", layout, "--json"])
        runpy.run_path(str(folder / f"{name}.py"), run_name="__main__")
        said = json.loads(capsys.readouterr().out)
        assert said["answer"]
        assert said["report"]["failures"] == {}
        units[layout] = said["report"]["total"]["cost_units"]
    assert units["shared"] < units["unmodified"]


def test_every_example_of_the_folder_is_run():
    """A new file has to be named above; the code review has a test of its own, with the demonstration."""
    from pathlib import Path

    folder = Path(__file__).parents[2] / "examples" / "langgraph"
    found = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    assert found == {*NAMES, "code_review"}
