"""Requests with a beta of Anthropic's and without, in one session: each has a cache of its own at the provider."""

from __future__ import annotations

from autogen_core.models import SystemMessage, UserMessage

from cacheprefix import Session
from cacheprefix_autogen import wrap

HANDBOOK = "The handbook says that every statement needs a source. " * 200


async def test_what_one_beta_wrote_is_missed_by_no_other(provide, new_client):
    """A client's own headers part the caches, and so nothing was to be read."""
    provider, session = provide("anthropic"), Session()
    headers = {"anthropic-beta": "context-management-2025-06-27"}
    clients = [
        wrap(new_client(provider, api="anthropic", **more), session) for more in ({}, {"default_headers": headers})
    ]
    for number in range(2):
        for client in clients:
            await client.create([SystemMessage(content=HANDBOOK), UserMessage(content=f"hello {number}", source="u")])
    assert [bool(record.headers) for record in provider.requests] == [False, True] * 2
    assert "provider_miss" not in [call.verdict.cause for call in session.calls]
    assert [call.verdict.expected_tokens > 0 for call in session.calls] == [False, False, True, True]
    assert session.failures == {}
