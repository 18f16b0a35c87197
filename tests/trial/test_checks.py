"""Each check of the trial finds what it is there for, in a recording that is made to be broken."""

import json
import threading
import time
from dataclasses import replace

import pytest

from cacheprefix import ToolResultBudget
from cacheprefix.layout.framing import role_element
from cacheprefix.server import Fault, Record, Reply
from cacheprefix.wire import decode, structure_errors
from tests.transparent.harness import Seen
from tests.trial.applications import Person, Role, application
from tests.trial.checks import Framing, Run, check, prefix_stands, replayed
from tests.trial.playing import within

HANDBOOK = "Who claims something names its source."
ALICE, BOB = Person("xalice", "xacme", "thread-0"), Person("xbob", "xbeta", "thread-0")
PLANNER = Role("planner", "You plan.", ())
TURN = replace(
    application(0, ("openai-chat",)).turns[0], number=0, people=(ALICE,), said="Go on.", fault="", roles=(PLANNER,)
)
APP = replace(
    application(0, ("openai-chat",)), handbook=HANDBOOK, people=(ALICE, BOB), roles=(PLANNER,), options={}, broken=None,
    turns=(TURN, replace(TURN, number=1)),
)  # fmt: skip
OWN = [{"role": "system", "content": f"You plan.\n\n{HANDBOOK}"}, {"role": "user", "content": "Go on."}]
FORK = [
    {"role": "system", "content": HANDBOOK},
    {"role": "user", "content": "Go on."},
    {"role": "user", "content": role_element("planner", "You plan.")},
]
SAID = [{"role": "assistant", "content": "Fine."}, {"role": "user", "content": "Go on."}]


def sent(messages, turn=0, who=ALICE):
    """A request as the provider records it."""
    body = {"model": "gpt-5.6", "messages": messages}
    made = Record(0, "openai-chat", "/v1/chat/completions", json.dumps(body).encode(), {})
    made.session, made.agent = f"{who.name}/{turn}/0", "planner"
    made.prompt = decode(body, "openai-chat")
    made.invalid = tuple(structure_errors(body, "openai-chat"))
    return made


def runs(*own, forked, observed=None, **more):
    """Three runs whose application saw the same."""
    made = {
        "unmodified": Run("unmodified", own),
        "observed": Run("observed", own if observed is None else observed),
        "forked": Run("forked", forked),
    }
    return {mode: replace(run, seen=Seen({"saw": "Fine."}, ()), **more.get(mode, {})) for mode, run in made.items()}


def grown(messages):
    """A second turn: what was said comes in front of the role's text."""
    at = 2
    return [*messages[:at], *SAID, *messages[at:]]


GOOD = runs(sent(OWN), sent(grown(OWN), 1), forked=(sent(FORK), sent(grown(FORK), 1)))


def numbers(found):
    """Which invariants are broken."""
    return {one.invariant for one in found}


def test_a_good_recording_breaks_nothing():
    """What all the others are damaged from."""
    assert check(APP, GOOD) == []


def forked(*records, app=APP, **more):
    """What is broken where this was sent in the fork."""
    return numbers(check(app, {**GOOD, "forked": replace(GOOD["forked"], records=records, **more)}))


def test_another_persons_or_tenants_words_are_found():
    """In a request, and in a report."""
    for word in ("xbob-ask-3", "xbeta"):
        assert 8 in forked(sent([*FORK, {"role": "user", "content": word}]), sent(grown(FORK), 1))
    assert forked(*GOOD["forked"].records, told="agent xalice-ask-1") == {8}


@pytest.mark.parametrize("again", [(), (OWN,)], ids=["never", "in another run"])
def test_a_request_that_is_observed_in_one_run_alone_is_the_clocks(again):
    """A sibling's failure ends the turn before it is made, or behind it. Where it is never made, something is lost."""
    known = runs(sent(OWN), forked=(sent(FORK),), observed=())
    known |= {f"{mode} 0": Run(mode, tuple(map(sent, again))) for mode in ("observed", "unmodified") if again}
    assert (4 in numbers(check(APP, known, ()))) is not bool(again)


