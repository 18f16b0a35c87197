"""The picture that ``watch`` draws: calls as bars, breaks, the tool cache. Needs rich, which it loads when it draws."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cacheprefix.calls.report import tally

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from cacheprefix import Call
    from cacheprefix.calls.report import ReportLine
    from cacheprefix.events import Run

_BAR = 24
_LEGEND = (("█ read", "green"), ("▓ written", "yellow"), ("░ uncached", "red"))
"""Three characters, so that a bar reads without colours too."""


def picture(run: Run, name: str, *, height: int = 40) -> RenderableType:
    """The state of a run in at most about ``height`` lines."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    report = run.report()
    agents, breaks = report.lines[:8], report.breaks[: max(2, min(5, height // 8))]
    rest = height - len(agents) - 2 * len(breaks) - (7 if run.tool_cache or run.tools else 4) - 12
    parts: list[RenderableType] = [
        Panel(_head(run, report.total), title=Text(f"cacheprefix watch  {name}"), title_align="left", padding=(0, 1))
    ]
    if not report.total.calls:
        parts.append(Text("  waiting for the first call", style="dim"))
        return Group(*parts)
    parts.append(_agents(agents, len(report.lines) - len(agents)))
    parts.append(Text(""))
    parts.append(_calls(run.recent[-max(3, min(rest, 15)) :]))
    parts.append(_breaks(breaks, len(report.breaks) - len(breaks)))
    if run.tool_cache is not None or run.tools:
        parts.append(_tools(run))
    parts.append(Text("\n* estimated from the requests as the application made them", style="dim"))
    return Group(*parts)


def line_of(call: Call) -> str:
    """A call in a line, for pipes."""
    verdict = call.verdict
    line = tally(call.agent, (call,))
    lost = f", lost {verdict.lost_tokens:,} tokens at {verdict.path or 'no place'}" if verdict.lost_tokens else ""
    mark = "BREAK" if verdict.alarm else "     "
    return (
        f"{mark} {call.index:>5} {call.agent or 'unnamed':<16} {line.input_tokens:>8,} in "
        f"{line.cache_read_tokens:>8,} read {line.cache_write_tokens:>8,} written  "
        f"{verdict.kind} {verdict.cause}{lost}{_own(call)}"
    )


def _own(call: Call) -> str:
    """Why a call kept the application's own layout; empty for others."""
    why = "; ".join(map(str, call.reasons))
    return f", own layout: {why}" if call.layout == "own" and why else ""


def _head(run: Run, total: ReportLine) -> Text:
    """The picture's first lines: the run's state, share of input cached, money, and cost against unmodified."""
    from rich.text import Text

    state = ("running", "bold green") if run.running else ("ended", "bold")
    share = (f"{total.cached_share:.1%}", "bold")
    text = Text.assemble(state, f"  {total.calls:,} calls  ", share, " of the input cached")
    if total.money is not None:
        text.append(f"  ${total.money:,.4f}")
    if total.ratio is not None:
        text.append("  cost ")
        text.append(f"{total.ratio:.2f}", "bold green" if total.ratio <= 1 else "bold red")
        text.append("* of unmodified")
    text.append("\n")
    text.append_text(_bar(total, 40))
    for word, style in _LEGEND:
        text.append(f"  {word}", style)
    return text


def _agents(lines: Iterable[ReportLine], more: int) -> RenderableType:
    table = _table("agent", ">calls", ">input", "", ">cached", ">of unmodified*")
    for line in lines:
        ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
        counts = (f"{line.calls:,}", f"{line.input_tokens:,}")
        table.add_row(_cut(line.agent or "unnamed", 24), *counts, _bar(line), f"{line.cached_share:.1%}", ratio)
    if more > 0:
        table.add_row(f"and {more} more")
    return table


def _calls(calls: Iterable[Call]) -> RenderableType:
    """A table of the latest calls: what each sent, what the cache did, and what was lost."""
    from rich.text import Text

    table = _table(">call", "agent", ">input", "", "what the cache did", ">lost")
    for call in calls:
        line = tally(call.agent, (call,))
        verdict = call.verdict
        style = "bold red" if verdict.alarm else "green" if verdict.kind == "hit" else ""
        said = verdict.cause if verdict.cause == verdict.kind else f"{verdict.kind}: {verdict.cause}"
        lost = f"{verdict.lost_tokens:,}" if verdict.lost_tokens else ""
        who = (str(call.index), _cut(call.agent or "unnamed", 20), f"{line.input_tokens:,}")
        table.add_row(*who, _bar(line), Text(said, style), lost)
    return table


def _breaks(breaks: Any, more: int) -> RenderableType:
    """The breaks that lost most, each with what to do; ``more`` are not shown."""
    from rich.console import Group
    from rich.text import Text

    if not breaks:
        return Text("\nno break", style="green")
    lines = [Text("\nbreaks", style="bold")]
    for one in breaks:
        where = f" at {one.path}" if one.path else ""
        usd = "" if one.lost_usd is None else f" (${one.lost_usd:.4f})"
        lines.append(Text(f"  {one.count} x {one.cause}{where}: {one.lost_tokens:,} tokens{usd}", style="red"))
        lines.append(Text(f"      {one.fix}", style="dim"))
    if more > 0:
        lines.append(Text(f"  and {more} more", style="dim"))
    return Group(*lines)


def _tools(run: Run) -> RenderableType:
    """What became of tool calls: the tool cache's counts where there is one, else how calls ended."""
    from rich.text import Text

    stats = run.tool_cache
    if stats is None:
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(run.tools.items()))
        return Text.assemble(("\ntool calls  ", "bold"), counts)
    total = stats.total
    rate = "" if total.hit_rate is None else f" ({total.hit_rate:.0%} of lookups)"
    return Text.assemble(
        ("\ntool cache  ", "bold"),
        (f"{total.hits + total.joined:,} hits{rate}", "green"),
        f", {total.misses:,} misses, {total.entries:,} entries ({total.bytes:,} bytes), {total.evicted:,} evicted, "
        f"{total.expired:,} expired, {total.outdated:,} outdated, {total.saved_seconds:,.1f} tool seconds saved",
    )


def _bar(line: ReportLine, width: int = _BAR) -> Text:
    """A bar of ``width`` characters: read, written, uncached."""
    from rich.text import Text

    total = line.input_tokens
    if total <= 0:
        return Text(" " * width)
    first = min(width, round(width * line.cache_read_tokens / total))
    second = min(width - first, round(width * line.cache_write_tokens / total))
    return Text.assemble(("█" * first, "green"), ("▓" * second, "yellow"), ("░" * (width - first - second), "red"))


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns:
        table.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left", no_wrap=True)
    return table


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
