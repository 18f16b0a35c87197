"""Where roles' texts stand, saved and taken up elsewhere: the next request is laid out as by who went on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cacheprefix.layout.role_position import CacheRules, CountedHistory, RolePositions, RoleText
from tests.drawn import examples

KEY = ("", "one", "model")
RULES = {
    "automatic": CacheRules(marked=False, alone=True, least=1_024, units=False),
    "marks": CacheRules(marked=True, alone=False, least=1_024, units=False),
    "whole requests": CacheRules(marked=False, alone=True, least=64, units=True),
}
ROLES = {"a": 20, "b": 70, "c": 126, "d": 400}
"""Tokens of each role's text: three that go to the end, and one that may keep its place."""
OPENING = 500
TURNS = st.tuples(
    st.sampled_from(sorted(ROLES)),
    # Tokens of what is said before it; the same texts come again and again. Less than 0: the history goes back.
    st.lists(st.sampled_from([-2, -1, 3, 3, 40, 900]), max_size=3),
    # Whether what stands before the text is worth sharing.
    st.sampled_from([True, True, True, False]),
)


def choose(positions, role, said, rules, shared):
    """Where a role's text goes; what is said is a list of tokens."""
    history = CountedHistory(said, digest=str, tokens=int)
    return positions.choose(KEY, RoleText(role, role, ROLES[role], history, OPENING, RULES[rules], shared))


def ask(said, turn, *who):
    """One turn's request to each; their answers."""
    role, spoken, shared = turn[1]
    for one in spoken:
        said[len(said) + one if one < 0 else len(said) :] = [] if one < 0 else [one]
    return [choose(each, role, list(said), turn[0], shared) for each in who]


def taken_up(positions):
    """What another process knows that loads them."""
    resumed = RolePositions()
    resumed.load("", "one", json.loads(json.dumps(positions.saved("", "one"))))
    return resumed


@pytest.mark.slow
@example("automatic", [("a", [40], False), ("b", [], True)], [("a", [3], True)])
@example("automatic", [("c", [3], True)], [("c", [3], True)])
@example("automatic", [("b", [40], True)], [("b", [3, 3], True), ("b", [3, 3], True), ("b", [3, 3], True)])
@example(
    "whole requests",
    [("c", [], False), ("b", [40, 3], False), ("a", [], False), ("c", [900, 40], False), ("d", [40], False)],
    [("a", [900], True), ("d", [], True)],
)
@settings(max_examples=examples(600))
@given(st.sampled_from(sorted(RULES)), st.lists(TURNS, min_size=1, max_size=7), st.lists(TURNS, min_size=1, max_size=4))
def test_who_takes_it_up_before_each_request_places_all_alike(rules, turns, then):
    """What is saved has all that later places are reckoned from."""
    positions, said = RolePositions(), []
    for turn in turns:
        ask(said, (rules, turn), positions)
    kept = positions
    for turn in then:
        kept = taken_up(kept)
        one, other = ask(said, (rules, turn), positions, kept)
        assert one == other


SIBLINGS = [[900, 1], [900, 1, 40, 2], [900, 3], [900, 3, 40, 4], [900, 5]]
"""Of one role, in turn: what each has been told, a document and its task first."""
LATER = [[900, 1], [900, 1, 40, 2], [900, 1, 40, 2, 50, 6], [900, 1, 40, 2, 51, 7]]
"""The last one parts from the one before behind its second task."""


@pytest.mark.parametrize(
    ("rules", "asked", "places"),
    [("automatic", SIBLINGS, [2, 2, 1, 1, 1]), ("automatic", LATER, [2, 2, 2, 2]), ("marks", LATER, [2, 4, 4, 6])],
)
def test_a_sibling_reads_the_roles_text_where_an_earlier_ones_stood(rules, asked, places):
    """Although that one went on since; where marks decide, what ends in the midst of a request is not kept."""
    positions = RolePositions()
    assert [choose(positions, "d", said, rules, shared=True).at for said in asked] == places


def saved_after(messages):
    """What is saved where three roles asked, the last of them behind so many messages."""
    positions, said = RolePositions(), [40] * messages
    for number, role in enumerate("abd"):
        given = said[: messages - 2 + number]
        due = RoleText(
            role, role, ROLES[role], CountedHistory(given, digest=str, tokens=int), OPENING, RULES["automatic"]
        )
        positions.choose(KEY, replace(due, said=lambda behind, given=given: given[behind:]))
    return positions.saved("", "one")


def test_what_is_saved_hardly_grows_with_the_conversation():
    """Each checkpoint holds it."""
    short, long = (len(json.dumps(saved_after(messages))) for messages in (50, 500))
    assert long < short + 400


def test_what_an_earlier_version_saved_is_taken_up():
    """It knew neither what was said nor the message before a place."""
    saved = saved_after(50)
    talk = saved["model"]
    points = [talk[name] for name in ("line", "before", "last")]
    for seat in talk["seats"].values():
        assert seat.pop("said")
        points += [seat["at"], seat["end"]]
    for point in points:
        del point["before"]
    resumed, history = RolePositions(), CountedHistory([40] * 52, digest=str, tokens=int)
    resumed.load("", "one", saved)
    due = RoleText("d", "d", ROLES["d"], history, OPENING, RULES["automatic"])
    assert resumed.choose(KEY, due)[:2] == (50, False)
