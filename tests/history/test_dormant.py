"""A decision applies only where what it speaks of stands: nowhere else is a message missing or a text put in."""

import json

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from cacheprefix.history import Compaction, Cutting, Ledger, plan_compaction, replay
from cacheprefix.prompt import Drop, Insert
from cacheprefix.wire import apply, views_of
from tests.drawn import examples

WORDS = ("hello", "go on", "yes", "thank you", "what is next?")
SAID = st.lists(st.tuples(st.sampled_from(WORDS), st.booleans()), min_size=1, max_size=40)


def _history(said, name):
    """A conversation with texts that others have too; long answers are its own."""
    out = []
    for number, (word, own) in enumerate(said):
        out.append({"role": "user", "content": word})
        answer = f"{name} says {number} " + f"{name}-{number} " * 150 if own else "noted"
        out.append({"role": "assistant", "content": answer})
    return [*out, {"role": "user", "content": "and now?"}]


def _compacted(messages, share=3, rules=None):
    views = views_of(messages, "openai-chat")
    trigger = max(2, sum(view.tokens for view in views) // share)
    plan = plan_compaction(views, Ledger(), rules or Compaction(trigger, keep_users=False, keep_turns=1), force=True)
    return plan.commit()


def _sent(messages, ledger):
    return apply(messages, replay(views_of(messages, "openai-chat"), ledger).decisions, "openai-chat")


def _lost(messages, ledger):
    """The block of messages from the first one that a compaction removed to the last one."""
    gone = [d.index for d in replay(views_of(messages, "openai-chat"), ledger).decisions if isinstance(d, Drop)]
    return messages[min(gone) : max(gone) + 1] if gone else []


def _holds(messages, block):
    return any(messages[at : at + len(block)] == block for at in range(len(messages) - len(block) + 1))


@pytest.mark.slow
@given(st.lists(SAID, min_size=2, max_size=3), st.randoms(use_true_random=False))
@settings(max_examples=examples(300), deadline=None)
def test_no_conversation_loses_a_message_or_gets_a_text_by_anothers_decisions(each, random):
    """Of conversations with equal texts, under one ledger of all of them, each shows all that it holds itself."""
    talks = [_history(said, name) for said, name in zip(each, ("alice", "bob", "carol"), strict=False)]
    reader = talks.pop(random.randrange(len(talks)))
    ledger, blocks = Ledger(), []
    for talk in talks:
        own = _compacted(talk)
        blocks.append(_lost(talk, own))
        ledger = ledger.merge(own)
    assume(all(blocks) and not any(_holds(reader, block) for block in blocks))
    assert _sent(reader, ledger) == reader


@given(SAID, st.integers(0, 80), st.integers(0, 80))
@settings(max_examples=examples(300), deadline=None)
@example([("hello", True)] * 12, 4, 4)
def test_a_rewound_history_shows_nothing_of_what_was_said_later(said, cut, more):
    """Cut back into what a compaction removed, a history goes out as it is; cut behind that, it goes out compacted."""
    whole = _history(said, "alice")
    ledger = _compacted(whole)
    block = _lost(whole, ledger)
    assume(block)
    rewound = [*whole[:cut], *_history([("something else", True)] * (more % 5), "bob")]
    if _holds(rewound, block):
        views = views_of(rewound, "openai-chat")
        assert any(isinstance(d, Drop) for d in replay(views, ledger).decisions)
    else:
        assert _sent(rewound, ledger) == rewound


@given(SAID, st.data())
@settings(max_examples=examples(200), deadline=None)
def test_an_edited_message_wakes_no_decision_on_what_stood_there_before(said, data):
    """Where one of the removed messages says something else now, it is shown, and nothing speaks for the old one."""
    whole = _history(said, "alice")
    ledger = _compacted(whole)
    block = _lost(whole, ledger)
    assume(block)
    at = whole.index(block[0]) + data.draw(st.integers(0, len(block) - 1))
    edited = [*whole[:at], {**whole[at], "content": "said anew"}, *whole[at + 1 :]]
    assume(not _holds(edited, block))
    assert _sent(edited, ledger) == edited


def test_a_summary_that_took_in_an_older_one_gives_its_place_back_when_it_is_dormant():
    """Rewound between two compactions, a history is shown as it was after the first."""
    first = _history([("hello", True)] * 12, "alice")
    one = _compacted(first)
    later = [*first, *_history([("go on", True)] * 16, "later")]
    views = views_of(later, "openai-chat")
    rules = Compaction(sum(view.tokens for view in views) // 3, keep_users=False, keep_turns=1)
    two = plan_compaction(views, one, rules, force=True).commit()
    assert len(two.section("inserts")) == 2
    assert "d:" in "".join(two.section("actions").values()), "the second takes the first one's summary out"
    assert _sent(first, two) == _sent(first, one)
    assert _sent(later, two) != _sent(later, one)


def test_two_compactions_that_begin_with_one_message_are_told_apart():
    """A branch that was rewound is compacted anew, though a decision on the same first message is known."""
    stem = _history([("hello", True)] * 6, "alice")
    long = [*stem, *_history([("go on", True)] * 12, "first")]
    other = [*stem, *_history([("go on", True)] * 12, "second")]
    one = _compacted(long)
    views = views_of(other, "openai-chat")
    assert _sent(other, one) == other
    rules = Compaction(sum(view.tokens for view in views) // 3, keep_users=False, keep_turns=1)
    both = plan_compaction(views, one, rules, force=True).commit()
    assert len(_sent(other, both)) < len(other)
    assert _sent(long, both) == _sent(long, one)


def test_a_ledger_that_does_not_say_what_a_summary_speaks_of_is_read_with_both_ends():
    """Saved by an older version: a run holds where its ends stand, and its summary with it."""
    talk = _history([("hello", True)] * 12, "alice")
    new = _compacted(talk)
    old = Ledger()
    for section, key, value in new:
        plain = ":".join(value.split(":")[:2]) if value.startswith("r:") else value
        if section == "inserts":
            plain = json.dumps(json.loads(value)[:2])
        old = old.record([(section, key, plain)])
    assert _sent(talk, old) == _sent(talk, new)
    for part in (talk[:6], talk[6:]):
        views = views_of(part, "openai-chat")
        assert not any(isinstance(d, (Drop, Insert)) for d in replay(views, old).decisions)


def test_of_an_empty_history_nothing_is_shown():
    """As after a rewind to its beginning: decisions on single messages are dormant, and nothing fails."""
    ledger = Ledger().record([("actions", "a message that is gone", "t"), ("epochs", "1", "")])
    assert replay((), ledger, None, Cutting(len)).decisions == ()
