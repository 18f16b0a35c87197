"""Requests without a name: each belongs to the conversation that it goes on from, and nobody's words reach another."""

import json
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix import Compaction, Session, SharedPrefix, ToolResultBudget
from cacheprefix.adapter import Request
from cacheprefix.bodies import Role, fork_body
from tests.drawn import examples

HANDBOOK = "The handbook of the house. " * 300
MODEL = "gpt-4o"
USERS = ("alice", "bob", "carol")
QUESTIONS = ("Hello.", "Go on.", "What is next?", "Thank you.")


def _session(**options):
    return Session(SharedPrefix(system=HANDBOOK), gate=None, **options)


def _ask(session, history, role="support", api="openai-chat"):
    system = f"{HANDBOOK}\n\nYou are {role}."
    body = {"model": MODEL, "messages": [{"role": "system", "content": system}, *map(dict, history)]}
    if api == "anthropic":
        body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "system": system, "messages": [*map(dict, history)]}
    if api == "openai-responses":
        body = {"model": MODEL, "instructions": system, "input": [*map(dict, history)]}
    return fork_body(session.adapter, body, api, Role(role))


def _sent(fork):
    messages = fork.body.get("messages") or fork.body["input"]
    return [message for message in messages if message["role"] != "system" and message["content"] != fork.tail]


def _say(history, user, text):
    history.append({"role": "user", "content": text})
    return history


def _answer(history, user, words):
    history.append({"role": "assistant", "content": f"{user} {len(history)}: " + f"{user}'s own words " * words})


@pytest.mark.slow
@pytest.mark.parametrize("api", ["openai-chat", "anthropic", "openai-responses"])
@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(QUESTIONS), st.integers(0, 1)), min_size=4, max_size=60),
    st.integers(2, 3),
)
def test_no_section_of_one_conversation_is_in_anothers_prompt_and_no_message_is_missing(api, turns, users):
    """Two and three people with equal texts ask through one client in any order, and histories are compacted."""
    session = _session(compaction=Compaction(trigger=3_600, horizon=1_000))
    talks = {user: [] for user in USERS[:users]}
    for who, question, wordy in turns:
        user = USERS[who % users]
        history = _say(talks[user], user, question)
        fork = _ask(session, history, api=api)
        text = json.dumps(fork.body)
        assert not any(other in text for other in talks if other != user)
        sent = _sent(fork)
        assert sent[-1] == history[-1]
        if len(sent) < len(history):
            # What was removed stands summed up, and everything else is the conversation's own, in order.
            rest = iter(history)
            kept = [message for message in sent if "Earlier messages were removed" not in str(message["content"])]
            assert all(message in rest for message in kept)
        else:
            assert sent == history
        _answer(history, user, 120 * wordy)
    assert not session.failures


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(QUESTIONS), st.booleans()), min_size=1, max_size=40),
)
@settings(max_examples=examples(100), deadline=None)
def test_one_client_serves_as_many_conversations_as_there_are(turns):
    """Once their texts differ, two histories are two conversations, and each keeps its own from then on."""
    session = _session(budget=ToolResultBudget(max_tokens=1_000))
    talks = {user: [] for user in USERS}
    names = {user: set() for user in USERS}
    for who, question, _ in turns:
        user = USERS[who]
        history = _say(talks[user], user, question)
        fork = _ask(session, history)
        if len(history) > 1:
            names[user].add(fork.role.conversation)
        _answer(history, user, 1)
    for user, mine in names.items():
        assert len(mine) <= 1
        assert not any(mine & other for one, other in names.items() if one != user)


def test_two_conversations_that_said_the_very_same_are_gone_on_with_as_a_third():
    """Whose request it is, nobody can tell: it is nobody's but its own."""
    session = _session()
    first = session.adapter.unnamed(["hello"])
    assert session.adapter.unnamed(["hello", "hi", "and?"]) == first
    second = session.adapter.unnamed(["hello"])
    assert second != first
    assert session.adapter.unnamed(["hello", "hi", "and?"]) == first, (
        "the longest that it begins with, and there is one"
    )
    assert session.adapter.unnamed(["hello", "hi", "and?"]) == first
    other = session.adapter.unnamed(["hello", "hi", "and?", "x", "y"])
    assert other == first


def test_equal_histories_are_nobodys():
    """Two came to the same words on different ways; what goes on from there is a conversation of its own."""
    session = _session()
    one, two = object(), object()
    first = session.adapter.unnamed(["a"], run=one)
    second = session.adapter.unnamed(["b"], run=two)
    session.adapter.shared.unnamed._record(("", ""), first, [1, 2], "")
    session.adapter.shared.unnamed._record(("", ""), second, [1, 2], "")
    assert session.adapter.unnamed([1, 2, 3]) not in (first, second)


def test_an_edited_or_rewound_history_is_a_conversation_of_its_own():
    """What was decided on what is gone does not follow it."""
    session = _session()
    talk = ["hello", "hi", "tell me", "no", "please", "well"]
    first = session.adapter.unnamed(talk[:1])
    assert session.adapter.unnamed(talk[:3]) == first
    assert session.adapter.unnamed(talk[:5]) == first
    assert session.adapter.unnamed(talk[:3]) != first
    assert session.adapter.unnamed([*talk[:4], "another"]) != first


