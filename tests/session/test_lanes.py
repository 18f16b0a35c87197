"""Which tools a role's requests carry: the union, or its own where the others' would cost more than sharing saves."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from benchmarks.role_plans import Plan, played, profile_of, session_for, words
from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.bodies import Role, fork_body
from cacheprefix.layout.economics import newcomers_pay, union_gains, union_pays, union_starts
from cacheprefix.layout.team import Team, ToolSource, Whose
from cacheprefix.profiles import default_registry
from cacheprefix.prompt import ESTIMATE

FEW, MANY = 300, 12_000
FORM = {"type": "object", "properties": {"q": {"type": "string"}}}


def tool(name, tokens=FEW):
    """A tool as OpenAI's chat takes it."""
    return {"type": "function", "function": {"name": name, "description": words(tokens, name), "parameters": FORM}}


def session_of(*tools, handbook=0, roles=("a", "b", "c")):
    """One that knows all tools and roles before the first request."""
    prefix = SharedPrefix(system=words(handbook, "book"), tools=tools)
    session = Session(prefix, caching=Caching(provider="openai", counter=ESTIMATE))
    for role in roles:
        session.adapter.join(role)
    return session


def sent(session, role, own, said=("Begin.",), conversation="one", text="", model="gpt-5.2", **more):
    """The names of the tools in a role's request, and whether it is a fork."""
    spoken = [{"role": "user", "content": text} for text in said]
    system = f"You are {role}.{text}\n\n{session.prefix.system}"
    messages = [{"role": "system", "content": system}, *spoken]
    body = {"model": model, "messages": messages, **({"tools": list(own)} if own else {}), **more}
    fork = fork_body(session.adapter, body, "openai-chat", Role(role, conversation=conversation))
    turn = fork.begin()
    turn.finish(None)
    assert session.failures == {}
    if not fork.forked:
        assert turn.body == body
    return [one["function"]["name"] for one in turn.body.get("tools", [])], fork.forked


def test_small_tools_of_others_are_carried_along():
    """Reading them costs a few tokens; not sharing would cost all that is said."""
    session = session_of(tool("x"), tool("y"), handbook=2_000)
    assert sent(session, "a", [tool("x")]) == (["x", "y"], True)
    assert sent(session, "b", [tool("y")]) == (["x", "y"], True)
    assert sent(session, "c", []) == (["x", "y"], True)


def test_a_role_does_not_carry_what_costs_more_than_sharing_saves():
    """Its request stays the application's own, and the report says why."""
    session = session_of(tool("x", MANY), tool("y"), handbook=2_000)
    assert sent(session, "b", [tool("y")]) == (["y"], False)
    (said,) = [one for one in session.report().layouts if one.agent == "b"]
    assert (said.layout, said.reason.why) == ("own", "tools_cost_more")
    assert str(said).startswith("1 x b in the application's own layout: nobody else carries the same tools")
    assert "the others' (12," in str(said)


def test_a_long_conversation_pays_for_larger_tools_than_a_short_one():
    """What was said before is shared as the handbook is: with it, the other's tool is worth its reading."""
    said = [words(500, f"said{number}-") for number in range(4)]
    for texts, carried in ((["Begin."], []), (said, ["x"])):
        session = session_of(tool("x", 700), handbook=2_000, roles=("a", "b"))
        assert sent(session, "b", [], texts) == (carried, bool(carried))


def test_many_that_share_pay_for_larger_tools_than_few():
    """Each of the others saves what it would have paid for another one's answer."""
    weighed = partial(union_pays, foreign=700, opening=1_000, reply=200.0, read=0.5, whole=False)
    assert [weighed(others=others) for others in (1, 5)] == [False, True]


