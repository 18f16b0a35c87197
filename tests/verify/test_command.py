"""``cacheprefix verify`` as a shell sees it, and what other commands make of its evidence."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cacheprefix import cli
from cacheprefix.profiles import default_registry
from cacheprefix.server import Latency, SimulatedProvider

SLOWLY = Latency(base=0.06, uncached=0.0, cached=0.0, output=0.001, scale=1.0)


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEPREFIX_EVIDENCE", str(tmp_path / "evidence"))
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
def test_it_says_what_it_will_cost_and_keeps_evidence_that_the_others_show(capsys, monkeypatch):
    """First the estimate, then the table; ``profiles --evidence`` and ``doctor`` know of the run."""
    with SimulatedProvider("anthropic", latency=SLOWLY) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.anthropic_base_url)
        assert cli.main(["verify", "--provider", "anthropic", "--model", "claude-sonnet-4-6", "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    estimate = shown.err.splitlines()[0]
    assert "stops at $0.50" in estimate
    assert f"about {found['requests']} requests" in estimate
    assert found["simulated"] is True
    assert cli.main(["profiles", "--evidence", "--json"]) == 0
    (kept,) = json.loads(capsys.readouterr().out)["evidence"]
    assert kept == found
    cli.main(["doctor", "--json"])
    # A simulated provider proves nothing about a real one.
    assert "anthropic" in json.loads(capsys.readouterr().out)["rules_never_verified"]


def test_a_difference_is_an_exit_code(capsys):
    """And stands in the table by the rule's name."""
    bent = replace(default_registry().get("openai"), min_tokens=2048)
    with SimulatedProvider(bent) as provider:
        asked = ["verify", "--provider", "openai", "--model", "gpt-5.2", "--base-url", provider.openai_base_url]
        assert cli.main([*asked, "--no-save"]) == 1
    assert "min_tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--provider", "openai", "--model", "gpt-5.2"], "set OPENAI_API_KEY"),
        (["--provider", "deepseek", "--model", "deepseek-chat"], "give --base-url"),
        (["--provider", "gemini", "--model", "gemini-2.5-pro", "--api", "anthropic"], "verify asks by anthropic"),
        (["--provider", "openai", "--model", "gpt-5.2", "--base-url", "http://127.0.0.1:9/v1"], "could not be asked"),
    ],
)
def test_wrong_use_says_what_to_do(arguments, said, capsys):
    """In a line, with exit code 2; no request is sent without a key."""
    assert cli.main(["verify", *arguments]) == 2
    assert said in capsys.readouterr().err
