"""A conversation saved and taken up by another process, which lays out its next request as who went on does."""

from __future__ import annotations

import asyncio
from types import MappingProxyType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cacheprefix import Caching, Compaction, Session, SharedPrefix
from cacheprefix.bodies import Role, fork_body
from cacheprefix.calls.begin import Request
from cacheprefix.layout.known_runs import RunAhead, RunCall
from cacheprefix.prompt import ESTIMATE
from tests.session.test_lanes import FEW, MANY, session_of, tool, words

SIZES = {"x": 700, "y": FEW, "z": 600, "Z": MANY}
"""Tokens of tools: those whose price others may pay, one that everybody carries along, one that nobody does."""
TURNS = st.tuples(
    # The last one's own text is long: it may keep its place.
    st.sampled_from("abcd"),
    st.sampled_from(["", "", "x", "y", "xy"]),
    # Tokens of what is said before it.
    st.lists(st.sampled_from([3, 40, 900]), max_size=2),
    # Whether the conversation first goes back to where it was saved, a request or more ago, or is forgotten.
    st.sampled_from(["", "", "", "", "back", "forget"]),
)


def made(names, roles="abc"):
    """One process's session, where these tools are known, and these roles before they ask."""
    return session_of(*(tool(name, SIZES[name]) for name in names), handbook=1_100, roles=roles)


FORM = {"type": "json_schema", "json_schema": {"name": "form", "strict": True, "schema": {"type": "object"}}}


def begun(session, *asked, **more):
    """A role's request that is under way, as ``laid_out`` makes it."""
    return laid_out(session, *asked, **more).begin()


def laid_out(session, role, own, said, conversation="one", *, volatile=MappingProxyType({}), ahead=None, **more):
    """A role's request; ``ahead`` it and those that come behind it, where they are known."""
    spoken = [{"role": "assistant" if text.startswith("answer") else "user", "content": text} for text in said]
    own_text = words(800, "rule") if role == "d" else f"You are {role}."
    messages = [{"role": "system", "content": f"{own_text}\n\n{session.prefix.system}"}, *spoken]
    tools = {"tools": [tool(name, SIZES[name]) for name in own]} if own else {}
    body = {"model": "gpt-5.2", "messages": messages, **tools, **more}
    asked = Role(role, conversation=conversation, volatile=volatile, ahead=ahead)
    return fork_body(session.adapter, body, "openai-chat", asked)


def sent(session, role, own, said, conversation="one", *, answered=True, **more):
    """The messages and tools of a role's request; it is refused where it is not ``answered``."""
    turn = begun(session, role, own, said, conversation, **more)
    if answered:
        turn.finish(None)
    else:
        turn.fail()
    assert session.failures == {}
    return [turn.body["messages"], turn.body.get("tools")]