def test_a_request_that_a_provider_refuses_is_found():
    """An empty text, and what only the provider itself finds."""
    assert 3 in forked(sent([*FORK, {"role": "tool", "tool_call_id": "gone", "content": "x"}]), sent(grown(FORK), 1))
    refused = sent(FORK)
    refused.status, refused.error = 400, "tools: too many"
    assert forked(refused, sent(grown(FORK), 1)) == {3}


def test_an_observed_request_that_differs_by_a_byte_is_found():
    """Or that is missing, or one more."""
    other = sent(OWN)
    other.body += b" "
    for records in (
        (other, GOOD["observed"].records[1]),
        GOOD["observed"].records[:1],
        (*GOOD["observed"].records, other),
    ):
        found = check(APP, {**GOOD, "observed": replace(GOOD["observed"], records=records)})
        assert numbers(found) == {4}


@pytest.mark.parametrize("options", [{}, {"budget": ToolResultBudget(max_tokens=60)}])
def test_a_question_that_is_missing_or_doubled_is_found(options):
    """By all words where nothing is shortened, else question by question."""
    app = replace(APP, options=options)
    missing = [one for one in FORK if one["content"] != "Go on."]
    assert 9 in forked(sent(missing), sent(grown(FORK), 1), app=app)
    assert 9 in forked(sent([FORK[1], *FORK]), sent(grown(FORK), 1), app=app)


@pytest.mark.parametrize("speaker", ["system", "developer", "assistant"])
def test_words_that_gain_authority_are_found(speaker):
    """What a person asks, as the application's or as the model's."""
    asked = {"role": "user", "content": "xalice-ask-0"}
    own, told = [*OWN, asked], {**asked, "role": speaker}
    for said, broken in ((asked, set()), (told, {9})):
        known = runs(sent(own), forked=(sent([FORK[0], FORK[1], said, FORK[2]]),))
        assert numbers(check(APP, known)) == broken


@pytest.mark.parametrize("text", [HANDBOOK, PLANNER.duty])
def test_the_applications_text_without_a_frame_is_found(text):
    """In a user's message it stands as a role's, and in the model's not at all."""
    for said in ({"role": "user", "content": text}, {"role": "assistant", "content": role_element("planner", text)}):
        others = [one for one in FORK if text not in one["content"]]
        assert 9 in forked(sent([*others, said]), sent(grown(FORK), 1))


def test_a_request_that_is_never_made_or_made_twice_is_found():
    """Fail open: each of the application's goes out."""
    assert forked(sent(FORK)) == {5}
    for fault, broken in (("500", set()), ("", {5})):
        turns = (APP.turns[0], replace(APP.turns[1], fault=fault, together=True))
        assert forked(sent(FORK), app=replace(APP, turns=turns)) == broken
    assert forked(sent(FORK), sent(FORK), sent(grown(FORK), 1)) == {5}


def test_what_a_leader_asks_twice_is_one_question():
    """It streams for its siblings, and where that breaks it asks for the whole: who asks so without a fault, twice."""
    app = replace(APP, turns=(replace(TURN, fault="usage left out"), TURN))
    for fault, broken in ((Fault(usage="omit"), set()), (None, {5})):
        streamed = sent(FORK)
        streamed.asked, streamed.reply = replace(streamed.asked, stream=True), Reply("Fine.", fault=fault)
        records = streamed, sent(FORK), sent(grown(FORK), 1)
        assert forked(*records, app=app if fault else APP) == broken
        assert len(replace(GOOD["forked"], records=records).by_key) == 2 + bool(broken)


def test_a_shared_part_that_changes_is_found():
    """Its system text (1), and what was said before (7), though the application only added to it."""
    changed = [{"role": "system", "content": f"{HANDBOOK} "}, *grown(FORK)[1:]]
    assert 1 in forked(sent(FORK), sent(changed, 1))
    formed = sent(changed, 1)
    formed.asked = replace(formed.asked, schema={"type": "object"})
    # With a schema it is another prompt to the provider anyway.
    assert 1 not in forked(sent(FORK), formed)
    moved = [FORK[0], FORK[2], *grown(FORK)[1:2], *SAID]
    assert 7 in forked(sent(FORK), sent(moved, 1))


