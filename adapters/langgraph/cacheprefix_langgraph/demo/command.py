"""``cacheprefix demo``: the table, and one sentence that says what it means."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cacheprefix.errors import MissingExtraError, SetupError

if TYPE_CHECKING:
    from cacheprefix_langgraph.demo.engine import EngineRow
    from cacheprefix_langgraph.demo.run import Row

_KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_OUTPUT_SHARE = 0.15
"""Answers of the scripted team are about this share of its uncached input; a real model's may be longer."""


def register(cli: Any) -> None:
    """Add the command to the typer application ``cli``."""
    import typer  # noqa: PLC0415 - the cli extra

    @cli.command(name="demo")  # type: ignore[untyped-decorator]
    def demo(
        address: str = typer.Argument("", metavar="[URL]", help="With --engine: a server that speaks OpenAI's API."),
        engine: bool = typer.Option(  # noqa: FBT001
            False,  # noqa: FBT003
            "--engine",
            help="A real model: a small one on this machine (extra engine), or the server at URL with --model.",
        ),
        as_json: bool = typer.Option(False, "--json", help="Print the rows as JSON."),  # noqa: FBT001, FBT003
        rules: list[str] = typer.Option([], "--rules", help="Rule set of the simulated provider; repeatable."),  # noqa: B008
        source: str = typer.Option("starlette", "--input", help="An installed package or a folder to review."),
        latency: float = typer.Option(1.0, "--latency", help="Scale of the simulated latency; 0 does not wait."),
        provider: str = typer.Option("", "--provider", help="openai or anthropic: a real run with your key."),
        model: str = typer.Option("", "--model", help="The model of a real run."),
        svg: Path | None = typer.Option(None, "--svg", help="Write a picture of the requests to this file."),  # noqa: B008
        yes: bool = typer.Option(False, "--yes", help="Do not ask before a real run."),  # noqa: FBT001, FBT003
    ) -> None:
        """Run a code-review team unmodified and on a shared prefix, and show what was saved."""
        # What the unmodified runs lose is the demonstration's subject and stands in the table, not in the log.
        logging.getLogger("cacheprefix").setLevel(logging.ERROR)
        if engine:
            _on_engine(source, address, model, as_json=as_json)
            return
        if address:
            raise SetupError(f"{address!r}: an address goes with --engine")
        found = _real(source, provider, model, yes) if provider else _simulated(source, rules, latency)
        if svg is not None:
            from cacheprefix_langgraph.demo.picture import picture  # noqa: PLC0415 - only where asked for

            svg.write_text(picture(found), "utf-8")
        if as_json:
            from cacheprefix_langgraph.demo.run import as_data  # noqa: PLC0415 - loads LangGraph

            print(json.dumps(as_data(found), indent=2))  # noqa: T201 - printing is the command's job
        else:
            _show(found)


def _simulated(source: str, rules: Sequence[str], latency: float) -> list[Row]:
    from cacheprefix_langgraph.demo.run import MODELS, RULES, run_simulated  # noqa: PLC0415
    from cacheprefix_langgraph.demo.source import read_source  # noqa: PLC0415

    unknown = [name for name in rules if name not in MODELS]
    if unknown:
        raise SetupError(f"unknown rule set {unknown[0]!r}; use one of {', '.join(MODELS)}")
    return run_simulated(read_source(source), rules or RULES, latency=latency, step=_progress)


def _on_engine(source: str, url: str, model: str, *, as_json: bool) -> None:
    """Run both layouts against a model on this machine, or at ``url``, and show what the cache did to their times."""
    from contextlib import ExitStack  # noqa: PLC0415 - for a real model only

    from cacheprefix.server import SMOLLM2, LocalEngine, idle_threads, smollm2  # noqa: PLC0415
    from cacheprefix_langgraph.demo import engine  # noqa: PLC0415 - loads LangGraph
    from cacheprefix_langgraph.demo.source import read_source  # noqa: PLC0415

    if url and not model:
        raise SetupError("--engine URL needs --model: the model's name on that server")
    with ExitStack() as held:
        provider = None
        if not url:
            threads = idle_threads()
            _say(f"starting {SMOLLM2} on this machine, {threads} thread{'s' * (threads > 1)}")
            local = held.enter_context(LocalEngine(smollm2(), name=SMOLLM2, context=8192, threads=threads))
            url, model, provider = local.openai_base_url, SMOLLM2, "llama.cpp"
        rows = engine.run_engine(url, model, read_source(source), provider=provider, step=_say)
    if as_json:
        print(json.dumps(engine.as_data(rows), indent=2))  # noqa: T201 - printing is the command's job
    else:
        _show_engine(rows)


def _show_engine(rows: Sequence[EngineRow]) -> None:
    try:
        from rich.console import Console  # noqa: PLC0415 - the cli extra
        from rich.table import Table  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("the demonstration's table", "cli", "rich") from error
    plain, shared = rows
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    table = Table(title=f"The team on a real model: {plain.model}", box=None, padding=(0, 2, 0, 0))
    for name in ("layout", "calls", "input", "cached", "computed", "first token s", "whole run s"):
        table.add_column(name, justify="left" if name == "layout" else "right")
    for row in rows:
        computed = row.input_tokens - row.cached_tokens
        figures = (f"{row.calls}", f"{row.input_tokens:,}", f"{row.cached_tokens:,}", f"{computed:,}")
        times = (f"{row.first_token_s:.2f}", f"{row.whole_s:.1f}")
        table.add_row(row.layout, *figures, *times, style="bold green" if row is shared else None)
    console.print(table)
    if plain.first_token_s and plain.whole_s:
        console.print(
            f"On one shared prefix the first token comes after {shared.first_token_s / plain.first_token_s:.2f} of the "
            f"time, and the whole run takes {shared.whole_s / plain.whole_s:.2f}. Tokens are the engine's own counts, "
            "times this machine's."
        )
    for row in rows:
        console.print(f"\nWhat the agents said, {row.layout}:")
        for role, said in row.answers.items():
            console.print(f"  {role}: {' '.join(said.split())[:300]}", markup=False)


