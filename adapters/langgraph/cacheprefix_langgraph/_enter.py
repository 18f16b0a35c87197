"""Where the application calls the model: its messages and tools become those of a fork."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.runnables.config import RunnableConfig, ensure_config

from cacheprefix import Session
from cacheprefix.prompt import loads
from cacheprefix_langgraph._frame import FRAME, Frame, Rewritten, thread_of
from cacheprefix_langgraph._rewrite import rewrite
from cacheprefix_langgraph._sending import ROLE, SENDING, SESSION, VIEWS, Sending
from cacheprefix_langgraph._state import conversation_of, ledger_in
from cacheprefix_langgraph._tools import allowed_choice, name_of


def enter(model: Any, given: Any, config: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any], Any]:
    """Rewrite what the application passes in; on any failure of ours, pass it on as it came."""
    session: Session = model.__dict__[SESSION]
    frame = FRAME.get()
    if frame is not None and not session.related(frame.session):
        frame = None
    settled = ensure_config(config)
    if ROLE in model.__dict__:
        frame = session.attempt("role", lambda: _bound(model, session, settled), frame)
    sending = Sending(frame, None, kwargs.get("tools"), frame.conversation if frame else thread_of(settled))
    token = SENDING.set(sending)
    if session.mode == "observe":
        return given, kwargs, token
    if frame is None:
        node = (settled.get("metadata") or {}).get("langgraph_node")
        if node is not None:
            session.warn_once(
                f"no-fork:{node}",
                f"node {node!r} calls a wrapped model outside a fork, so its prompt is not shared: decorate the node "
                "with forked(...), and inside it use ContextThreadPoolExecutor instead of a plain thread pool",
            )
        return given, kwargs, token
    changed = session.attempt("rewrite", lambda: _rewritten(model, given, kwargs, frame, sending), None)
    return (given, kwargs, token) if changed is None else (*changed, token)


def _bound(model: Any, session: Session, config: RunnableConfig) -> Frame:
    """The fork of the role that the model was bound to."""
    role, instruction = model.__dict__[ROLE]
    thread = thread_of(config)
    read = (config.get("configurable") or {}).get("__pregel_read")
    state = conversation_of(session, thread, ledger_in(None, session) if read is not None else None)
    return Frame(session=session, role=role, instruction=instruction, conversation=thread, state=state)


def _rewritten(
    model: Any, given: Any, kwargs: dict[str, Any], frame: Frame, sending: Sending
) -> tuple[Any, dict[str, Any]] | None:
    responses = bool(getattr(model, "use_responses_api", False))
    kwargs, said = _with_union(model, kwargs, frame, responses=responses)
    messages = model._convert_input(given).to_messages()
    done = rewrite(messages, frame, model.__dict__[VIEWS], allowed=said, model=_model_name(model))
    if not _worth(model, done, frame):
        return None
    sending.rewritten = done
    return done.messages, kwargs


def _with_union(
    model: Any, kwargs: dict[str, Any], frame: Frame, *, responses: bool
) -> tuple[dict[str, Any], Sequence[str] | None]:
    """The union in place of the role's tools; what has to be said about it in the tail."""
    session = frame.session
    union = session.prefix.tools
    # An agent alone keeps its own order: helpers that are no forks begin with the same tools.
    if not union or frame.base is not None or "response_format" in kwargs:
        return kwargs, frame.allowed
    bound = [name_of(tool) for tool in kwargs.get("tools") or []]
    names = set(session.prefix.tool_names)
    natives = [tool.native if tool.native is not None else _plain(tool.schema) for tool in union]
    formatted = list(base_of(model).bind_tools(model, natives).kwargs["tools"])
    extra = [tool for tool in kwargs.get("tools") or [] if name_of(tool) not in names]
    if extra:
        listed = ", ".join(sorted(name_of(tool) for tool in extra))
        session.note(f"tools outside the shared union were appended for role {frame.role!r}: {listed}")
    kwargs = {**kwargs, "tools": [*formatted, *extra]}
    allowed = [name for name in bound if frame.allowed is None or name in frame.allowed]
    if set(allowed) >= names:
        return kwargs, None
    profile = session.profile(_model_name(model))
    if profile.tool_choice_safe == "allowed_tools" and kwargs.get("tool_choice") in (None, "auto"):
        return {**kwargs, "tool_choice": allowed_choice(allowed, responses=responses)}, None
    if profile.tool_choice_safe == "none" and not allowed and kwargs.get("tool_choice") in (None, "auto"):
        return {**kwargs, "tool_choice": "none"}, None
    return kwargs, allowed


def base_of(model: Any) -> Any:
    """The class a wrapped model was made from."""
    return type(model).__mro__[1]


def _plain(schema: bytes) -> dict[str, Any]:
    return {"type": "function", "function": loads(schema)}


def _model_name(model: Any) -> str:
    return str(getattr(model, "model_name", None) or getattr(model, "model", "") or "")


def _worth(model: Any, done: Rewritten, frame: Frame) -> bool:
    """Whether the shared part is long enough to be cached; a conversation that once was, stays so."""
    session = frame.session
    name = _model_name(model)
    end = len(done.messages) - done.own - (1 if done.tail and not frame.pinned else 0)
    shared = sum(session.count(message.text, name) for message in done.messages[:end])
    moved = (f"{frame.conversation}\0{frame.role}", name, "moved")
    known = session.shared.sharing
    if done.tail and moved not in known and session.count(done.tail, name) > shared:
        session.note(
            f"role {frame.role!r} brings more text of its own than it shares with others, and is left as it is "
            "until the conversation is longer"
        )
        return False

    def tokens() -> int:
        return shared + sum(session.count(tool.schema.decode(), name) for tool in session.prefix.tools)

    if not session.shares(frame.conversation, name, tokens):
        return False
    known.add(moved)
    return True
