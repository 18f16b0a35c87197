"""The audit for the terminal: with rich where it is installed, plain otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING

from cacheprefix.audit.what_if import CHANGES, HOW, WORTH
from cacheprefix.cache import MEANINGS

if TYPE_CHECKING:
    from cacheprefix.audit.replay import Audit

_BREAKS = 12
_AGENTS = 12
_DAYS = 21
_LINT = 8
_BROKEN = 10
_PLACE = 32
_WIDTH = 140
_NONE = "none"
_UNITS = "1 cost unit is the price of one input token that is not cached; read and written tokens count by their price"


@dataclass(frozen=True, slots=True)
class _Table:
    """A titled table; columns whose title begins with ``>`` hold numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class _Lines:
    """A titled paragraph."""

    title: str
    lines: tuple[str, ...]


def write_summary(audit: Audit, stream: IO[str], *, plain: bool = False, previous: bool = False) -> None:
    """What you pay, what you could pay, and what broke the cache, dearest first.

    ``previous`` adds how a detector that compares with the previous request would have fared.
    """
    parts = tuple(_parts(audit, previous=previous))
    if plain or find_spec("rich") is None:
        stream.write("\n".join(_plain(parts)) + "\n")
    else:
        _rich(parts, stream)


def _parts(audit: Audit, *, previous: bool) -> Iterator[_Table | _Lines]:
    """The report's tables and paragraphs, in the order in which they are printed."""
    totals = audit.totals
    all_ = totals.all
    logs = f"{len(audit.files)} logs" if len(audit.files) != 1 else audit.files[0]
    breaks = sum(group.count for group in totals.breaks) + totals.ungrouped
    named = sum(1 for agent in totals.agents if agent)
    written = _share(all_.cache_write_tokens, all_.input_tokens)
    paid = f"cost {_number(all_.cost_units)} units{_usd(all_.usd if all_.priced else None)}"
    head = (
        f"{logs}: {_counted(all_.calls, 'call')}, {_counted(named, 'agent') if named else 'agents not named'}",
        f"input {_number(all_.input_tokens)} tokens: {all_.cached_share:.1%} read from the cache, {written} written",
        paid,
        f"lost to breaks: {_number(all_.lost_tokens)} tokens{_usd(totals.lost_usd)} in {_counted(breaks, 'break')}",
    )
    if not totals.understood:
        yield _Lines("Nothing was understood", tuple(_why_nothing(audit)))
    else:
        yield _Lines("What you pay", (*head, _UNITS))
    if audit.what_if:
        rows = _savings(audit)
        if all(row[2] in ("", _NONE) for row in rows):
            said = f"as it is {rows[0][1]} units: none of {len(rows) - 1} changes that were simulated make it less"
            yield _Lines("What you could pay", (said,))
        else:
            title = "What you could pay (the changes simulated, in proportion to what you pay)"
            yield _Table(title, ("change", ">cost units", ">saving", ">USD"), rows)
    if totals.groups:
        columns = ("cause", "where", ">times", ">tokens lost", ">USD", "what to do")
        yield _Table("What broke the cache, dearest first", columns, tuple(_breaks(audit)))
        yield _Lines("Where it was seen", tuple(_evidence(audit)))
    steps = tuple(f"{number}. {step}" for number, step in enumerate(_next(audit), 1))
    if steps:
        yield _Lines("What to do next", steps)
    if len(totals.agents) > 1:
        yield _Table("Agents", ("agent", ">calls", ">input", ">read", ">cost units", ">tokens lost"), _agents(audit))
    if len(totals.days) > 1:
        yield _Table("Models by day", ("day", "model", ">calls", ">input", ">read", ">cost units"), _days(audit))
    if previous:
        rule = audit.previous
        told = f"{_number(rule.alarms)} alarms, {_number(rule.false)} of them false"
        line = f"it would have raised {told}, and missed {_number(rule.missed)} breaks"
        yield _Lines("Against the previous-request rule (5 % and 2,000 tokens)", (line,))
    if audit.lint:
        more = len(audit.lint) - _LINT
        shown = tuple(f"{entry['path']}: {entry['message']} ({_near(entry['place'])})" for entry in audit.lint[:_LINT])
        yield _Lines("Will break the cache", shown + ((f"and {more} more",) if more > 0 else ()))
    if audit.notes:
        yield _Lines("Notes", audit.notes)
    if totals.broken_count:
        more = len(totals.broken) - _BROKEN
        shown = tuple(totals.broken[:_BROKEN]) + ((f"and {more} more",) if more > 0 else ())
        what = "line could not be read and was" if totals.broken_count == 1 else "lines could not be read and were"
        yield _Lines(f"{_number(totals.broken_count)} {what} skipped", shown)


