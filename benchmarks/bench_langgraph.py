"""LangGraph applications, unmodified and on a shared prefix: what their input costs under a provider's cache rules.

``python -m benchmarks.bench_langgraph`` prints a table and writes ``benchmarks/results/langgraph.json``;
``--markdown`` prints the table as Markdown. No model is called: a simulated provider serves every request over HTTP
to LangChain's own clients. ``unmodified`` is the application as documented, ``best_stock`` the same with LangChain's
own caching middleware wherever it fits. Exits with 1 when a row is dearer than either.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import platform
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

from benchmarks.langgraph_workloads import WORKLOADS, Kit, Script, Workload, session_for
from cacheprefix import Session
from cacheprefix.profiles import cost_units, default_registry, normalise_usage
from cacheprefix.prompt import common_prefix
from cacheprefix.server import Latency, Record, SimulatedProvider

RESULTS = Path(__file__).parent / "results" / "langgraph.json"
# Long enough that siblings sent together really overlap.
OVERLAP = Latency(base=0.05, uncached=0.0, cached=0.0, output=0.0, scale=1)


@dataclass(frozen=True)
class Rules:
    """One set of cache rules, and the model that is served by it."""

    name: str
    model: str


RULES = (
    Rules("openai", "gpt-5-2025-08-07"),
    Rules("openai-5.6", "gpt-5.6"),
    Rules("openai-5.6-prefix", "gpt-5.6"),
    Rules("anthropic", "claude-sonnet-4-6"),
)


def model_for(rules: Rules, provider: SimulatedProvider) -> Any:
    """LangChain's own client of a provider."""
    if rules.name == "anthropic":
        return ChatAnthropic(model=rules.model, base_url=provider.anthropic_base_url, api_key="any", max_retries=0)
    return ChatOpenAI(model=rules.model, base_url=provider.openai_base_url, api_key="any", max_retries=0)


def run(workload: Workload, rules: Rules, *, layout: str) -> tuple[list[Record], Session | None]:
    """Run a workload once on an empty cache; the requests as the provider saw them."""
    with SimulatedProvider(rules.name, Script(workload.plan), latency=OVERLAP) as provider:
        session = session_for(workload, rules.name) if layout == "shared" else None
        workload.run(Kit(model_for(rules, provider), session, stock=layout == "stock"))
        records = list(provider.requests)
    failed = [record.error for record in records if record.status != 200]
    if failed or len(records) != workload.calls:
        print(f"{workload.name} ({rules.name}, {layout}): {len(records)} calls, {failed}", file=sys.stderr)
    return records, session


def summed(records: Sequence[Record], rules: Rules) -> dict[str, Any]:
    """The fields of a row's side, from the usage the provider reported."""
    profile = default_registry().get(rules.name)
    usages = [normalise_usage(record.usage, record.api) for record in records]
    return {
        "calls": len(records),
        "input_tokens": sum(usage.input_tokens or 0 for usage in usages),
        "cache_read_tokens": sum(usage.cache_read_tokens or 0 for usage in usages),
        "cache_write_tokens": sum(usage.cache_write_tokens or 0 for usage in usages),
        "uncached_tokens": sum(usage.uncached_tokens or 0 for usage in usages),
        "cost_units": round(sum(cost_units(usage, profile) for usage in usages), 1),
    }


def first_calls(records: Sequence[Record]) -> tuple[float, float]:
    """Of the first call of every role but the first: how much was sent before, and how much was read.

    Roles are told apart by their text in the prompt. Returns shares of those calls' input, 0 without such calls.
    """
    seen: set[str] = set()
    shared = read = total = 0
    for index, record in enumerate(records):
        if record.prompt is None or record.outcome is None:
            continue
        text = "".join(section.text for section in record.prompt.sections if section.tier != "tools")
        role = text.rpartition("You are the ")[2].partition(".")[0]
        if role not in seen and seen:
            total += record.prompt.tokens
            read += record.outcome.read_tokens
            shared += max(
                (common_prefix(e.prompt, record.prompt).tokens for e in records[:index] if e.prompt is not None),
                default=0,
            )
        seen.add(role)
    return (round(shared / total, 4), round(read / total, 4)) if total else (0.0, 0.0)


def measure(names: Sequence[str], rule_sets: Sequence[Rules]) -> list[dict[str, Any]]:
    """All rows."""
    rows = []
    for rules in rule_sets:
        for workload in WORKLOADS:
            if names and not any(name in workload.name for name in names):
                continue
            plain, _ = run(workload, rules, layout="unmodified")
            stock = run(workload, rules, layout="stock")[0] if rules.name == "anthropic" else plain
            ours, session = run(workload, rules, layout="shared")
            unmodified, best, shared = summed(plain, rules), summed(stock, rules), summed(ours, rules)
            common, read = first_calls(ours)
            rows.append(
                {
                    "workload": workload.name,
                    "framework": "langgraph",
                    "rules": rules.name,
                    "read_price": default_registry().get(rules.name).read,
                    "unmodified": unmodified,
                    "shared": shared,
                    "ratio": round(shared["cost_units"] / unmodified["cost_units"], 4),
                    "first_call_share": common,
                    "first_call_read": read,
                    "best_stock": best,
                    "ratio_to_stock": round(shared["cost_units"] / best["cost_units"], 4),
                    "notes": list(session.report().notes) if session else [],
                    "failures": dict(session.failures) if session else {},
                }
            )
    return rows


def table(rows: Sequence[dict[str, Any]], *, markdown: bool) -> str:
    """One line a workload: cost units unmodified and shared under every rule set, and the ratios."""
    columns = list(dict.fromkeys(row["rules"] for row in rows))
    lines = [["workload", *columns, "first call"]]
    for name in dict.fromkeys(row["workload"] for row in rows):
        mine = {row["rules"]: row for row in rows if row["workload"] == name}
        cells = [name]
        for column in columns:
            row = mine[column]
            cell = "{:,.0f} -> {:,.0f} = {:.2f}".format(
                row["unmodified"]["cost_units"], row["shared"]["cost_units"], row["ratio"]
            )
            if row["best_stock"]["cost_units"] != row["unmodified"]["cost_units"]:
                cell += f" ({row['ratio_to_stock']:.2f} of stock)"
            cells.append(cell)
        first = next(iter(mine.values()))
        shares = f"{first['first_call_share']:.0%} / {first['first_call_read']:.0%}"
        cells.append(shares if first["first_call_share"] else "-")
        lines.append(cells)
    if markdown:
        rule = ["---", *("---:" for _ in lines[0][1:])]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in (lines[0], rule, *lines[1:]))
    widths = [max(len(cells[i]) for cells in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))
        for cells in lines
    )


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of workload names; all without")
    parser.add_argument("--rules", action="append", choices=[rules.name for rules in RULES])
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the result file instead of the table")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    started = time.monotonic()
    chosen = [rules for rules in RULES if not options.rules or rules.name in options.rules]
    rows = measure(options.names, chosen)
    packages = ("langgraph", "langchain", "langgraph-supervisor", "langgraph-swarm", "deepagents")
    result = {
        "version": 1,
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "rows": rows,
    }
    if not options.names and not options.rules:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1) if options.json else table(rows, markdown=options.markdown))
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    return 1 if any(row["ratio"] > 1 or row["ratio_to_stock"] > 1 for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
