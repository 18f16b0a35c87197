"""Every example runs offline in both layouts, and sharing never costs more."""

from __future__ import annotations

import json
import os
import runpy
import sys

import pytest

from cacheprefix.profiles import default_registry
from cacheprefix.server import Echo

NAMES = (
    "core_agents",
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_workers_of_the_grpc_runtime_share_a_prefix_across_processes(repository, provide, monkeypatch, capsys):
    """Two processes answer behind one planner; of their three requests the later two read what the first wrote."""
    folder = repository / "examples" / "autogen"
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "_run", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    provider = provide("openai", Echo())
    monkeypatch.setenv("OPENAI_BASE_URL", provider.openai_base_url)
    monkeypatch.setattr(sys, "argv", ["grpc_workers", "--layout", "shared", "--json"])
    runpy.run_path(str(folder / "grpc_workers.py"), run_name="__main__")
    said = json.loads(capsys.readouterr().out)
    assert said["report"]["failures"] == {}
    assert [line.partition(":")[0] for line in said["answer"].splitlines() if ": " in line][:1] == ["critic"]
    assert len(provider.requests) == 3
    spent = sum(one.outcome.cost_units(default_registry().get("openai")) for one in provider.requests)
    assert spent < 0.8 * sum(one.prompt.tokens for one in provider.requests)
