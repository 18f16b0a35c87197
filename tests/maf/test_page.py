"""The Python of the adapter's pages, run as it stands there."""

from __future__ import annotations

import pytest
from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient

from cacheprefix import Session
from cacheprefix_maf import session_of

HANDBOOK = "Every statement needs a source. " * 300


@pytest.mark.parametrize("path", ["docs/maf.md", "adapters/maf/README.md"])
def test_the_python_of_a_page_runs_as_it_stands(page, path, servers, capsys):
    """Its workflow's agents share a prefix; those made by hand are covered."""
    servers["openai-chat"].reset()
    base_url = servers["openai-chat"].openai_base_url
    client = OpenAIChatCompletionClient(model="gpt-5.6", api_key="any", base_url=base_url)
    texts = {name: f"You are the {name}.\n\n{HANDBOOK}" for name in ("planner", "critic", "writer")}
    names = {name: Agent(client, text, name=name) for name, text in texts.items()}
    if path == "docs/maf.md":
        by_hand = {"CRITIC": texts["critic"], "WRITER": texts["writer"], "client": client, "session": Session()}
        names = {**names, **by_hand}
    left = page(path, names)
    told = session_of(left["workflow"]).report()
    assert [one.outcome.read_tokens > 2_000 for one in servers["openai-chat"].requests] == [False, True, True]
    assert told.total.calls == 3
    assert capsys.readouterr().out.startswith("agent")
    assert not told.failures