@pytest.mark.parametrize("rules", ["openai", "openai-5.6"])
def test_the_last_of_a_team_to_ask_does_not_carry_what_nobodys_first_request_gives_back(rules):
    """Where a read token costs half, short messages never pay for another's tools: it was 1.06 of unmodified."""
    plan = Plan(2_000, (200,) * 2, tuple((at % 2, 60) for at in range(24)), (300, 300), marked=True)
    profile = profile_of(rules, 0.5)
    ours, unmodified = (
        sum(one.cost_units(profile) for one in played(plan, rules, some, read=0.5))
        for some in (session_for(plan, rules, 0.5), None)
    )
    assert ours <= 1.005 * unmodified


def test_the_more_are_yet_to_come_the_larger_tools_are_carried_for_their_sake():
    """A quarter of what they would read with their first requests; a written token counts on both sides."""
    weighed = partial(newcomers_pay, foreign=600, shared=4_000, read=0.5)
    assert [weighed(newcomers=number, write=1.0) for number in (1, 2)] == [False, True]
    assert not weighed(newcomers=2, write=1.0, anew=500)
    assert weighed(newcomers=1, write=1.0, foreign=500)


def test_who_has_conversations_of_its_own_does_not_pay_for_the_tools_of_all_in_each():
    """Tools that came with the roles were never sent together: once each role asks alone, nobody guesses anew."""
    session = session_of(handbook=2_000, roles=())
    talks = [("a", "x"), ("b", "y"), ("c", "z")]
    carried = [sent(session, who, [tool(name)], conversation=who)[0] for who, name in talks]
    assert carried == [[name] for _, name in talks]
    joint = session_of(handbook=2_000, roles=())
    assert [sent(joint, who, [tool(name)], conversation="one")[0] for who, name in talks[:2]] == [["x"], ["x", "y"]]


def test_nobody_starts_with_tools_of_others_that_are_most_of_its_request():
    """Should the same role ask again and nobody else, it would have paid them for nothing."""
    session = session_of(tool("x", 600), tool("y", 600), tool("z", 600), handbook=1_500)
    assert sent(session, "a", [tool("x", 600)]) == (["x"], False)


def test_a_write_premium_makes_starting_later_in_a_conversation_dearer():
    """A tenth of what it paid by then, in what a written token costs."""
    starts = partial(union_starts, foreign=90, opening=500, before=500, whole=False)
    assert [starts(write=write) for write in (1.0, 1.25)] == [True, False]


def test_nobody_starts_on_a_guess_where_whole_requests_are_kept():
    """Others' tools are paid for three times there, before anybody reads them; of a tenth that is still said."""
    starts = partial(union_starts, opening=900, before=0, write=1.0)
    assert [starts(foreign=foreign, whole=True) for foreign in (30, 31)] == [True, False]
    assert [starts(foreign=foreign, whole=False) for foreign in (385, 386)] == [True, False]


def test_a_role_with_its_own_tools_follows_those_who_came_to_carry_all():
    """Who asks first in a long conversation may start; the others read that, in another process too."""
    tools = [tool(name, 600) for name in "xyz"]
    session, said = session_of(*tools, handbook=1_500), ["Begin."]
    assert sent(session, "a", tools[:1]) == (["x"], False)
    said += [words(2_000, f"said{number}-") for number in range(7)]
    assert sent(session, "b", tools[1:2], said) == (["x", "y", "z"], True)
    assert sent(session, "a", tools[:1], [*said, "Go on."]) == (["x", "y", "z"], True)
    other = session_of(*tools, handbook=1_500)
    other.conversation("one").restore(session.conversation("one").to_json(), rebase=True)
    assert sent(other, "a", tools[:1], [*said, "Go on."]) == (["x", "y", "z"], True)


def test_a_role_with_a_long_text_of_its_own_follows_where_that_text_comes_back():
    """By the request itself, or out of what the conversation paid by then, each that may follow its part of it."""
    gains = partial(union_gains, foreign=400, missed=500, read=0.1)
    assert [gains(text=text) for text in (0, 455, 456)] == [True, True, False]
    assert [gains(text=1_000, before=before) for before in (8_999, 9_000)] == [False, True]
    assert [gains(text=1_000, before=9_000, others=others) for others in (1, 2)] == [True, False]
    assert not gains(missed=44, before=99_999)


