"""A tool that comes with a request may be made for its user: no other user's requests hold it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix import Caching, Compaction, Session, SharedPrefix
from cacheprefix.adapter import RestOfRequest
from cacheprefix.bodies import Role, adopt_declared, fork_body
from cacheprefix.layout.team import ToolSource, Whose
from cacheprefix.prompt import ESTIMATE, Counter, dumps
from cacheprefix.wire import views_of
from tests.drawn import examples

HANDBOOK = "The handbook of the house. " * 300
USERS = ("alice", "bob", "carol")
ROLES = ("user", "assistant")
USERS6 = (*USERS, "dave", "erin", "frank")
FORM = {"type": "object", "properties": {}}
KITS = {"planner": ["open", "find", "count"], "critic": ["count", "open", "find"]}
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


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(USERS), st.sampled_from(("planner", "critic")), st.booleans()), max_size=16))
def test_where_nobody_names_the_conversation_a_role_goes_on_with_the_tools_that_it_carried(steps):
    """Those that requests bring are kept for nobody there: what it carried before seemed to be none of its own."""
    session = Session(SharedPrefix(system=HANDBOOK), gate=None, caching=Caching(counter=ESTIMATE))
    said = {user: [{"role": "user", "content": f"Help {user}. " * 200}] for user in USERS}
    carried = {}
    for user, role, calls in steps:
        for _ in range(1 + calls):
            system = [{"type": "text", "text": f"{HANDBOOK}\n\nYou are the {role}."}]
            tools = [{"name": name, "description": "Of the house. " * 40, "input_schema": FORM} for name in KITS[role]]
            body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "system": system, "tools": tools}
            body["messages"] = said[user]
            fork = fork_body(session.adapter, body, "anthropic", Role(role))
            fork.begin(fork.queue()).finish({"input_tokens": 2_000, "output_tokens": 5})
            sent = [tool["name"] for tool in fork.body["tools"]]
            # What went out in the application's own layout may be forked later, where that pays by then.
            if fork.plan.layout == "fork" or (user, role) in carried:
                assert carried.setdefault((user, role), sent) == sent
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


def test_a_conversations_first_request_is_compacted_with_the_tools_that_it_has():
    """Nobody has had them there before; a process that takes the conversation up may be at its first one too."""
    compaction = Compaction(11_000, 7_000, keep_turns=1, keep_users=False)
    session = Session(SharedPrefix(system=HANDBOOK), compaction=compaction, caching=Caching(counter=ESTIMATE))
    tool = _tool("alice", 1)
    tool["function"]["description"] += " It has many rooms." * 500
    _answered(session, "alice", "planner", [tool])
    said = [{"role": role, "content": f"{role} says {number}. " * 100} for number in range(10) for role in ROLES]
    views = views_of(said, "openai-chat", session.adapter.counter("gpt-5.1"))

    def decided(conversation, *tools):
        rest = RestOfRequest(tools=tools)
        return session.adapter.histories.condense(session.conversation(conversation), views, "gpt-5.1", rest=rest)

    assert not decided("bob")
    assert decided("carol", "house_1")


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


def test_an_agent_that_is_made_while_the_first_answer_is_awaited_may_be_made_for_another_user():
    """Answers take their time, and a busy application serves many users in it, each with roles of their own names."""
    session = Session(SharedPrefix(system=HANDBOOK), gate=None, caching=Caching(counter=ESTIMATE))
    kit = [_tool("alice", 3)]
    adopt_declared(session.adapter, "helper alice", kit, text="You help alice.")
    body = {"model": "gpt-5.1", "messages": [{"role": "user", "content": "Go on."}], "tools": kit}
    waits = fork_body(session.adapter, body, "openai-chat", Role("helper alice", conversation="alice"))
    turn = waits.begin(waits.queue())
    adopt_declared(session.adapter, "helper bob", [], text="You help bob.")
    assert "alice" not in _answered(session, "bob", "helper bob", [])
    turn.fail()
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


def test_tools_of_agents_that_are_made_for_each_user_are_let_go(monkeypatch):
    """Also where they come with the agents alone, and no request brings them again."""
    monkeypatch.setattr("cacheprefix.layout.team._NEWEST", 2)
    session = Session(SharedPrefix(system=HANDBOOK), gate=None, caching=Caching(counter=ESTIMATE))
    session.adapter.team._many = 4
    given = [_tool("all", 0)]
    adopt_declared(session.adapter, "planner", given, text="You plan.")
    assert "house of all" in _answered(session, "first", "planner", given)
    for user in range(40):
        adopt_declared(session.adapter, "helper", [_tool(f"user{user}", 3)], text=f"You help user{user}.")
    team = session.adapter.team
    assert len(team.prefix.tools) < 8
    sent = _answered(session, "later", "helper", [_tool("user0", 3)])
    assert ("house of user0" in sent, "house of user1" in sent) == (True, False)
    assert "house of all" in _answered(session, "first", "planner", given)
    assert session.failures == {}


def test_tools_of_front_doors_that_are_gone_are_let_go(monkeypatch):
    """A process may make a crew for each request; one that is still there keeps its own."""
    monkeypatch.setattr("cacheprefix.layout.team._NEWEST", 2)
    session = Session(SharedPrefix(system=HANDBOOK), gate=None, caching=Caching(counter=ESTIMATE))
    adapter, kept = session.adapter, Whose("kept")
    adapter.team._many = 4
    for door in (kept, *(Whose(f"door{user}") for user in range(40))):
        adapter.adopt_tools([_tool(door.id, 3)], dict, grows=True, source=ToolSource(of_door=True))
        adapter.bring_tools(door, [f"house_{door.id}"])
        if door is not kept:
            adapter.drop_tools(door)
    assert len(adapter.prefix.tools) < 8
    assert len(adapter.team.of_doors) < 8
    assert adapter.tools_open_to(kept) == {"house_kept"}


def test_a_new_conversation_counts_the_tools_that_it_may_carry_alone():
    """Those of a thousand other users took longer than the rest of a request."""
    counted = []

    def count(text, _model):
        counted.append(text)
        return len(text)

    counter = Counter("counted", exact=False, count=count)
    session = Session(SharedPrefix(system=HANDBOOK, tools=[_tool("all", 0)]), caching=Caching(counter=counter))
    session.adapter.adopt_tools([_tool("users", 3)], dict, grows=True, source=ToolSource(of_run=True))
    session.conversation("one")
    assert ["house of all" in text for text in counted if "house of" in text] == [True]


def _burst(roles):
    """A session all of whose agents were made before its first request, each with a tool that speaks of its name."""
    session = Session(SharedPrefix(system=HANDBOOK), gate=None, caching=Caching(counter=ESTIMATE))
    for role in roles:
        adopt_declared(session.adapter, role, [_tool(role, 3)], text=f"You are {role}.")
    return session


def test_roles_that_are_named_after_users_stop_sharing_their_tools():
    """All were made before the first request, and looked like a team's: each asks in its user's conversations alone."""
    session = _burst(USERS6)
    sent = {user: _answered(session, user, user, [_tool(user, 3)]) for user in USERS6}
    seen = {user: sum(f"house of {other}" in sent[user] for other in USERS6) for user in USERS6}
    assert [seen[user] for user in USERS6[3:]] == [1, 1, 1]
    # Those that began before it showed go on without the others', and in each user's second conversation too.
    for user in USERS6:
        for conversation in (user, f"{user} again"):
            sent = _answered(session, conversation, user, [_tool(user, 3)])
            assert [other for other in USERS6 if f"house of {other}" in sent] == [user]
    assert session.failures == {}


@pytest.mark.parametrize(
    "team",
    [
        {"one": "abcd", "two": "bcda", "three": "cdab", "four": "dabc", "five": "abcd"},
        {"one": "ab", "two": "ac", "three": "ad", "four": "a", "five": "ae"},
        {"one": "ab", "two": "cd", "three": "ba", "four": "dc", "five": "ef"},
    ],
    ids=["in any order", "behind one of them", "three teams"],
)
def test_a_team_that_was_made_before_its_first_request_goes_on_sharing(team):
    """Some of its roles ask in most conversations."""
    session = _burst("abcdef")
    for conversation, roles in team.items():
        for role in roles:
            sent = _answered(session, conversation, role, [_tool(role, 3)])
    assert [role for role in "abcdef" if f"house of {role}" in sent] == list("abcdef")
