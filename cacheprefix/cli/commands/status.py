"""``cacheprefix status``: what a session did so far, or what a saved conversation holds."""

# No deferred annotations here: typer reads them when the command is added.
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cacheprefix.errors import SetupError

if TYPE_CHECKING:
    import typer

    from cacheprefix.call import Call
    from cacheprefix.events import Run


def register(app: "typer.Typer") -> None:
    """Adds the command to a typer application."""
    import typer

    @app.command("status")
    def status(
        file: Annotated[
            Path, typer.Argument(help="A session's event file, or a saved conversation; - is standard input.")
        ],
        by: Annotated[
            str, typer.Option(help="Sum calls up by agent, model or day (UTC), or by several: model,day.")
        ] = "agent",
        last: Annotated[str, typer.Option(help="Only the calls of so long a time until now: 90m, 24h, 7d.")] = "",
        as_json: Annotated[bool, typer.Option("--json", help="Print data instead of text.")] = False,
    ) -> None:
        """Show a saved session: calls, tokens, money and breaks by agent, model or day; or a conversation's decisions.

        Exit code 0: read; 1: some lines could not be read; 2: wrong use.
        """
        from cacheprefix.cli import files
        from cacheprefix.events import Run

        saved = files.read_saved(file, Run(line_of=_line_of(by), since=_since(last)))
        if isinstance(saved, files.Body):
            saved = files.read_run(file)
        if isinstance(saved, Run):
            if as_json:
                files.print_json(_run_data(saved))
            else:
                print("\n".join(_run_text(str(file), saved)))
            raise typer.Exit(1 if saved.skipped else 0)
        found = conversation_data(saved.data)
        if as_json:
            files.print_json(found)
        else:
            print("\n".join(_conversation_text(str(file), found)))


def _line_of(by: str) -> "Callable[[Call], str] | None":
    """Under which name a call is summed up; None for its agent. Raises ``SetupError`` for what calls do not have."""
    kinds = by.split(",")
    unknown = [kind for kind in kinds if kind not in _KINDS]
    if unknown:
        raise SetupError(f"--by {by}: calls are summed up by {', '.join(_KINDS)}, not by {unknown[0]!r}")
    return None if kinds == ["agent"] else lambda call: " ".join(_KINDS[kind](call) for kind in kinds)


def _since(last: str) -> float:
    """When a time until now began, in seconds since the epoch; 0 for no such limit."""
    if not last:
        return 0.0
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", last.strip())
    if found is None:
        raise SetupError(f"--last {last}: a number and s, m, h or d, as in 24h")
    return time.time() - float(found[1]) * _SECONDS[found[2]]


_SECONDS: Mapping[str, float] = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_KINDS: "Mapping[str, Callable[[Call], str]]" = {
    "agent": lambda call: call.agent,
    "model": lambda call: call.model,
    "day": lambda call: datetime.fromtimestamp(call.ended_at, timezone.utc).date().isoformat(),
}


def conversation_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a saved conversation holds, in counts. Raises ``StateError`` for another shape or version."""
    from cacheprefix.history.saved import read

    saved = read(data, rebase=True)
    history = saved.history
    sections = ("results", "turns", "actions", "inserts")
    return {
        "id": saved.id,
        "prefix": data.get("prefix") or None,
        "compactions": saved.ledger.epoch,
        "decisions": {name: len(saved.ledger.keys(name)) for name in sections},
        "history": None if history is None else _history(history),
        "cold_after": saved.cold_after,
    }


def _history(state: Any) -> dict[str, Any]:
    from cacheprefix.wire import views_of

    views = views_of(state.messages, state.api)
    return {"api": state.api, "mode": state.mode, "messages": len(views), "tokens": sum(view.tokens for view in views)}


def _run_data(run: "Run") -> dict[str, Any]:
    return {
        **run.report().as_dict(),
        "running": run.running,
        "sessions": len(run.started),
        "tool_calls": dict(run.tools),
        "skipped_lines": run.skipped,
    }


def _run_text(name: str, run: "Run") -> Iterator[str]:
    state = "running" if run.running else "ended"
    sessions = f"{len(run.started)} sessions" if len(run.started) != 1 else "a session"
    yield f"{name}: {sessions}, {state}"
    if run.report().total.calls:
        yield str(run.report())
    else:
        yield "no model call yet"
    if run.skipped:
        yield f"{run.skipped} lines could not be read"


def _conversation_text(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{name}: conversation {found['id']!r}" + (f", saved under {found['prefix']}" if found["prefix"] else "")
    history = found["history"]
    if history is None:
        yield "the framework keeps the history; these are the decisions on it"
    else:
        yield f"{history['messages']:,} messages ({history['api']}), about {history['tokens']:,} tokens"
    said = {
        "results": "tool results decided on",
        "turns": "turns with a limit of their own",
        "actions": "places that compactions changed",
        "inserts": "texts that stand for removed messages",
    }
    yield f"{found['compactions']} compactions"
    for key, count in found["decisions"].items():
        yield f"{count} {said[key]}"
