"""ForkPolicy and AbortHandle."""

import threading

import pytest

from cacheprefix.errors import AbortedError, SetupError
from cacheprefix.layout import AbortHandle, ForkPolicy


def test_presets_differ_from_the_default_only_where_their_name_says():
    """A helper leaves no trace; a worker stops with its parent; a rewrite may lose the cache."""
    assert ForkPolicy.ephemeral() == ForkPolicy(
        skip_transcript=True, skip_cache_write=True, max_turns=1, purpose="ephemeral_helper"
    )
    assert ForkPolicy.worker().share_abort
    assert not ForkPolicy.rewrite().cache_safe
    assert ForkPolicy.background_summary().purpose == "background_summary"
    assert ForkPolicy.memory_update().skip_transcript


@pytest.mark.parametrize("wrong", [{"max_turns": 0}, {"max_output_tokens": 0}])
def test_impossible_limits_are_errors_at_set_up(wrong):
    """Zero turns or zero tokens is no fork."""
    with pytest.raises(SetupError):
        ForkPolicy(**wrong)


def test_stopping_a_parent_stops_children_and_grandchildren_but_not_the_other_way():
    """Abort reaches down."""
    parent = AbortHandle()
    child = parent.child()
    grandchild = child.child()
    grandchild.abort()
    assert (parent.aborted, child.aborted, grandchild.aborted) == (False, False, True)
    parent.abort()
    assert child.aborted
    with pytest.raises(AbortedError):
        child.check()


def test_a_child_of_a_stopped_parent_is_stopped():
    """Also when it is made afterwards, and when many threads make children meanwhile."""
    parent = AbortHandle()
    children = []
    threads = [threading.Thread(target=lambda: children.append(parent.child())) for _ in range(32)]
    for index, thread in enumerate(threads):
        if index == 16:
            parent.abort()
        thread.start()
    for thread in threads:
        thread.join()
    children.append(parent.child())
    assert all(child.aborted for child in children)
