"""``cacheprefix explain``: what happened to the cache on a call, and what to do about it."""

# No deferred annotations here: typer reads them when the command is added.
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    import typer

    from cacheprefix import Call


def register(app: "typer.Typer") -> None:
    """Adds the command to a typer application."""
    import typer

    @app.command("explain")
    def explain(
        file: Annotated[
            Path, typer.Argument(help="A session's event file, or a saved conversation; - is standard input.")
        ],
        number: Annotated[
            int | None, typer.Argument(metavar="[CALL]", help="Number of a call; without it, every break.", min=0)
        ] = None,
        everything: Annotated[bool, typer.Option("--all", help="Every call, not only breaks.")] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print data instead of text.")] = False,
    ) -> None:
        """Say what the cache did on a call of a saved session, why, what it cost, and how to stop it.

        Of a saved conversation it lists the decisions that are replayed. Exit code 0: read; 1: there is no such
        call; 2: wrong use.
        """
        from cacheprefix.cli import files
        from cacheprefix.events import Run

        saved = files.read_saved(file)
        if isinstance(saved, files.Conversation):
            rows = _decisions(saved.data)
            if as_json:
                files.print_json([dict(zip(("what", "address", "decision"), row, strict=True)) for row in rows])
            else:
                print("\n".join(f"{what} {address}: {said}" for what, address, said in rows) or "no decisions yet")
            return
        if not isinstance(saved, Run):
            saved = files.read_run(file)
        calls = _chosen(saved.totals.calls, number, everything=everything)
        if as_json:
            files.print_json([_data(call) for call in calls])
        elif calls:
            print("\n\n".join("\n".join(_text(call)) for call in calls))
        elif number is None:
            print(f"no break in {len(saved.totals.calls):,} calls; --all explains every call")
        if number is not None and not calls:
            if not as_json:
                print(f"there is no call {number}; the file holds {len(saved.totals.calls):,} calls")
            raise typer.Exit(1)


def _chosen(calls: "Sequence[Call]", number: int | None, *, everything: bool) -> "list[Call]":
    if number is not None:
        return [call for call in calls if call.index == number]
    return [call for call in calls if everything or call.verdict.alarm or call.verdict.broken]


def _data(call: "Call") -> dict[str, Any]:
    """A call as JSON: its layout with the reasons, its input tokens, and its verdict."""
    named = ("agent", "session", "model", "index")
    return {
        "call": call.index,
        "agent": call.agent,
        "conversation": call.conversation,
        "model": call.model,
        "rules": call.profile.name,
        "layout": call.layout,
        "reasons": [one.as_dict() for one in call.reasons],
        "input_tokens": call.usage.input_tokens if call.usage.input_tokens is not None else call.input_tokens,
        **{name: value for name, value in call.verdict.as_dict().items() if name not in named},
    }


def _text(call: "Call") -> Iterator[str]:
    """A call's lines as they are printed: verdict, tokens, layout with reasons, where the cache broke, what to do."""
    from cacheprefix.unnamed import is_named

    verdict = call.verdict
    total = call.usage.input_tokens if call.usage.input_tokens is not None else call.input_tokens
    # An id that we drew ourselves says nothing to anybody.
    whose = (call.agent or "unnamed agent") + (f" of {call.conversation}" if is_named(call.conversation) else "")
    yield f"call {call.index} ({whose}, {call.model}, rules {call.profile.name}): {verdict.kind}, {verdict.cause}"
    read = "not reported" if verdict.reported_tokens is None else f"{verdict.reported_tokens:,} read"
    expected = f"{verdict.expected_tokens:,} expected, {verdict.reusable_tokens:,} had nothing gone wrong"
    yield f"  input {total:,} tokens: {read}; {expected}"
    yield f"  layout: {call.layout}"
    for one in call.reasons:
        yield f"    {one.said}" + (f"; {one.fix}" if one.fix else "")
    if verdict.ancestor_index is not None:
        yield f"  compared with call {verdict.ancestor_index}"
    if verdict.path:
        at = f", character {verdict.offset:,}" if verdict.offset else ""
        size = f", {verdict.size:+,} characters" if verdict.size else ""
        yield f"  at {verdict.path}{at}{size}"
    if verdict.before or verdict.after:
        yield f"  {verdict.before!r} became {verdict.after!r}"
    if verdict.lost_tokens:
        usd = "" if verdict.lost_usd is None else f", ${verdict.lost_usd:.4f}"
        yield f"  lost {verdict.lost_tokens:,} tokens, {verdict.lost_units:,.0f} cost units{usd}"
    if verdict.provider_reason:
        yield f"  the provider says: {verdict.provider_reason}"
    yield f"  {verdict.fix}"


def _decisions(data: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The decisions of a saved ledger, each as its kind, its address and what was decided."""
    from cacheprefix.history.saved import read

    ledger = read(data, rebase=True).ledger
    said = {
        "results": "result",
        "turns": "turn",
        "actions": "compaction at",
        "inserts": "text at",
        "blocks": "durable context at",
        "epochs": "epoch",
    }
    # A text that stands for messages is prompt text, and is not shown.
    return [
        (word, address, "(a text)" if section in ("inserts", "blocks") else value)
        for section, word in said.items()
        for address, value in sorted(ledger.section(section).items())
    ]
