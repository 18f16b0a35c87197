"""``cacheprefix bench``: one conversation, laid out naively and by a session, turn by turn."""

# No deferred annotations here: typer reads them, and is itself only imported when the command is added.
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    import typer

    from cacheprefix.cli.bench_run import Model, TurnRow

MATCHINGS = {"token": "exact", "block": "openai"}
"""How the simulated provider compares prompts, and the profile with those rules."""
_DOES_NOT_SHOW = (
    "One conversation, no tools; the answers are not judged (cacheprefix compare does that). "
    "Saving is against the same requests without any caching."
)


class Provider(str, enum.Enum):
    """Who answers."""

    simulated = "simulated"
    anthropic = "anthropic"
    openai = "openai"
    gemini = "gemini"
    ollama = "ollama"


class Format(str, enum.Enum):
    """How the result is written."""

    markdown = "markdown"
    json = "json"


def register(app: "typer.Typer") -> None:
    """Adds the command to a typer application."""
    import typer

    @app.command("bench")
    def bench(
        provider: Annotated[Provider, typer.Option(help="Who answers.")] = Provider.simulated,
        model: Annotated[str | None, typer.Option(help="The model; each provider has a default.")] = None,
        turns: Annotated[int, typer.Option(min=1, max=1000, help="Turns of the conversation.")] = 15,
        compare: Annotated[bool, typer.Option(help="Run the naive layout as well.")] = False,
        format: Annotated[Format, typer.Option(help="How the result is written.")] = Format.markdown,  # noqa: A002
        as_json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
        output: Annotated[Path | None, typer.Option(help="Write to this file instead of the screen.")] = None,
        ollama_log: Annotated[Path | None, typer.Option(help="Log of Ollama's server, needed for it.")] = None,
    ) -> None:
        """Hold one conversation and tell what each turn read from the cache and cost.

        The volatile text changes every 3 turns. The naive layout puts static and volatile text first and drops the
        oldest messages; ours keeps the prefix and puts the volatile text last. The simulated provider matches token
        by token and in blocks of 128, both are shown. Live runs need the provider's key in the environment, Ollama
        its server log. Exit code 0: done; 2: wrong use, no key, or the provider failed.
        """
        from cacheprefix.cli import bench_run as run
        from cacheprefix.cli.files import as_text
        from cacheprefix.cli.progress import Counting

        chosen = ("naive", "ours") if compare else ("ours",)
        rows: list[TurnRow] = []
        ways = MATCHINGS if provider is Provider.simulated else {"reported": ""}
        counting = Counting(turns * len(chosen) * len(ways), "turns")
        for matching, rules in ways.items():
            make = _maker(provider.value, model, rules, ollama_log)
            live = provider is not Provider.simulated
            for row in run.hold(make, turns, layouts=chosen, matching=matching, live=live):
                rows.append(row)
                counting.step()
        found = _result(provider.value, _maker(provider.value, model, next(iter(ways.values())), ollama_log)(), rows)
        text = as_text(found) if as_json or format is Format.json else "\n".join(_markdown(found, rows))
        if output is None:
            print(text)
        else:
            _write(output, text + "\n")
            print(f"written to {output}")


def _maker(provider: str, model: str | None, rules: str, log: Path | None) -> Any:
    """Makes the model that answers, each time with an empty cache."""
    from cacheprefix.profiles import default_registry

    def make() -> "Model":
        if provider == "simulated":
            from cacheprefix.cli.bench_run import Simulated

            return Simulated(default_registry().get(rules), model or "simulated")
        from cacheprefix.cli.bench_live import Live

        return Live(provider, model, log=log)

    return make


def _result(provider: str, model: "Model", rows: Sequence["TurnRow"]) -> dict[str, Any]:
    """The benchmark's results as JSON: a row a turn, totals by matching and layout, and what they do not show."""
    import datetime as dt
    from dataclasses import asdict

    from cacheprefix._version import __version__

    return {
        "version": 1,
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "versions": {"cacheprefix": __version__},
        "provider": provider,
        "model": model.name,
        "rows": [
            {**asdict(row), "cached_share": round(row.cached_share, 4), "saving": round(row.saving, 4)} for row in rows
        ],
        "totals": [_total(matching, layout, part) for (matching, layout), part in _parts(rows).items()],
        "pays_from": [{"matching": at, "layout": one, "turn": turn} for (at, one), turn in _pays_from(rows).items()],
        "does_not_show": _DOES_NOT_SHOW,
    }


