"""AutoGen teams, unmodified and wrapped: what their input costs under a provider's cache rules.

``python -m benchmarks.bench_autogen`` prints a table and writes ``benchmarks/results/autogen.json``;
``--markdown`` prints the table as Markdown. No model is called: a simulated provider serves every request.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autogen_core.models import ChatCompletionClient, ModelFamily, ModelInfo

from benchmarks import _table
from benchmarks.autogen_workloads import WORKLOADS, Workload
from cacheprefix import Gate, Session, Usage
from cacheprefix.profiles import Profile, cost_units, default_registry, normalise_usage
from cacheprefix.server import Record, SimulatedProvider
from cacheprefix_autogen import session_of, wrap


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


def run(
    workload: Workload, rules: Rules, *, shared: bool, gated: bool = True, tokenizer: float = 1.0, whole: bool = False
) -> tuple[Sequence[Record], Session | None]:
    """Run a workload once on an empty cache; the requests as the provider saw them.

    ``whole`` leaves away what an unmodified application does itself to keep to the row's budget.
    """
    latency = _table.OVERLAP if workload.overlaps else None
    count = _table.counter(tokenizer)
    with SimulatedProvider(rules.rules, workload.model(), latency=latency, count=count) as provider:
        made: list[ChatCompletionClient] = []
        new = client_for(rules, provider)

        def client() -> ChatCompletionClient:
            made.append(new())
            return made[-1]

        async def go() -> Session | None:
            build = workload.build if shared or whole or workload.unmodified is None else workload.unmodified
            target, runner = build(client)
            if shared:
                session = Session(budget=workload.budget, gate=Gate(price=0.0) if gated else None)
                wrap(target, session, tool_memory=workload.tool_memory)
            await runner()
            for each in made:
                await each.close()
            return session_of(target)

        session = asyncio.run(go())
        return list(provider.requests), session


def summed(records: Sequence[Record], rules: Rules) -> dict[str, Any]:
    """The fields of a row's side, from the usage the provider reported."""
    return _table.summed(records, priced(rules))


def priced(rules: Rules) -> Profile:
    """The profile with the read price of the row."""
    return replace(default_registry().get(rules.rules), read=rules.read_price)


def first_call_share(records: Sequence[Record], rules: Rules) -> float:
    """How much of the cost the very first request is, which no layout can avoid."""
    usages: list[Usage] = [normalise_usage(record.usage, record.api) for record in records]
    total = sum(cost_units(usage, priced(rules)) for usage in usages)
    return round(cost_units(usages[0], priced(rules)) / total, 4) if total else 0.0


def measure(names: Sequence[str], rule_sets: Sequence[Rules], tokenizer: float = 1.0) -> list[dict[str, Any]]:
    """All rows."""
    rows = []
    for rules in rule_sets:
        plain: dict[str, dict[str, Any]] = {}
        equal: dict[str, dict[str, Any]] = {}
        for workload in WORKLOADS:
            if not _table.chosen(workload.name, names):
                continue
            _table.progress(f"{workload.name} ({rules.rules} {rules.read_price:g}x)")
            unmodified, _ = run(workload, rules, shared=False, tokenizer=tokenizer)
            wrapped, session = run(workload, rules, shared=True, tokenizer=tokenizer)
            apart = None
            if _table.waited(session):
                apart, _ = run(workload, rules, shared=True, gated=False, tokenizer=tokenizer)
            for side, records in (("unmodified", unmodified), ("shared", wrapped)):
                failed = [record.error for record in records if record.status != 200]
                if failed or len(records) != workload.calls:
                    print(f"{workload.name} ({side}): {len(records)} calls, {failed}", file=sys.stderr)
            sides = summed(unmodified, rules), summed(wrapped, rules)
            base = equal.get(workload.name.removesuffix(f", {workload.policy}")) if workload.policy else None
            less = None
            if base is not None:
                full = sides[0]
                if workload.unmodified is not None:
                    full = summed(run(workload, rules, shared=False, tokenizer=tokenizer, whole=True)[0], rules)
                less = _table.policy(workload.policy, base, full, sides[1])
            row = _table.cost(
                workload.name,
                "autogen",
                rules.rules,
                rules.read_price,
                *sides,
                session=session,
                policy=less,
                ungated=None if apart is None else summed(apart, rules),
                first_call_share=first_call_share(wrapped, rules),
                information="equal" if workload.tool_memory == "keep" else "less",
            )
            plain[workload.name], equal[workload.name] = row["unmodified"], row
            rows.append(row)
        for row, workload in zip(rows[-len(plain) :], [w for w in WORKLOADS if w.name in plain], strict=True):
            row["best_stock"] = plain.get(workload.best_stock)
    return rows


def main() -> int:
    """Measure, print, write."""
    options = _table.options(__doc__, names=True).parse_args()
    warnings.simplefilter("ignore")
    rows = measure(options.names, RULES, options.tokenizer)
    _table.finish(
        "autogen",
        rows,
        options,
        packages=("autogen-agentchat", "autogen-ext", "openai", "anthropic"),
        lines=lambda found: _table.grid(found, ["workload"], lambda row: [row["workload"]]),
        whole=not options.names,
    )
    # What a run that nobody knows beforehand may cost more than without us.
    return 1 if any(row["ratio"] > 1.01 for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
