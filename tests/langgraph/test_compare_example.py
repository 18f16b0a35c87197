"""The scripted evaluation of the example compares a LangGraph team on both layouts."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

from cacheprefix import cli


@pytest.fixture
def example(repository, monkeypatch):
    """The example as a module, with six tasks and the scripted model."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    path = repository / "examples" / "compare" / "scripted_tasks.py"
    spec = importlib.util.spec_from_file_location("scripted_tasks", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "scripted_tasks", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "TASKS", module.TASKS[:6])
    return module


def test_the_example_shows_that_the_shared_layout_is_as_good(example, capsys):
    """Both layouts solve the tasks but for the script's slips, and the shared one reads more."""
    assert cli.main(["compare", "--json", "scripted_tasks:evaluate"]) == 0
    found = json.loads(capsys.readouterr().out)
    plain, shared = found["layouts"]["unmodified"], found["layouts"]["shared"]
    assert plain["calls"] == shared["calls"] == 12
    assert min(plain["quality"]["value"], shared["quality"]["value"]) > 0.6
    assert shared["cached_share"] > plain["cached_share"]
    assert found["cost_ratio"]["value"] < 1
    assert plain["failures"] == shared["failures"] == 0


def test_the_example_runs_one_layout_alone(example, monkeypatch, capsys):
    """As every example does, with ``--layout`` and ``--json``."""
    monkeypatch.setattr(example, "TASKS", example.TASKS[:2])
    monkeypatch.setattr(sys, "argv", ["scripted_tasks.py", "--layout", "unmodified", "--json"])
    example.main()
    found = json.loads(capsys.readouterr().out)
    assert found["layout"] == "unmodified"
    assert found["calls"] == 4