def _savings(audit: Audit) -> tuple[tuple[str, ...], ...]:
    """The whole log's figures, of which the calls that were played again say the proportion."""
    paid = audit.totals.all
    played = audit.what_if[0].cost_units_now
    now, whole = paid.cost_units, (paid.cost_units / played if played else 1.0)
    price = paid.usd / now if now and paid.priced == paid.calls else None
    rows = [("as it is", _number(now), "", _money(None if price is None else now * price))]
    for saving in audit.what_if:
        then = saving.cost_units_then * whole
        share = 1 - then / now if now else 0.0
        shown = f"{share:.1%}" if share >= 0.0005 else _NONE
        rows.append((CHANGES[saving.change], _number(then), shown, _money(None if price is None else then * price)))
    return tuple(rows)


def _breaks(audit: Audit) -> Iterator[tuple[str, ...]]:
    """A row for each of the largest groups of breaks, and one for all others."""
    groups = audit.totals.breaks
    for group in groups[:_BREAKS]:
        yield (
            group.cause,
            group.path or "",
            _number(group.count),
            _number(group.lost_tokens),
            _money(group.lost_usd),
            group.fix,
        )
    rest = groups[_BREAKS:]
    if rest:
        count, lost = sum(group.count for group in rest), sum(group.lost_tokens for group in rest)
        usd = [group.lost_usd for group in rest if group.lost_usd is not None]
        yield (f"{len(rest)} more", "", _number(count), _number(lost), _money(sum(usd) if usd else None), "")


def _evidence(audit: Audit) -> Iterator[str]:
    """Where each of the largest groups was seen first, and the texts there where they may be shown."""
    for group in audit.totals.breaks[:_BREAKS]:
        where = f"{group.cause} at {group.path}" if group.path else group.cause
        details = [group.agent and f"agent {group.agent}"]
        if group.path and (group.offset or group.size):
            details.append(f"from character {group.offset}")
        if group.size:
            length = "more" if group.size > 0 else "fewer"
            details.append(f"{_counted(abs(group.size), 'character')} {length} than before")
        said = ", ".join(part for part in details if part)
        yield f"{where}{f' ({said})' if said else ''}: first in {_near(group.place)}"
        if group.excerpt:
            yield f"    before {group.excerpt['before']!r}"
            yield f"    after  {group.excerpt['after']!r}"


def _why_nothing(audit: Audit) -> Iterator[str]:
    """Why there is nothing to say about the cache, instead of the silence that would look like praise."""
    totals = audit.totals
    if totals.failed and not totals.all.calls and not totals.broken_count:
        yield f"{_counted(totals.failed, 'request')} failed or broke off, and no other was found: nothing was cached"
        return
    if not totals.all.calls:
        yield "no request of a language model was found"
        for kind, count in sorted(totals.aside.items()):
            yield f"{_counted(count, 'request')} for {kind}"
        if totals.failed:
            yield f"{_counted(totals.failed, 'request')} failed"
    else:
        yield f"{_counted(totals.all.calls, 'call')}, but neither their requests nor how much was read from the cache"
    yield "log request bodies, or record them: cacheprefix record -- YOUR COMMAND"