@pytest.mark.parametrize(("messages", "minimum", "follows"), [(4, 1_024, False), (16, 1_024, True), (4, 3_000, True)])
def test_a_long_text_is_not_paid_again_for_a_few_messages(messages, minimum, follows):
    """Where the request was too short to be kept, the text is in no cache, and costs the same in either layout."""
    registry = default_registry().copy()
    registry.register(replace(default_registry().get("openai"), min_tokens=minimum))
    tools = [tool("x", 50), tool("y", 1_500)]
    prefix = SharedPrefix(tools=tools)
    session = Session(prefix, caching=Caching(provider="openai", counter=ESTIMATE, profiles=registry))
    for role in "ab":
        session.adapter.join(role)
    long, said = words(2_000, "duty"), ["Begin."]
    assert sent(session, "a", tools[:1], text=long) == (["x"], False)
    said += [words(500, f"said{number}-") for number in range(messages)]
    assert sent(session, "b", tools[1:], said)[0] == ["x", "y"]
    assert sent(session, "a", tools[:1], [*said, "Go on."], text=long)[0] == (["x", "y"] if follows else ["x"])


def test_those_of_the_very_same_tools_share_without_the_others():
    """The first one finds nobody; from the second on they read each other's requests."""
    session = session_of(tool("x", MANY), tool("y"), handbook=2_000)
    assert sent(session, "b", [tool("y")]) == (["y"], False)
    assert sent(session, "c", [tool("y")]) == (["y"], True)
    said = ["Begin.", *(words(150, f"said{number}-") for number in range(6))]
    assert sent(session, "c", [tool("y")], said) == (["y"], True)
    said.append(words(150, "said6-"))
    assert sent(session, "b", [tool("y")], said) == (["y"], True)


def test_a_peer_stays_one_when_it_asks_without_its_tools():
    """A node may call its model with tools and without; the others' layout does not follow."""
    session = session_of(tool("x", MANY), tool("y"), handbook=2_000)
    sent(session, "b", [tool("y")])
    assert sent(session, "c", [tool("y")]) == (["y"], True)
    sent(session, "b", [])
    assert sent(session, "c", [tool("y")]) == (["y"], True)


def test_a_conversation_grows_by_a_small_tool_that_came_late():
    """Its role's first request is cold in any case; from it on all carry the same, which is worth the tool's price."""
    session = session_of(tool("x"), tool("y"), handbook=2_000)
    assert sent(session, "a", [tool("x")]) == (["x", "y"], True)
    assert sent(session, "b", [tool("y"), tool("late")]) == (["late", "x", "y"], True)
    assert sent(session, "a", [tool("x")]) == (["late", "x", "y"], True)


def test_a_large_tool_that_came_late_stays_with_its_roles():
    """What the others carry stays as it was, and those who have it share with one another."""
    session = session_of(tool("x"), tool("y"), handbook=2_000)
    sent(session, "a", [tool("x")])
    assert sent(session, "b", [tool("y"), tool("late", MANY)]) == (["y", "late"], False)
    assert sent(session, "c", [tool("y"), tool("late", MANY)]) == (["late", "y"], True)
    assert sent(session, "a", [tool("x")]) == (["x", "y"], True)


def test_a_tool_that_comes_for_a_tenant_is_nobody_elses_from_its_first_moment_on(monkeypatch):
    """Threads that ask just then name no tenant."""
    session, seen = session_of(tool("x"), handbook=2_000), []
    sent(session, "a", [tool("x")])
    adopt = Team.adopt_tools

    def looked(team, *given, **options):
        union = adopt(team, *given, **options)
        seen.append(session.adapter.tools_open_to(""))
        return union

    monkeypatch.setattr(Team, "adopt_tools", looked)
    session.adapter.adopt_tools([tool("house")], dict, grows=True, scope="acme")
    assert seen == [{"x"}]
    assert session.adapter.tools_open_to("acme") == {"x", "house"}


