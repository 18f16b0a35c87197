"""`cacheprefix profiles`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

typer = pytest.importorskip("typer", reason="needs the extra cli, which make test installs")


@pytest.fixture
def run():
    """The command, run in this process."""
    from typer.testing import CliRunner

    from cacheprefix.cli.commands.profiles import register

    app = typer.Typer()
    register(app)
    app.callback()(lambda: None)
    return lambda *arguments: CliRunner().invoke(app, ["profiles", *arguments], env={"COLUMNS": "140"})


def test_without_a_model_all_rows_are_listed(run):
    """One line a row."""
    result = run()
    assert result.exit_code == 0
    for row in ("anthropic", "openai-5.6-prefix", "llama.cpp", "unknown"):
        assert row in result.output


def test_a_model_shows_the_values_in_force_with_their_sources(run):
    """Value, date, confidence and source of every rule."""
    result = run("claude-opus-5-5")
    assert result.exit_code == 0
    for said in ("claude-opus-5-5 -> anthropic", "512", "0.05", "2026-11-21", "anthropics/skills"):
        assert said in result.output


def test_json_names_value_source_date_and_confidence_of_every_rule(run):
    """The same as data."""
    data = json.loads(run("gpt-5.6", "--json").output)
    assert data["profile"] == "openai-5.6"
    assert data["rules"]["implicit_reads"]["confidence"] == "contested"
    for rule in data["rules"].values():
        assert rule.keys() == {"value", "source", "checked_on", "confidence", "note"}
    assert data["price"]["input_usd_per_mtok"] == 4.0


def test_all_rows_as_json(run):
    """Infinity, which JSON lacks, is said in words."""
    data = json.loads(run("--json").output)
    exact = next(row for row in data["profiles"] if row["profile"] == "exact")
    assert exact["rules"]["ttls"]["value"][0]["seconds"] == "for ever"


def test_a_row_is_shown_by_its_name(run):
    """`--provider` takes a row's name without a model."""
    data = json.loads(run("--provider", "vllm", "--json").output)
    assert (data["profile"], data["rules"]["block_tokens"]["value"]) == ("vllm", 16)


def test_an_unknown_model_is_said_so(run):
    """The stand-in row, and a note that it is one."""
    result = run("frontier-9")
    assert result.exit_code == 0
    assert "no cache profile for model 'frontier-9'" in result.output
    assert "unknown" in result.output


def test_a_file_of_ones_own_is_taken_in(run, tmp_path):
    """`--file` adds rows, and a malformed one ends with its message and code 2."""
    path = tmp_path / "mine.toml"
    path.write_text('[[profile]]\nname = "anthropic"\nread = 0.07\nsource = "contract"\n'
                    'checked_on = 2026-11-20\nconfidence = "high"\n')  # fmt: skip
    data = json.loads(run("claude-opus-5", "--json", "-f", str(path)).output)
    assert (data["rules"]["read"]["value"], data["rules"]["read"]["source"]) == (0.07, "contract")
    path.write_text('[[profile]]\nname = "anthropic"\nread = "cheap"\nsource = "x"\n'
                    'checked_on = 2026-11-20\nconfidence = "high"\n')  # fmt: skip
    result = run("claude-opus-5", "-f", str(path))
    assert result.exit_code == 2
    assert "key 'read'" in result.output


def test_rows_of_plugins_are_shown(run, monkeypatch):
    """The row in force may come from the profiles hook of an installed plugin."""
    import dataclasses

    import cacheprefix
    from cacheprefix.plugins import Plugins
    from cacheprefix.profiles import default_registry

    class Contract:
        @cacheprefix.hookimpl
        def cacheprefix_profiles(self, register):
            row = default_registry().get("openai")
            register(dataclasses.replace(row, name="contract", models=("gpt-5",), read=0.03))

    original = Plugins.with_builtins

    def with_contract(*arguments, **options):
        plugins = original(*arguments, **options)
        plugins.register(Contract())
        return plugins

    monkeypatch.setattr(Plugins, "with_builtins", with_contract)
    assert json.loads(run("gpt-5", "--json").output)["rules"]["read"]["value"] == 0.03


PAGE = Path(__file__).parents[2] / "docs" / "profiles.md"


def test_the_page_shows_the_rows_that_ship(run):
    """Its table is what the command prints, so that it never tells of other rules than those in force."""
    assert PAGE.read_text("utf-8").endswith(run("--markdown").output)


def test_the_pages_example_of_rows_of_ones_own_is_one(tmp_path, run):
    """It loads, changes the row it names, and adds one that is found by its provider."""
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    path = tmp_path / "mine.toml"
    path.write_text(example, "utf-8")
    changed = json.loads(run("gpt-5.1", "--file", str(path), "--json").output)["rules"]
    assert (changed["read"]["value"], changed["read"]["source"]) == (0.25, "our agreement of 2026-10-01")
    assert changed["block_tokens"]["value"] == 128
    added = json.loads(run("tiny-1", "--provider", "my-proxy", "--file", str(path), "--json").output)
    assert (added["profile"], added["rules"]["min_tokens"]["value"]) == ("my-proxy", 64)
