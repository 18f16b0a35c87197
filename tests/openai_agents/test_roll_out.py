"""A safe way in, on the Agents SDK's wire: off, and a share of the conversations."""

from __future__ import annotations

import asyncio

import pytest
from agents import Agent, Runner
from agents_driver import HANDBOOK, MODELS, model_for

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE
from cacheprefix_openai_agents import wrap


@pytest.mark.parametrize("api", tuple(MODELS))
def test_off_and_a_conversation_outside_of_the_share_keep_every_byte(provider, api, monkeypatch):
    """Off sees nothing; the other is counted with its reason; within the share the same run is another one."""

    async def asked(session):
        model = model_for(api, provider)
        for name in ("critic", "writer"):
            agent = Agent(name, instructions=f"You are the {name}.\n\n{HANDBOOK}", model=model)
            await Runner.run(agent if session is None else wrap(agent, session, conversation="one"), "What now?")
        await model._client.close()

    def sent(session=None):
        provider.reset()
        asyncio.run(asked(session))
        return [record.body for record in provider.requests]

    def session(share):
        caching = Caching(provider="openai-5.6", counter=ESTIMATE, fork_share=share)
        return Session(SharedPrefix(system=HANDBOOK), caching=caching)

    plain, left, shares = sent(), session(0.0), session(1.0)
    assert sent(left) == plain
    assert {(call.layout, call.reasons[-1].why) for call in left.calls} == {("own", "not_in_fork_share")}
    assert left.report().arms.own.calls == len(plain)
    assert sent(shares) != plain
    monkeypatch.setenv("CACHEPREFIX_MODE", "off")
    off = session(1.0)
    assert sent(off) == plain
    assert off.calls == ()
