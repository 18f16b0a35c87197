"""``cacheprefix record``: run any program unmodified and say at its end what its prompt cache loses."""

# No deferred annotations here: typer reads them, and is itself only imported when the command is added.
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cacheprefix.cli.commands import audit as auditing
from cacheprefix.cli.commands import check as checking

if TYPE_CHECKING:
    import typer

    from cacheprefix.record import Proxy, Route, Seen


_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY")


def register(app: "typer.Typer") -> None:
    """Adds the command to a typer application."""
    import typer

    @app.command("record", context_settings={"allow_interspersed_args": False})
    def record(
        command: Annotated[
            list[str] | None,
            typer.Argument(metavar="COMMAND...", help="The program and its arguments, behind --."),
        ] = None,
        upstream: Annotated[
            str | None,
            typer.Option(help="Send all requests on to this address, not to the ones that the environment names."),
        ] = None,
        also: Annotated[
            list[str] | None,
            typer.Option(metavar="VARIABLE=ADDRESS", help="One more variable that the program finds a provider by."),
        ] = None,
        simulate: Annotated[
            str | None,
            typer.Option(
                metavar="RULES", help="Answer from a simulated provider, without a key: openai, anthropic, auto …"
            ),
        ] = None,
        port: Annotated[
            int | None,
            typer.Option(
                help="Listen on this port. Without a COMMAND: until Ctrl-C or SIGTERM, for programs started elsewhere.",
                min=0,
                max=65535,
            ),
        ] = None,
        keep: Annotated[
            Path | None, typer.Option(help="Keep what was recorded in this new file; it is deleted otherwise.")
        ] = None,
        text: Annotated[
            bool, typer.Option("--text/--no-text", help="With --no-text, digests and lengths stand for texts.")
        ] = True,
        max_mb: Annotated[int, typer.Option(help="Megabytes on disk; later calls pass unrecorded.", min=1)] = 1000,
        html: Annotated[Path | None, typer.Option("--html", help="Write the HTML report to this file.")] = None,
        as_json: Annotated[Path | None, typer.Option("--json", help="Write the audit as JSON to this file.")] = None,
        check: Annotated[
            bool, typer.Option("--check", help="Exit with 3 where the cache breaks, as cacheprefix check does.")
        ] = False,
        max_lost_usd: Annotated[float | None, typer.Option(min=0, help="For --check: money that may be lost.")] = None,
        min_cached: Annotated[
            float | None, typer.Option(min=0, max=1, help="For --check: least share of the input read from the cache.")
        ] = None,
        forbid: Annotated[
            list[str] | None, typer.Option(metavar="CAUSE", help="For --check: a cause that may not occur.")
        ] = None,
        include_text: Annotated[
            bool,
            typer.Option("--include-text", help="Show a few characters of prompt text around each difference."),
        ] = False,
        plain: Annotated[bool, typer.Option("--plain", help="No colours and no tables.")] = False,
    ) -> None:
        """Run a program and say at its end what its prompt cache loses: cacheprefix record -- python my_app.py.

        The program is not changed. Its requests pass through a proxy on 127.0.0.1 that the SDKs' variables
        (OPENAI_BASE_URL, ANTHROPIC_BASE_URL, GOOGLE_GEMINI_BASE_URL, and others that are set) point to, and go on to
        the provider that was configured before. Keys and other headers are never written down. All that is said
        goes to standard error. Exit code: the program's own; with --check 3 where a limit was exceeded; 2: wrong use.
        """
        import asyncio
        import os

        from cacheprefix.errors import SetupError
        from cacheprefix.record import CallLog, Proxy, child_environment, routes_of, run_child

        if not command and port is None:
            raise SetupError("name the program behind --, or a --port for programs that are started elsewhere")
        causes = checking.causes_of(forbid or ())
        with ExitStack() as held:
            if simulate is not None:
                upstream = held.enter_context(_simulated(simulate))
            routes = routes_of(os.environ, upstream=upstream, also=also or ())
            rules = None if simulate == "auto" else simulate
            path = held.enter_context(_place(keep))
            log = CallLog(path, text=text, limit=max_mb * 1_000_000)
            held.callback(log.close)

            async def run() -> int:
                async with Proxy(routes, log, port=port or 0) as proxy:
                    if command:
                        environment = child_environment(os.environ, routes, proxy.port)
                        if simulate is not None:
                            # SDKs refuse to begin without a key; the simulated provider takes any.
                            environment = dict.fromkeys(_KEYS, "simulated") | environment
                        return await run_child(command, environment)
                    _announce(proxy, routes)
                    await _asked_to_end()
                    return 0

            # A simulated provider that writes to a program which went away is no news to who reads the report.
            logging.getLogger("asyncio").setLevel(logging.ERROR)
            code = asyncio.run(run())
            log.close()
            _closing(log.seen, keep, max_mb)
            if log.seen.calls:
                with auditing.run(
                    [str(path)], provider=None, rules=rules, model=None, profiles=[], include_text=include_text
                ) as result:
                    from cacheprefix.audit import write_summary

                    if keep is None:
                        result.files = ("the recording",)  # The name of a file that is gone in a moment helps nobody.
                    if as_json is not None:
                        auditing.save_json(result, as_json)
                    if html is not None:
                        auditing.save_page(result, html)
                    write_summary(result, sys.stderr, plain=plain)
                    most = 0 if all(limit is None for limit in (max_lost_usd, min_cached, *causes)) else None
                    problems = (
                        list(checking.problems_of(result, max_lost_usd, None, most, min_cached, causes))
                        if check
                        else []
                    )
                if keep is None:
                    _say("the recording is deleted now; --keep FILE keeps it")
                for problem in problems:
                    _say(f"FAILED {problem}")
                if problems and code == 0:
                    code = checking.EXIT_EXCEEDED
        raise typer.Exit(code)


