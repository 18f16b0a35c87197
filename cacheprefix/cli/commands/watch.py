"""``cacheprefix watch``: a running session in the terminal, from the event file that it writes."""

# No deferred annotations here: typer reads them when the command is added.
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    import typer

    from cacheprefix.events import Run

_POLL = 0.2
_FRAME = 0.25


def register(app: "typer.Typer") -> None:
    """Adds the command to a typer application."""
    import typer

    @app.command("watch")
    def watch(
        file: Annotated[Path, typer.Argument(help="The session's event file; it may not exist yet.")],
        once: Annotated[bool, typer.Option("--once", help="Draw what is there and end.")] = False,
        keep: Annotated[bool, typer.Option("--keep", help="Go on when all sessions of the file have ended.")] = False,
        svg: Annotated[Path | None, typer.Option(help="Write the last picture to this SVG file.")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")] = False,
    ) -> None:
        """Watch a running session: calls and their bars, breaks as they happen, the tool cache.

        The session writes the file by CACHEPREFIX_EVENTS=FILE (where Session.from_config or a wrapper makes it), or by
        cacheprefix.events.EventLog(FILE).bind(session). Ends with the session, or with Ctrl-C. In a pipe every call is
        a line. Exit code 0: watched; 1: some lines could not be read; 2: wrong use.
        """
        from cacheprefix.events import Run

        if once:
            _checked(file)
        run = Run()
        lines = _lines(file, run, once=once, keep=keep)
        try:
            if as_json:
                _as_json(lines, run)
            elif sys.stdout.isatty() and not once:
                _live(lines, run, file)
            elif once:
                for line in lines:
                    if line:
                        run.take(line)
                _draw(run, file)
            else:
                _plain(lines, run)
        except KeyboardInterrupt:
            print()
        if svg is not None:
            _save(run, file, svg)
        raise typer.Exit(1 if run.skipped else 0)


def _checked(file: Path) -> None:
    """Raise ``SetupError`` for what is no event file, without reading it."""
    from cacheprefix.errors import SetupError
    from cacheprefix.events import is_event

    try:
        with file.open("rb") as stream:
            first = stream.readline()
    except OSError as error:
        raise SetupError(f"cannot read {str(file)!r}: {error.strerror or error}") from None
    # An empty one is a session's that is about to begin.
    if first and not is_event(first):
        raise SetupError(f"{file} is no event file of a session: write one with cacheprefix.events.EventLog")


def _lines(file: Path, run: "Run", *, once: bool, keep: bool) -> Iterator[bytes]:
    """The file's whole lines as they are written; an empty one whenever there is nothing new."""
    rest, position = b"", 0
    while True:
        try:
            with file.open("rb") as stream:
                if stream.seek(0, 2) < position:
                    # Written anew, or cut.
                    rest, position = b"", 0
                stream.seek(position)
                fresh = stream.read()
                position += len(fresh)
        except FileNotFoundError:
            fresh = b""
        *whole, rest = (rest + fresh).split(b"\n")
        yield from (line for line in whole if line)
        if not fresh:
            if once or (run.started and not run.running and not keep):
                return
            yield b""
            time.sleep(_POLL)


def _as_json(lines: Iterator[bytes], run: "Run") -> None:
    for line in lines:
        if line and run.take(line) is not None:
            print(line.decode("utf-8", "replace"), flush=True)


def _plain(lines: Iterator[bytes], run: "Run") -> None:
    from cacheprefix.cli.picture import line_of

    for line in lines:
        event = run.take(line) if line else None
        if event is not None and event["type"] == "call":
            print(line_of(run.recent[-1]), flush=True)


def _live(lines: Iterator[bytes], run: "Run", file: Path) -> None:
    """Draw the picture anew as lines come, at most once every ``_FRAME`` seconds; an empty line says that none came."""
    from rich.console import Console
    from rich.live import Live

    from cacheprefix.cli.picture import picture

    console = Console(highlight=False, markup=False)
    drawn = 0.0
    with Live(console=console, auto_refresh=False, screen=True) as live:
        for line in lines:
            if line:
                run.take(line)
            now = time.monotonic()
            # A file that is read from its start has many lines at once.
            if not line or now - drawn > _FRAME:
                live.update(picture(run, str(file), height=console.height), refresh=True)
                drawn = now
    console.print(picture(run, str(file), height=console.height))


def _draw(run: "Run", file: Path) -> None:
    from rich.console import Console

    from cacheprefix.cli.picture import picture

    console = Console(highlight=False, markup=False)
    console.print(picture(run, str(file), height=max(console.height, 40)))


def _save(run: "Run", file: Path, svg: Path) -> None:
    """Write the picture of a whole log into an SVG file."""
    import io

    from rich.console import Console

    from cacheprefix.cli.picture import picture
    from cacheprefix.errors import SetupError

    # What others named (agents, files) is shown as it is, and no markup.
    console = Console(record=True, file=io.StringIO(), width=120, highlight=False, markup=False, force_terminal=True)
    console.print(picture(run, file.name))
    try:
        console.save_svg(str(svg), title="cacheprefix watch")
    except OSError as error:
        raise SetupError(f"cannot write {str(svg)!r}: {error.strerror or error}") from None