@pytest.mark.parametrize(("filler", "broken"), [("", True), ("dummy_tool", False)])
def test_a_tool_that_a_framework_puts_in_where_there_is_none_is_nobodys(filler, broken):
    """The first request has no tools of its own; the second one carries those that another agent brought."""

    def with_tool(made, name):
        body = {**made.json, "tools": [{"type": "function", "function": {"name": name}}]}
        made.prompt = decode(body, "openai-chat")
        return made

    known = runs(
        sent(OWN), sent(grown(OWN), 1),
        forked=(with_tool(sent(FORK), "dummy_tool"), with_tool(sent(grown(FORK), 1), "search")),
    )  # fmt: skip
    known["forked"] = replace(known["forked"], framing=Framing(filler=filler))
    assert bool([*prefix_stands(APP, known, ())]) is broken


def test_a_resumed_conversation_that_sends_other_bytes_is_found():
    """As one session would have sent them."""
    moved = [FORK[0], FORK[2], FORK[1]]
    once = Run("continued", (sent(moved), sent(grown(FORK), 1)))
    assert numbers(check(APP, {**GOOD, "continued": once})) == {2}
    assert check(APP, {**GOOD, "continued": replace(once, records=GOOD["forked"].records)}) == []
    # Played again, the other session sent it too, and neither did ever what nobody else sent.
    again = {"forked 0": replace(once, mode="forked"), "continued 0": once}
    assert check(APP, {**GOOD, "continued": once, **again}) == []
    assert numbers(check(APP, {**GOOD, "continued": once, "continued 0": once, "forked 0": GOOD["forked"]})) == {2}


def test_what_the_application_sees_otherwise_is_found():
    """Observed and forked, an exception of ours, and an application that does not run without us."""
    other = Seen({"saw": ["Fine."]}, ())
    assert numbers(check(APP, {**GOOD, "observed": replace(GOOD["observed"], seen=other)})) == {4}
    assert forked(*GOOD["forked"].records, seen=other) == {10}
    assert 5 in forked(*GOOD["forked"].records, seen=Seen({"raised": {"says": "ours"}}, ()))
    assert 0 in numbers(check(APP, {**GOOD, "unmodified": replace(GOOD["unmodified"], seen=Seen({"raised": "x"}, ()))}))


def test_what_is_left_behind_and_what_failed_is_found():
    """A leader at the gate, a task, a session; and a step of ours that nobody made fail."""
    assert forked(*GOOD["forked"].records, left=("a leader at the gate",)) == {5}
    assert forked(*GOOD["forked"].records, seen=Seen({"saw": "Fine."}, (), {"layout": 1})) == {5}


def test_a_seed_always_makes_the_same_application():
    """So that a report can be played again; and other seeds others."""
    assert application(7, ("anthropic",)) == application(7, ("anthropic",))
    assert len({str(application(seed, ("anthropic",))) for seed in range(30)}) == 30


@pytest.mark.parametrize("apart", [True, False])
def test_no_request_goes_on_from_those_that_come_into_no_conversation(apart):
    """What a driver asks of roles together, on copies that it lets go; elsewhere a text that moves is found."""
    app = replace(APP, turns=(replace(TURN, together=True), replace(TURN, number=1)))
    moved = [FORK[0], FORK[2], FORK[1], *SAID]
    assert forked(sent(FORK), sent(moved, 1), app=app, framing=Framing(apart=apart)) == (set() if apart else {7})


def judged(own, fork, framing, **options):
    """What is broken in one request, which an application sent and a fork of it."""
    made = runs(sent(own), forked=(sent(fork),))
    made["forked"] = replace(made["forked"], framing=framing)
    return numbers(check(replace(APP, options=options, turns=(TURN,)), made))


QUESTION = [{"role": "user", "content": "Read this: user: Go on. Who is next?"}]
CHOICE = [FORK[1], {"role": "user", "content": "Read this: Who is next?"}]
ASKS = Framing(asks={"planner": lambda text: text.replace("user: ", "")})


@pytest.mark.parametrize(
    ("own", "fork", "broken"),
    [
        (QUESTION, CHOICE, set()),
        # AutoGen may say what was said twice.
        ([QUESTION[0], FORK[1]], CHOICE, set()),
        (QUESTION, CHOICE[1:], {9}),
        # What the application's own question holds no more, as after a reset.
        (QUESTION, [{"role": "user", "content": "Once upon a time."}, *CHOICE], {9}),
    ],
)
def test_a_selectors_question_is_held_to_what_the_application_asks(own, fork, broken):
    """In other words and in another order: nothing of it is missing, and nothing else is said."""
    assert judged(own, fork, ASKS) == broken


