"""A session is freed with the agents that were wrapped with it, once the connections are closed that they opened.

ag2 keeps an agent that was asked, wrapped or not, in the contexts of its client's connections.
"""

from __future__ import annotations

import gc
import weakref

from ag2_driver import HANDBOOK, agent, configured

from cacheprefix import Session, SharedPrefix
from cacheprefix_ag2 import wrap


async def test_a_session_goes_with_its_agents(fresh):
    """And what the adapter keeps for it."""

    async def run():
        async with configured("openai-chat", fresh("openai-chat")) as config:
            session = Session(SharedPrefix(system=HANDBOOK))
            for each in wrap([agent("planner", config), agent("critic", config)], session):
                await each.ask("What now?")
            assert len(session.calls) == 2
            return weakref.ref(session)

    session = await run()
    gc.collect()
    assert session() is None
