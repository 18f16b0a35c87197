"""Requests with a beta of Anthropic's and without, in one session: each has a cache of its own at the provider."""

from __future__ import annotations

import pytest
from crewai import LLM, Agent

from cacheprefix import Session
from cacheprefix.server import Reply, SimulatedProvider
from cacheprefix_crewai import install

BETA = {"anthropic-beta": "context-management-2025-06-27"}
BRIEF = "The brief says that every statement needs a source. " * 300


def test_what_one_beta_wrote_is_missed_by_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's headers part the caches, and so nothing was to be read."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    with SimulatedProvider("anthropic", lambda request: Reply("Done."), keep=100) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.anthropic_base_url.removesuffix("/v1"))
        agents = [
            Agent(
                role="analyst",
                goal="Analyse.",
                backstory="Long an analyst.",
                llm=LLM(model="anthropic/claude-sonnet-4-5", client_params={"default_headers": headers}),
            )
            for headers in ({}, BETA)
        ]
        session = Session()
        with install(agents, session):
            for agent in (*agents, *agents):
                agent.kickoff(f"Do your part.\n\n{BRIEF}")
    assert [record.headers for record in provider.requests] == [{}, BETA] * 2
    assert "provider_miss" not in [call.verdict.cause for call in session.calls]
    assert session.failures == {}
