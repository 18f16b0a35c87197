"""Requests that nobody may share: marked where they come again, and only where nothing is kept without a mark."""

from __future__ import annotations

import copy
import warnings

import pytest

from cacheprefix import Session, SharedPrefix
from cacheprefix.adapter import Request
from cacheprefix.bodies import Role, fork_body

OWN = "Every statement needs a source that the reader can open. " * 150
MARK = {"type": "ephemeral"}


def body(*said, model="claude-sonnet-4-6", system=OWN):
    """A conversation as an application sends it; users speak first."""
    messages = [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(said)]
    return {"model": model, "max_tokens": 50, "system": system, "messages": messages}


def asked(session, given, *, conversation="one", agent="reader", **options):
    """What is sent; the call has ended."""
    kept = copy.deepcopy(given)
    turn = session.adapter.begin(
        Request(given, "anthropic", agent=agent, conversation=conversation, repeated=True, **options)
    )
    tokens = turn.seen.prompt.tokens
    turn.finish({"input_tokens": tokens, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0})
    assert given == kept
    return turn.body


def marks(sent):
    """The marked texts, in their order."""
    system = sent["system"] if isinstance(sent["system"], list) else []
    lists = [system, *(one["content"] for one in sent["messages"] if isinstance(one["content"], list))]
    return [block["text"][:20] for blocks in lists for block in blocks if block.get("cache_control") == MARK]


def test_the_first_request_goes_out_as_it_came_and_the_second_is_marked():
    """Behind the system text, where the first one ended, and at its own end, where the third will begin."""
    session = Session()
    first = body("What is step 1?")
    assert asked(session, first) is first
    second = asked(session, body("What is step 1?", "It is sawing.", "What is step 2?"))
    assert marks(second) == [OWN[:20], "What is step 1?", "What is step 2?"]
    assert session.failures == {}


def test_another_conversation_marks_what_both_begin_with():
    """The end of the system text, and no transcript that nobody may ask about again."""
    session = Session()
    asked(session, body("What is step 1?"))
    other = asked(session, body("Here is a report. " * 300, "Noted.", "Sum it up."), conversation="two")
    assert marks(other) == [OWN[:20]]


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (body("What is step 1?", system="Short."), {}),
        (body("What is step 1?"), {"scope": "another tenant"}),
        (body("What is step 1?", model="claude-opus-4-6"), {}),
        (body("What is step 1?", system=OWN[5:]), {}),
    ],
    ids=["too short to be kept", "another tenant's", "another model's", "another text"],
)
def test_nothing_is_marked_that_was_not_there_before(given, options):
    """Too short a prompt, another tenant, another model: no write."""
    session = Session()
    asked(session, body("What is step 1?"))
    asked(session, body("What is step 1?", system="Short."))
    assert asked(session, given, **options) is given


@pytest.mark.parametrize("model", ["gpt-5.2", "gpt-5.6"])
def test_a_provider_that_keeps_everything_needs_no_marks(model):
    """``rewrite`` alone decides there."""
    session, given = Session(), {"model": model, "messages": [{"role": "user", "content": OWN}]}
    for _ in range(3):
        turn = session.adapter.begin(Request(given, "openai-chat", agent="reader", rewrite=False, repeated=True))
        turn.finish({"prompt_tokens": 1_800})
        assert turn.body is given


def test_observing_marks_nothing():
    """However often it comes."""
    session, given = Session(mode="observe"), body("What is step 1?")
    assert all(asked(session, given) is given for _ in range(3))


