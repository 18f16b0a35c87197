"""Runs that are known beforehand: sharing is decided by what all of their calls will cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.role_plans import Plan, played, profile_of, session_for
from cacheprefix.layout.economics import RunAhead, RunCall, RunPrices, run_costs, run_worst

PRICES = RunPrices(read=0.1)


def calls(*roles, text=100, tools=0, **more):
    """One call of each."""
    return RunAhead(tuple(RunCall(role, text, tools) for role in roles), **more)


def test_a_run_costs_what_its_formulas_say():
    """Worked out by hand: two roles with a handbook of 1,000, texts of 100 and a task of 10, an answer of 20."""
    own, shared = run_costs(calls("a", "b"), PRICES, opening=1_000, said=10, reply=20, union=0)
    assert own == (1_000 + 100 + 10) + (1_000 + 100 + 30)
    assert shared == (1_000 + 10 + 112) + (0.1 * (1_000 + 10) + 20 + 112)


def test_a_role_that_comes_again_is_read_where_it_stood():
    """Alone it costs in either layout what was said since, and the read of the rest."""
    own, shared = run_costs(calls("a", "a"), PRICES, opening=1_000, said=10, reply=20, union=0)
    assert own == 1_110 + 0.1 * 1_110 + 20
    assert shared == pytest.approx(1_122 + 0.1 * 1_122 + 20)


def test_what_is_sent_side_by_side_does_not_read_each_other():
    """The second one of a wave has the task before it, and no answer."""
    wave = RunAhead((RunCall("a", 100), RunCall("b", 100, beside=True)))
    own, _ = run_costs(wave, PRICES, opening=1_000, said=10, reply=20, union=0)
    assert own == 2 * 1_110


@pytest.mark.parametrize("prices", [RunPrices(0.1, least=2_000), RunPrices(0.1, keeps_own=False)])
def test_requests_that_nobody_keeps_are_paid_in_full(prices):
    """Below the minimum, and in the application's own layout where it marks nothing."""
    own, _ = run_costs(calls("a", "a"), prices, opening=1_000, said=10, reply=20, union=0)
    assert own == 1_110 + 1_130


def test_long_answers_are_not_counted_on():
    """The tools of others pay with long answers, and not with those of a line: they are left."""
    run = calls("a", "b", "a", "b", tools=1_000)
    cost, saved = run_worst(run, PRICES, opening=0, said=[10], union=2_000)
    assert cost > saved
    long = run_costs(run, PRICES, opening=0, said=10, reply=3_000, union=2_000)
    assert long[1] < long[0]
    # Once answers were long, half of that is counted on.
    cost, saved = run_worst(run, PRICES, opening=0, said=[10, 3_000, 3_000], union=2_000)
    assert cost < saved


@pytest.mark.parametrize("rules", ["openai", "openai-5.6", "deepseek", "vllm", "anthropic"])
@pytest.mark.parametrize(
    "plan",
    [
        # Tools of agents that are never asked are not carried for nothing.
        Plan(400, (60,) * 6, ((0, 40), (1, 40)), (2_000,) * 6),
        # Who comes once, behind a short handbook, with a long text of its own.
        Plan(300, (40, 1_200, 700, 2_300), ((0, 20), (1, 30), (2, 20), (3, 20)), (0, 1_600, 240, 1_600)),
        # A role that is asked again and again, while nobody else is.
        Plan(5_000, (65, 65, 65), ((1, 200),) * 10),
        Plan(2_000, (300,), ((0, 60),) * 8),
        # Each has a history of its own.
        Plan(0, (83,) * 4, tuple((at % 4, 60) for at in range(24)), common=1_330, shape="private"),
    ],
)
@pytest.mark.parametrize("marked", [True, False])
def test_a_known_run_is_never_dearer(rules, plan, marked):
    """Beyond the few tokens of a role's name in each request."""
    known = replace(plan, known=True, tagged=True, marked=marked)
    profile = profile_of(rules)
    own, ours = (
        sum(one.cost_units(profile) for one in played(known, rules, session))
        for session in (None, session_for(known, rules))
    )
    assert ours <= own + 14 * len(known.turns) * profile.default_ttl.write
