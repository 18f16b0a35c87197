"""A summary that a model writes tells of what is removed from its own conversation, and of nothing else."""

from __future__ import annotations

import json

import pytest
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import AssistantMessage, SystemMessage, UserMessage
from autogen_core.tools import FunctionTool
from autogen_teams import HANDBOOK, ROLES, TASK, Says, role

from cacheprefix import Compaction, Session, SharedPrefix
from cacheprefix.server import Reply
from cacheprefix_autogen import PrefixClient, wrap

RULES = Compaction(4_000, summary_tokens=120, summarise="fork", keep_turns=1, keep_users=False, horizon=100_000)


class Summing:
    """A model that can sum up, and else speaks as its roles do."""

    def __init__(self):
        self._otherwise = Says()

    def __call__(self, request):
        return Reply("A summary.") if "Summarise this" in request.tail else self._otherwise(request)


def _session():
    return Session(SharedPrefix(system=HANDBOOK), compaction=RULES)


def _tasks(who, count):
    return [f"{who} says {number}: " + f"{who}-word-{number} " * 90 for number in range(count)]


def _summaries(provider):
    asked = [record.body.decode() for record in provider.requests]
    return [body for body in asked if "Summarise this conversation so far" in body]


async def test_a_client_alone_is_not_asked_to_sum_up_another_users_conversation(provide, new_client):
    """One object serves both; the second user's summary is asked behind that one's own messages."""
    provider = provide("openai", Summing())
    client = PrefixClient(new_client(provider), _session(), role="helper")
    for who, count in (("alice", 1), ("bob", 16)):
        said = [
            message
            for text in _tasks(who, count)
            for message in (UserMessage(content=text, source="user"), AssistantMessage(content="Yes.", source="helper"))
        ]
        asks = UserMessage(content="What now?", source="user")
        await client.create([SystemMessage(content=f"You help.\n\n{HANDBOOK}"), *said, asks])
    (summary,) = _summaries(provider)
    assert "alice" not in summary
    assert all(f"bob-word-{number} " in summary for number in range(16))


@pytest.mark.parametrize("rules", ["openai", "anthropic"])
async def test_behind_a_loaded_state_nothing_is_told_of_the_conversation_before_it(provide, new_client, rules):
    """The agents have asked for another user just now; the state is of one who said so much that it is compacted."""
    provider = provide(rules, Summing())
    client = new_client(provider, api=rules)

    def team():
        return RoundRobinGroupChat([role(name, client) for name in ("planner", "critic")], max_turns=2)

    before = team()
    for text in _tasks("bob", 14):
        await before.run(task=text)
    state = json.dumps(await before.save_state())
    wrapped = wrap(team(), _session())
    await wrapped.run(task=_tasks("alice", 1)[0])
    provider.requests.clear()
    await wrapped.load_state(json.loads(state))
    await wrapped.run(task="And now?")
    (summary,) = _summaries(provider)
    assert "alice" not in summary
    assert all(f"bob-word-{number} " in summary for number in range(14))
    assert not any("alice" in record.body.decode() for record in provider.requests)


async def test_all_that_is_removed_is_summed_up(provide, new_client):
    """Also what was said since the agent asked last, whose request is the one that is compacted."""
    provider = provide("openai", Summing())
    session = Session(compaction=Compaction(3_000, summarise="fork", summary_tokens=120))
    team = wrap(RoundRobinGroupChat([role(name, new_client(provider)) for name in ROLES], max_turns=8), session)
    await team.run(task=TASK)
    sent = [record.body.decode() for record in provider.requests]
    (at, *_) = [number for number, body in enumerate(sent) if "Summarise this conversation so far" in body]
    said = [f"{name} speaks for the time {turn}" for turn in range(3) for name in ROLES][:at]
    removed = [text for text in said if text not in sent[at + 1]]
    assert removed
    assert [text for text in removed if text not in sent[at]] == []


async def test_a_summary_behind_a_loaded_state_carries_no_tool_that_was_made_for_another(provide, new_client):
    """Teams are made anew for each person, whom no tenant tells apart."""
    provider, session = provide("openai", Summing()), _session()

    def team(user):
        def run(q: str) -> str:
            return q

        kit = [FunctionTool(run, name=f"house_{user}", description=f"Asks the house of {user}.")]
        agents = [role(name, new_client(provider), tools=kit) for name in ("planner", "critic")]
        return RoundRobinGroupChat(agents, max_turns=2)

    for user, other in (("acme", "beta"), ("beta", "acme")):
        before = team(user)
        for text in _tasks(user, 14):
            await before.run(task=text)
        wrapped = wrap(team(user), session)
        await wrapped.load_state(json.loads(json.dumps(await before.save_state())))
        provider.requests.clear()
        await wrapped.run(task="And now?")
        (summary,) = _summaries(provider)
        assert f"house of {other}" not in summary
        assert f"house of {user}" in provider.requests[-1].body.decode()
    assert session.failures == {}
