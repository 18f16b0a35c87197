"""What two roles' own texts begin with in common, by what is kept of them: no words."""

from __future__ import annotations

import pytest

from cacheprefix.layout.own_text import beginnings_of, in_common

TEXT = "".join(f"Rule {number}: say what you know, and where from. " for number in range(2_000))


@pytest.mark.parametrize("alike", [300, 1_000, 5_000, 50_000])
def test_four_fifths_of_what_is_in_common_are_found_and_never_more(alike):
    """However long it is, and whatever comes behind it."""
    other = TEXT[:alike] + "# Another one." + TEXT
    found = in_common(TEXT, beginnings_of(TEXT, ()), [beginnings_of("Nothing alike.", ()), beginnings_of(other, ())])
    assert TEXT.startswith(found)
    assert 0.8 * alike - 1 <= len(found) <= alike


@pytest.mark.parametrize("other", [TEXT[:200] + "!" + TEXT, "", "Rule 0: say what you know."])
def test_less_than_the_shortest_beginning_is_nothing(other):
    """About 64 tokens."""
    assert in_common(TEXT, beginnings_of(TEXT, ()), [beginnings_of(other, ())]) == ""


def test_texts_behind_other_tools_have_nothing_in_common():
    """Providers put tools in front of the system text."""
    assert in_common(TEXT, beginnings_of(TEXT, ["read"]), [beginnings_of(TEXT, ["read", "write"])]) == ""
    assert in_common(TEXT, beginnings_of(TEXT, ["read", "write"]), [beginnings_of(TEXT, ["write", "read"])])


def test_what_is_kept_of_a_long_text_is_small():
    """Some thirty numbers for a hundred thousand characters, from which no word can be told."""
    kept = beginnings_of(TEXT * 2, ())
    assert len(kept) < 35
    assert all(0 <= one < 1 << 32 for one in kept)


def test_a_letter_of_several_bytes_is_not_torn():
    """The text that is found ends before it."""
    text = "ü" * 400
    found = in_common(text, beginnings_of(text, ()), [beginnings_of(text, ())])
    assert found == "ü" * (len(found))
    assert len(found) > 200