def test_no_alarm_says_that_marks_are_missing_which_we_left_out():
    """The advice to mark would be for the application, which can do nothing about it."""
    session, said = Session(), ["What is step 0?"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(4):
            asked(session, body(*said))
            said += [f"It is number {number}.", f"What is step {number + 1}?"]
    assert [call.verdict.alarm for call in session.calls[:2]] == [False, False]


def test_the_report_counts_the_write_against_the_request_as_it_was():
    """A conversation that ends with its second request costs a quarter of that more."""
    session = Session()
    for given in (body("What is step 1?"), body("What is step 1?", "It is sawing.", "What is step 2?")):
        turn = session.adapter.begin(Request(given, "anthropic", agent="reader", conversation="one", repeated=True))
        tokens, marked = turn.seen.prompt.tokens, turn.body is not given
        written = tokens if marked else 0
        turn.finish(
            {"input_tokens": tokens - written, "cache_read_input_tokens": 0, "cache_creation_input_tokens": written}
        )
    first, second = session.calls
    assert first.units == first.unmodified_units
    assert second.units == pytest.approx(1.25 * second.unmodified_units)


def test_the_estimate_knows_what_the_applications_own_marks_would_have_kept():
    """With a mark of its own the unmodified second request would have been read, and nothing is saved by ours."""
    session, system = Session(), [{"type": "text", "text": OWN, "cache_control": MARK}]
    tokens = 0
    for said in (["What is step 1?"], ["What is step 1?", "It is sawing.", "What is step 2?"]):
        turn = session.adapter.begin(
            Request(body(*said, system=system), "anthropic", agent="reader", conversation="one", repeated=True)
        )
        tokens = turn.seen.prompt.tokens
        turn.finish({"input_tokens": 40, "cache_read_input_tokens": tokens - 40, "cache_creation_input_tokens": 0})
    assert session.calls[1].unmodified_units < 0.2 * tokens


def test_a_layout_that_fails_sends_the_applications_own_bytes_each_time(monkeypatch):
    """Failing open is no layout of the application's own that would be marked."""
    session, given = Session(SharedPrefix(system="Be brief.")), body("What is step 1?", system=f"Be brief.\n\n{OWN}")
    monkeypatch.setattr("cacheprefix.bodies._read", lambda *_: 1 / 0)
    for _ in range(3):
        turn = fork_body(session.adapter, given, "anthropic", Role("reader")).begin()
        turn.finish({"input_tokens": 2_000})
        assert turn.body == given
    assert session.failures["layout"] == 3


def test_a_body_that_shares_too_little_is_marked_from_the_second_request_on():
    """Two roles with long texts of their own and a word in common."""
    session, said = Session(SharedPrefix(system="Be brief.")), ["What is step 0?"]
    counts = []
    for number in range(3):
        for name in ("reader", "writer"):
            own = f"Be brief.\n\n{name}: {OWN}"
            turn = fork_body(session.adapter, body(*said, system=own), "anthropic", Role(name)).begin()
            turn.finish({"input_tokens": turn.seen.prompt.tokens})
            counts.append(str(turn.body).count("cache_control"))
        said += [f"It is number {number}.", f"What is step {number + 1}?"]
    assert counts == [0, 0, 3, 3, 3, 3]


def talked(session, name, calls, **options):
    """A conversation of so many requests, each of which goes on from the one before; the marks of each."""
    said, found = ["What is step 0?"], []
    for number in range(calls):
        given = body(*said, system=f"{name} is a customer. {OWN}")
        turn = session.adapter.begin(
            Request(given, "anthropic", agent="reader", conversation=name, layout="own", **options)
        )
        found.append(len(marks(turn.body)) if turn.body is not given else 0)
        turn.finish({"input_tokens": turn.seen.prompt.tokens, "cache_creation_input_tokens": 0})
        said += [f"It is number {number}.", f"What is step {number + 1}?"]
    return found


def test_what_a_role_writes_for_its_next_request_is_written_no_more_once_none_came():
    """Each customer's text stands in front, so that nothing else reads it: three are paid for, and no fourth."""
    session = Session()
    found = [talked(session, f"customer {n}", 1)[0] > 0 for n in range(6)]
    assert found == [True, True, True, False, False, False]
    assert session.failures == {}


def test_what_goes_on_is_written_from_the_first_request_on():
    """One conversation in two goes on: a write that is read saves more than three that are not cost."""
    session = Session()
    assert all(talked(session, f"customer {n}", 1 + n % 2)[0] for n in range(12))


def test_it_is_written_again_where_conversations_come_to_go_on():
    """What came of those that were not written tells as well."""
    session = Session()
    assert not [talked(session, f"customer {n}", 1)[0] for n in range(6)][-1]
    assert [talked(session, f"guest {n}", 2)[0] > 0 for n in range(12)][-1]


def test_a_conversation_that_always_ends_with_its_second_request_writes_nothing_there():
    """Where the first one is not written either, the second pays for all of it, and nobody reads it."""
    session = Session()
    found = [talked(session, f"customer {n}", 2, repeated=True)[1] > 0 for n in range(6)]
    assert found == [True, True, True, False, False, False]


def test_what_others_of_another_tenant_did_not_go_on_from_says_nothing():
    """Each tenant's, each role's and each model's requests are counted apart."""
    session = Session()
    for n in range(6):
        talked(session, f"customer {n}", 1)
    assert talked(session, "another", 1, scope="another tenant")[0]
