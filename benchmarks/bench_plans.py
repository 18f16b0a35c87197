"""What generated teams cost: forks by the one planner against the application's own requests, at equal information.

``python -m benchmarks.bench_plans`` prints a table and writes ``benchmarks/results/plans.json``; the same ``--seed``
makes the same plans. Each of ``--plans`` plans a set of rules is played through ``fork_body`` and, in caches of their
own, as the application sends it and in every layout of ``role_plans.FIXED``. Known plans (who is asked in which order
is fixed) are compared with the best of all layouts in hindsight; open-ended ones with the layout that is best on
average for their family (``family``), as a policy without foresight could choose. Regret is what was paid beyond that.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import fmean, quantiles
from typing import Any

from benchmarks import _table
from benchmarks.role_plans import FIXED, Plan, Shape, played, played_fixed, profile_of, session_for
from cacheprefix.server import CacheOutcome

RULES = ("openai", "openai-5.6", "deepseek", "vllm", "anthropic")
READS = (0.1, 0.25, 0.5)
SHAPES: tuple[Shape, ...] = ("shared", "fan-out", "private")
CALLS = 120
"""Calls of a plan at most, so that the largest teams do not take all the time."""
LATE = 3
"""Calls after which a plan must not be much dearer any more."""
DEARER = 1.1
"""What a plan may cost from then on, as a share of the unmodified cost."""
_OWN = "own"


@dataclass(frozen=True, slots=True)
class Result:
    """One plan under one set of rules. Costs are in cost units."""

    plan: Plan
    costs: dict[str, float]
    """By layout; ``own`` is the application's."""
    shared: float
    late: float
    """Share of the unmodified cost from the fourth call on, at its worst; 0 for shorter plans."""

    @property
    def ratio(self) -> float:
        """Share of the unmodified cost."""
        return self.shared / self.costs[_OWN]

    @property
    def premium(self) -> float:
        """What it cost more than unmodified, in tokens for each token that is shared: tools, handbook, talk."""
        plan, said = self.plan, defaultdict[int, int](int)
        for who, size in plan.turns:
            said[who if plan.shape == "private" else 0] += size
        return (self.shared - self.costs[_OWN]) / (plan.handbook + sum(plan.tools) + plan.common + max(said.values()))

    @property
    def best(self) -> float:
        """What the best of all layouts would have cost."""
        return min(self.costs.values())


def made(rng: random.Random) -> Plan:
    """One plan: sizes and counts are spread evenly over their orders of magnitude."""
    agents = rng.randint(1, 8)
    role, message = _size(rng, 20, 4_000), _size(rng, 20, 3_000)
    tool = rng.choice((0, 0, _size(rng, 50, 5_000)))
    alike = rng.random() < 0.6
    roles = tuple(role if alike else _size(rng, 20, 4_000) for _ in range(agents))
    tools = tuple(tool if alike else min(5_000, round(tool * rng.choice((0, 0.3, 1, 2)))) for _ in range(agents))
    asked_at_most = [rng.choice((0, 1)) if rng.random() < 0.15 else CALLS for _ in range(agents)]
    rounds = _size(rng, 1, 20)
    shape = rng.choices(SHAPES, (5, 3, 2))[0]
    fixed = rng.random() < 0.5
    loops = shape != "fan-out" and not fixed and rng.random() < 0.5
    turns: list[tuple[int, int]] = []
    for _ in range(rounds):
        order = range(agents) if fixed or shape == "fan-out" else rng.choices(range(agents), k=agents)
        for who in order:
            if asked_at_most[who]:
                asked_at_most[who] -= 1
                times = rng.randint(1, 4) if loops else 1
                turns += [(who, max(20, min(3_000, round(message * rng.lognormvariate(0, 0.5))))) for _ in range(times)]
    turns = turns[:CALLS] or [(0, message)]
    return Plan(
        handbook=rng.choice((0, *(_size(rng, 50, 8_000) for _ in range(6)))),
        roles=roles,
        turns=tuple(turns),
        tools=tools,
        common=rng.choice((0, 0, _size(rng, 50, 2_000))),
        shape=shape,
        book_first=rng.random() < 0.4,
        marked=rng.random() < 0.5,
        known=fixed,
        tagged=True,
    )


def _size(rng: random.Random, least: int, most: int) -> int:
    return round(math.exp(rng.uniform(math.log(least), math.log(most))))


def family(plan: Plan) -> tuple[Any, ...]:
    """What a policy without foresight knows of a plan before its first request."""
    role, tools = fmean(plan.roles), sum(plan.tools)
    return plan.shape, len(plan.roles) > 1, plan.handbook > role, tools > plan.handbook + role, plan.marked