def _parts(rows: Iterable["TurnRow"]) -> dict[tuple[str, str], list["TurnRow"]]:
    parts: dict[tuple[str, str], list[TurnRow]] = {}
    for row in rows:
        parts.setdefault((row.matching, row.layout), []).append(row)
    return parts


def _pays_from(rows: Sequence["TurnRow"]) -> "dict[tuple[str, str], int | None]":
    """From which turn on each layout has cost no more in all than the naive one; None where it never did."""
    found: dict[tuple[str, str], int | None] = {}
    parts = _parts(rows)
    for (matching, layout), mine in parts.items():
        plain = parts.get((matching, "naive"))
        if plain is None or layout == "naive":
            continue
        spent, theirs = (list(accumulate(row.cost_units for row in part)) for part in (mine, plain))
        turn: int | None = None
        for row, ours, naive in zip(mine, spent, theirs, strict=False):
            turn = (turn or row.turn) if ours <= naive else None
        found[matching, layout] = turn
    return found


def _payoff(found: Mapping[str, Any], matching: str) -> Iterator[str]:
    """In words, from which turn on a layout pays."""
    for one in found["pays_from"]:
        if one["matching"] == matching:
            when = "never paid here" if one["turn"] is None else f"pays from turn {one['turn']} on"
            yield f"The layout {one['layout']!r} {when}, against the naive one."


def _total(matching: str, layout: str, rows: Sequence["TurnRow"]) -> dict[str, Any]:
    """The sums of one layout's turns. ``saving`` is ``1 - cost units / input tokens``: against no cache at all."""
    total, cached = sum(row.input_tokens for row in rows), sum(row.cached_tokens for row in rows)
    cost = round(sum(row.cost_units for row in rows), 1)
    usd = [row.usd for row in rows]
    return {
        "matching": matching,
        "layout": layout,
        "input_tokens": total,
        "cached_tokens": cached,
        "cached_share": round(cached / total, 4) if total else 0.0,
        "cost_units": cost,
        "usd": None if None in usd else sum(one for one in usd if one is not None),
        "saving": round(1 - cost / total, 4) if total else 0.0,
    }


def _markdown(found: dict[str, Any], rows: Sequence["TurnRow"]) -> Iterator[str]:
    """The results as a page in Markdown: for each way of matching a table of turns, then the totals."""
    yield f"# Conversation benchmark: {found['provider']}, {found['model']}"
    yield ""
    yield f"{found['date']}, cacheprefix {found['versions']['cacheprefix']}. {found['does_not_show']}"
    named = {"token": "Matching token by token", "block": "Matching in blocks of 128 tokens from 1,024 on"}
    for matching in dict.fromkeys(row.matching for row in rows):
        mine = [row for row in rows if row.matching == matching]
        layouts = list(dict.fromkeys(row.layout for row in mine))
        yield ""
        yield f"## {named.get(matching, 'As the provider reports it')}"
        yield ""
        yield "| turn | " + " | ".join(f"{one}: input | cached | hit | cost units" for one in layouts) + " |"
        yield "| ---: |" + " ---: |" * (4 * len(layouts))
        for turn in sorted({row.turn for row in mine}):
            cells = [_cells(row) for row in mine if row.turn == turn]
            changed = any(row.volatile_changed for row in mine if row.turn == turn)
            yield f"| {turn}{' *' if changed else ''} | " + " | ".join(cells) + " |"
        yield ""
        yield "| | input | cached tokens | cached share | cost units | USD | saving |"
        yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
        for total in found["totals"]:
            if total["matching"] == matching:
                usd = "-" if total["usd"] is None else f"{total['usd']:.6f}"
                yield (
                    f"| {total['layout']} | {total['input_tokens']:,} | {total['cached_tokens']:,} | "
                    f"{total['cached_share']:.1%} | {total['cost_units']:,.0f} | {usd} | {total['saving']:.1%} |"
                )
        yield ""
        yield from _payoff(found, matching)
    yield ""
    yield "\\* the volatile text changed."


def _cells(row: "TurnRow") -> str:
    return f"{row.input_tokens:,} | {row.cached_tokens:,} | {row.cached_share:.1%} | {row.cost_units:,.0f}"


def _write(path: Path, text: str) -> None:
    from cacheprefix.errors import SetupError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SetupError(f"--output {path}: {error.strerror or error}") from error
