"""``cacheprefix stats``: what the tool-result cache of a saved session did, by tool."""

# No deferred annotations here: typer reads them, and is itself only imported when the command is added.
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    import typer

    from cacheprefix.toolcache import CacheStats, ToolStats


def register(app: "typer.Typer") -> None:
    """Adds the command to a typer application."""
    import typer

    @app.command("stats")
    def stats(
        session: Annotated[
            Path,
            typer.Argument(
                metavar="SESSION",
                help="A saved report (JSON of Session.report().as_dict()) or an event file; - for standard input.",
            ),
        ],
        as_json: Annotated[bool, typer.Option("--json", help="Print data instead of a table.")] = False,
    ) -> None:
        """Show hits, misses, joined, outdated, evicted and refused tool calls, and what was saved.

        Exit code 0: shown; 2: the file cannot be read or holds no statistics of a tool cache.
        """
        found = _read(session)
        if as_json:
            from cacheprefix.cli.files import print_json

            print_json(found.as_dict())
            return
        for line in _table(found):
            print(line)


def _read(path: Path) -> "CacheStats":
    """The tool cache's statistics in a file, or in stdin for ``-``; raises where there are none."""
    from cacheprefix.errors import SetupError, StateError

    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise SetupError(f"{path} cannot be read: {reason}") from None
    found = _statistics(text)
    if found is None:
        raise StateError(
            f"{path} holds no statistics of a tool cache: save json.dumps(session.report().as_dict()) of a session "
            "that was made with tool_cache=..."
        )
    return found


def _statistics(text: str) -> "CacheStats | None":
    """What a file tells of a tool cache: an events file, a report as JSON or the statistics alone; else None."""
    import json

    from cacheprefix.toolcache import CacheStats

    first = text.lstrip().partition("\n")[0]
    try:
        data: Any = json.loads(text)
    except ValueError:
        data = None
    if data is None or "cacheprefix_events" in first:
        from cacheprefix.events import Run, is_event

        return Run().read(text.splitlines()).tool_cache if is_event(first) else None
    data = data.get("report", data) if isinstance(data, dict) else None
    held = data.get("tool_cache") if isinstance(data, dict) else None
    if held is None and isinstance(data, dict) and {"tools", "total", "enabled"} <= data.keys():
        held = data
    return None if held is None else CacheStats.from_dict(held)


def _table(stats: "CacheStats") -> list[str]:
    """The statistics' lines as they are printed: all in words, then a table with a row a tool."""
    from cacheprefix.errors import plain

    columns = ("hits", "joined", "misses", "outdated", "expired", "evicted", "refused", "entries")
    tools = [(plain(name), row) for name, row in stats.tools.items()]
    width = max([24, *(len(name) for name, _ in tools)])
    heads = "".join(f"{name:>9}" for name in columns)
    lines = [
        *str(stats).split("\n"),
        f"Store errors: {stats.store_errors}, saved: {stats.total.saved_seconds:.1f} s of tool time",
        "",
        f"{'tool':<{width}}{heads}{'bytes':>12}{'hit rate':>10}{'saved s':>9}",
    ]
    lines += [_row(name, row, columns, width) for name, row in (*tools, ("all", stats.total))]
    return lines


def _row(name: str, row: "ToolStats", columns: tuple[str, ...], width: int) -> str:
    rate = "n/a" if row.hit_rate is None else f"{row.hit_rate:.1%}"
    counts = "".join(f"{getattr(row, column):>9,}" for column in columns)
    return f"{name:<{width}}{counts}{row.bytes:>12,}{rate:>10}{row.saved_seconds:>9.1f}"
