"""The Python of the adapter's pages, run as it stands there."""

from __future__ import annotations

import json

import pytest

from cacheprefix.server import SimulatedProvider

HANDBOOK = "Every statement needs a source. " * 300


@pytest.mark.parametrize("path", ["docs/sdk.md", "adapters/sdk/README.md"])
def test_the_python_of_a_page_runs_as_it_stands(page, path, monkeypatch, capsys):
    """The application's request reaches the provider as a fork, and the report names its role."""
    with SimulatedProvider("openai") as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", provider.openai_base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        critic = f"You are the critic.\n\n{HANDBOOK}"
        transcript = [{"role": "user", "content": "Plan the move."}]
        names = {"HANDBOOK": HANDBOOK, "TOOLS": (), "MODEL": "gpt-4.1", "CRITIC": critic}
        left = page(path, {**names, "thread_id": "one", "transcript": transcript})
        (body,) = (json.loads(record.body) for record in provider.requests)
    assert [one["content"].strip() for one in body["messages"]][:2] == [HANDBOOK.strip(), "Plan the move."]
    assert [call.agent for call in left["session"].calls] == ["critic"]
    assert "critic" in capsys.readouterr().out
