"""The Python of the adapter's pages, run as it stands there."""

from __future__ import annotations

import litellm
import pytest

import cacheprefix
from cacheprefix_litellm import unwrap

HANDBOOK = "Every statement needs a source. " * 300
CRITIC = f"You are the critic.\n\n{HANDBOOK}"


@pytest.mark.parametrize("path", ["docs/litellm.md", "adapters/litellm/README.md"])
def test_the_python_of_a_page_runs_as_it_stands(page, path, fresh, monkeypatch, capsys):
    """Its function and its router ask as forks; what a library asks is measured, what is planned is previewed."""
    provider = fresh("anthropic")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    monkeypatch.setenv("ANTHROPIC_API_BASE", provider.anthropic_base_url)
    transcript = [{"role": "user", "content": "Plan the move."}]
    messages = [{"role": "system", "content": CRITIC}, *transcript]
    names = {"HANDBOOK": HANDBOOK, "TOOLS": (), "thread_id": "one", "transcript": transcript}
    if path == "docs/litellm.md":
        deployment = {"model": "anthropic/claude-sonnet-4-6"}
        names["DEPLOYMENTS"] = [{"model_name": "team", "litellm_params": deployment}]
        names["run_the_application"] = lambda: litellm.completion("anthropic/claude-sonnet-4-6", messages)
        names["messages_of"] = lambda name: messages
    else:
        names["CRITIC"] = CRITIC
    left = page(path, names)
    session = left["session"]
    assert capsys.readouterr().out.startswith("agent")
    if path == "docs/litellm.md":
        unwrap(left["router"])
        assert [call.layout for call in session.calls] == ["fork", "fork", "observed"]
        assert "writer" in str(cacheprefix.preview(left["planned"], session))
    else:
        assert [call.layout for call in session.calls] == ["fork"]
