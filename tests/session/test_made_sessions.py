"""A session for each request: what one learns, no other one knows."""

from __future__ import annotations

import warnings

from cacheprefix import Caching, Session, SharedPrefix


def warned(*made):
    """The warnings of sessions that are made so, each 25 times."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for make in made * 25:
            make()
    return [str(one.message) for one in seen]


def test_a_session_for_each_request_is_warned_of_once():
    """Not before they are many, and not where they are of many prefixes, tenants or teams."""
    (said,) = warned(lambda: Session(SharedPrefix(system="Be brief.")))
    assert said.startswith("20 sessions with the very same shared text")
    numbers = iter(range(1_000))
    assert warned(lambda: Session(SharedPrefix(system=f"Be brief {next(numbers)}."))) == []
    assert warned(lambda: Session("Be kind.", caching=Caching(scope=f"tenant {next(numbers)}"))) == []
    assert warned(lambda: Session("Be kind.", name=f"team {next(numbers)}")) == []
    assert warned(lambda: Session("Be off.", mode="off"), Session) == []
