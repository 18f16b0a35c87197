"""Large tool results: cut before CrewAI's own deferral sees them, and the decisions kept in the ledger.

CrewAI stores a result over a quarter of the window in a file of random name and adds a tool to read it, which
changes every request from its beginning. A result within the budget is never deferred.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cacheprefix.locks import Lock
from cacheprefix.wire import apply, views_of

if TYPE_CHECKING:
    from cacheprefix import Conversation, Session

_LOCK = Lock()
_USERS: list[object] = []


def shorten(session: Session, kept: Conversation, messages: list[Any], model: str) -> list[Any]:
    """The messages of a request with what the ledger and the budget say of their tool results."""
    if session.budget is None and not kept.ledger.alters:
        return messages

    def work() -> list[Any]:
        views = views_of(messages, "openai-chat", lambda text: session.count(text, model))
        decisions = session.shorten(kept, views, model)
        return list(apply(messages, decisions, "openai-chat")) if decisions else messages

    return session.attempt("tool-result budget", work, messages)


def watch_tools(user: object) -> None:
    """Look at tool results as they come, for all installed crews by one hook."""
    from crewai.hooks.tool_hooks import register_after_tool_call_hook  # noqa: PLC0415 - CrewAI loads slowly

    with _LOCK:
        if not _USERS:
            register_after_tool_call_hook(_after_tool)
        _USERS.append(user)


def unwatch_tools(user: object) -> None:
    """Stop looking when the last crew is uninstalled."""
    from crewai.hooks.tool_hooks import unregister_after_tool_call_hook  # noqa: PLC0415 - CrewAI loads slowly

    with _LOCK:
        _USERS[:] = [one for one in _USERS if one is not user]
        if not _USERS:
            unregister_after_tool_call_hook(_after_tool)


def _after_tool(context: Any) -> str | None:
    from cacheprefix_crewai.binding import binding_of  # noqa: PLC0415 - the two modules know each other

    binding = binding_of(context.agent)
    result = context.tool_result
    if binding is None or not binding.rewrites or not isinstance(result, str):
        return None
    session = binding.session
    if session.budget is None:
        return None
    model = str(getattr(getattr(context.agent, "llm", None), "model", ""))
    messages = _as_messages(context.tool_name, context.tool_input, result)
    after = shorten(session, binding.held, messages, model)
    text = after[-1].get("content")
    return text if isinstance(text, str) and text != result else None


def _as_messages(name: str, arguments: Mapping[str, Any] | None, result: str) -> list[Any]:
    call = {"id": "call_0001", "type": "function", "function": {"name": name, "arguments": str(arguments or {})}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0001", "name": name, "content": result},
    ]