@pytest.mark.parametrize("passed", [(), ("Transferred",)])
def test_a_hand_off_that_a_compaction_removes_is_no_question(passed):
    """It stands in a user's name, and no user asked it; who asks must be answered whatever was removed."""
    told = {"role": "user", "content": "Transferred to planner."}
    found = judged([*OWN, told], FORK, Framing(passed=passed), compaction=None)
    assert found == (set() if passed else {9})


def resumed(first, second, framing, turns, began="planner", status=200, ended=200, **changed):
    """What is broken where the last turn was sent as ``first`` in one session and as ``second`` in a resumed one.

    Before it one role ``began`` with that ``status``, and another one ``ended``.
    """
    opened, closed = sent(FORK), sent(FORK)
    opened.agent, opened.status = began, status
    closed.agent, closed.status = "writer", ended
    made = {
        mode: Run("forked", (opened, closed, sent(messages, len(turns) - 1)), framing=framing)
        for mode, messages in (("continued", first), ("forked", second))
    }
    app = replace(APP, **changed, turns=tuple(replace(TURN, number=at, **turn) for at, turn in enumerate(turns)))
    return numbers(replayed(app, {**made, "unmodified": GOOD["unmodified"]}, ()))


@pytest.mark.parametrize(("act", "broken"), [("rewind", set()), ("ask", {2})])
def test_a_selectors_bytes_are_compared_where_the_application_asks_the_same(act, broken):
    """Behind a state that a team goes back to, AutoGen's own question is another one in a new process."""
    more = [*grown(FORK), {"role": "user", "content": "More."}]
    assert resumed(grown(FORK), more, Framing(asks={"planner": str}), [{"act": act}, {}]) == broken


@pytest.mark.parametrize("apart", [True, False])
def test_what_was_asked_of_copies_begins_no_conversation_that_a_resume_goes_on_with(apart):
    """Before the resume only copies were asked: elsewhere those requests have begun it."""
    turns = [{"together": True}, {"act": "resume"}]
    assert resumed(FORK, grown(FORK), Framing(apart=apart), turns) == (set() if apart else {2})


def test_a_turn_that_goes_on_from_none_before_it_was_not_resumed():
    """As a workflow that is built anew for each question."""
    assert resumed(FORK, grown(FORK), Framing(goes_on=False), [{}, {"act": "resume"}]) == set()


@pytest.mark.parametrize(("told", "broken"), [("Ask xalice-inner-0.", set()), ("Ask xalice-ask-0.", {2})])
def test_where_one_agent_asks_another_nothing_is_resumed(told, broken):
    """That conversation is theirs alone, and is over with the answer."""
    asked = [FORK[0], {"role": "user", "content": told}, FORK[2]]
    assert resumed(asked, grown(asked), Framing(), [{}, {"act": "resume"}]) == broken


@pytest.mark.parametrize(("apart", "broken"), [(True, set()), (False, {2})])
def test_what_was_decided_in_copies_goes_with_them(apart, broken):
    """A resumed conversation has nothing of it, and one that goes on may."""
    turns = [{}, {"act": "resume"}, {"together": True}, {}]
    assert resumed(FORK, grown(FORK), Framing(apart=apart), turns) == broken


@pytest.mark.parametrize(("way", "broken"), [("left", set()), ("cancelled", set()), ("whole", {2})])
def test_an_answer_that_was_left_begins_no_conversation_that_a_resume_goes_on_with(way, broken):
    """Its thread may have kept nothing of it."""
    assert resumed(FORK, grown(FORK), Framing(), [{"way": way}, {"act": "resume"}]) == broken


@pytest.mark.parametrize(("from_start", "back", "broken"), [(True, 0, set()), (True, 1, {2}), (False, 0, {2})])
def test_a_conversation_that_goes_back_to_before_its_first_message_begins_anew(from_start, back, broken):
    """Nothing is left of it that a resumed process could go on from."""
    turns = [{}, {"act": "resume"}, {"act": "rewind"}]
    seed = next(one for one in range(99) if replace(APP, seed=one).back(replace(TURN, number=2), 2) == back)
    assert resumed(FORK, grown(FORK), Framing(from_start=from_start), turns, seed=seed) == broken


