"""``cacheprefix audit``: what the cache did with the calls of a log, what broke it, and what that cost."""

# No deferred annotations here: typer reads them, and is itself only imported when the command is added.
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    import typer

    from cacheprefix.audit import Audit, Reader
    from cacheprefix.profiles import Registry

EXIT_BROKEN = 1
"""Some lines could not be read, or nothing was understood; everything else was."""

_BAR_FROM_BYTES = 20_000_000


def register(app: "typer.Typer") -> None:
    """Adds the command to a typer application."""
    import typer

    @app.command("audit")
    def audit(
        logs: Annotated[
            list[str],
            typer.Argument(metavar="LOG...", help="Request logs, plain or gzip; - reads standard input."),
        ],
        as_json: Annotated[
            Path | None,
            typer.Option("--json", help="Write the audit as JSON to this file; - is standard output."),
        ] = None,
        html: Annotated[
            Path | None, typer.Option("--html", help="Write a self-contained HTML report to this file.")
        ] = None,
        include_text: Annotated[
            bool,
            typer.Option("--include-text", help="Keep a few characters of prompt text around each difference."),
        ] = False,
        provider: Annotated[str | None, typer.Option(help="Who served the calls, where the log does not say.")] = None,
        rules: Annotated[
            str | None,
            typer.Option(help="Judge by this row of cache rules, such as exact (see: cacheprefix profiles)."),
        ] = None,
        model: Annotated[str | None, typer.Option(help="The model of all calls, where the log does not say.")] = None,
        profiles: Annotated[
            list[Path] | None, typer.Option("--profiles", help="TOML file with cache rules of your own.")
        ] = None,
        what_if: Annotated[
            bool, typer.Option("--what-if/--no-what-if", help="Play the calls again under other layouts.")
        ] = True,
        previous_rule: Annotated[
            bool,
            typer.Option("--previous-rule", help="Compare with a detector that looks at the previous call only."),
        ] = False,
        plain: Annotated[bool, typer.Option("--plain", help="No colours and no tables.")] = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary, only files and the exit code.")] = False,
    ) -> None:
        """Read request logs: what the prompt cache did on every call, what broke it, what you could pay.

        The format is recognised (docs/audit.md lists what is read). Exit code 0: read; 1: some lines could not be
        read (they are named and skipped), or nothing was understood; 2: wrong use.
        """
        with run(
            logs,
            provider=provider,
            rules=rules,
            model=model,
            profiles=profiles or [],
            include_text=include_text,
            what_if=what_if,
        ) as result:
            on_stdout = as_json is not None and str(as_json) == "-"
            if as_json is not None:
                save_json(result, as_json)
            if html is not None:
                save_page(result, html)
            if not quiet:
                from cacheprefix.audit import write_summary

                write_summary(result, sys.stderr if on_stdout else sys.stdout, plain=plain, previous=previous_rule)
            if html is not None and not quiet:
                print(f"Report: {html}", file=sys.stderr)
            damaged = result.totals.broken_count or not result.totals.understood
            if damaged and quiet:
                for problem in result.totals.broken:
                    print(f"cacheprefix: {problem}", file=sys.stderr)
                if not result.totals.understood:
                    print("cacheprefix: no request of a language model was understood", file=sys.stderr)
        if damaged:
            raise typer.Exit(EXIT_BROKEN)


@contextmanager
def run(
    logs: list[str],
    *,
    provider: str | None,
    rules: str | None,
    model: str | None,
    profiles: list[Path],
    include_text: bool = False,
    what_if: bool = True,
) -> "Iterator[Audit]":
    """Audit the logs with a progress bar where there is a terminal and much to read.

    Raises SetupError and ProfileError as ``cacheprefix.audit.audit`` does.
    """
    from cacheprefix.audit import audit

    readers, registry = in_force(profiles)
    with _progress(logs) as on_bytes:
        result = audit(
            logs,
            provider=provider,
            rules=rules,
            model=model,
            registry=registry,
            readers=readers,
            include_text=include_text,
            what_if=what_if,
            on_bytes=on_bytes,
        )
    with result:
        yield result


def in_force(profiles: list[Path]) -> "tuple[list[Reader], Registry]":
    """The log formats of plugins, and the cache rules of ``rules_in_force``."""
    from cacheprefix.cli.commands.profiles import rules_in_force
    from cacheprefix.plugins import Plugins

    plugins, readers = Plugins.with_builtins(), list[Any]()
    plugins.call_all("trace_readers", register=readers.append)
    return readers, rules_in_force(plugins, profiles)


def save_json(result: "Audit", path: Path) -> None:
    """Write the audit as JSON; ``-`` is standard output."""
    from cacheprefix.audit import write_json

    if str(path) == "-":
        write_json(result, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    with _writable(path, "wb") as stream:
        write_json(result, stream)


def save_page(result: "Audit", path: Path) -> None:
    """Write the HTML report."""
    from cacheprefix.report import write_page

    with _writable(path, "w") as stream:
        write_page(result, stream)


@contextmanager
def _writable(path: Path, mode: str) -> "Iterator[Any]":
    from cacheprefix.errors import SetupError

    try:
        stream = path.open(mode, encoding=None if "b" in mode else "utf-8")
    except OSError as error:
        raise SetupError(f"cannot write {str(path)!r}: {error.strerror or error}") from None
    with stream:
        yield stream


@contextmanager
def _progress(logs: list[str]) -> "Iterator[Callable[[int], None] | None]":
    """Show a bar while logs are read, and yield what moves it by so many bytes; None where no bar is shown.

    On a terminal alone, for files of ``_BAR_FROM_BYTES`` and more and for standard input, whose size is not known.
    """
    sizes = [Path(log).stat().st_size for log in logs if log != "-" and Path(log).is_file()]
    total = sum(sizes)
    if not sys.stderr.isatty() or ("-" not in logs and total < _BAR_FROM_BYTES):
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    bar = Progress(
        TextColumn("reading"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("reading", total=None if "-" in logs else total)
        yield lambda count: bar.advance(task, count)
