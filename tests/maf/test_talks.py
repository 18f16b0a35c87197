"""Whose words stand in a prompt: runs of one workflow, and an agent without a session that serves several people."""

from __future__ import annotations

import asyncio

import pytest
from agent_framework import Message
from agent_framework.orchestrations import SequentialBuilder
from maf_teams import HANDBOOK, NAMES, role, served

from cacheprefix import Compaction, Session, SharedPrefix, ToolResultBudget
from cacheprefix_maf import wrap

USERS = ("alice", "bob")
BOUNDS = pytest.mark.parametrize(
    "bounds",
    [{}, {"compaction": Compaction(trigger=4_000, horizon=1_000)}, {"budget": ToolResultBudget(max_tokens=300)}],
    ids=["none", "compaction", "budget"],
)


def _words(user, number):
    return f"{user} {number}: " + " ".join(f"{user}-value-{number}-{k}" for k in range(60))


def _whose(provider, start=0):
    bodies = [record.body.decode() for record in list(provider.requests)[start:]]
    return [[user for user in USERS if user in body] for body in bodies]


async def test_workflows_of_two_people_are_two_conversations(servers):
    """And a run of one sees of earlier runs what it sees unwrapped, as its agents keep their history."""
    seen = []
    for wrapped in (False, True):
        session = Session(SharedPrefix(system=HANDBOOK), gate=None)
        async with served(servers, "openai-chat") as (client, provider):
            made = [SequentialBuilder(participants=[role(client, name) for name in NAMES]).build() for _ in USERS]
            for number in range(4):
                if wrapped:
                    wrap(made[number % 2], session)
                await made[number % 2].run(_words(USERS[number % 2], number))
            seen.append(_whose(provider))
            assert not session.failures
    assert seen[0] == seen[1] == [[user] for user in USERS * 2 for _ in NAMES]


@BOUNDS
async def test_an_agent_without_a_session_serves_many(servers, bounds):
    """Two people with equal texts among theirs, by turns and at a time: nobody's words are in another's prompt."""
    session = Session(SharedPrefix(system=HANDBOOK), gate=None, **bounds)
    talks = {user: [] for user in USERS}
    async with served(servers, "openai-chat") as (client, provider):
        agent = wrap(role(client, "helper"), session)
        for number in range(14):
            asking = USERS if number % 2 else (USERS[number // 2 % 2],)
            for user in asking:
                talks[user].append(Message("user", ["Go on." if number % 3 == 0 else _words(user, number)]))
            start = len(provider.requests)
            answers = await asyncio.gather(*(agent.run(list(talks[user])) for user in asking))
            sent = [record.body.decode() for record in list(provider.requests)[start:]]
            for user, answer in zip(asking, answers, strict=True):
                whole = all(any(message.text in body for body in sent) for message in talks[user])
                assert whole or "compaction" in bounds
                talks[user].append(Message("assistant", [f"{user} {number}: {answer.text}"]))
        assert not any(len(found) > 1 for found in _whose(provider))
    assert not session.failures