def test_a_front_doors_own_tools_are_those_alone_who_are_said_to_have_them():
    """Whenever they came; and of a run that is over nobody's."""
    session = session_of(tool("x"), handbook=2_000)
    adapter, door, run = session.adapter, Whose("door"), Whose("door:run")
    adapter.adopt_tools([tool("house"), tool("mails")], dict, grows=True, source=ToolSource(of_door=True))
    adapter.bring_tools(door, ["house", "mails"], differ=["mails"])
    adapter.bring_tools(run, ["mails"])
    assert sent(session, "a", [tool("x")]) == (["x"], True)
    seen = [adapter.tools_open_to(who) for who in (door, run, Whose("another"), "acme")]
    assert seen == [{"x", "house"}, {"x", "mails"}, {"x"}, {"x"}]
    assert adapter.child("inner").tools_open_to(Whose("another")) == {"x"}
    assert adapter.rehearsal().tools_open_to(Whose("another")) == {"x"}
    adapter.drop_tools(run)
    assert adapter.tools_open_to(run) == {"x"}


def test_a_lane_is_kept_within_a_conversation_and_found_anew_in_the_next():
    """Long messages would make the union worth its price by now; the layout stays, since changing it costs too."""
    session = session_of(tool("x", 1_900), tool("y"))
    assert sent(session, "b", [tool("y")]) == (["y"], False)
    said = ["Begin.", *(words(900, f"said{number}-") for number in range(6))]
    assert sent(session, "b", [tool("y")], said) == (["y"], False)
    assert sent(session, "b", [tool("y")], said, conversation="two") == (["x", "y"], True)
    assert sent(session, "b", [tool("y")], conversation="two") == (["x", "y"], True)


def test_another_process_knows_that_a_role_shared_with_all_tools_of_its_own():
    """Its next request carries none: what it sends does not depend on who remembers that it began as a fork."""
    tools = [tool("x", 2_000), tool("y", 2_000)]
    session, said = session_of(*tools, handbook=1_500), ["Begin."]
    assert sent(session, "a", tools, said) == (["x", "y"], True)
    other = session_of(*tools, handbook=1_500)
    other.conversation("one").restore(session.conversation("one").to_json(), rebase=True)
    said.append("Now in one word.")
    assert sent(session, "a", [], said) == sent(other, "a", [], said) == (["x", "y"], True)


def test_another_process_knows_that_two_roles_shared_their_own_tools():
    """Others' tools cost more than sharing saves, but both begin alike: each one's requests are forks there too."""
    session = session_of(tool("x", MANY), handbook=2_000)
    assert sent(session, "a", []) == ([], False)
    alone = session.conversation("one").to_json()
    assert sent(session, "b", []) == ([], True)

    def resumed(saved):
        other = session_of(tool("x", MANY), handbook=2_000)
        other.conversation("one").restore(saved, rebase=True)
        return other

    said = ["Begin.", "And now?"]
    assert sent(resumed(alone), "a", [], said) == ([], False)
    both = session.conversation("one").to_json()
    assert sent(session, "a", [], said) == sent(resumed(both), "a", [], said) == ([], True)
    assert sent(resumed(both), "a", [tool("z")], said) == (["z"], False)


@pytest.mark.parametrize(("size", "lane"), [(2_500, (["y"], False)), (FEW, (["x", "y"], True))])
def test_another_process_takes_the_lane_up(size, lane):
    """From the conversation's ledger, although by now there is more to share, or less said a turn."""
    one = session_of(tool("x", size), tool("y"), handbook=1_100)
    if size > FEW:
        one = session_of(tool("x", size), tool("y"))
    assert sent(one, "b", [tool("y")]) == lane
    saved = one.conversation("one").to_json()
    two = session_of(tool("x", size), tool("y"), handbook=1_100 if size == FEW else 0)
    two.conversation("one").restore(saved, rebase=True)
    said = ["Begin.", *(words(900 if size > FEW else 1, f"said{number}-") for number in range(6))]
    assert sent(two, "b", [tool("y")], said) == lane
    assert not two.conversation("one").ledger.alters


