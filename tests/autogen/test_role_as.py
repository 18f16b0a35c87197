"""Role texts as a developer's message, on AutoGen's wire."""

from __future__ import annotations

import pytest
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_teams import ROLES, TASK, Says, role, search

from cacheprefix import Caching, Session
from cacheprefix_autogen import wrap


def _roles(record):
    return [one["role"] for one in record.json["messages"] if "<role name=" in str(one["content"])]


@pytest.mark.parametrize(
    ("api", "model", "said"),
    [("openai", "gpt-4o-2024-08-06", "developer"), ("anthropic", "claude-opus-4-8", "system"),
     ("anthropic", "claude-sonnet-4-5-20250929", "user")],
)  # fmt: skip
async def test_the_role_speaks_with_the_authority_that_its_system_text_had(provide, new_client, api, model, said):
    """Where the model takes it; in every turn, and the requests share what they would without it."""
    provider = provide(api, Says())
    session = Session(caching=Caching(role_as="developer"))
    client = new_client(provider, api=api, model=model)
    team = wrap(RoundRobinGroupChat([role(n, client, tools=[search(n)]) for n in ROLES], max_turns=4), session)
    await team.run(task=TASK)
    assert [_roles(record) for record in provider.requests] == [[said]] * 4
    assert all(call.usage.cache_read_tokens for call in session.calls[1:])
    assert not session.failures
    assert any("said as a user's" in note for note in session.report().notes) == (said == "user")


async def test_senders_keep_their_names(provide, new_client):
    """Who said something is the message's name for OpenAI, as AutoGen has it, in whoever's request."""
    provider = provide("openai", Says())
    client = new_client(provider)
    session = Session(caching=Caching(role_as="developer"))
    await wrap(RoundRobinGroupChat([role(n, client) for n in ROLES], max_turns=3), session).run(task=TASK)
    said = [(one["role"], one.get("name")) for one in provider.requests[-1].json["messages"]]
    assert said == [("system", None), ("user", "user"), ("user", "planner"), ("user", "critic"), ("developer", None)]
