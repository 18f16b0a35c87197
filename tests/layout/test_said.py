"""What is kept of a history to tell how far others are the same: little, and counted once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix.layout.said import NOTHING, Beginning, gone_on, longest_of
from tests.drawn import examples

SIZES = st.lists(st.integers(0, 3_000), max_size=60)


def kept(sizes, before=()):
    """What is kept of a history of such sizes."""
    return gone_on(before, lambda behind: sizes[behind:])


@settings(max_examples=examples(300))
@given(SIZES, SIZES)
def test_a_history_that_goes_on_is_counted_where_it_is_new_and_kept_as_if_it_were_counted_whole(first, more):
    """Nothing of what was counted is lost, and nothing kept that a whole count would not keep."""
    before, asked = kept(first), []

    def behind(at):
        asked.append(at)
        return [*first, *more][at:]

    assert gone_on(before, behind) == kept([*first, *more])
    # The last message is counted once more: it tells whether the history goes on at all.
    assert asked == [max(0, len(first) - 1)]


@settings(max_examples=examples(300))
@given(SIZES, SIZES, SIZES)
def test_what_two_have_in_common_is_found_but_for_the_last_of_it(common, one, other):
    """Never more than there is; at most twice as much less as stands behind it, or all but the first message."""
    other = [size + 3_001 for size in other]
    found = longest_of([kept([*common, *other])], [*common, *one])[0]
    assert found == NOTHING or found == Beginning(found.messages, sum(common[: found.messages]), found.name)
    assert found.messages <= len(common)
    if not other:
        assert found.messages == len(common)
    assert not common or found.messages >= max(1, len(common) - 2 * len(other))


def test_a_history_that_does_not_go_on_is_counted_anew():
    """Its last message was another one, or it is shorter than it was."""
    before = kept([5, 6, 7])
    assert kept([5, 6, 8, 9], before) == kept([5, 6, 8, 9])
    assert kept([5], before) == kept([5])


def test_of_a_long_history_little_is_kept():
    """However long it grows."""
    assert len(kept([40] * 500)) <= 14
    assert len(kept([40] * 5_000)) <= 18