def test_a_run_is_one_conversation_and_goes_on_from_the_run_before():
    """Whatever its members say to themselves; the next run that begins with its messages belongs to it too."""
    session, first, second, third = _session(), object(), object(), object()
    run = session.adapter.unnamed(["task"], run=first)
    assert session.adapter.unnamed(["task", "own call", "own result"], run=first) == run
    assert session.adapter.unnamed(["task"], run=first) == run
    assert session.adapter.unnamed(["task", "own call", "own result", "answer", "task 2"], run=second) == run
    assert session.adapter.unnamed(["another task"], run=third) != run


def test_scopes_and_children_never_share_an_unnamed_conversation():
    """The same words of two tenants are two conversations."""
    session = _session()
    known = {
        session.adapter.unnamed(["hello"]),
        session.adapter.unnamed(["hello"], "tenant"),
        session.child("team").adapter.unnamed(["hello"]),
    }
    assert len(known) == 3


def test_conversations_that_nobody_comes_back_to_are_let_go():
    """A thousand are kept; those before leave no history, place or line of requests behind."""
    session = _session(compaction=Compaction(trigger=10_000))
    for number in range(1_100):
        fork = _ask(session, [{"role": "user", "content": f"question {number} " + "words " * 40}])
        if number < 20:
            turn = fork.begin()
            turn.finish({"prompt_tokens": 2_000})
    shared = session.adapter.shared
    assert len(shared.unnamed) == 1_000
    assert len(shared.conversations) == 1_000
    assert len(shared.positions._talks) == 1_000
    assert not any(key[0].startswith("unnamed-") for key in shared.model._lines)


def test_no_id_is_a_conversation_of_its_own():
    """Asked for without an id, a conversation is a new one each time, and not kept."""
    session = _session()
    one, two = session.conversation(), session.conversation()
    assert one is not two
    assert one.id != two.id
    assert not one.named
    assert not session.adapter.shared.conversations


def test_forgetting_a_conversation_drops_its_decisions():
    """What was decided on messages that are gone does not wait for others to come."""
    session = _session()
    talk = session.conversation("t")
    talk.merge(talk.ledger.record([("results", "a", "k")]))
    session.forget("t")
    assert not session.conversation("t").ledger


def _verdicts(session, bodies):
    out = []
    for body in bodies:
        turn = session.adapter.begin(Request(body, "openai-chat", agent="planner"))
        out.append(turn.finish({"prompt_tokens": 3_000, "prompt_tokens_details": {"cached_tokens": 0}}))
    return [(verdict.cause, verdict.alarm) for verdict in out]


def _body(system, *messages):
    said = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(messages)]
    return {"model": MODEL, "messages": [{"role": "system", "content": system}, *said]}


def test_another_persons_question_is_no_edited_history():
    """An agent that is asked by one after the other raises no alarm."""
    words = " some words about it" * 300
    first = [_body(HANDBOOK, f"question {n}{words}", f"answer {n}{words}", "and now?") for n in range(4)]
    assert not any(cause.startswith("history") for cause, _ in _verdicts(_session(mode="observe"), first))


def test_an_edited_history_without_a_name_is_still_found():
    """The same person's next request, with an old answer changed, raises the alarm that it did."""
    words = " some words about it" * 300
    one = _body(HANDBOOK, "question" + words, "answer" + words, "and now?" + words, "well" + words, "so?")
    two = _body(HANDBOOK, "question" + words, "answer" + words, "and THEN?" + words, "well" + words, "so?", "a", "b")
    assert _verdicts(_session(mode="observe"), [one, two])[-1] == ("history_edited", True)


def test_a_history_cut_at_its_front_without_a_name_is_still_found():
    """A sliding window keeps the last messages: by them the request is known."""
    words = " some words about it" * 300
    texts = [f"message {n}{words}" for n in range(8)]
    one, two = _body(HANDBOOK, *texts[:7]), _body(HANDBOOK, *texts[2:8], "more")
    cause, alarm = _verdicts(_session(mode="observe"), [one, two])[-1]
    assert cause in ("history_truncated", "history_edited")
    assert alarm


def test_a_changed_system_text_without_a_name_is_still_found():
    """A time in the system text costs everything behind it, whoever asks."""
    texts = ["The document." + " some words of it" * 300, "noted"]
    bodies = [_body(f"It is {n} o'clock. {HANDBOOK}", *texts, f"question {n}") for n in range(2)]
    assert _verdicts(_session(mode="observe"), bodies)[-1] == ("system_changed", True)


def test_an_application_whose_ids_stand_still_gets_no_conversation_of_another(monkeypatch):
    """Privacy: programs, and their tests, put a ``uuid4`` of their own in the library's place; ours are not from it."""
    monkeypatch.setattr("uuid.uuid4", lambda: uuid.UUID(int=1, version=4))
    session = _session().adapter
    alice, bob = (session.unnamed([f"I am {name}."]) for name in ("alice", "bob"))
    assert alice != bob


def test_two_runs_that_have_said_as_much_are_two_conversations():
    """Who begins with the same words as a run that is under way may be somebody else."""
    session, (alice, bob) = _session(), (object() for _ in range(2))
    first = session.adapter.unnamed(["Hello."], run=alice)
    assert session.adapter.unnamed(["Hello."], run=bob) != first
    assert session.adapter.unnamed(["Hello.", "Hello, Alice.", "Go on."], run=alice) == first
