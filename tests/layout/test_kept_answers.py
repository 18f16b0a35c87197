"""Answers that may be gone on from: what is known of them, and for how long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.layout.kept_answers import KeptAnswers

A, B, C = (("", name) for name in "abc")
TALKS = [("", "", name) for name in ("t1", "t2", "")]


def test_only_who_was_gone_on_from_and_who_goes_on_begins():
    """Others have begun nothing that anybody read further."""
    kept = KeptAnswers()
    kept.answered("r1", A, TALKS[0], ["hello"])
    kept.answered("r2", C, TALKS[0])
    assert kept.gone_on("r1", B) == ("hello",)
    assert [kept.begins(each) for each in (A, B, C)] == [True, True, False]


def test_after_an_unknown_answer_everybody_may_have_begun_it():
    """As it may have been forgotten, or come from another process."""
    kept = KeptAnswers()
    assert kept.gone_on("r1", A) == ()
    assert kept.begins(C)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(TALKS), st.booleans(), st.integers(0, 60))))
def test_the_newest_are_kept_within_both_bounds(answers):
    """A text that is too long by itself is kept until the next one comes."""
    kept = KeptAnswers(answers=4, tokens=100)
    for number, talk, told, tokens in answers:
        said = ["text"] if told else []
        kept.answered(f"r{number}", A, talk, said, tokens if told else 0)
        assert kept.gone_on(f"r{number}", A) == tuple(said)
        assert len(kept) <= 4
        assert kept._tokens == sum(each.tokens for each in kept._known.values()) <= 100
    for talk in TALKS:
        kept.forget(talk)
    assert not kept._told
    assert not any(each.said for each in kept._known.values())
