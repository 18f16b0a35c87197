"""AutoGen teams, unmodified and wrapped: what their input costs under a provider's cache rules.

``python -m benchmarks.bench_autogen`` prints a table and writes ``benchmarks/results/autogen.json``;
``--markdown`` prints the table as Markdown. No model is called: a simulated provider serves every request.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import json
import platform
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autogen_core.models import ChatCompletionClient, ModelFamily, ModelInfo

from benchmarks.autogen_workloads import WORKLOADS, Workload
from cacheprefix import Session, Usage
from cacheprefix.profiles import Profile, cost_units, default_registry, normalise_usage
from cacheprefix.server import Record, SimulatedProvider
from cacheprefix_autogen import session_of, wrap

RESULTS = Path(__file__).parent / "results" / "autogen.json"


@dataclass(frozen=True)
class Rules:
    """One set of cache rules, and the model that is priced so."""

    rules: str
    model: str
    read_price: float


RULES = (
    Rules("openai", "gpt-5-2025-08-07", 0.1),
    Rules("openai", "gpt-4o-2024-08-06", 0.5),
    Rules("anthropic", "claude-sonnet-4-5-20250929", 0.1),
)


def client_for(rules: Rules, provider: SimulatedProvider) -> Callable[[], ChatCompletionClient]:
    """Makes AutoGen's own client of a provider."""
    info = ModelInfo(
        vision=True,
        function_calling=True,
        json_output=True,
        family=ModelFamily.GPT_4O if rules.rules == "openai" else ModelFamily.CLAUDE_4_SONNET,
        structured_output=rules.rules == "openai",
        multiple_system_messages=rules.rules == "openai",
    )
    if rules.rules == "openai":
        from autogen_ext.models.openai import OpenAIChatCompletionClient  # noqa: PLC0415 - one of two clients

        return lambda: OpenAIChatCompletionClient(
            model=rules.model, base_url=provider.openai_base_url, api_key="any", model_info=info
        )
    from autogen_ext.models.anthropic import AnthropicChatCompletionClient  # noqa: PLC0415 - the other

    return lambda: AnthropicChatCompletionClient(
        model=rules.model, base_url=provider.anthropic_base_url, api_key="any", model_info=info
    )


def run(workload: Workload, rules: Rules, *, shared: bool) -> tuple[Sequence[Record], Session | None]:
    """Run a workload once on an empty cache; the requests as the provider saw them."""
    with SimulatedProvider(rules.rules, workload.model()) as provider:
        made: list[ChatCompletionClient] = []
        new = client_for(rules, provider)

        def client() -> ChatCompletionClient:
            made.append(new())
            return made[-1]

        async def go() -> Session | None:
            build = workload.build if shared or workload.unmodified is None else workload.unmodified
            target, runner = build(client)
            if shared:
                wrap(target, Session(budget=workload.budget))
            await runner()
            for each in made:
                await each.close()
            return session_of(target)

        session = asyncio.run(go())
        return list(provider.requests), session


def summed(records: Sequence[Record], rules: Rules) -> dict[str, Any]:
    """The fields of a row's side, from the usage the provider reported."""
    profile = priced(rules)
    usages = [normalise_usage(record.usage, record.api) for record in records]
    return {
        "calls": len(records),
        "input_tokens": sum(usage.input_tokens or 0 for usage in usages),
        "cache_read_tokens": sum(usage.cache_read_tokens or 0 for usage in usages),
        "cache_write_tokens": sum(usage.cache_write_tokens or 0 for usage in usages),
        "uncached_tokens": sum(usage.uncached_tokens or 0 for usage in usages),
        "cost_units": round(sum(cost_units(usage, profile) for usage in usages), 1),
    }


def priced(rules: Rules) -> Profile:
    """The profile with the read price of the row."""
    return replace(default_registry().get(rules.rules), read=rules.read_price)


def first_call_share(records: Sequence[Record], rules: Rules) -> float:
    """How much of the cost the very first request is, which no layout can avoid."""
    usages: list[Usage] = [normalise_usage(record.usage, record.api) for record in records]
    total = sum(cost_units(usage, priced(rules)) for usage in usages)
    return round(cost_units(usages[0], priced(rules)) / total, 4) if total else 0.0


def measure(names: Sequence[str], rule_sets: Sequence[Rules]) -> list[dict[str, Any]]:
    """All rows."""
    rows = []
    for rules in rule_sets:
        plain: dict[str, dict[str, Any]] = {}
        for workload in WORKLOADS:
            if names and not any(name in workload.name for name in names):
                continue
            unmodified, _ = run(workload, rules, shared=False)
            wrapped, session = run(workload, rules, shared=True)
            for side, records in (("unmodified", unmodified), ("shared", wrapped)):
                failed = [record.error for record in records if record.status != 200]
                if failed or len(records) != workload.calls:
                    print(f"{workload.name} ({side}): {len(records)} calls, {failed}", file=sys.stderr)
            row = {
                "workload": workload.name,
                "framework": "autogen",
                "rules": rules.rules,
                "read_price": rules.read_price,
                "unmodified": summed(unmodified, rules),
                "shared": summed(wrapped, rules),
                "first_call_share": first_call_share(wrapped, rules),
                "best_stock": None,
                "notes": list(session.report().notes) if session else [],
                "failures": dict(session.failures) if session else {},
            }
            row["ratio"] = round(row["shared"]["cost_units"] / row["unmodified"]["cost_units"], 4)
            plain[workload.name] = row["unmodified"]
            rows.append(row)
        for row, workload in zip(rows[-len(plain) :], [w for w in WORKLOADS if w.name in plain], strict=True):
            row["best_stock"] = plain.get(workload.best_stock)
    return rows


def table(rows: Sequence[dict[str, Any]], *, markdown: bool) -> str:
    """One line a workload: cost units of both sides under every rule set, and their ratio."""
    columns = list(dict.fromkeys((row["rules"], row["read_price"]) for row in rows))
    head = ["workload", *(f"{name} {price:g}x" for name, price in columns)]
    lines = []
    for name in dict.fromkeys(row["workload"] for row in rows):
        cells = [name]
        for column in columns:
            row = next((r for r in rows if r["workload"] == name and (r["rules"], r["read_price"]) == column), None)
            cells.append(
                "-"
                if row is None
                else "{:,.0f} -> {:,.0f} = {:.2f}".format(
                    row["unmodified"]["cost_units"], row["shared"]["cost_units"], row["ratio"]
                )
            )
        lines.append(cells)
    if markdown:
        rule = ["---", *("---:" for _ in columns)]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *lines))
    widths = [max(len(cells[i]) for cells in (head, *lines)) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        for cells in (head, *lines)
    )


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of workload names; all without")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the result file instead of the table")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    started = time.monotonic()
    rows = measure(options.names, RULES)
    result = {
        "version": 1,
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("autogen-agentchat", "autogen-ext", "openai", "anthropic")},
        },
        "rows": rows,
    }
    if not options.names:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(result, indent=1) if options.json else table(rows, markdown=options.markdown))
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    return 1 if any(row["ratio"] > 1 for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