@pytest.mark.parametrize(("before", "then", "broken"), [(True, True, {2}), (False, True, set()), (True, False, set())])
def test_what_a_role_begins_behind_a_resume_goes_by_what_its_process_has_met(before, then, broken):
    """The conversation was resumed, and this role had not asked in it, or another one asks it as a tool."""
    turns = [{} if asks else {"roles": (replace(PLANNER, name="critic"),)} for asks in (before, then)]
    assert resumed(FORK, grown(FORK), Framing(), [turns[0], {**turns[1], "act": "resume"}]) == broken


@pytest.mark.parametrize(
    ("began", "status", "ended", "broken"),
    [
        ("planner", 200, 200, {2}),
        ("critic", 200, 200, set()),
        ("planner", 400, 200, set()),
        ("planner", 200, 500, set()),
    ],
)
def test_a_role_that_was_not_asked_in_its_turn_or_was_refused_has_begun_nothing(began, status, ended, broken):
    """As of agents that hand on to each other, where a request failed: the team goes back to before the turn."""
    assert resumed(FORK, grown(FORK), Framing(), [{}, {"act": "resume"}], began, status, ended) == broken


@pytest.mark.parametrize(
    ("named", "changed", "broken"),
    [
        (True, {"people": (ALICE, BOB), "together": True}, {7}),
        (True, {"way": "left"}, {7}),
        (True, {"act": "reset"}, set()),
        (True, {"act": "rewind"}, set()),
        (False, {}, {7}),
        (False, {"said": "Go on {mine}.", "people": (ALICE, BOB)}, {7}),
        (False, {"people": (ALICE, BOB)}, set()),
        (False, {"together": True}, set()),
        (False, {"way": "left"}, set()),
        (False, {"volatile": True}, set()),
    ],
)
def test_a_text_stands_elsewhere_only_where_nobody_can_tell_whose_a_request_is(named, changed, broken):
    """That, and where a conversation was begun anew."""
    app = replace(APP, named=named, turns=tuple(replace(one, **changed) for one in APP.turns))
    moved = [FORK[0], FORK[2], FORK[1], *SAID]
    assert (
        numbers(prefix_stands(app, runs(sent(OWN), sent(grown(OWN), 1), forked=(sent(FORK), sent(moved, 1))), ()))
        == broken
    )


@pytest.mark.parametrize(("asks", "broken"), [("planner#writer", set()), ("critic#writer", {7})])
def test_a_role_that_is_asked_as_a_tool_too_begins_what_it_is_told_there(asks, broken):
    """Under the name of the conversation that it is asked in itself, and at the same time."""
    inner = sent([FORK[0], {"role": "user", "content": "Ask xalice-inner-0."}], 1)
    inner.agent = asks
    moved = [FORK[0], FORK[2], FORK[1], *SAID]
    own = (sent(OWN), sent(grown(OWN), 1))
    assert numbers(prefix_stands(APP, runs(*own, forked=(sent(FORK), sent(moved, 1), inner)), ())) == broken


@pytest.mark.parametrize(("named", "broken"), [(True, {7}), (False, set())])
def test_a_driver_may_know_no_name_that_the_application_gives(named, broken):
    """As of a client that tells conversations apart by what was said in them: two people said the same here."""
    turns = tuple(replace(one, people=(ALICE, BOB)) for one in APP.turns)
    app = replace(APP, named=True, people=(ALICE, BOB), turns=turns)
    moved = (sent(FORK), sent([FORK[0], FORK[2], FORK[1], *SAID], 1))
    made = runs(sent(OWN), sent(grown(OWN), 1), forked=moved)
    made["forked"] = replace(made["forked"], framing=Framing(named=named))
    assert numbers(check(app, made)) == broken


def test_who_works_is_waited_for_on_a_busy_machine_and_who_waits_is_not():
    """An application's patience ended under load once, while the judge was at its work."""
    stuck: list[str] = []
    ends = time.process_time() + 2

    def works() -> bool:
        while time.process_time() < ends:
            pass
        return True

    assert within(1, works, stuck)
    assert not stuck
    assert within(1, threading.Event().wait, stuck) is None
    assert "wait" in stuck[0]
