"""Requests with a beta of Anthropic's and without, in one session: each has a cache of its own at the provider."""

from __future__ import annotations

from ag2_driver import agent, configured

from cacheprefix import Caching, Session
from cacheprefix.prompt import ESTIMATE
from cacheprefix_ag2 import wrap


async def test_what_one_beta_wrote_is_missed_by_no_other(fresh):
    """A config's headers part the caches, and so nothing was to be read."""
    server = fresh("anthropic")
    session = Session(caching=Caching(counter=ESTIMATE))
    async with (
        configured("anthropic", server) as plain,
        configured("anthropic", server, default_headers={"anthropic-beta": "context-management-2025-06-27"}) as beta,
    ):
        team = wrap([agent("planner", plain), agent("critic", beta)], session)
        for one in (*team, *team):
            await one.ask("What now?")
    causes = [call.verdict.cause for call in session.calls]
    assert [bool(record.headers) for record in server.requests] == [False, True] * 2
    assert "provider_miss" not in causes
    assert [call.verdict.expected_tokens > 0 for call in session.calls] == [False, False, True, True]
    assert session.failures == {}
