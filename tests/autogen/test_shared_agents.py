"""One agent in several teams: what it is told in one it knows in the other, and each wrap is taken back by itself."""

from __future__ import annotations

import copy

import pytest
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_teams import ROLES, TASK, Says, role
from test_selector import Selecting

from cacheprefix import Session
from cacheprefix.errors import SetupError
from cacheprefix_autogen import session_of, unwrap, wrap


def _teams(client):
    """A team, and one with two of its agents and a new one."""
    agents = [role(n, client) for n in ROLES]
    first = RoundRobinGroupChat(agents, name="first", max_turns=3)
    return first, RoundRobinGroupChat([*agents[1:], role("editor", client)], name="second", max_turns=3)


async def _run(provider, teams):
    provider.simulator.script = Says()
    provider.requests.clear()
    first, second = teams
    await first.run(task=TASK)
    await second.run(task="The second task.")
    await first.run(task="Go on.")
    return list(provider.requests)


def _texts(record):
    return [str(one["content"]) for one in record.json["messages"]]


async def test_agents_of_two_teams_are_shown_what_they_were_told_in_both_and_no_more(provide, new_client):
    """As without us; and what they have in common is read from the cache."""
    provider = provide("openai", Says())
    plain = await _run(provider, _teams(new_client(provider)))
    first, second = _teams(new_client(provider))
    session = Session()
    wrap(first, session)
    wrap(second)
    assert session_of(second) is session
    forks = await _run(provider, (first, second))
    assert not session.failures
    assert {call.layout for call in session.calls} == {"fork"}
    for own, fork in zip(plain, forks, strict=True):
        said = "\n".join(_texts(fork))
        parts = {part.strip() for text in _texts(own) for part in text.split("\n") if part.strip()}
        assert all(said.count(part) == 1 for part in parts)
        assert ("The second task." in said) == any("The second task." in text for text in _texts(own))
        for name in (*ROLES, "editor"):
            assert (f"{name} speaks" in said) == any(f"{name} speaks" in text for text in _texts(own))
    again = [call for call in session.calls if call.agent in ("critic", "writer")][2:]
    assert all(call.usage.cache_read_tokens > 1_000 for call in again)


def test_a_team_of_another_tenant_is_refused(provide, new_client):
    """What its agents say would else be kept under the first one's; the same tenant, or none named, joins."""
    first, second = _teams(new_client(provide("openai", Says())))
    session = Session()
    wrap(first, session, scope="one")
    with pytest.raises(SetupError, match="another scope"):
        wrap(second, session, scope="other")
    assert session_of(second) is None
    assert session_of(wrap(second, session, scope="one")) is session


async def test_each_wrap_is_taken_back_by_itself(provide, new_client):
    """In either order; the agents in both are free with the last one."""
    provider = provide("openai", Says())
    for order in ((0, 1), (1, 0)):
        teams = _teams(new_client(provider))
        session = Session()
        for team in teams:
            wrap(team, session)
        unwrap(teams[order[0]])
        kept = teams[order[1]]
        assert session_of(teams[order[0]]) is None
        assert [type(one._model_client).__name__ for one in kept._participants] == ["PrefixClient"] * 3
        await kept.run(task=TASK)
        assert {call.layout for call in session.calls} == {"fork"}
        unwrap(kept)
        names = {type(one._model_client).__name__ for team in teams for one in team._participants}
        assert names == {"OpenAIChatCompletionClient"}
        assert not any(hasattr(one, "__cacheprefix__") for team in teams for one in team._participants)


async def test_a_copy_of_one_team_leaves_the_other_its_agents(provide, new_client):
    """The copy has agents, a conversation and a wrap of its own."""
    provider = provide("openai", Selecting(*ROLES[1:]))
    client = new_client(provider)
    agents = [role(n, client) for n in ROLES]
    session = Session()
    first = wrap(RoundRobinGroupChat(agents, max_turns=2), session)
    second = wrap(SelectorGroupChat(agents[1:], client, max_turns=2), session)
    await first.run(task=TASK)
    made = copy.deepcopy(second)
    assert session_of(made) is session
    await made.run(task="Told to the copy.")
    await second.run(task="Told to the original.")
    texts = _texts(provider.requests[-1])
    assert not any("to the copy" in text for text in texts)
    assert any(TASK in text for text in texts)
    assert not session.failures
    unwrap(made)
    assert {type(one._model_client).__name__ for one in agents} == {"PrefixClient"}
    for one in made._participants:
        await one._model_client.close()
    await made._model_client.close()
