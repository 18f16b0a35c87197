"""Whether writing a role's requests in the application's own layout pays: learned from those that go on from them."""

from cacheprefix.calls.own_marks import OwnMarks
from cacheprefix.profiles import default_registry

WHOSE = ("", "clerk", "claude-sonnet-4-5")
RULES = default_registry().profile_for(WHOSE[-1])


def asked(marks, times, *, goes_on, life=None, pause=0.0):
    """A role asks in so many conversations, and ``goes_on`` in each from its first request."""
    for number in range(times):
        talk = f"{goes_on} {times} {number}"
        marks.sent(WHOSE, talk, goes_on=False, life=life, now=0.0)
        marks.ended(WHOSE, talk, 1.0)
        if goes_on:
            marks.sent(WHOSE, talk, goes_on=True, life=life, now=1.0 + pause)


def test_first_requests_that_nothing_goes_on_from_are_no_longer_written():
    """The first few are, as nobody knows; those that are gone on from are written for good."""
    alone, on = OwnMarks(), OwnMarks()
    assert alone.pays(WHOSE, 0, RULES)
    asked(alone, 20, goes_on=False)
    asked(on, 20, goes_on=True)
    assert not alone.pays(WHOSE, 0, RULES)
    assert on.pays(WHOSE, 0, RULES)


def test_a_request_that_comes_when_the_entry_is_gone_reads_nothing_of_it():
    """So it does not count for those that wrote."""
    within, after = OwnMarks(), OwnMarks()
    asked(within, 20, goes_on=True, life=300.0, pause=300.0)
    asked(after, 20, goes_on=True, life=300.0, pause=301.0)
    assert within.pays(WHOSE, 0, RULES)
    assert not after.pays(WHOSE, 0, RULES)


def test_what_was_asked_long_ago_counts_less():
    """An application that asked single questions and now goes on is written again before it has made up for all."""
    marks = OwnMarks()
    asked(marks, 400, goes_on=False)
    asked(marks, 30, goes_on=True)
    assert marks.pays(WHOSE, 0, RULES)
