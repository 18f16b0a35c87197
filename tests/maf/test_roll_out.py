"""A safe way in, on the Agent Framework's wire: off, and a share of the conversations."""

from __future__ import annotations

from maf_teams import TASK, role, served

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE
from cacheprefix_maf import wrap

HANDBOOK = "Every statement needs a source that the reader can open. " * 120


async def _sent(servers, session=None):
    """The bodies of two agents that hold the handbook themselves."""
    async with served(servers, "openai-chat") as (client, provider):
        before = len(provider.requests)
        for name in ("planner", "critic"):
            agent = role(client, name, instructions=f"{HANDBOOK}\n\nYou are the {name}.")
            await (agent if session is None else wrap(agent, session, conversation="one")).run(TASK)
        return [record.body for record in provider.requests[before:]]


async def test_off_and_a_conversation_outside_of_the_share_keep_every_byte(servers, monkeypatch):
    """Off sees nothing; the other is counted with its reason."""
    plain = await _sent(servers)
    prefix, caching = SharedPrefix(system=HANDBOOK), Caching(provider="openai", counter=ESTIMATE, fork_share=0.0)
    left = Session(prefix, caching=caching)
    assert await _sent(servers, left) == plain
    assert [(call.layout, call.reasons[-1].why) for call in left.calls] == [("own", "not_in_fork_share")] * 2
    assert left.report().arms.own.calls == 2
    monkeypatch.setenv("CACHEPREFIX_MODE", "off")
    off = Session(prefix)
    assert await _sent(servers, off) == plain
    assert off.calls == ()
