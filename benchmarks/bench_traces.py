"""Recorded agent runs under the usual ways of caching, each beside the least that content can cost.

``python -m benchmarks.bench_traces`` replays runs of LMCache's agent traces, tau-bench and Who&When under every
strategy and provider profile, prints a table and writes ``benchmarks/results/traces.json``. ``reached`` is the share
of the reachable saving: from nothing cached (0) to every text paid once at the write price and read afterwards (1).
``allowed`` is the same share of what a prefix cache allows where the texts stand (``benchmarks.trace_bounds``), in the
best of three layouts; what lies between the two bounds is shown as ``out of reach``, by the rule that takes it away.
Every run starts with a cold cache. ``--runs`` is how many of each set (default 12, ``0`` for all).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks import _table, trace_bounds
from benchmarks.trace_replay import STRATEGIES, Run, Strategy, trace_sets
from benchmarks.traces_at_hand import LMCACHE, TAU_BENCH, WHO_AND_WHEN, need
from cacheprefix.profiles import Profile, default_registry
from cacheprefix.server import CacheOutcome, ProviderCache, RefusedError

LAYOUTS = ("full", "ours", "ours, cards")
RULES = ("exact", "openai", "openai-5.6", "anthropic")
ANSWER_SECONDS = 1.0


@dataclass
class Sum:
    """The sums of a strategy over the runs of a set."""

    usage: Counter[str]
    cost: float = 0.0
    refused: int = 0

    def side(self) -> dict[str, Any]:
        """The fields of a row's side."""
        return {**{name: self.usage[name] for name in _table.SIDE[:-1]}, "cost_units": round(self.cost, 1)}


def played(strategy: Strategy, runs: Sequence[Run], profile: Profile, *, cached: bool) -> Sum | None:
    """All requests of the runs under one strategy; None where it has nothing to say to any of them.

    A run that it has nothing to say to is sent as its provider caches by itself.
    """
    total = Sum(Counter())
    chosen = [strategy(run, profile) for run in runs]
    if all(prompts is None for prompts in chosen):
        return None
    for run, found in zip(runs, chosen, strict=True):
        prompts = STRATEGIES["full"](run, profile) if found is None else found
        assert prompts is not None
        cache = ProviderCache(profile)
        for ask, prompt in zip(run.asks, prompts, strict=True):
            total.usage["calls"] += 1
            if not cached:
                total.usage.update(input_tokens=prompt.tokens, uncached_tokens=prompt.tokens)
                total.cost += prompt.tokens
                continue
            try:
                outcome = cache.serve(prompt, ask.at, first_token_at=ask.at + ANSWER_SECONDS)
            except RefusedError:
                # The provider would answer 400; the user would send it again without marks.
                total.refused += 1
                outcome = CacheOutcome(prompt.tokens)
            total.usage.update(
                input_tokens=outcome.input_tokens,
                cache_read_tokens=outcome.read_tokens,
                cache_write_tokens=outcome.written_tokens,
                uncached_tokens=outcome.uncached_tokens,
            )
            total.cost += outcome.cost_units(profile)
    return total


def rows_of(name: str, runs: Sequence[Run], profile: Profile) -> list[dict[str, Any]]:
    """One row a strategy."""
    bare = played(STRATEGIES["none"], runs, profile, cached=False)
    assert bare is not None
    bound = sum(trace_bounds.anywhere(run, profile) for run in runs)
    steps = [sum(costs) for costs in zip(*(_in_place(run, profile) for run in runs), strict=True)]
    reachable = bare.cost - bound
    gaps = dict(zip(trace_bounds.STEPS, (b - a for a, b in pairwise([bound, *steps])), strict=True))
    rows = []
    for strategy, prompts in STRATEGIES.items():
        found = bare if strategy == "none" else played(prompts, runs, profile, cached=True)
        if found is None:
            continue
        rows.append(
            _table.cost(
                f"{name}, {strategy}",
                "core",
                profile.name,
                profile.read,
                bare.side(),
                found.side(),
                traces=name,
                strategy=strategy,
                runs=len(runs),
                refused=found.refused,
                lower_bound=round(bound, 1),
                reached=_share(bare.cost - found.cost, reachable),
                bound_in_place=round(steps[-1], 1),
                allowed=_share(bare.cost - found.cost, bare.cost - steps[-1]),
                gaps={step: _share(gap, reachable) for step, gap in gaps.items()},
            )
        )
    return rows


def _in_place(run: Run, profile: Profile) -> list[float]:
    """The bounds of the layout that can cost least: as logged, role last, or roles as cards."""
    times = [ask.at for ask in run.asks]
    laid = [STRATEGIES[name](run, profile) for name in LAYOUTS]
    bounds = [trace_bounds.in_place(list(one), times, profile, ANSWER_SECONDS) for one in laid if one is not None]
    return min(bounds, key=lambda steps: steps[-1])


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole > 0.5 else None


def lines(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """One line a set and strategy: cost against nothing cached, and the shares reached, under every profile."""
    rules = list(dict.fromkeys(row["rules"] for row in rows))
    out = [["traces", "strategy", *rules]]
    for name in dict.fromkeys(row["traces"] for row in rows):
        mine = {(row["strategy"], row["rules"]): row for row in rows if row["traces"] == name}
        for strategy in STRATEGIES:
            found = [mine.get((strategy, one)) for one in rules]
            if any(found):
                out.append([name, strategy, *(_cell(row) for row in found)])
        some = [next(row for row in mine.values() if row["rules"] == one) for one in rules]
        for title, field in (("lower bound, anywhere", "lower_bound"), ("lower bound, in place", "bound_in_place")):
            shares = (f"{row[field] / row['unmodified']['cost_units']:.3f}" for row in some)
            out.append([name, title, *shares])
        steps = trace_bounds.STEPS
        out += ([name, f"out of reach: {one}", *(_number(row["gaps"][one]) for row in some)] for one in steps)
    return out


def _number(share: float | None) -> str:
    return "-" if share is None else f"{round(share, 3) + 0.0:.3f}"


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    reached = "" if row["reached"] is None else f" ({row['reached']:.2f}"
    if reached:
        reached += ")" if row["allowed"] is None else f"; {row['allowed']:.2f})"
    refused = f" {row['refused']} refused" if row["refused"] else ""
    return f"{row['ratio']:.3f}{reached}{refused}"


def main() -> None:
    """Measure, print, write."""
    parser = _table.options(__doc__, names=True)
    parser.add_argument("--runs", type=int, default=12, help="runs of each set, 0 for all")
    parser.add_argument("--rules", action="append", choices=RULES)
    options = parser.parse_args()
    need("bench-traces", *LMCACHE, TAU_BENCH, *WHO_AND_WHEN)
    logging.getLogger("cacheprefix").setLevel(logging.ERROR)
    rows: list[dict[str, Any]] = []
    for name, read in trace_sets(options.runs or None).items():
        if not _table.chosen(name, options.names):
            continue
        runs = read()
        for rules in options.rules or RULES:
            _table.progress(f"{name}, {rules}: {sum(len(run.asks) for run in runs)} requests")
            rows += rows_of(name, runs, default_registry().get(rules))
    whole = not (options.names or options.rules)
    _table.finish("traces", rows, options, packages=("llmbuffer", "langchain-anthropic"), lines=lines, whole=whole)


if __name__ == "__main__":
    main()
