"""The Python of the adapter's pages, run as it stands there."""

from __future__ import annotations

import agents
import pytest
from openai import AsyncOpenAI

HANDBOOK = "Every statement needs a source. " * 300


@pytest.mark.parametrize("path", ["docs/openai_agents.md", "adapters/openai_agents/README.md"])
def test_the_python_of_a_page_runs_as_it_stands(page, path, provider, monkeypatch, capsys):
    """Its agents ask as forks; the wrapped provider is one that a run takes."""
    # The SDK's own client outlives an event loop, which a test's connections do not.
    client = AsyncOpenAI(base_url=provider.openai_base_url, api_key="any")
    monkeypatch.setattr("agents.models._openai_shared._default_openai_client", client)
    texts = {name: f"You are the {name}.\n\n{HANDBOOK}" for name in ("planner", "critic", "writer")}
    if path == "docs/openai_agents.md":
        names = {"chat_id": "one", **{name.upper(): text for name, text in texts.items()}}
    else:
        writer = agents.Agent("writer", instructions=texts["writer"])
        names = {"triage": agents.Agent("triage", instructions=texts["planner"], handoffs=[writer])}
    left = page(path, names)
    told = left["session"].report()
    assert told.total.calls == 1
    assert not told.failures
    assert left["session"].calls[-1].layout == "fork"
    assert capsys.readouterr().out.startswith("agent")
