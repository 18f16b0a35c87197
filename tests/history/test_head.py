"""Where the head of a history ends, which no compaction touches."""

from __future__ import annotations

import pytest

from cacheprefix.history.draft import head_of
from cacheprefix.prompt import make_call, make_message, make_result


def _said(role="user", **more):
    return make_message(role, ["four"], len, **more)


@pytest.mark.parametrize(("tokens", "head"), [(0, 1), (1, 2), (2, 3)])
def test_what_fits_exactly_is_within(tokens, head):
    """System messages and durable text count for nothing."""
    one = _said().tokens
    views = [_said("system"), _said(), _said()]
    assert head_of(views, tokens * one) == head
    assert head_of([_said(key="facts"), *views[1:]], tokens * one) == head


def test_a_summary_is_behind_it():
    """It is replaced by the next one, so that nothing of it stays for good."""
    assert head_of([_said(), _said(summary=True), _said()], 1_000) == 1


def test_no_call_is_parted_from_its_result():
    """It ends before the call where the result does not fit."""
    call = make_message("assistant", [], len, calls=[make_call("c", "look", "{}", len)])
    result = make_message("tool", [], len, results=[make_result("c", "look", "found", len)])
    fits = _said().tokens + call.tokens
    assert head_of([_said(), call, result], fits) == 1
    assert head_of([_said(), call, result], fits + result.tokens) == 3