@pytest.mark.slow
@example("xyZ", [("a", "y", [], ""), ("b", "y", [], "")], ("a", "y", [40], ""))
@example("xyz", [("a", "y", [], ""), ("b", "y", [], ""), ("a", "y", [900, 900], "")], ("c", "xy", [900], ""))
@example("xyz", [("c", "xy", [3, 3], "")], ("b", "y", [], "back"))
@example("xyz", [("c", "xy", [3, 3], "")], ("c", "y", [], "back"))
@example("xyz", [("d", "x", [], "")], ("a", "", [], ""))
@example("xyz", [("a", "", [3], ""), ("b", "", [3], ""), ("a", "", [], "back")], ("b", "", [], ""))
@example("xyz", [("a", "", [], ""), ("b", "", [], "back")], ("a", "", [3], ""))
@example("xyz", [("a", "", [3], ""), ("b", "", [], "back")], ("a", "", [3], ""))
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["xyz", "xyZ"]), st.lists(TURNS, min_size=1, max_size=6), TURNS)
def test_another_process_lays_out_the_next_request_alike(names, turns, then):
    """Whatever the roles carried, and also where the conversation went back or was forgotten before."""
    session, said, states = made(names), [], []

    def goes_on(number, turn):
        """Say what comes before a request, and go back before that."""
        if turn[3] == "back" and states:
            saved, count = states[number // 2 % len(states)]
            session.conversation("one").restore(saved, merge=False)
            del said[count:]
        elif turn[3] == "forget":
            session.forget("one")
            said.clear()
            states.clear()
        states.append((session.conversation("one").dumps(), len(said)))
        said.extend(words(size, f"said{number}-{at}-") for at, size in enumerate(turn[2]))

    for number, turn in enumerate(turns):
        goes_on(number, turn)
        sent(session, *turn[:2], said)
    goes_on(len(turns), then)
    other, record = made(names), session.conversation("one").dumps()
    if record == other.conversation("one").dumps():
        # It begins anew: then it goes by which roles its process has met.
        other = made(names, "abcd" if "d" in {turn[0] for turn in turns} else "abc")
    other.conversation("one").restore(record)
    assert sent(other, *then[:2], said) == sent(session, *then[:2], said)


def test_another_process_need_not_have_met_the_other_roles_yet():
    """A long text that moves on, since others read what is in front of it, does so where only its role has asked."""
    session, said = made("", ""), ["Go on."]
    sent(session, "a", "", said)
    for number in range(2):
        said.append(words(900, f"then{number}-"))
        sent(session, "d", "", said)
    said.append(words(900, "last"))
    other = made("", "")
    other.conversation("one").restore(session.conversation("one").dumps())
    assert sent(other, "d", "", said) == sent(session, "d", "", said)


def test_a_schema_that_another_process_is_the_first_to_see_hides_none_of_those_who_asked_before():
    """Who asked without one may ask again: a text moves on for them, whoever of them the process has met."""
    session, said = made("", roles=""), []
    for number, role in enumerate("abdad"):
        said.append(words(60, f"said{number}-"))
        sent(session, role, "", said)
    other, states = made("", roles=""), session.conversation("one").dumps()
    other.conversation("one").restore(states)
    last = []
    for one in (session, other):
        sent(one, "b", "", [*said, words(60, "asked")], response_format=FORM)
        last.append(sent(one, "a", "", [*said, words(60, "asked"), words(60, "last")]))
    assert last[0] == last[1]


def test_a_text_in_front_of_all_that_is_said_stays_there_whatever_becomes_of_that():
    """It is read there, and nobody who takes the conversation up knows in how many others the role began."""
    session, other = made("", "d"), made("", "d")
    sent(session, "d", "", ["Go on."], conversation="zero")
    messages, _ = sent(session, "d", "", ["What is it?"])
    assert "<role" in messages[1]["content"]
    other.conversation("one").restore(session.conversation("one").dumps())
    messages, _ = sent(other, "d", "", ["What was it?"])
    assert "<role" in messages[1]["content"]
    assert messages == sent(session, "d", "", ["What was it?"])[0]


@pytest.mark.parametrize("before", [[], ["zero"], ["zero", "minus one"]])
@pytest.mark.parametrize("tries", [1, 2])
def test_a_first_request_that_is_refused_begins_no_conversation(before, tries):
    """What comes next is what a process sends that was refused nothing; a second try is what the first one was."""
    session, other = made("", "abd"), made("", "abd")
    for one in (session, other):
        for name in before:
            sent(one, "d", "", [words(300, name)], name)
    tried = [sent(session, "d", "", [words(300, "refused")], "refused", answered=False) for _ in range(tries)]
    assert all(one == tried[0] for one in tried)
    asked = [("d", "one"), ("a", "one"), ("d", "one"), ("d", "two")]
    for number, (name, talk) in enumerate(asked):
        said = [words(300, talk), *([words(300, "answer")] * number if talk == "one" else [])]
        assert sent(session, name, "", said, talk) == sent(other, name, "", said, talk), (number, name)


@pytest.mark.parametrize("roles", ["da", "ad", "dad"])
@pytest.mark.parametrize("before", [[], ["zero"]])
@pytest.mark.parametrize("last_fails_first", [False, True])
def test_first_requests_side_by_side_that_are_all_refused_begin_no_conversation(roles, before, last_fails_first):
    """Whichever is refused first: what comes next is what a process sends that was refused nothing."""
    session, other = made("", "abd"), made("", "abd")
    for one in (session, other):
        for name in before:
            sent(one, "d", "", [words(300, name)], name)
    turns = [begun(session, role, "", [words(300, "refused"), "answer", role], "refused") for role in roles]
    for turn in reversed(turns) if last_fails_first else turns:
        turn.fail()
    for role in "da":
        said = [words(300, "one")]
        assert sent(session, role, "", said) == sent(other, role, "", said), role


async def test_a_first_request_that_is_cancelled_where_it_waits_begins_no_conversation():
    """It was never sent: what comes next is what a process sends that nobody has led, nor asked before."""
    session, other = made("", "abd"), made("", "abd")
    leader = await laid_out(session, "a", "", [words(300, "zero")], "zero").aqueue()
    waits = asyncio.create_task(laid_out(session, "d", "", [words(300, "cancelled")], "cancelled").aqueue())
    for _ in range(9):
        await asyncio.sleep(0)
    assert leader.leader
    assert not waits.done()
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    leader.release(ok=False)
    said = [words(300, "one")]
    assert sent(session, "d", "", said) == sent(other, "d", "", said)


@pytest.mark.parametrize("tries", [1, 2])
def test_a_known_run_of_which_nothing_was_answered_has_not_begun(tries):
    """Its first request is refused, each time: what comes next is what a process sends that was refused nothing."""
    session, other = made("", "abd"), made("", "abd")
    run = RunAhead((RunCall("d", 800), RunCall("a", 5)))
    for _ in range(tries):
        sent(session, "d", "", [words(300, "refused")], "refused", answered=False, ahead=run)
    for role in "da":
        said = [words(300, "one")]
        assert sent(session, role, "", said) == sent(other, role, "", said), role


@pytest.mark.parametrize("refused", [0, 1])
def test_a_conversation_has_begun_where_one_of_its_first_requests_side_by_side_is_answered(refused):
    """A text that was refused beside it stands as if it was sent."""
    session, other = made("", "abd"), made("", "abd")
    for one in (session, other):
        turns = [begun(one, role, "", [words(300, "zero")], "zero") for role in "da"]
        if one is session:
            turns.pop(refused).fail()
        for turn in turns:
            turn.finish(None)
    assert sent(session, "d", "", [words(300, "one")]) == sent(other, "d", "", [words(300, "one")])


def test_a_request_without_a_noted_place_that_is_refused_beside_the_first_one_undoes_nothing():
    """Text for this request alone has no place that later ones go by, and its role's first request is answered."""
    session, other = made("", "abd"), made("", "abd")
    for one in (session, other):
        first = begun(one, "d", "", [words(300, "zero")], "zero")
        if one is session:
            begun(one, "d", "", [words(300, "zero")], "zero", volatile={"time": "12:01"}).fail()
        first.finish(None)
    messages, _ = sent(session, "d", "", [words(300, "one")])
    assert messages == sent(other, "d", "", [words(300, "one")])[0]
    assert "<role" in messages[1]["content"]


def test_a_request_that_is_refused_in_a_conversation_that_began_undoes_nothing():
    """The one before it was answered, so that the role has begun there."""
    session, other = made("", "abd"), made("", "abd")
    for one, answered in ((session, False), (other, True)):
        sent(one, "d", "", [words(300, "zero")], "zero")
        sent(one, "d", "", [words(300, "zero"), "answer", "And then?"], "zero", answered=answered)
    messages, _ = sent(session, "d", "", [words(300, "one")])
    assert messages == sent(other, "d", "", [words(300, "one")])[0]
    assert "<role" in messages[1]["content"]


def test_what_nobody_lays_out_and_is_refused_undoes_nothing_either():
    """It is another request of a conversation that was answered."""
    session, other = made("", "abd"), made("", "abd")
    for one in (session, other):
        sent(one, "d", "", [words(300, "zero")], "zero")
    body = {"model": "gpt-5.2", "messages": [{"role": "user", "content": "A title, please."}]}
    session.adapter.begin(Request(body, "openai-chat", conversation="zero")).fail()
    assert sent(session, "d", "", [words(300, "one")]) == sent(other, "d", "", [words(300, "one")])


def test_what_nobody_lays_out_and_is_refused_beside_the_first_request_undoes_nothing():
    """That one is under way, and is answered: where its role's text stands is known to the next one."""
    session, other = made("", "abd"), made("", "abd")
    for one in (session, other):
        sent(one, "d", "", [words(300, "zero")], "zero")
        sent(one, "d", "", [words(300, "minus one")], "minus one")
        first = begun(one, "d", "", [words(900, "hello")])
        if one is session:
            title = {"model": "gpt-5.2", "messages": [{"role": "user", "content": "A title, please."}]}
            one.adapter.begin(Request(title, "openai-chat", conversation="one")).fail()
        first.finish(None)
    said = [words(900, "hello"), words(100, "answer"), words(800, "more")]
    for role in "ad":
        assert sent(session, role, "", said) == sent(other, role, "", said), role
        said += [words(100, "answer"), "And then?"]


def test_a_role_whose_history_was_compacted_begins_no_other_conversation():
    """Another first message stands there then, and nobody who takes the conversation up knows what there was before."""

    def compacting():
        prefix = SharedPrefix(system=words(1_100, "book"))
        caching = Caching(provider="openai", counter=ESTIMATE)
        session = Session(prefix, caching=caching, compaction=Compaction(1_500, keep_turns=2, keep_users=False))
        for role in "abd":
            session.adapter.join(role)
        return session

    session, said = compacting(), ["Go on."]
    sent(session, "d", "", said)
    for number, role in enumerate("ab"):
        said += [words(900, f"answer{number}-"), "And?"]
        messages, _ = sent(session, role, "", said)
    assert "removed" in messages[1]["content"]
    other = compacting()
    other.conversation("one").restore(session.conversation("one").dumps())
    assert sent(other, "d", "", said) == sent(session, "d", "", said)
