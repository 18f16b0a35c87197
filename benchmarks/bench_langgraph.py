"""LangGraph applications, unmodified and on a shared prefix: what their input costs under a provider's cache rules.

``python -m benchmarks.bench_langgraph`` prints a table and writes ``benchmarks/results/langgraph.json``;
``--markdown`` prints the table as Markdown. No model is called: a simulated provider serves every request over HTTP
to LangChain's own clients. ``unmodified`` is the application as documented, ``best_stock`` the same with LangChain's
own caching middleware wherever it fits. Exits with 1 when a row is dearer than either.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

from benchmarks import _table
from benchmarks.langgraph_workloads import WORKLOADS, Kit, Script, Workload, session_for
from cacheprefix import Session
from cacheprefix.profiles import default_registry
from cacheprefix.prompt import IMAGE_TOKENS, common_prefix
from cacheprefix.server import Latency, Record, SimulatedProvider

# Long enough that siblings sent together really overlap.
OVERLAP = Latency(base=0.3, uncached=0.0, cached=0.0, output=0.0004, scale=1)


@dataclass(frozen=True)
class Rules:
    """One set of cache rules, and the model that is served by it."""

    name: str
    model: str


RULES = (
    Rules("openai", "gpt-5-2025-08-07"),
    Rules("openai-5.6", "gpt-5.6"),
    Rules("openai-5.6-prefix", "gpt-5.6"),
    Rules("anthropic", "claude-opus-4-1"),
)


def model_for(rules: Rules, provider: SimulatedProvider) -> Any:
    """LangChain's own client of a provider."""
    if rules.name == "anthropic":
        return ChatAnthropic(model=rules.model, base_url=provider.anthropic_base_url, api_key="any", max_retries=0)
    return ChatOpenAI(model=rules.model, base_url=provider.openai_base_url, api_key="any", max_retries=0)


def run(
    workload: Workload, rules: Rules, *, layout: str, tokenizer: float = 1.0, image_tokens: int = IMAGE_TOKENS
) -> tuple[list[Record], Session | None]:
    """Run a workload once on an empty cache; the requests as the provider saw them.

    ``layout`` is ``unmodified``, ``stock``, ``shared`` or ``ungated`` (shared, and nobody waits for a sibling).
    """
    sizes: dict[str, Any] = {"count": _table.counter(tokenizer), "image_tokens": image_tokens}
    latency = OVERLAP if workload.overlaps else None
    with SimulatedProvider(rules.name, Script(workload.plan), latency=latency, **sizes) as provider:
        gated = layout != "ungated"
        session = session_for(workload, rules.name, gated=gated) if layout in ("shared", "ungated") else None
        workload.run(Kit(model_for(rules, provider), session, stock=layout == "stock", prewarm=workload.prewarm))
        records = list(provider.requests)
    failed = [record.error for record in records if record.status != 200]
    warmed = sum(record.json.get("max_tokens") == 0 for record in records)
    if failed or len(records) - warmed != workload.calls:
        print(f"{workload.name} ({rules.name}, {layout}): {len(records)} calls, {failed}", file=sys.stderr)
    return records, session


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


def measure(names: Sequence[str], rule_sets: Sequence[Rules], tokenizer: float = 1.0) -> list[dict[str, Any]]:
    """All rows."""
    rows: list[dict[str, Any]] = []
    equal: dict[tuple[str, str], dict[str, Any]] = {}
    for rules in rule_sets:
        for workload in WORKLOADS:
            if not _table.chosen(workload.name, names):
                continue
            _table.progress(f"{workload.name} ({rules.name})")
            plain, _ = run(workload, rules, layout="unmodified", tokenizer=tokenizer)
            stock = plain
            if rules.name == "anthropic":
                stock, _ = run(workload, rules, layout="stock", tokenizer=tokenizer)
            ours, session = run(workload, rules, layout="shared", tokenizer=tokenizer)
            apart = None
            if _table.waited(session):
                apart, _ = run(workload, rules, layout="ungated", tokenizer=tokenizer)
            profile = default_registry().get(rules.name)
            unmodified, best, shared = (_table.summed(side, profile) for side in (plain, stock, ours))
            common, read = first_calls(ours)
            known = (rules.name, workload.name.removesuffix(f", {workload.policy}"))
            base = equal.get(known) if workload.policy else None
            less = None if base is None else _table.policy(workload.policy, base, unmodified, shared)
            rows.append(
                _table.cost(
                    workload.name,
                    "langgraph",
                    rules.name,
                    profile.read,
                    unmodified,
                    shared,
                    session=session,
                    policy=less,
                    information="less" if workload.policy else "equal",
                    ungated=None if apart is None else _table.summed(apart, profile),
                    first_call_share=common,
                    first_call_read=read,
                    best_stock=best,
                    ratio_to_stock=round(shared["cost_units"] / best["cost_units"], 4),
                )
            )
            equal[rules.name, workload.name] = rows[-1]
    return rows


def lines(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """One line a workload: cost units unmodified and shared under every rule set, and the ratios."""
    columns = list(dict.fromkeys(row["rules"] for row in rows))
    out = [["workload", *columns, "first call"]]
    for name in dict.fromkeys(row["workload"] for row in rows):
        mine = {row["rules"]: row for row in rows if row["workload"] == name}
        cells = [name]
        for column in columns:
            row = mine[column]
            cell = _table.costs(row)
            if row["best_stock"]["cost_units"] != row["unmodified"]["cost_units"]:
                cell += f" ({row['ratio_to_stock']:.2f} of stock)"
            cells.append(cell)
        first = next(iter(mine.values()))
        shares = f"{first['first_call_share']:.0%} / {first['first_call_read']:.0%}"
        cells.append(shares if first["first_call_share"] else "-")
        out.append(cells)
    return out


def main() -> int:
    """Measure, print, write."""
    parser = _table.options(__doc__, names=True)
    parser.add_argument("--rules", action="append", choices=[rules.name for rules in RULES])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    asked = [rules for rules in RULES if not options.rules or rules.name in options.rules]
    rows = measure(options.names, asked, options.tokenizer)
    packages = ("langgraph", "langchain", "langgraph-supervisor", "langgraph-swarm", "deepagents")
    whole = not options.names and not options.rules
    _table.finish("langgraph", rows, options, packages=packages, lines=lines, whole=whole)
    return 1 if any(row["ratio"] > 1 or row["ratio_to_stock"] > 1 for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
