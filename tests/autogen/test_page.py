"""The Python of the adapter's pages, run as it stands there."""

from __future__ import annotations

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

from cacheprefix_autogen import session_of

HANDBOOK = "Every statement needs a source. " * 300


@pytest.mark.filterwarnings("ignore:Resolved model mismatch", "ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of clients that the page leaves open
@pytest.mark.parametrize("path", ["docs/autogen.md", "adapters/autogen/README.md"])
def test_the_python_of_a_page_runs_as_it_stands(page, path, provide, monkeypatch, tmp_path, capsys):
    """Its team's agents share a prefix; what is put in front of and behind the conversation is taken."""
    provider = provide("openai")
    monkeypatch.setenv("OPENAI_BASE_URL", provider.openai_base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "handbook.md").write_text(HANDBOOK, "utf-8")
    if path == "docs/autogen.md":
        names = {"text": "The customer is called Ada."}
    else:
        client = OpenAIChatCompletionClient(model="gpt-4.1")
        names = {
            name: AssistantAgent(name, client, system_message=f"You are the {name}.\n\n{HANDBOOK}")
            for name in ("planner", "critic", "writer")
        }
    left = page(path, names)
    assert [one.outcome.read_tokens > 2_000 for one in provider.requests][:2] == [False, True]
    assert not session_of(left["team"]).report().failures
    assert capsys.readouterr().out.startswith("agent")