def result(plan: Plan, rules: str, read: float, *, weigh: bool = False) -> Result:
    """A plan played in all layouts."""
    profile = profile_of(rules, read)

    def costs(outcomes: Sequence[CacheOutcome]) -> list[float]:
        return [one.cost_units(profile) for one in outcomes]

    own = costs(played(plan, rules, read=read))
    session = session_for(plan, rules, read)
    ours = costs(played(plan, rules, session, read=read, weigh=weigh))
    if session.failures:
        raise RuntimeError(f"a step of ours failed: {dict(session.failures)}")
    # Without tools of one's own the union is nothing else.
    fixed = {
        name: sum(costs(played_fixed(plan, rules, one, read=read)))
        for name, one in FIXED.items()
        if one.union or any(plan.tools)
    }
    if not any(plan.tools):
        fixed |= {name: fixed[name.replace("own tools", "all tools")] for name, one in FIXED.items() if not one.union}
    paid, unmodified, late = 0.0, 0.0, 0.0
    for number, (mine, theirs) in enumerate(zip(ours, own, strict=True)):
        paid, unmodified = paid + mine, unmodified + theirs
        late = max(late, paid / unmodified) if number >= LATE else late
    return Result(plan, {_OWN: sum(own), **fixed}, sum(ours), late)


def nth(rules: str, read: float, seed: int, number: int, *, weigh: bool = False) -> Result:
    """The result of one plan of a seed."""
    # Breaks of the application's own layout are no news here.
    logging.getLogger("cacheprefix").setLevel(logging.ERROR)
    return result(made(random.Random(f"{seed}/{rules}/{read}/{number}")), rules, read, weigh=weigh)


def rows_of(found: Sequence[Result], rules: str, read: float) -> list[_table.Row]:
    """What the results of one set of rules come to."""
    rows = []
    by_family: dict[tuple[Any, ...], list[Result]] = defaultdict(list)
    for one in found:
        by_family[family(one.plan)].append(one)
    policy = {
        kind: min(members[0].costs, key=lambda name: sum(one.costs[name] for one in members))
        for kind, members in by_family.items()
    }
    for known in (True, False):
        some = [one for one in found if one.plan.known == known]
        if not some:
            continue
        regrets = [one.shared / (one.best if known else one.costs[policy[family(one.plan)]]) - 1 for one in some]
        regret = {
            "regret_mean": round(fmean(regrets), 4),
            "regret_95": round(quantiles(regrets, n=20)[-1] if len(regrets) > 1 else regrets[0], 4),
        }
        rows.append(_row(f"{rules} {read:g}x", some, known=known, **regret))
    return rows


def together(found: Sequence[Result], rules: str) -> list[_table.Row]:
    """What the results of one set of rules come to at all prices; whom they are held against differs by the price."""
    parted = {known: [one for one in found if one.plan.known == known] for known in (True, False)}
    return [_row(f"{rules} at all prices", some, known=known) for known, some in parted.items() if some]


def _row(what: str, some: Sequence[Result], *, known: bool, **more: float) -> _table.Row:
    ratios, late = [one.ratio for one in some], [one.late for one in some]
    name = f"{what}, {'known' if known else 'open-ended'}"
    numbers: dict[str, Any] = {
        "plans": len(some),
        "sum": round(sum(one.shared for one in some) / sum(one.costs[_OWN] for one in some), 4),
        "sum_best": round(sum(one.best for one in some) / sum(one.costs[_OWN] for one in some), 4),
        "within_1.00": round(fmean(ratio <= 1.0 for ratio in ratios), 4),
        "within_1.01": round(fmean(ratio <= 1.01 for ratio in ratios), 4),
        "worst": round(max(ratios), 4),
        "worst_late": round(max(late), 4),
        "late_above_1.10": round(fmean(ratio > DEARER for ratio in late), 4),
        "worst_premium": round(max(one.premium for one in some), 4),
        **more,
    }
    return _table.topic(name, numbers["sum"], "share of the unmodified cost", **numbers)


def lines(rows: Sequence[_table.Row]) -> list[list[str]]:
    """The rows as lines of a table."""
    names = (
        "plans", "sum", "sum_best", "within_1.00", "within_1.01", "worst", "worst_late",
        "late_above_1.10", "worst_premium", "regret_mean", "regret_95",
    )  # fmt: skip
    cells = ([f"{row[name]:,.4g}" if name in row else "" for name in names] for row in rows)
    return [["", *names], *([row["name"], *line] for row, line in zip(rows, cells, strict=True))]


def main() -> int:
    """Run it."""
    parser = _table.options(__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plans", type=int, default=1_000, help="plans a set of rules")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--played", action="store_true", help="play layouts in open-ended plans too (Role.played)")
    parser.add_argument("--rules", nargs="*", default=list(RULES), choices=RULES)
    given = parser.parse_args()
    rows: list[_table.Row] = []
    # Fresh processes: nothing of this one's threads and locks goes with them.
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        for rules in given.rules:
            everything: list[Result] = []
            for read in READS:
                _table.progress(f"{rules} {read:g}x")
                one = partial(nth, rules, read, given.seed, weigh=given.played)
                found = list(pool.map(one, range(given.plans), chunksize=10))
                rows += rows_of(found, rules, read)
                everything += found
            rows += together(everything, rules)
    _table.finish("plans", rows, given, lines=lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