@contextmanager
def _place(keep: Path | None) -> Iterator[Path]:
    """The file of the recording: the user's, or one in a folder of our own that goes when we do."""
    import tempfile

    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="cacheprefix-record-") as folder:
        yield Path(folder) / "recording"


@contextmanager
def _simulated(rules: str) -> Iterator[str]:
    from cacheprefix.server import Echo, SimulatedProvider

    with SimulatedProvider(rules, Echo(40), keep=0) as provider:
        yield provider.url


def _announce(proxy: "Proxy", routes: "Sequence[Route]") -> None:
    """The variables that programs started elsewhere are to be given, as a shell takes them."""
    for route in routes:
        print(f"{route.variable}={route.local(proxy.port)}", flush=True)
    _say(f"recording on 127.0.0.1:{proxy.port}; Ctrl-C ends and reports")


async def _asked_to_end() -> None:
    import asyncio
    import signal

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()


def _closing(seen: "Seen", keep: Path | None, max_mb: int) -> None:
    """What came by, and what that does not show."""
    from cacheprefix.record import UNFOLLOWED

    calls = "1 model call" if seen.calls == 1 else f"{seen.calls} model calls"
    _say(f"{calls} recorded" + (f" in {keep}" if keep is not None else ""))
    told = (
        (seen.failed, "of them failed or broke off"),
        (
            seen.without_counts,
            "came back without token counts (streams, unless stream_options.include_usage asks); simulated for these",
        ),
        (seen.other, "requests of other kinds (embeddings, lists of models) passed and were not recorded"),
        (seen.unreached, "requests went nowhere: no connection to the provider could be made (is its address right?)"),
        (seen.refused, "requests were refused: they were not HTTP/1.1 (HTTP/2 without TLS, perhaps)"),
        (seen.unreadable, "requests could not be read (no JSON object, or more than 48 MB) and only passed"),
        (seen.unwritten, f"calls passed unrecorded: {seen.problem or f'the recording reached {max_mb} MB (--max-mb)'}"),
    )
    for count, what in told:
        if count:
            _say(f"{count} {what}")
    if not (seen.calls or seen.unreached or seen.refused or seen.unreadable or seen.unwritten):
        _say("no model call came by, so there is nothing to tell. What does not follow the variables:")
        for what in UNFOLLOWED:
            _say(f"  - {what}")


def _say(line: str) -> None:
    print(f"cacheprefix record: {line}", file=sys.stderr, flush=True)
