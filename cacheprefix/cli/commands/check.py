"""``cacheprefix check``: an exit code for CI from a log."""

# No deferred annotations here: typer reads them, and is itself only imported when the command is added.
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cacheprefix.cli.commands import audit as auditing

if TYPE_CHECKING:
    import typer

    from cacheprefix.audit import Audit

EXIT_EXCEEDED = 3
"""A limit was exceeded, or a forbidden cause was found."""


def register(app: "typer.Typer") -> None:
    """Adds the command to a typer application."""
    import typer

    @app.command("check")
    def check(
        logs: Annotated[list[str], typer.Argument(metavar="LOG...", help="Request logs, as for audit.")],
        max_lost_usd: Annotated[
            float | None, typer.Option(min=0, help="Most money that breaks may cost, in USD.")
        ] = None,
        max_lost_tokens: Annotated[int | None, typer.Option(min=0, help="Most tokens that breaks may lose.")] = None,
        max_breaks: Annotated[int | None, typer.Option(min=0, help="Most breaks there may be.")] = None,
        min_cached: Annotated[
            float | None,
            typer.Option(min=0, max=1, help="Least share of the input read from the cache, 0 to 1."),
        ] = None,
        forbid: Annotated[
            list[str] | None,
            typer.Option(metavar="CAUSE", help="A cause that may not occur; repeat it, or part by commas."),
        ] = None,
        as_json: Annotated[
            Path | None, typer.Option("--json", help="Write the audit as JSON to this file as well.")
        ] = None,
        html: Annotated[Path | None, typer.Option("--html", help="Write the HTML report to this file as well.")] = None,
        provider: Annotated[str | None, typer.Option(help="Who served the calls, where the log does not say.")] = None,
        rules: Annotated[str | None, typer.Option(help="Judge by this row of cache rules, such as exact.")] = None,
        model: Annotated[str | None, typer.Option(help="The model of all calls, where the log does not say.")] = None,
        profiles: Annotated[
            list[Path] | None, typer.Option("--profiles", help="TOML file with cache rules of your own.")
        ] = None,
    ) -> None:
        """Fail a build when the cache breaks. Without a limit, any break fails.

        Exit code 0: within the limits; 1: some lines could not be read, or nothing was understood; 2: wrong use;
        3: a limit was exceeded (also where lines could not be read).
        """
        causes = causes_of(forbid or ())
        with auditing.run(
            logs,
            provider=provider,
            rules=rules,
            model=model,
            profiles=profiles or [],
            what_if=html is not None,
        ) as result:
            if as_json is not None:
                auditing.save_json(result, as_json)
            if html is not None:
                auditing.save_page(result, html)
            if all(limit is None for limit in (max_lost_usd, max_lost_tokens, max_breaks, min_cached)) and not causes:
                max_breaks = 0
            problems = list(problems_of(result, max_lost_usd, max_lost_tokens, max_breaks, min_cached, causes))
            damaged = list(result.totals.broken)
            if not result.totals.understood:
                damaged.append("no request of a language model was understood, so nothing was checked")
            told = sys.stderr if as_json is not None and str(as_json) == "-" else sys.stdout
            totals = result.totals.all
            print(
                f"{totals.calls:,} calls, {totals.cached_share:.1%} of the input read from the cache, "
                f"{totals.lost_tokens:,} tokens lost",
                file=told,
            )
        for problem in problems:
            print(f"FAILED {problem}", file=told)
        for line in damaged:
            print(f"cacheprefix: {line}", file=sys.stderr)
        if problems:
            raise typer.Exit(EXIT_EXCEEDED)
        if damaged:
            raise typer.Exit(auditing.EXIT_BROKEN)


def causes_of(given: Iterable[str]) -> tuple[str, ...]:
    """The causes that ``--forbid`` names. Raises SetupError for one that there is not."""
    from typing import get_args

    from cacheprefix.cache import Cause
    from cacheprefix.errors import SetupError

    wanted = tuple(name for part in given for name in part.replace(",", " ").split())
    known = get_args(Cause)
    for name in wanted:
        if name not in known:
            raise SetupError(f"--forbid {name}: no such cause; there are: {', '.join(known)}")
    return wanted


def problems_of(
    result: "Audit",
    max_lost_usd: float | None,
    max_lost_tokens: int | None,
    max_breaks: int | None,
    min_cached: float | None,
    causes: tuple[str, ...],
) -> Iterable[str]:
    """What exceeds the limits, a line each; nothing where all hold."""
    totals = result.totals
    groups = totals.breaks
    breaks = sum(group.count for group in groups) + totals.ungrouped
    if max_lost_usd is not None:
        unpriced = sum(group.lost_usd is None and group.lost_tokens > 0 for group in groups)
        lost = totals.lost_usd or 0.0
        if lost > max_lost_usd:
            yield f"breaks cost ${lost:.4f}, more than ${max_lost_usd:.4f}"
        elif unpriced:
            yield f"no price is known for {unpriced} of the breaks; name the model (--model), or limit tokens"
    if max_lost_tokens is not None and totals.all.lost_tokens > max_lost_tokens:
        yield f"breaks lost {totals.all.lost_tokens:,} tokens, more than {max_lost_tokens:,}"
    if max_breaks is not None and breaks > max_breaks:
        yield f"the cache broke {breaks} times, more than {max_breaks}"
        if not causes:
            yield from (_said(group.cause, group.path, group.count, group.place) for group in groups[:10])
    if min_cached is not None and totals.all.cached_share < min_cached:
        yield f"{totals.all.cached_share:.1%} of the input was read from the cache, less than {min_cached:.1%}"
    for group in groups:
        if group.cause in causes:
            yield _said(group.cause, group.path, group.count, group.place)
    told = {group.cause for group in groups}
    for cause in causes:
        # Causes that raise no alarm (a cold start) can be forbidden as well.
        if cause not in told and totals.causes[cause]:
            yield f"{cause}: {totals.causes[cause]} times"


def _said(cause: str, path: str | None, count: int, place: str) -> str:
    return f"{cause}{f' at {path}' if path else ''}: {count} times, first in {place}"
