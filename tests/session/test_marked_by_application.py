"""Applications that mark their own requests for the cache, as Anthropic's caching middlewares do."""

from __future__ import annotations

import pytest

from benchmarks.role_plans import Plan, played, profile_of, session_for


@pytest.mark.parametrize("shape", ["shared", "private"])
@pytest.mark.parametrize("roles", [(1_400,), (2_500, 60, 1_200), (350, 350, 350)])
@pytest.mark.parametrize("handbook", [0, 140, 2_000])
def test_what_the_application_keeps_in_the_cache_itself_is_never_paid_anew(shape, roles, handbook):
    """The newest message alone is marked, and is the same message later: leaving its own layout is weighed by that."""
    turns = tuple((number % len(roles), 60) for number in range(24))
    plan = Plan(handbook, roles, turns, shape=shape, marked=True, tagged=True)
    profile = profile_of("anthropic")
    own, ours = (
        sum(one.cost_units(profile) for one in played(plan, "anthropic", session))
        for session in (None, session_for(plan, "anthropic"))
    )
    assert ours <= 1.02 * own
