"""The Python of the adapter's pages, run as it stands there."""

from __future__ import annotations

import pytest
from crewai import LLM, Agent, Crew, Task

HANDBOOK = "Every statement needs a source. " * 300


@pytest.mark.parametrize("path", ["docs/crewai.md", "adapters/crewai/README.md"])
def test_the_python_of_a_page_runs_as_it_stands(page, path, provide, monkeypatch, capsys):
    """Its crew's agents share a prefix; so do questions beside it."""
    provider = provide("openai")
    monkeypatch.setenv("OPENAI_BASE_URL", provider.openai_base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    names = {"brief": HANDBOOK}
    if path == "docs/crewai.md":
        more = {"handbook": HANDBOOK, "facts": "The move is in May.", "clock": lambda: "10:42"}
        names = {**names, **more, "inputs": {"brief": HANDBOOK}}
    else:
        llm = LLM(model="openai/gpt-4.1")
        who = [Agent(role=role, goal="Do it well.", backstory="Long here.", llm=llm) for role in ("analyst", "writer")]
        work = [Task(description="Do it.\n\n{brief}", expected_output="A page.", agent=agent) for agent in who]
        names["crew"] = Crew(agents=who, tasks=work)
    left = page(path, names)
    assert [one.outcome.read_tokens > 2_000 for one in provider.requests][:2] == [False, True]
    assert not left["installed"].session.report().failures
    assert capsys.readouterr().out.startswith("agent")
