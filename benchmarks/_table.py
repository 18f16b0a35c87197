"""What all benchmarks share: options, progress, the sums of a side, the result file and the table on the screen."""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from typing import Any

from cacheprefix import Session
from cacheprefix.profiles import Profile, cost_units, default_registry, normalise_usage
from cacheprefix.prompt import CountTokens, estimate_tokens
from cacheprefix.server import Latency, Record

RESULTS = Path(__file__).parent / "results"
SIDE = ("calls", "input_tokens", "cache_read_tokens", "cache_write_tokens", "uncached_tokens", "cost_units")
COST = ("workload", "framework", "rules", "read_price", "unmodified", "shared", "ratio", "first_call_share")
TOPIC = ("name", "value", "unit", "peers")

Row = dict[str, Any]
_started = time.monotonic()


def options(about: str | None, *, names: bool = False) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark takes; ``names`` chooses workloads by parts of their names."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if names:
        parser.add_argument("names", nargs="*", help="parts of workload names; all without")
    parser.add_argument("--json", action="store_true", help="print the result file's content instead of a table")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    if names:
        parser.add_argument(
            "--tokenizer",
            type=float,
            default=1.0,
            metavar="FACTOR",
            help="the provider's tokens for one of the client's (0.7, 1.4); only the report's truth is written",
        )
    return parser


def counter(factor: float) -> CountTokens:
    """How a provider counts whose tokenizer makes ``factor`` tokens of one of the client's."""
    return estimate_tokens if factor == 1 else lambda text, model: round(estimate_tokens(text, model) * factor)


def chosen(name: str, parts: Sequence[str]) -> bool:
    """Whether a workload of this name is asked for."""
    return not parts or any(part in name for part in parts)


