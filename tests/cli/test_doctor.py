"""``cacheprefix doctor`` tells what is there, what is missing, and what does not fit."""

from __future__ import annotations

import importlib.metadata
import platform

import orjson
import pytest

from cacheprefix import cli
from cacheprefix._version import __version__
from cacheprefix.cli.commands import doctor
from cacheprefix.plugins import Plugins


@pytest.fixture(autouse=True)
def _own_plugins(monkeypatch):
    """Leave out what happens to be installed here."""
    monkeypatch.setattr(Plugins, "with_builtins", lambda: Plugins(discover=False))


@pytest.fixture
def versions(monkeypatch):
    """Pretend: ``versions(redis=None, starlette="0.1")``."""
    really = doctor.versions.installed

    def pretend(**found):
        monkeypatch.setattr(doctor.versions, "installed", lambda name: found.get(name, really(name)))

    return pretend


def _doctor_says(capsys):
    code = cli.main(["doctor", "--json"])
    return code, orjson.loads(capsys.readouterr().out)


def _part(found, kind, name):
    return next(part for part in found[kind] if part["name"] == name)


def test_versions_are_shown(capsys):
    """Of cacheprefix, of Python and of each package of an extra."""
    _, found = _doctor_says(capsys)
    assert found["cacheprefix"] == __version__
    assert found["python"] == platform.python_version()
    packages = _part(found, "extras", "cli")["packages"]
    assert {item["name"]: item["found"] for item in packages}["typer"] == importlib.metadata.version("typer")


def test_every_extra_of_the_core_is_shown():
    """An extra that is added to the project shows up here."""
    declared = set(importlib.metadata.metadata("cacheprefix").get_all("Provides-Extra"))
    for_developers = {"all", "bench", "dev", "docs", "notebooks", "prefork", "release", "standard", "test"}
    assert declared - for_developers == set(doctor._OWN_EXTRAS) | set(doctor._ADAPTERS)


def test_a_missing_extra_comes_with_its_install_line(versions, capsys):
    """And is no problem by itself."""
    versions(redis=None)
    code, found = _doctor_says(capsys)
    part = _part(found, "extras", "redis")
    assert not part["installed"]
    assert part["install"] == 'pip install "cacheprefix[redis]"'
    assert not [text for text in found["problems"] if "redis" in text]
    assert code == 0


def test_a_version_outside_the_range_is_a_problem(versions, capsys):
    """It is named with the range, and the exit code says so."""
    versions(starlette="0.1.0")
    code, found = _doctor_says(capsys)
    assert code == 1
    assert found["problems"] == ["starlette 0.1.0, supported is >=0.40"]


def test_a_missing_framework_of_an_installed_adapter_is_a_problem(versions, capsys, monkeypatch):
    """The adapter alone cannot work."""
    requirement = __import__("packaging.requirements").requirements.Requirement("crewai>=1.15,<2")
    really = doctor._requirements
    monkeypatch.setattr(
        doctor,
        "_requirements",
        lambda name, extra="": [requirement] if name == "cacheprefix-crewai" else really(name, extra),
    )
    versions(**{"cacheprefix-crewai": "0.1.0", "crewai": None})
    code, found = _doctor_says(capsys)
    assert code == 1
    assert found["problems"] == ["crewai is missing, supported is <2,>=1.15"]


def test_plugins_are_listed_with_their_hooks(monkeypatch, capsys):
    """Built-in ones too."""

    class Mine:
        def cacheprefix_before_call(self):
            """Look and do nothing."""

    made = Plugins([("built", Mine())], discover=False)
    monkeypatch.setattr(Plugins, "with_builtins", lambda: made)
    _, found = _doctor_says(capsys)
    assert [(item["name"], item["origin"], item["hooks"]) for item in found["plugins"]] == [
        ("built", "built-in", ["before_call"])
    ]


def test_a_broken_plugin_is_a_problem(monkeypatch, capsys):
    """It was skipped at run time, and here it is said why."""
    monkeypatch.undo()
    monkeypatch.setenv("CACHEPREFIX_PLUGINS", "not_installed")
    code, found = _doctor_says(capsys)
    assert code == 1
    assert [text for text in found["problems"] if text.startswith("plugin not_installed: ")]


def test_the_tokenizers_at_hand_are_shown(capsys, monkeypatch, tmp_path):
    """Without a vocabulary on this machine counting is an estimate, and doctor says how to change that."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    _, found = _doctor_says(capsys)
    assert set(found["tokenizers"]) == {"tiktoken o200k_base", "tiktoken cl100k_base", "transformers"}


def test_the_table_names_every_part(capsys):
    """What ``--json`` holds as data, people can read."""
    cli.main(["doctor"])
    shown = capsys.readouterr().out
    for name in (*doctor._OWN_EXTRAS, *doctor._ADAPTERS, "tokenizers"):
        assert name in shown


def test_the_configuration_in_force_is_shown_with_its_sources(capsys, monkeypatch, tmp_path):
    """Which file and line, or which variable; a variable nobody knows is named."""
    (tmp_path / "cacheprefix.toml").write_text('mode = "observe"\n[budget]\nmax_tokens = 9\n', "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CACHEPREFIX_SCOPE", "team")
    monkeypatch.setenv("CACHEPREFIX_SCOPES", "typo")
    _, found = _doctor_says(capsys)
    configuration = found["configuration"]
    assert configuration["file"] == str(tmp_path / "cacheprefix.toml")
    assert [(one["key"], one["value"], one["source"]) for one in configuration["settings"]] == [
        ("mode", "observe", f"{tmp_path / 'cacheprefix.toml'}:1"),
        ("budget.max_tokens", 9, f"{tmp_path / 'cacheprefix.toml'}:3"),
        ("scope", "team", "CACHEPREFIX_SCOPE"),
    ]
    assert "CACHEPREFIX_SCOPES" in configuration["unknown_variables"]
    cli.main(["doctor"])
    assert "mode = 'observe'" in capsys.readouterr().out


def test_a_configuration_that_cannot_be_used_is_a_problem(capsys, monkeypatch):
    """With its place, and exit code 1."""
    monkeypatch.setenv("CACHEPREFIX_MODE", "sometimes")
    code, found = _doctor_says(capsys)
    assert code == 1
    assert [text for text in found["problems"] if text.startswith("configuration: CACHEPREFIX_MODE: ")]
