"""A safe way in, on ag2's wire: off, and a share of the conversations."""

from __future__ import annotations

from ag2 import Agent, MemoryStream
from ag2_driver import HANDBOOK, RULES, configured, role_text
from test_layout import NAMES

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE
from cacheprefix_ag2 import wrap

API = "openai-chat"


async def _sent(fresh, session=None):
    """The bodies of agents that are asked in turn on one stream, and hold the handbook themselves."""
    server = fresh(API)
    async with configured(API, server) as config:
        agents = [Agent(name, f"{role_text(name)}\n\n{HANDBOOK}", config=config) for name in NAMES]
        stream = MemoryStream()
        for each in agents if session is None else wrap(agents, session):
            await each.ask("What is step 1?", stream=stream)
        return [record.body for record in server.requests]


async def test_off_and_a_conversation_outside_of_the_share_keep_every_byte(fresh, monkeypatch):
    """Off sees nothing; the other is counted with its reason."""
    plain = await _sent(fresh)
    prefix, caching = SharedPrefix(system=HANDBOOK), Caching(provider=RULES[API], counter=ESTIMATE, fork_share=0.0)
    left = Session(prefix, caching=caching)
    assert await _sent(fresh, left) == plain
    assert {(call.layout, call.reasons[-1].why) for call in left.calls} == {("own", "not_in_fork_share")}
    assert left.report().arms.own.calls == len(plain)
    monkeypatch.setenv("CACHEPREFIX_MODE", "off")
    off = Session(prefix)
    assert await _sent(fresh, off) == plain
    assert off.calls == ()
