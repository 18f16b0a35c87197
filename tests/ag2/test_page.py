"""The Python of the adapter's pages, run as it stands there."""

from __future__ import annotations

import pytest
from ag2 import Agent, MemoryStream
from ag2.config import OpenAIConfig

from cacheprefix import Session

HANDBOOK = "Every statement needs a source. " * 300


@pytest.mark.parametrize("path", ["docs/ag2.md", "adapters/ag2/README.md"])
def test_the_python_of_a_page_runs_as_it_stands(page, path, fresh, capsys):
    """Its agents share a prefix; one made by hand is made."""
    provider = fresh("openai-chat")
    config = OpenAIConfig(model="gpt-5.6", api_key="any", base_url=provider.openai_base_url)
    texts = {name: f"You are the {name}.\n\n{HANDBOOK}" for name in ("planner", "critic", "writer")}
    if path == "docs/ag2.md":
        names = {"config": config, "session": Session(), **{name.upper(): text for name, text in texts.items()}}
    else:
        agents = {name: Agent(name, text, config=config) for name, text in texts.items()}
        names = {**agents, "stream": MemoryStream()}
    page(path, names)
    reads = [one.outcome.read_tokens > 2_000 for one in provider.requests]
    assert reads == ([False, True, True] if path == "docs/ag2.md" else [False])
    assert capsys.readouterr().out.startswith("agent")