@pytest.mark.slow
@pytest.mark.parametrize("rules", ["openai", "openai-5.6", "anthropic"])
@pytest.mark.parametrize("rounds", [1, 2, 12])
@pytest.mark.parametrize("said", [60, 400])
def test_agents_with_large_tools_of_their_own_never_pay_for_the_others(rules, rounds, said):
    """Four toolsets of 4,000 tokens: with the union each request would read 12,000 more."""
    plan = Plan(2_000, (40,) * 4, tuple((n % 4, said) for n in range(4 * rounds)), (4_000,) * 4)
    session = session_for(plan, rules)
    cost = partial(sum_of, plan, rules)
    # On Anthropic the first write may be the last request.
    assert cost(session) <= cost(None) * (1.15 if rules == "anthropic" and rounds == 2 else 1.001)


def sum_of(plan, rules, session):
    """Cost units of the whole plan."""
    return sum(outcome.cost_units(default_registry().get(rules)) for outcome in played(plan, rules, session))


def test_a_single_call_does_not_pay_for_tools_of_agents_that_are_never_asked():
    """One of five, whose brothers have much."""
    plan = Plan(200, (40,) * 5, ((0, 30),), (300, 4_000, 4_000, 4_000, 300))
    session = session_for(plan, "openai")
    assert sum_of(plan, "openai", session) <= sum_of(plan, "openai", None)


LATE_TOOLS = Plan(
    250, (2_083,) * 6, ((3, 900), *((int(who), 40) for who in "11025111400120224")), (0, 900, 364, 0, 1_814, 0),
    common=806, declared=False,
)  # fmt: skip
NO_TOOLS_AT_FIRST = Plan(
    1_507, (1_127, 2_345, 229, 158, 52, 35), tuple((at % 6, 55) for at in range(48)), (0, 0, 0, 2_749, 405, 39),
    book_first=True, declared=False,
)  # fmt: skip
LONG_ANSWERS = Plan(2_244, (558,) * 6, tuple((int(who), 1_800) for who in "155421"), (53, 79, 1_057, 67, 213, 1_828))


@pytest.mark.parametrize(
    ("plan", "rules", "read", "most"),
    [
        (LATE_TOOLS, "openai-5.6", 0.25, 1.0),
        (NO_TOOLS_AT_FIRST, "openai", 0.1, 1.05),
        # One write premium on its first request, and one on a role that asks again.
        (replace(LONG_ANSWERS, declared=False), "anthropic", 0.5, 1.11),
    ],
)
def test_tools_that_come_one_after_the_other_do_not_make_everybody_begin_anew(plan, rules, read, most):
    """With each one more in front of the rest, all would pay their own texts, and what was written, once more."""
    assert ratio(plan, rules, read) <= most


def ratio(plan, rules, read):
    """What a plan costs for each unit that it costs unmodified."""
    profile = profile_of(rules, read)
    plain, ours = (
        sum(one.cost_units(profile) for one in played(plan, rules, session, read=read))
        for session in (None, session_for(plan, rules, read))
    )
    return ours / plain


def test_tools_of_a_role_that_shares_nothing_are_carried_by_nobody():
    """It lacks the shared text, so that nobody has sent its tools in a request that begins like the others'."""
    turns = ((0, 2_253), (1, 1_409), (2, 1_646), (3, 2_141), (4, 1_824), (4, 1_034))
    plan = Plan(2_406, (191, 2_806, 387, 504, 58), turns, (0, 3_130), book_first=True, outlier=1)
    assert ratio(plan, "openai", 0.5) <= 1.0


