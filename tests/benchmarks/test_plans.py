"""Generated plans of agents: the same seed makes the same plans, and all sides are played to their end."""

from __future__ import annotations

import random
from itertools import product

import pytest

from benchmarks import _table
from benchmarks.bench_plans import READS, RULES, lines, made, nth, rows_of, together
from benchmarks.role_plans import FIXED, asked, played, played_fixed, session_for


def test_a_seed_makes_the_same_plans():
    """So that two runs can be compared."""
    assert [made(random.Random(number)) for number in range(9)] == [made(random.Random(number)) for number in range(9)]
    assert len({made(random.Random(number)) for number in range(9)}) == 9


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("rules", RULES)
def test_all_sides_say_the_same(rules, number):
    """As many calls, and in each the same texts: no side is cheaper by telling the model less."""
    plan = made(random.Random(number))
    own = played(plan, rules)
    sides = [played(plan, rules, session_for(plan, rules)), *(played_fixed(plan, rules, one) for one in FIXED.values())]
    foreign = sum(plan.tools)
    for side, all_of in zip(sides, [True, *(one.union for one in FIXED.values())], strict=True):
        assert len(side) == len(own) == len(plan.turns)
        for ours, theirs in zip(side, own, strict=True):
            assert ours.input_tokens >= theirs.input_tokens - 4
            # What is more is the role's name around its text, and definitions of tools.
            assert ours.input_tokens <= theirs.input_tokens + 40 + 80 * len(plan.roles) + (foreign if all_of else 0)


def test_agents_read_what_was_said():
    """Those of a wave do not read each other; whose history is private reads its own answers alone."""
    plans = [made(random.Random(number)) for number in range(60)]
    assert {plan.shape for plan in plans} == {"shared", "fan-out", "private"}
    for plan in plans:
        seen = list(asked(plan))
        if plan.shape == "shared":
            assert [len(one.history) for one in seen] == list(range(1, len(seen) + 1))
        for at, one in enumerate(seen):
            if plan.shape == "private":
                assert len(one.history) == 1 + sum(other.who == one.who for other in seen[:at])


def test_results_are_rows_of_a_topic():
    """One for known plans and one for open-ended ones, with the shares and regrets."""
    found = [nth("openai", 0.1, 5, number) for number in range(8)]
    rows = rows_of(found, "openai", 0.1)
    assert _table.checked(rows)
    assert {row["name"].rpartition(", ")[2] for row in rows} == {"known", "open-ended"}
    assert sum(row["plans"] for row in rows) == 8
    assert all(len(line) == 12 for line in lines(rows))


def test_all_prices_are_summed_up_in_rows_of_their_own():
    """Of twice the same plans the shares are the same."""
    found = [nth("openai", 0.1, 5, number) for number in range(8)]
    rows, once = together([*found, *found], "openai"), rows_of(found, "openai", 0.1)
    assert _table.checked(rows)
    for row, one in zip(rows, once, strict=True):
        assert row["name"].startswith("openai at all prices, ")
        assert (row["plans"], row["sum"], row["worst"]) == (2 * one["plans"], one["sum"], one["worst"])
    assert all(len(line) == 12 for line in lines([*once, *rows]))


@pytest.mark.slow
@pytest.mark.parametrize(("rules", "read"), list(product(RULES, READS)))
def test_a_sample_of_plans_costs_no_more_than_without_us(rules, read):
    """Under each set of rules, taken together."""
    found = [nth(rules, read, 3, number) for number in range(4)]
    assert sum(one.shared for one in found) <= 1.1 * sum(one.costs["own"] for one in found)
