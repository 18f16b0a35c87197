"""Every example runs offline and quietly in both layouts, and sharing never costs more."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "crewai"
NAMES = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))
VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "MODEL")


@pytest.fixture
def started(monkeypatch, capfd):
    """``started(name, *arguments)`` runs an example as a script; its JSON."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.syspath_prepend(str(FOLDER))

    def start(name: str, *arguments: str):
        monkeypatch.delitem(sys.modules, "_run", raising=False)
        monkeypatch.setattr(sys, "argv", [name, "--json", *arguments])
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        said = capfd.readouterr()
        assert said.err == ""
        return json.loads(said.out)

    return start


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_offline_in_both_layouts(started, name) -> None:
    """Nothing but the JSON is printed, nothing fails, and the shared layout is the cheaper one."""
    plain, shared = (started(name, "--layout", layout) for layout in ("unmodified", "shared"))
    assert plain["result"]
    assert shared["result"]
    assert shared["report"]["failures"] == {}
    if name == "long_task":  # what it is for is the window; at a tenth of the price old results cost little
        assert shared["compacted"] >= 1
        assert shared["largest_request"] < 0.8 * plain["largest_request"]
        return
    assert shared["report"]["total"]["cost_units"] < plain["report"]["total"]["cost_units"]


def test_an_example_asks_the_server_it_is_told_to(started, servers, monkeypatch) -> None:
    """Base URLs from the environment are honoured, streaming too, for both providers."""
    for api in ("openai", "anthropic"):
        provider = servers(api)
        url = provider.openai_base_url if api == "openai" else provider.anthropic_base_url
        monkeypatch.setenv(f"{api.upper()}_BASE_URL", url)
        monkeypatch.setenv(f"{api.upper()}_API_KEY", "any")
        started("sequential", "--api", api, "--stream")
        assert len(provider.requests) == 3
        assert all(record.json["stream"] for record in provider.requests)
