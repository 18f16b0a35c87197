"""Open-ended runs whose layouts are played: shared where it pays, and never much dearer."""

from __future__ import annotations

import random

import pytest

from benchmarks.bench_plans import LATE, RULES, made
from benchmarks.role_plans import Plan, played, profile_of, session_for
from cacheprefix.layout.cost_model import CachePrices
from cacheprefix.layout.known_runs import RunAhead, RunCall, RunFacts
from cacheprefix.layout.open_runs import RISK, OpenRuns


def costs(plan, rules):
    """What a plan costs unmodified and with us, call by call."""
    profile = profile_of(rules)
    return [
        [one.cost_units(profile) for one in played(plan, rules, some, weigh=True)]
        for some in (None, session_for(plan, rules))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES)
def test_generated_open_ended_runs_stay_within_the_risk(rules):
    """From the fourth call on, whatever comes: by a part that leaves room for counts that are a little off."""
    plans = (made(random.Random(f"open {rules} {at}")) for at in range(30))
    for plan in (plan for plan in plans if not plan.known and len(plan.turns) <= 25):
        unmodified, ours = costs(plan, rules)
        for calls in range(LATE + 1, len(plan.turns) + 1):
            assert sum(ours[:calls]) <= (1.02 + RISK) * sum(unmodified[:calls]), plan


@pytest.mark.parametrize("rules", [one for one in RULES if one != "anthropic"])
def test_generated_open_ended_runs_are_bounded_by_the_older_rules_too(rules):
    """By a tenth from the fourth call on; where a first mark is a write that the application never paid, by that."""
    plans = (made(random.Random(f"older {rules} {at}")) for at in range(30))
    profile = profile_of(rules)
    for plan in (plan for plan in plans if not plan.known and len(plan.turns) <= 25):
        unmodified, ours = (
            [one.cost_units(profile) for one in played(plan, rules, some)] for some in (None, session_for(plan, rules))
        )
        for calls in range(LATE + 1, len(plan.turns) + 1):
            assert sum(ours[:calls]) <= 1.12 * sum(unmodified[:calls]), plan


@pytest.mark.parametrize("rules", RULES)
def test_a_short_text_does_not_move_for_ever_where_nobody_else_asks(rules):
    """A role of 90 tokens and messages of 30: moving it each time would cost more than it does without us."""
    plan = Plan(3_000, (90,), ((0, 30),) * 20, tagged=True, marked=True)
    profile = profile_of(rules)
    unmodified, ours = (
        sum(one.cost_units(profile) for one in played(plan, rules, some)) for some in (None, session_for(plan, rules))
    )
    assert ours <= 1.03 * unmodified


def test_two_that_are_asked_at_once_come_to_share():
    """The one that asks first gains nothing by it; without it the other would pay for both layouts for ever."""
    plan = Plan(197, (292, 292), tuple((at % 2, 1_500) for at in range(28)), shape="fan-out", tagged=True)
    profile = profile_of("openai")
    unmodified, ours = (
        sum(one.cost_units(profile) for one in played(plan, "openai", some))
        for some in (None, session_for(plan, "openai"))
    )
    assert ours <= 0.85 * unmodified


@pytest.mark.parametrize("rules", RULES)
def test_a_team_that_reads_one_transcript_shares_it(rules):
    """Long answers, short texts, no tools: three quarters of what it costs without us, where parts are read at once."""
    plan = Plan(2_000, (60,) * 4, tuple((at % 4, 800) for at in range(16)), tagged=True, marked=True)
    unmodified, ours = costs(plan, rules)
    assert sum(ours) <= (0.95 if rules == "deepseek" else 0.75) * sum(unmodified)


def test_others_large_tools_are_not_carried_on_the_word_of_roles_that_nobody_heard():
    """The first call keeps its own tools, where the others' would cost more than the risk if it stays the only one."""
    runs, tools = OpenRuns(), {"a": 100, "b": 4_000}
    facts = RunFacts(RunAhead((RunCall("a", 100, ("a",)),)), CachePrices(0.1), "talk", 1_000, tools, 112, [10])
    assert not runs.layout(("team",), facts, 2).union
    small = RunFacts(RunAhead((RunCall("a", 100, ("a",)),)), CachePrices(0.1), "talk", 1_000, {"a": 30}, 112, [10])
    assert OpenRuns().layout(("team",), small, 2).union


def test_a_request_that_is_asked_again_counts_once():
    """The layout of a retry is that of the request, also where another role asks in between."""
    runs = OpenRuns()
    one, other = (
        RunFacts(RunAhead((RunCall(role, 100),)), CachePrices(0.1), "talk", 1_000, {}, 112, [10]) for role in "ab"
    )
    found = [runs.layout(("team",), facts, 2) for facts in (one, other)]
    assert all(runs.layout(("team",), facts, 2) is each for facts, each in zip((one, other), found, strict=True))