def test_tools_that_another_model_carried_are_not_taken_for_written():
    """The record of a conversation names no models; what one model's cache holds, another's does not."""
    said = ["Begin.", words(900, "said")]
    for other, lane in (("gpt-5.2", ["x", "y"]), ("gpt-5.2-mini", ["y"])):
        session = session_of(tool("x", 1_200), tool("y"))
        assert sent(session, "a", [tool("x", 1_200), tool("y")], said) == (["x", "y"], True)
        assert sent(session, "b", [tool("y")], said, model=other)[0] == lane


def test_who_finds_others_with_its_own_tools_starts_nothing_else():
    """They are read as they are; with others' tools in front nobody's requests begin alike."""
    session, said = session_of(tool("x", 3_000), roles=("a", "b", "c", "d")), ["Begin."]
    for role in ("a", "b"):
        sent(session, role, [], said)
    said += [words(4_000, f"said{number}-") for number in range(8)]
    assert sent(session, "c", [], said) == ([], True)


def test_a_conversation_goes_by_the_schemas_that_were_asked_with_in_it():
    """Another process that takes it up has heard of none of them, and has met other conversations."""
    answer = {"response_format": {"type": "json_schema", "json_schema": {"name": "found", "schema": FORM}}}
    tools = tool("x"), tool("y")
    first, second = (session_of(*tools, handbook=2_000) for _ in range(2))
    sent(first, "a", [tools[0]], **answer)
    second.conversation("one").restore(first.conversation("one").to_json(), rebase=True)
    sent(first, "c", [], conversation="two", **answer)
    here, there = (sent(session, "b", [tools[1]], **answer) for session in (first, second))
    assert here == there == (["x", "y"], True)


def test_who_asked_before_a_process_took_a_conversation_up_may_carry_the_same_tools_still():
    """There nobody but one with an answer schema was known to have asked, whom no other request shares with."""
    answer = {"response_format": {"type": "json_schema", "json_schema": {"name": "found", "schema": FORM}}}
    tools, said = (tool("x"), tool("y")), ["Begin.", *(words(300, f"said{number}-") for number in range(6))]
    first, second = (session_of(*tools, roles=()) for _ in range(2))
    sent(first, "a", tools[:1], said)
    sent(first, "c", tools[:1], said, **answer)
    second.conversation("one").restore(first.conversation("one").to_json(), rebase=True)
    here, there = (sent(session, "b", tools[1:], said) for session in (first, second))
    assert here == there == (["x", "y"], True)


def test_who_asked_before_a_process_took_a_conversation_up_may_read_what_is_said_still():
    """There a role's text stayed behind what had been said when it asked first, where nobody reads on from."""
    answer = {"response_format": {"type": "json_schema", "json_schema": {"name": "found", "schema": FORM}}}
    said = ["Begin.", words(300, "said"), words(100, "a"), words(100, "c")]
    first, second = (session_of(handbook=600, roles=()) for _ in range(2))
    sent(first, "a", [], said[:2])
    sent(first, "c", [], said[:3], **answer)
    talks = [session.adapter.conversation("one") for session in (first, second)]
    talks[1].restore(talks[0].to_json(), rebase=True)
    second.adapter.restore_places(talks[1], first.adapter.places(talks[0]))
    for session in (first, second):
        bodies = []
        for behind in ([], [words(80, "answer")]):
            messages = [{"role": "user", "content": text} for text in (*said, *behind)]
            system = {"role": "system", "content": f"You are b.\n\n{session.prefix.system}"}
            body = {"model": "gpt-5.2", "messages": [system, *messages]}
            turn = fork_body(session.adapter, body, "openai-chat", Role("b", conversation="one")).begin()
            turn.finish(None)
            bodies.append([one["content"][:5] for one in turn.body["messages"]])
        assert [one[-1] for one in bodies] == ["<role", "<role"], session is first
        assert session.failures == {}
