"""A tool that comes with a request may be made for its user: no other user's requests hold it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.bodies import Role, adopt_declared, fork_body
from cacheprefix.prompt import ESTIMATE, dumps
from tests.drawn import examples

HANDBOOK = "The handbook of the house. " * 300
USERS = ("alice", "bob", "carol")
STEPS = st.tuples(st.sampled_from(USERS), st.sampled_from(("planner", "critic", "writer")), st.integers(0, 3))


def _tool(user, number):
    """Of each number there is one a user, all under one name, or each under its own."""
    name = f"house_{user}" if number == 3 else f"house_{number}"
    told = {"name": name, "description": f"Asks the house of {user}.", "parameters": {"type": "object"}}
    return {"type": "function", "function": told}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["named", "unnamed", "tenants"])
@settings(max_examples=examples(60), deadline=None)
@given(st.lists(STEPS, min_size=2, max_size=24))
def test_no_request_holds_a_tool_that_another_user_brought(way, steps):
    """Whoever asks first, in whichever roles, with the very same words; a role's own tools are in its requests."""
    session = Session(SharedPrefix(system=HANDBOOK), gate=None, caching=Caching(counter=ESTIMATE))
    said = {user: [{"role": "user", "content": "Go on."}] for user in USERS}
    for user, role, number in steps:
        system = {"role": "system", "content": f"{HANDBOOK}\n\nYou are the {role}."}
        body = {"model": "gpt-5.1", "messages": [system, *said[user]]}
        if number:
            body["tools"] = [_tool(user, number)]
        asks = session.child(user, scope=user) if way == "tenants" else session
        fork = fork_body(asks.adapter, body, "openai-chat", Role(role, conversation="" if way == "unnamed" else user))
        turn = fork.begin(fork.queue())
        turn.finish({"prompt_tokens": 2_000, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0}})
        sent = dumps(fork.body.get("tools") or [], "tools").decode()
        assert not [other for other in USERS if other != user and other in sent]
        assert not number or f"house of {user}" in sent
        said[user] += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on."}]
    assert session.failures == {}


MADE = st.lists(
    st.tuples(st.sampled_from(USERS), st.sampled_from(("planner", "writer", "admin")), st.integers(0, 2)),
    min_size=1,
    max_size=6,
)


def _answered(session, user, role, tools):
    """One request of a user's agent, which has these tools and names its user; what it was sent with."""
    said = [{"role": "system", "content": f"{HANDBOOK}\n\nYou are the {role}."}, {"role": "user", "content": "Go on."}]
    body = {"model": "gpt-5.1", "messages": said, **({"tools": tools} if tools else {})}
    fork = fork_body(session.adapter, body, "openai-chat", Role(role, conversation=user))
    turn = fork.begin(fork.queue())
    turn.finish({"prompt_tokens": 2_000, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0}})
    return dumps(fork.body.get("tools") or [], "tools").decode()


@settings(max_examples=examples(40), deadline=None)
@given(MADE, st.lists(st.booleans(), min_size=6, max_size=6))
def test_agents_that_are_made_anew_for_each_user_are_shown_no_other_users_tools(made, asks_at_once):
    """Whether one asks before the next is made, or after: a role that comes again with another text says so."""
    session = Session(SharedPrefix(system=HANDBOOK), gate=None, caching=Caching(counter=ESTIMATE))
    waiting = []
    for (user, role, number), at_once in zip(made, asks_at_once, strict=False):
        kits = {"reader": [], role: [_tool(user, 3 if number == 2 else number)] if number else []}
        for name, tools in kits.items():
            adopt_declared(session.adapter, name, tools, text=f"You help {user}.")
            waiting.append((user, name, tools))
        for asks, name, tools in waiting if at_once else ():
            sent = _answered(session, asks, name, tools)
            assert not [other for other in USERS if other != asks and other in sent]
            assert all(f"house of {asks}" in sent for _ in tools)
        waiting = [] if at_once else waiting
    assert session.failures == {}


@pytest.mark.parametrize("again", ["as it was", "for another user", "in a new role"])
def test_tools_of_a_team_that_is_made_once_are_everybodys_until_an_agent_is_made_for_somebody(again):
    """The tools that the user gave to the session stay so, and a conversation goes on with what it carries."""
    given = {**_tool("all", 1), "function": {**_tool("all", 1)["function"], "name": "shared"}}
    session = Session(SharedPrefix(system=HANDBOOK, tools=[given]), gate=None, caching=Caching(counter=ESTIMATE))
    planner = [_tool("alice", 3)]
    for role, tools in (("planner", planner), ("writer", [])):
        adopt_declared(session.adapter, role, tools, text=f"You are the {role}.")
    assert "house_alice" in _answered(session, "one", "writer", [])
    role, text = {
        "as it was": ("planner", "You are the planner."),
        "for another user": ("planner", "You help bob."),
        "in a new role": ("helper", "You help bob."),
    }[again]
    adopt_declared(session.adapter, role, planner if again == "as it was" else [], text=text)
    assert ("house_alice" in _answered(session, "two", "writer", [])) == (again == "as it was")
    assert "house_alice" in _answered(session, "one", "writer", [])
    assert "shared" in _answered(session, "three", "writer", [])
    assert session.failures == {}


def test_tools_that_no_remembered_conversation_has_are_let_go(monkeypatch):
    """What is held does not grow with the users, and no request is another one for it."""
    monkeypatch.setattr("cacheprefix.layout.team._NEWEST", 2)
    kept, bounded = (
        Session(SharedPrefix(system=HANDBOOK), gate=None, caching=Caching(counter=ESTIMATE)) for _ in range(2)
    )
    for session, many in ((kept, 10_000), (bounded, 4)):
        sets = session.adapter.shared.tool_sets
        session.adapter.team._many, sets._brought.limit, sets._talks.limit = many, 8, 8

    def asked(user, role, tools):
        sent = [_answered(session, user, role, tools) for session in (kept, bounded)]
        assert sent[0] == sent[1]
        assert all(tool["function"]["name"] in sent[1] for tool in tools)
        return sent[1]

    asked("first", "planner", [])
    shared = 0
    for index in range(24):
        for user in (f"user{index}", f"user{max(0, index - 3)}", f"user{index // 3}"):
            asked(user, "planner", [_tool(user, 3)])
            if index % 5 == 0:
                asked(user, "critic", [_tool(user, 1)])
            shared += user in asked(user, "writer", [])
    team = bounded.adapter.team
    names = set(team.prefix.tool_names)
    assert (len(kept.adapter.team.prefix.tools), shared > 20) == (25, True)
    assert len(names) < 20
    noted = (team.late, team.of_runs, team.theirs, team.clashing, team.unrecorded, team.resumed, team.again)
    assert all(names.issuperset(each) for each in noted)
    assert (kept.failures, bounded.failures) == ({}, {})