def progress(text: str, done: int = 0, total: int = 0) -> None:
    """Say on standard error how far it is: one line that is written over on a terminal, a few lines elsewhere."""
    seconds = time.monotonic() - _started
    where = f" {done}/{total}" if total else ""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}{where} ({seconds:.0f} s)", end="", file=sys.stderr, flush=True)
    elif not total or done == total or done % max(1, total // 4) == 0:
        print(f"{text}{where} ({seconds:.0f} s)", file=sys.stderr, flush=True)


def topic(
    name: str, value: float, unit: str, peers: Mapping[str, float] | None = None, *, digits: int = 4, **more: Any
) -> Row:
    """A row that is no comparison of costs; ``peers`` are others' values in the same unit."""
    others = {peer: round(theirs, digits) for peer, theirs in (peers or {}).items()}
    return {"name": name, "value": round(value, digits), "unit": unit, "peers": others, **more}


def cost(
    workload: str,
    framework: str,
    rules: str,
    read_price: float,
    unmodified: Mapping[str, Any],
    shared: Mapping[str, Any],
    *,
    session: Session | None = None,
    ungated: Mapping[str, Any] | None = None,
    best_stock: Mapping[str, Any] | None = None,
    first_call_share: float | None = None,
    policy: Mapping[str, Any] | None = None,
    **more: Any,
) -> Row:
    """A comparison of costs; the sides are as ``summed`` gives them.

    ``session`` is the shared side's, whose own estimate of the unmodified cost is put beside the truth; ``ungated``
    the shared side where nobody waits for a sibling, without it nobody did. ``policy`` is what ``policy`` gives, for
    a row whose shared side shows the model less.
    """
    own = unmodified["cost_units"] if policy is None else policy["unmodified_units"]
    estimate = None if session is None else session.report().total.unmodified_units
    sides = {"unmodified": unmodified, "shared": shared, "ungated": shared if ungated is None else ungated}
    return {
        "workload": workload,
        "framework": framework,
        "rules": rules,
        "read_price": read_price,
        "unmodified": dict(unmodified),
        "shared": dict(shared),
        "ratio": round(shared["cost_units"] / unmodified["cost_units"], 4),
        "first_call_share": first_call_share,
        "best_stock": best_stock,
        "information": "equal",
        "reported_unmodified_units": None if estimate is None else round(estimate, 1),
        "reported_share": None if estimate is None else round(estimate / own, 4),
        "policy": policy,
        "first_token_s": {name: side.get("first_token_s") for name, side in sides.items()},
        "wall_s": {name: side.get("wall_s") for name, side in sides.items()},
        "notes": [] if session is None else list(session.report().notes),
        "failures": {} if session is None else dict(session.failures),
        **more,
    }


OVERLAP = Latency(base=0.3, uncached=0.0, cached=0.0, output=0.0, scale=1)
"""Long enough that requests which are sent together really overlap."""


def waited(session: Session | None) -> bool:
    """Whether a request of the session waited for a sibling."""
    gate = None if session is None else session.report().gate
    return gate is not None and gate.followed + gate.gave_up > 0


def summed(records: Sequence[Record], profile: Profile) -> Row:
    """One side of a cost row, from the usage that the provider reported, and its times by the latency model."""
    usages = [normalise_usage(record.usage, record.api) for record in records]
    return {
        "calls": len(usages),
        "input_tokens": sum(usage.input_tokens or 0 for usage in usages),
        "cache_read_tokens": sum(usage.cache_read_tokens or 0 for usage in usages),
        "cache_write_tokens": sum(usage.cache_write_tokens or 0 for usage in usages),
        "uncached_tokens": sum(usage.uncached_tokens or 0 for usage in usages),
        "cost_units": round(sum(cost_units(usage, profile) for usage in usages), 1),
        "first_token_s": round(sum(map(first_token, records)) / max(1, len(records)), 4),
        "wall_s": round(wall(records), 4),
    }


def policy(what: str, base: Mapping[str, Any], own: Mapping[str, Any], shared: Mapping[str, Any]) -> Row:
    """What showing the model less saves, apart from what sharing saves.

    ``base`` is the row of the same workload at equal information, ``own`` the application without any policy, and
    ``shared`` ours with it.
    """
    ratio = shared["cost_units"] / own["cost_units"]
    return {
        "what": what,
        "unmodified_units": own["cost_units"],
        "equal": base["ratio"],
        "ratio": round(ratio, 4),
        "adds": round(ratio - base["ratio"], 4),
    }


HOSTED = Latency()
"""How long answers take whose time is shown, of the order of a hosted model; runs themselves answer faster."""


def first_token(record: Record) -> float:
    """Seconds from a request to the first token of its answer at a hosted model."""
    return 0.0 if record.outcome is None else HOSTED.first_token(record.outcome)


def wall(records: Sequence[Record]) -> float:
    """Seconds that a run takes at a hosted model, without the time of the machine that it ran on.

    A request starts when all have ended that had ended when it came, and have begun to answer that had begun to:

        start(r) = max over the earlier e of  end(e) where e had ended, first_token(e) where it had begun, else 0
    """
    begun: list[tuple[Record, float, float]] = []
    for record in sorted(records, key=lambda one: one.started_at):
        start = 0.0
        for earlier, first, end in begun:
            if earlier.ended_at is not None and earlier.ended_at <= record.started_at:
                start = max(start, end)
            elif earlier.asked.stream and (earlier.first_token_at or inf) <= record.started_at:
                start = max(start, first)
        first = start + first_token(record)
        begun.append((record, first, first + HOSTED.rest(record.output_tokens)))
    return max((end for _, _, end in begun), default=0.0)


Run = Callable[..., tuple[Sequence[Record], Session | None]]
"""``run(workload, rules, model, *, shared, gated=True)``: the requests as the provider saw them, and our session."""


def measured(
    framework: str, rules: Sequence[tuple[str, str, float]], workloads: Iterable[str], names: Sequence[str], run: Run
) -> list[Row]:
    """Cost rows of each workload under each of the rules: unmodified, shared, and ungated where a request waited.

    ``rules`` are the name, the model and what a token that is read costs. What failed is said on standard error.
    """
    rows, wanted = [], [name for name in workloads if chosen(name, names)]
    for rule, model, price in rules:
        priced = replace(default_registry().get(rule), read=price)
        for name in wanted:
            progress(f"{name} ({rule} {price:g}x)")
            plain, _ = run(name, rule, model, shared=False)
            ours, session = run(name, rule, model, shared=True)
            failed = [record.error for record in (*plain, *ours) if record.status != 200]
            if failed or len(plain) != len(ours) or session is None or session.failures:
                print(f"{name}: {len(plain)} and {len(ours)} calls, {failed}", file=sys.stderr)
            apart = summed(run(name, rule, model, shared=True, gated=False)[0], priced) if waited(session) else None
            sides = summed(plain, priced), summed(ours, priced)
            rows.append(cost(name, framework, rule, price, *sides, session=session, ungated=apart))
    return rows


def costs(row: Mapping[str, Any]) -> str:
    """A cell: cost units of both sides and their ratio."""
    units = row["unmodified"]["cost_units"], row["shared"]["cost_units"]
    return f"{units[0]:,.0f} -> {units[1]:,.0f} = {row['ratio']:.2f}"


def grid(rows: Sequence[Row], first: Sequence[str], head: Callable[[Row], Sequence[str]]) -> list[list[str]]:
    """Cost rows as lines: one a workload, its ``first`` columns by ``head``, then one column a set of rules."""
    columns = list(dict.fromkeys((row["rules"], row["read_price"]) for row in rows))
    lines = [[*first, *(f"{name} {price:g}x" for name, price in columns)]]
    for name in dict.fromkeys(row["workload"] for row in rows):
        mine = {(row["rules"], row["read_price"]): row for row in rows if row["workload"] == name}
        cells = [costs(mine[column]) if column in mine else "-" for column in columns]
        lines.append([*head(next(iter(mine.values()))), *cells])
    return lines


def beside(rows: Sequence[Row], first: Sequence[str], head: Callable[[Row], Sequence[str]]) -> list[list[str]]:
    """What else cost rows say, one line a workload: calls, the report's estimate by the truth, and times.

    Times are of a hosted model, as shares of the unmodified run's: to the first token of an answer, and of the whole
    run; behind a stroke where nobody waits for a sibling, where anybody did.
    """
    columns = list(dict.fromkeys((row["rules"], row["read_price"]) for row in rows))
    named = [f"{name} {price:g}x" for name, price in columns]
    shown = ("report by truth", "first token", "whole run")
    lines = [[*first, "calls", *(f"{what}, {name}" for what in shown for name in named)]]
    for name in dict.fromkeys(row["workload"] for row in rows):
        mine = {(row["rules"], row["read_price"]): row for row in rows if row["workload"] == name}
        one = next(iter(mine.values()))
        line = [*head(one), str(one["unmodified"]["calls"])]
        line += [_reported(mine[column]) if column in mine else "-" for column in columns]
        for times in ("first_token_s", "wall_s"):
            line += [_time(mine[column][times]) if column in mine else "-" for column in columns]
        lines.append(line)
    return lines


def timed(rows: Sequence[Row]) -> list[Row]:
    """The cost rows that have times or a report's estimate; those that are played in process have neither."""
    costs = (row for row in rows if "reported_share" in row)
    return [row for row in costs if row["reported_share"] is not None or row["first_token_s"]["unmodified"]]


def policies(rows: Sequence[Row]) -> list[list[str]]:
    """The rows that show the model less: the ratio at equal information, with the policy, and what that adds."""
    lines = [["workload", "policy", "rules", "at equal information", "with the policy", "the policy's part"]]
    for row in rows:
        told = row["policy"]
        if told:
            name = row["workload"].partition(f", {told['what']}")[0]
            ratios = f"{told['equal']:.2f}", f"{told['ratio']:.2f}", f"{told['adds']:+.2f}"
            lines.append([name, told["what"], f"{row['rules']} {row['read_price']:g}x", *ratios])
    return lines


def _reported(row: Row) -> str:
    share = row["reported_share"]
    return "unknown" if share is None else f"{share:.2f}"


def _time(seconds: Mapping[str, float | None]) -> str:
    whole, gated, ungated = (seconds.get(side) for side in ("unmodified", "shared", "ungated"))
    if not whole or gated is None or ungated is None:
        return "-"
    said = f"{gated / whole:.2f}"
    return said if gated == ungated else f"{said} / {ungated / whole:.2f}"


def topics(rows: Sequence[Row]) -> list[list[str]]:
    """Rows of a topic as lines of a table."""
    lines = [["", "value", "unit", "beside"]]
    for row in rows:
        beside = ", ".join(f"{peer} {_number(value)}" for peer, value in row["peers"].items())
        lines.append([row["name"], _number(row["value"]), row["unit"], beside])
    return lines


def _number(value: float) -> str:
    """Four digits, and a large one whole."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}"


def table(lines: Sequence[Sequence[str]], *, markdown: bool = False) -> str:
    """Lines of cells, the first one being the head."""
    if markdown:
        rule = ["---", *("---:" for _ in lines[0][1:])]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in (lines[0], rule, *lines[1:]))
    widths = [max(len(cells[i]) for cells in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))).rstrip()
        for cells in lines
    )


def checked(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows, if each is a comparison of costs or a row of a topic; else ``ValueError`` names what is missing."""
    for row in rows:
        wanted = COST if "workload" in row and "unmodified" in row else TOPIC
        absent = [name for name in wanted if name not in row]
        sides = [side for side in ("unmodified", "shared", "best_stock") if isinstance(row.get(side), Mapping)]
        absent += [f"{side}.{name}" for side in sides for name in SIDE if name not in row[side]]
        if absent:
            raise ValueError(f"a row lacks {', '.join(absent)}: {row}")
    return rows


def result(rows: Sequence[Row], packages: Sequence[str] = ()) -> Row:
    """What a result file holds: the rows, when they were measured, and with which versions."""
    versions = {"python": platform.python_version()}
    for package in ("cacheprefix", *packages):
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    return {"version": 1, "date": now, "versions": versions, "rows": list(checked(rows))}


def busy() -> str:
    """For a row's engine: that the machine has more to do than it has cores; empty where it has not."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    return f", beside other work (load {load:.0f} on {cores} cores)" if load > cores else ""


def added(name: str, rows: Sequence[Row]) -> list[Row]:
    """The rows beside those of other names that ``results/NAME.json`` has."""
    file = RESULTS / f"{name}.json"
    earlier = json.loads(file.read_text("utf-8"))["rows"] if file.exists() else []
    return list({row["name"]: row for row in (*earlier, *rows)}.values())


def truth(name: str, rows: Sequence[Row], factor: float) -> list[Row]:
    """How many cost rows' reports say the unmodified cost to within 2 %, how many leave it open, and the worst."""
    shares = [row["reported_share"] for row in rows]
    off = [abs(share - 1) for share in shares if share is not None]
    where = f"{name}, {factor:g} tokens for one of the client's"
    return [
        topic(f"{where}: within 2 %", sum(one <= 0.02 for one in off), f"of {len(rows)} rows"),
        topic(f"{where}: unknown", shares.count(None), "rows"),
        topic(f"{where}: farthest from the truth", 100 * max(off, default=0.0), "%", digits=2),
    ]


def finish(
    name: str,
    rows: Sequence[Row],
    given: argparse.Namespace,
    *,
    packages: Sequence[str] = (),
    lines: Callable[[Sequence[Row]], Sequence[Sequence[str]]] = topics,
    whole: bool = True,
) -> None:
    """Write ``results/NAME.json`` if the run was ``whole``, and print the table or the file's content.

    With another tokenizer, only how true the report was, to ``results/tokenizers.json``.
    """
    found = result(rows, packages)
    text = json.dumps(found, indent=1)
    if whole:
        RESULTS.mkdir(exist_ok=True)
        factor = getattr(given, "tokenizer", 1.0)
        kept = text if factor == 1 else json.dumps(result(added("tokenizers", truth(name, rows, factor))), indent=1)
        file = RESULTS / f"{name if factor == 1 else 'tokenizers'}.json"
        file.write_text(kept + "\n", encoding="utf-8")
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    with contextlib.suppress(BrokenPipeError):
        print(text if given.json else table(lines(rows), markdown=given.markdown))
        costs_of = timed(rows)
        if costs_of and not given.json:
            print("\n" + table(beside(costs_of, ["workload"], lambda row: [row["workload"]]), markdown=given.markdown))
            if any(row["policy"] for row in costs_of):
                print("\n" + table(policies(costs_of), markdown=given.markdown))
    print(f"{time.monotonic() - _started:.0f} s", file=sys.stderr)