def _real(source: str, provider: str, model: str, yes: bool) -> list[Row]:  # noqa: FBT001
    """Run both layouts at a provider, once the user agreed to what the simulated one says that it will cost."""
    from cacheprefix.profiles import Usage as Tokens  # noqa: PLC0415
    from cacheprefix.profiles import money, profile_for  # noqa: PLC0415
    from cacheprefix_langgraph.demo.run import anthropic_model, layouts_of, openai_model, run_layout, run_simulated  # noqa: PLC0415
    from cacheprefix_langgraph.demo.source import read_source  # noqa: PLC0415

    if provider not in _KEYS:
        raise SetupError(f"--provider {provider!r}: use openai or anthropic")
    if not model:
        raise SetupError(f"--provider {provider} needs --model")
    if not os.environ.get(_KEYS[provider]):
        raise SetupError(f"--provider {provider} needs your key in {_KEYS[provider]}")
    text = read_source(source)
    profile = profile_for(model, provider)
    rules = profile.name if profile.name in ("openai", "openai-5.6", "anthropic") else provider
    _say("estimating the cost with the simulated provider")
    total: float | None = 0.0
    for row in run_simulated(text, [rules], latency=0.0):
        usage = Tokens(
            input_tokens=row.input_tokens,
            cache_read_tokens=row.cache_read_tokens,
            cache_write={"": row.cache_write_tokens},
            output_tokens=int(row.input_tokens * _OUTPUT_SHARE),
        )
        price = money(usage, model, profile)
        total = None if price is None or total is None else total + price
    about = "an unknown amount (no price is known for this model)" if total is None else f"about {total:.2f} USD"
    _say(f"{len(layouts_of(rules))} runs against {provider} with {model} will cost {about}")
    if not yes:
        if not sys.stdin.isatty():
            raise SetupError("a real run asks before it starts; pass --yes where nobody can answer")
        if input("Go on? [y/N] ").strip().lower() not in ("y", "yes"):
            raise SystemExit(0)
    make = openai_model if provider == "openai" else anthropic_model
    rows = []
    for layout in layouts_of(rules):
        _progress(f"{provider}: {layout}")
        rows.append(run_layout(make(model), text, layout, rules, profile=None))
    return rows


def _show(rows: Sequence[Row]) -> None:
    try:
        from rich.console import Console  # noqa: PLC0415 - the cli extra
        from rich.table import Table  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("the demonstration's table", "cli", "rich") from error
    console = Console(width=None if sys.stdout.isatty() else 130)
    wide = console.width >= 110
    title = "A code-review team on LangGraph: planner, three reviewers in parallel, synthesis"
    table = Table(title=title) if wide else Table(title=title, box=None, padding=(0, 1, 0, 0))
    base = {row.rules: row for row in rows if row.layout == "unmodified"}
    # On a narrow terminal numbers cut short would say less than none.
    left_out = () if wide else ("calls", "TTFT ms", "wall s")
    for at, row in enumerate(rows):
        cells = {
            "rules": row.rules,
            "layout": row.layout,
            "calls": f"{row.calls}",
            "input": f"{row.input_tokens:,}",
            "read": f"{row.cache_read_tokens:,}",
            "written": f"{row.cache_write_tokens:,}",
            "cached": f"{row.cache_read_tokens / row.input_tokens:.0%}",
            "cost units": f"{row.cost_units:,.0f}",
            "of unmodified" if wide else "ratio": f"{row.cost_units / base[row.rules].cost_units:.2f}",
            "TTFT ms": f"{row.ttft_ms_median:,.0f}",
            "wall s": f"{row.wall_ms / 1000:.1f}",
            "first call": f"{row.first_call_share:.0%}",
        }
        shown = {name: cell for name, cell in cells.items() if name not in left_out}
        for name in () if at else shown:
            table.add_column(name, justify="left" if name in ("rules", "layout") else "right")
        table.add_row(*shown.values(), style="bold green" if row.layout == "shared" else None)
    console.print(table)
    if left_out:
        console.print(f"A terminal of 110 columns shows {', '.join(left_out)} too; ratio is against unmodified.")
    console.print(sentence(rows))


def sentence(rows: Sequence[Row]) -> str:
    """What the table means, in one sentence; every number is in it."""
    parts = []
    for rules in dict.fromkeys(row.rules for row in rows):
        by_layout = {row.layout: row for row in rows if row.rules == rules}
        plain, shared = by_layout["unmodified"], by_layout["shared"]
        firsts = shared.first_calls_cost_units / plain.first_calls_cost_units
        text = (
            f"{shared.cost_units / plain.cost_units:.0%} under {rules} (first requests of the later roles {firsts:.0%}"
        )
        stock = by_layout.get("stock")
        parts.append(
            text
            + (f", against the framework's own caching {shared.cost_units / stock.cost_units:.0%})" if stock else ")")
        )
    return (
        "On one shared prefix the same team's input costs, of what it costs as usually built, "
        + "; ".join(parts)
        + ". Costs are input tokens in cost units (one uncached token = 1); no answer's quality is measured here."
    )


def _progress(text: str) -> None:
    _say(f"running {text}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - progress goes beside the result
