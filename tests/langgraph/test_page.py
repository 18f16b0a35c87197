"""The Python of the adapter's pages, run as it stands there."""

from __future__ import annotations

import pytest
from langchain_core.tools import tool

HANDBOOK = "Every statement needs a source. " * 300


@tool
def read_offer(number: int) -> str:
    """Read an offer."""
    return f"Offer {number}: 300."


@pytest.fixture
def provider(servers, monkeypatch, tmp_path):
    """Where the pages' models ask."""
    provider = servers("openai")
    monkeypatch.setenv("OPENAI_BASE_URL", provider.openai_base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.chdir(tmp_path)
    return provider


def test_the_python_of_the_page_runs_as_it_stands(page, provider, capsys):
    """The ten lines, the functional API, the builders and what is asked beside a thread, all on one prefix."""
    names = {"HANDBOOK": HANDBOOK, "read_offer": read_offer, "brief": "Two offers.", "goal": "Choose an offer."}
    left = page("docs/langgraph.md", names)
    assert capsys.readouterr().out.startswith("agent")
    assert [one.outcome.read_tokens > 2_000 for one in provider.requests][:2] == [False, True]
    assert left["dag"].get_graph().nodes
    left["talk"].invoke([("user", "Plan the move.")])
    short = {"facts", "gaps", "advice"}
    assert {call.layout for call in left["session"].calls if call.agent not in short} == {"fork"}
    assert not left["session"].failures


@pytest.mark.parametrize("path", ["README.md", "adapters/langgraph/README.md"])
def test_the_python_of_a_first_page_runs_as_it_stands(page, path, provider, capsys):
    """The node that it makes asks as a fork."""
    names = {"HANDBOOK": HANDBOOK, "TOOLS": [read_offer], "REVIEWER": "You review."}
    left = page(path, {**names, **({"MODEL": "gpt-4.1"} if path == "README.md" else {})})
    left["reviewer"]({"messages": [("user", "Review the offer.")]})
    assert [call.layout for call in left["session"].calls] == ["fork"]
