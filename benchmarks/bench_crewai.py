"""CrewAI crews, unmodified and installed: what their input costs under a provider's cache rules.

``python -m benchmarks.bench_crewai`` prints a table and writes ``benchmarks/results/crewai.json``; ``--markdown``
prints the table as Markdown. No model is called: a simulated provider serves every request. Unmodified crews keep
CrewAI's own cache marks on Anthropic. OpenAI's rules from 5.6 on are read in two ways; the dearer one is reported.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import _table
from benchmarks.crewai_workloads import CLOCK, WORKLOADS, Workload, new_llm
from cacheprefix import Caching, Session
from cacheprefix.profiles import cost_units, default_registry, normalise_usage
from cacheprefix.server import Latency, Record, SimulatedProvider
from cacheprefix_crewai import install


@dataclass(frozen=True)
class Rules:
    """One set of cache rules with the model that falls under it; further readings of the same rules."""

    rules: str
    model: str
    read_price: float
    readings: tuple[str, ...] = ()
    provider: str | None = None
    """What the session is told, where the model's name would tell something else."""


RULES = (
    Rules("exact", "gpt-5-2025-08-07", 0.1, provider="exact"),
    Rules("openai", "gpt-5-2025-08-07", 0.1),
    Rules("openai", "gpt-4o-2024-08-06", 0.5),
    Rules("openai-5.6", "gpt-5.6", 0.1, ("openai-5.6-prefix",)),
    Rules("anthropic", "anthropic/claude-sonnet-4-5-20250929", 0.1),
)


def run(
    workload: Workload, rules: Rules, reading: str, *, shared: bool, gated: bool = True, tokenizer: float = 1.0
) -> tuple[list[Record], Session | None]:
    """Run a workload once on an empty cache; the requests as the provider saw them."""
    latency = Latency(base=workload.latency, output=0.0, scale=1.0) if workload.latency else None
    count = _table.counter(tokenizer)
    with SimulatedProvider(reading, workload.model(), latency=latency, clock=CLOCK, count=count) as provider:
        base = provider.anthropic_base_url if rules.rules == "anthropic" else provider.openai_base_url
        target, go = workload.build(lambda **given: new_llm(rules.model, base, react=workload.react, **given))
        if not shared:
            go()
            return list(provider.requests), None
        caching = Caching(provider=rules.provider, clock=CLOCK)
        if workload.lifetime and rules.rules == "anthropic":
            caching = replace(caching, lifetime=workload.lifetime)
        session = Session(gate=workload.gate if gated else None, caching=caching)
        with install(target, session) as installed:
            go()
            return list(provider.requests), installed.session


def measure(names: Sequence[str], rule_sets: Sequence[Rules], tokenizer: float = 1.0) -> list[dict[str, Any]]:
    """All rows."""
    rows = []
    for workload in WORKLOADS:
        if not _table.chosen(workload.name, names):
            continue
        _table.progress(workload.name)
        for rules in rule_sets:
            readings = [row_of(workload, rules, reading, tokenizer) for reading in (rules.rules, *rules.readings)]
            rows.append(max(readings, key=lambda row: float(row["ratio"])))
    return rows


def row_of(workload: Workload, rules: Rules, reading: str, tokenizer: float = 1.0) -> dict[str, Any]:
    """One workload under one reading of the rules."""
    profile = replace(default_registry().get(reading), read=rules.read_price)
    unmodified, _ = run(workload, rules, reading, shared=False, tokenizer=tokenizer)
    wrapped, session = run(workload, rules, reading, shared=True, tokenizer=tokenizer)
    apart = None
    if _table.waited(session):
        apart, _ = run(workload, rules, reading, shared=True, gated=False, tokenizer=tokenizer)
    for side, records in (("unmodified", unmodified), ("shared", wrapped)):
        failed = [record.error for record in records if record.status != 200]
        if failed:
            print(f"{workload.name} ({rules.rules}, {side}): {failed}", file=sys.stderr)
    if len(unmodified) != len(wrapped):
        print(f"{workload.name} ({rules.rules}): {len(unmodified)} calls, installed {len(wrapped)}", file=sys.stderr)
    plain, shared = (_table.summed(side, profile) for side in (unmodified, wrapped))
    first = cost_units(normalise_usage(wrapped[0].usage, wrapped[0].api), profile)
    return _table.cost(
        workload.name,
        "crewai",
        rules.rules,
        rules.read_price,
        plain,
        shared,
        session=session,
        ungated=None if apart is None else _table.summed(apart, profile),
        first_call_share=round(first / shared["cost_units"], 4),
        reading=reading,
        model=rules.model,
        goal=workload.goal,
        bound=workload.bound,
    )


def lines(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """One line a workload: its goal, and cost units of both sides with their ratio under every rule set."""
    goal = lambda row: "" if row["goal"] is None else f"{row['goal']:.2f}"  # noqa: E731
    return _table.grid(rows, ["workload", "goal"], lambda row: [row["workload"], goal(row)])


def missed(row: dict[str, Any]) -> bool:
    """Whether a row is dearer than unmodified, or misses its goal under the rules the goals are set for."""
    goal = row["goal"] if row["rules"] == "exact" and row["goal"] is not None else row["bound"]
    return bool(row["ratio"] > goal)


def main() -> int:
    """Measure, print, write."""
    parser = _table.options(__doc__, names=True)
    parser.add_argument("--rules", action="append", help="only these rule sets")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("cacheprefix").setLevel(logging.ERROR)
    asked = [one for one in RULES if not options.rules or one.rules in options.rules]
    rows = measure(options.names, asked, options.tokenizer)
    whole = not options.names and not options.rules
    _table.finish("crewai", rows, options, packages=("crewai", "openai", "anthropic"), lines=lines, whole=whole)
    over = [row for row in rows if missed(row)]
    for row in over:
        print(f"missed: {row['workload']} under {row['rules']} {row['read_price']:g}x: {row['ratio']}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