def _next(audit: Audit) -> Iterator[str]:
    """What to begin with, and how to keep it so; nothing where all is well."""
    breaks = audit.totals.breaks
    if breaks:
        where = f" at {breaks[0].path}" if breaks[0].path else ""
        yield f"{breaks[0].cause}{where}: {MEANINGS[breaks[0].cause]} {breaks[0].fix}"
    best = min(audit.what_if, key=lambda one: one.cost_units_then, default=None)
    if best is not None and best.cost_units_then < (1 - WORTH) * best.cost_units_now:
        saved = 1 - best.cost_units_then / best.cost_units_now
        adapters = "" if best.change == "volatile_to_tail" else "; for LangGraph, AutoGen and CrewAI the adapters do it"
        yield f"{saved:.0%} less: {HOW[best.change]}{adapters}"
    if breaks:
        yield "see both sides of a difference: add --include-text --html report.html"
        yield "keep it so in CI: cacheprefix check LOG --max-breaks 0, or cacheprefix record --check -- COMMAND"


def _days(audit: Audit) -> tuple[tuple[str, ...], ...]:
    """The newest days, by model."""
    held = audit.totals.by_day
    return tuple(
        (day, model, _number(one.calls), _number(one.input_tokens), f"{one.cached_share:.1%}", _number(one.cost_units))
        for model, day, one in held[-_DAYS:]
    )


def _agents(audit: Audit) -> tuple[tuple[str, ...], ...]:
    """A row for each of the agents that cost most, and one that counts the others."""
    held = sorted(audit.totals.agents.items(), key=lambda item: -item[1].cost_units)
    rows = [
        (
            name or "(unnamed)",
            _number(one.calls),
            _number(one.input_tokens),
            f"{one.cached_share:.1%}",
            _number(one.cost_units),
            _number(one.lost_tokens),
        )
        for name, one in held[:_AGENTS]
    ]
    if len(held) > _AGENTS:
        rows.append((f"{len(held) - _AGENTS} more", "", "", "", "", ""))
    return tuple(rows)


def _plain(parts: Sequence[_Table | _Lines]) -> Iterator[str]:
    """The report's lines without colours, its columns aligned by spaces."""
    for part in parts:
        yield part.title
        if isinstance(part, _Lines):
            yield from (f"  {line}" for line in part.lines)
        else:
            rows = [tuple(title.lstrip(">") for title in part.columns), *part.rows]
            widths = [max(len(row[at]) for row in rows) for at in range(len(part.columns))]
            for row in rows:
                cells = (
                    cell.rjust(width) if title.startswith(">") else cell.ljust(width)
                    for cell, width, title in zip(row, widths, part.columns, strict=True)
                )
                yield "  " + "  ".join(cells).rstrip()
        yield ""


def _rich(parts: Sequence[_Table | _Lines], stream: IO[str]) -> None:
    """Print the report with ``rich``: in colours on a terminal, at a fixed width anywhere else."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - an extra, loaded when first needed
    from rich.console import Console  # noqa: PLC0415 - the same
    from rich.table import Table  # noqa: PLC0415 - the same
    from rich.text import Text  # noqa: PLC0415 - the same

    terminal = stream.isatty()
    console = Console(file=stream, highlight=False, soft_wrap=not terminal, width=None if terminal else _WIDTH)
    for part in parts:
        console.print(Text(part.title, style="bold cyan"))
        if isinstance(part, _Lines):
            for line in part.lines:
                console.print(Text("  " + line))
            console.print()
            continue
        table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim", padding=(0, 1))
        for title in part.columns:
            number = title.startswith(">")
            table.add_column(title.lstrip(">"), justify="right" if number else "left", no_wrap=number, overflow="fold")
        for row in part.rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)


def _near(place: str) -> str:
    """A place without the folders it is in, where it is long."""
    return place if len(place) <= _PLACE else "…/" + place.replace("\\", "/").rpartition("/")[2]


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _counted(count: int, what: str) -> str:
    return f"{_number(count)} {what}{'' if count == 1 else 's'}"


def _money(value: float | None) -> str:
    return "" if value is None else f"{value:,.4f}" if abs(value) < 1 else f"{value:,.2f}"


def _usd(value: float | None) -> str:
    return "" if value is None else f" (${_money(value)})"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0.0%"
