"""Where the application calls the model: its messages and tools become those of a fork."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import dropwhile
from typing import Any

from langchain_core.messages import SystemMessage
from langchain_core.runnables.config import RunnableConfig, ensure_config

from cacheprefix import Session
from cacheprefix.errors import BudgetError
from cacheprefix.prompt import loads
from cacheprefix_langgraph._frame import FRAME, Frame, Rewritten, thread_of
from cacheprefix_langgraph._native import base_of, summariser
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
    over: list[BudgetError] = []

    def changed() -> tuple[Any, dict[str, Any]] | None:
        try:
            return _rewritten(model, given, kwargs, frame, sending)
        except BudgetError as error:
            over.append(error)
            return None

    made = session.attempt("rewrite", changed, None)
    if over:
        SENDING.reset(token)
        raise over[0]
    return (given, kwargs, token) if made is None else (*made, token)


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
    united, said = with_union(model, kwargs, frame, responses=responses)
    messages = model._convert_input(given).to_messages()
    summarise = summariser(model, frame, united) if _summarises(frame.session) else None
    name = model_name(model)
    done = rewrite(messages, frame, model.__dict__[VIEWS], allowed=said, model=name, summarise=summarise)
    if _worth(model, done, frame):
        sending.rewritten = done
        return done.messages, united
    if done.given is None and not done.restored:
        return None
    # The layout stays the application's; what was decided on its history holds from the first request on.
    lead = len(messages) - sum(1 for _ in dropwhile(lambda one: isinstance(one, SystemMessage), messages))
    return [*messages[:lead], *done.history], kwargs


def _summarises(session: Session) -> bool:
    return session.compaction is not None and session.compaction.summarise == "fork"


def with_union(
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
    profile = session.profile(model_name(model))
    if profile.tool_choice_safe == "allowed_tools" and kwargs.get("tool_choice") in (None, "auto"):
        return {**kwargs, "tool_choice": allowed_choice(allowed, responses=responses)}, None
    if profile.tool_choice_safe == "none" and not allowed and kwargs.get("tool_choice") in (None, "auto"):
        return {**kwargs, "tool_choice": "none"}, None
    return kwargs, allowed


def _plain(schema: bytes) -> dict[str, Any]:
    return {"type": "function", "function": loads(schema)}


def model_name(model: Any) -> str:
    """The name a provider knows a model by; empty where the class keeps none."""
    return str(getattr(model, "model_name", None) or getattr(model, "model", "") or "")


def _worth(model: Any, done: Rewritten, frame: Frame) -> bool:
    """Whether the shared part is long enough to be cached; a conversation that once was, stays so."""
    session = frame.session
    name = model_name(model)
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
