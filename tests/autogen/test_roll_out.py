"""A safe way in, on AutoGen's wire: off, and a share of the conversations."""

from __future__ import annotations

from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_teams import ROLES, TASK, Says, role, search

from cacheprefix import Caching, Session
from cacheprefix.server import ToolCall
from cacheprefix_autogen import wrap

STEPS = {name: (ToolCall("search", {"query": name}), f"{name} is done") for name in ROLES}


async def _sent(provide, new_client, session=None):
    """The bodies of a team's run, whose agents call a tool and reflect on it; call ids follow from the prompts."""
    provider = provide("openai", Says(STEPS))
    team = RoundRobinGroupChat(
        [role(n, new_client(provider), tools=[search()], reflect_on_tool_use=True) for n in ROLES], max_turns=4
    )
    if session is not None:
        wrap(team, session)
    await team.run(task=TASK)
    return [record.body for record in provider.requests]


async def test_off_touches_and_sees_nothing(provide, new_client, monkeypatch):
    """The wire has the application's own bytes, and the session no call."""
    monkeypatch.setenv("CACHEPREFIX_MODE", "off")
    session = Session()
    assert await _sent(provide, new_client, session) == await _sent(provide, new_client)
    assert session.calls == ()


async def test_a_team_outside_of_the_share_keeps_every_byte(provide, new_client):
    """It is counted with its reason; what is in the share is forked."""
    own, forked = Session(caching=Caching(fork_share=0.0)), Session(caching=Caching(fork_share=1.0))
    plain = await _sent(provide, new_client)
    assert await _sent(provide, new_client, own) == plain
    assert {call.reasons[-1].why for call in own.calls} == {"not_in_fork_share"}
    assert own.report().arms.own.calls == len(plain)
    assert await _sent(provide, new_client, forked) != plain
    assert forked.report().arms.fork.calls == len(forked.calls)
    assert forked.report().arms.own.calls == 0
