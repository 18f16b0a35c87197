"""``cacheprefix compact-preview``: what a compaction would do to a conversation, and whether it pays."""

# No deferred annotations here: typer reads them when the command is added.
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    import typer

    from cacheprefix import Conversation


def register(app: "typer.Typer") -> None:
    """Adds the command to a typer application."""
    import typer

    @app.command("compact-preview")
    def compact_preview(
        file: Annotated[
            Path, typer.Argument(help="A saved conversation with its history, a request body, or a list of messages.")
        ],
        trigger: Annotated[int, typer.Option(help="Tokens of the request that start a compaction.", min=1)] = 180_000,
        target: Annotated[
            int | None, typer.Option(help="Tokens to come down to; half of the trigger by default.", min=1)
        ] = None,
        keep_turns: Annotated[int, typer.Option(help="Last turns that stay.", min=1)] = 8,
        window: Annotated[int | None, typer.Option(help="Tokens of the model's window.", min=1)] = None,
        reserve: Annotated[int, typer.Option(help="Tokens kept free for the answer.", min=0)] = 0,
        model: Annotated[str, typer.Option(help="Whose prices count; a request body names its own.")] = "",
        provider: Annotated[str | None, typer.Option(help="Whose rules count, where the model does not tell.")] = None,
        force: Annotated[bool, typer.Option("--force", help="Plan it whether it is due and pays or not.")] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print data instead of text.")] = False,
    ) -> None:
        """Plan a compaction without doing it: what goes, what stays cached, what it costs, when it pays.

        Exit code 0: planned; 2: wrong use, or the request cannot fit the window.
        """
        from cacheprefix.cli import files
        from cacheprefix.errors import SetupError
        from cacheprefix.history import Compaction, RequestBudget
        from cacheprefix.options import Caching, History

        saved = files.read_saved(file)
        settings: dict[str, Any] = {
            "compaction": Compaction(trigger, target, keep_turns),
            "history": History(None if window is None else RequestBudget(window, reserve)),
            "caching": Caching(provider=provider),
        }
        if isinstance(saved, files.Body):
            conversation = _from_body(saved.data, settings, model)
        elif isinstance(saved, files.Conversation):
            conversation = _restored(saved.data, settings, model)
        else:
            raise SetupError(f"{file} is an event file: a preview takes a saved conversation or a request body")
        plan = conversation.plan(force=force)
        if as_json:
            price = plan.price
            files.print_json(
                {
                    "due": plan.due,
                    "reason": plan.reason,
                    "before_tokens": plan.before,
                    "after_tokens": plan.after,
                    "kept_tokens": plan.kept,
                    "actions": [{"kind": one.kind, "count": one.count, "tokens": one.tokens} for one in plan.actions],
                    "not_done": list(plan.refusals),
                    "cost_units_now": price.rewrite,
                    "cost_units_saved_per_turn": price.saving,
                    "break_even_turns": price.break_even,
                    "expected_turns": plan.horizon,
                }
            )
        else:
            print(plan.preview())


def _restored(data: Any, settings: dict[str, Any], model: str) -> "Conversation":
    """A conversation of its own, of what one was saved as, with ``settings`` in place of its session's."""
    from cacheprefix.errors import SetupError
    from cacheprefix.session import Session

    if "context" not in data:
        raise SetupError("this conversation was saved without its history: the framework keeps it; give a request body")
    session = Session(**settings)
    conversation = session.conversation("preview", model=model, api=_form(data["context"]))
    conversation.restore({**data, "id": "preview"}, rebase=True)
    return conversation


def _form(context: Any) -> Any:
    from cacheprefix.errors import StateError

    if not isinstance(context, dict):
        raise StateError(f"context: expected an object, found {type(context).__name__}")
    return context.get("api")


def _from_body(body: Any, settings: dict[str, Any], model: str) -> "Conversation":
    """A conversation of its own, of a request body's system text and messages."""
    from cacheprefix.errors import SetupError
    from cacheprefix.layout import SharedPrefix
    from cacheprefix.session import Session
    from cacheprefix.wire import form_of, guess_api

    api = guess_api(body)
    form = form_of(api)
    if form is None:
        raise SetupError(f"a preview reads chat, responses and messages bodies, and this is {api}")
    given = body.get("messages", body.get("input"))
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(messages, list):
        raise SetupError(f"messages: expected a list, found {type(given).__name__}")
    messages = list(messages)
    system = [body.get("system" if api == "anthropic" else "instructions")]
    while messages and isinstance(messages[0], dict) and messages[0].get("role") in ("system", "developer"):
        system.append(messages.pop(0).get("content"))
    text = "\n\n".join(one if isinstance(one, str) else str(one) for one in system if one)
    own = [tool for tool in body.get("tools") or [] if isinstance(tool, dict)]
    tools = [tool for tool in own if "function" in tool or "name" in tool]
    session = Session(SharedPrefix(system=text, tools=tools), **settings)
    conversation = session.conversation("preview", api=form, model=model or str(body.get("model", "")))
    conversation.append(*messages)
    conversation.commit()
    return conversation
