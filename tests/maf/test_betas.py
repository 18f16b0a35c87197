"""Requests with a beta of Anthropic's and without, in one session: each has a cache of its own at the provider."""

from __future__ import annotations

from maf_teams import role, served
from test_agents import session_for

from cacheprefix_maf import wrap


async def test_what_one_beta_wrote_is_missed_by_no_other(servers):
    """The framework's option becomes a header, and so nothing was to be read."""
    session = session_for("anthropic")
    more = {"additional_beta_flags": ["context-management-2025-06-27"]}
    async with served(servers, "anthropic") as (client, provider):
        team = [
            wrap(role(client, "planner"), session, conversation="p"),
            wrap(role(client, "critic", default_options=more), session, conversation="c"),
        ]
        for agent in (*team, *team):
            await agent.run("What now?")
        sent = [record.headers["anthropic-beta"] for record in provider.requests]
    assert sent[0] == sent[2] != sent[1] == sent[3]
    assert "provider_miss" not in [call.verdict.cause for call in session.calls]
    assert [call.verdict.expected_tokens > 0 for call in session.calls] == [False, False, True, True]
    assert session.failures == {}
