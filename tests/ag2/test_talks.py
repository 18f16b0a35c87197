"""Whose words stand in a prompt: streams of several people over the same agents."""

from __future__ import annotations

import asyncio

import pytest
from ag2 import MemoryStream
from ag2_driver import agent, configured
from test_layout import session

from cacheprefix import Compaction, ToolResultBudget
from cacheprefix_ag2 import session_of, wrap

USERS = ("alice", "bob")


@pytest.mark.parametrize("api", ["openai-chat", "anthropic"])
@pytest.mark.parametrize("bounds", ["none", "compaction", "budget"])
async def test_a_stream_is_a_conversation_of_its_own(fresh, api, bounds):
    """Two people with equal texts among theirs, by turns and at a time: nobody's words are in another's prompt."""
    server = fresh(api)
    options = {
        "none": {},
        "compaction": {"compaction": Compaction(trigger=4_000, horizon=1_000)},
        "budget": {"budget": ToolResultBudget(max_tokens=300)},
    }[bounds]
    said = {user: [] for user in USERS}
    async with configured(api, server) as config:
        agents = wrap([agent("planner", config), agent("critic", config)], session(**options))
        streams = {user: MemoryStream() for user in USERS}
        for number in range(8):
            asking = USERS if number % 2 else (USERS[number // 2 % 2],)
            for user in asking:
                words = f"{user} {number}: " + " ".join(f"{user}-value-{number}-{k}" for k in range(60))
                said[user].append("Go on." if number % 3 == 0 else words)
            for each in agents:
                start = len(server.requests)
                await asyncio.gather(*(each.ask(said[user][-1], stream=streams[user]) for user in asking))
                sent = [record.body.decode() for record in list(server.requests)[start:]]
                assert not any(all(user in body for user in USERS) for body in sent)
                if bounds != "compaction":
                    texts = [text for user in asking for text in said[user]]
                    assert all(any(text in body for body in sent) for text in texts)
    used = session_of(agents)
    assert len({call.conversation for call in used.calls}) == 2
    assert not used.failures
