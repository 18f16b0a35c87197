"""Where the application calls the model: its messages and tools become those of a fork."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import dropwhile
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables.config import RunnableConfig, ensure_config

from cacheprefix.adapter import AdapterSession, ToolSet, allowed_choice
from cacheprefix.errors import BudgetError
from cacheprefix_langgraph.fork_context import FRAME, Frame, Rewritten, scope_of, thread_of
from cacheprefix_langgraph.layout import completed, missing, placed, rewrite, summarise_first
from cacheprefix_langgraph.pending import SENDING, Sending
from cacheprefix_langgraph.request_bodies import base_of, kept_elsewhere, model_name, shows_body
from cacheprefix_langgraph.sdk_clients import asummariser, summariser
from cacheprefix_langgraph.sending import session_in
from cacheprefix_langgraph.state import conversation_of, ledger_in
from cacheprefix_langgraph.tools import ONE_CALL, name_of, one_call, union_of, without_limit
from cacheprefix_langgraph.tracing import agent_in, outside, traced_config
from cacheprefix_langgraph.wrapping import wrapping


def enter(
    model: Any,
    given: Any,
    config: Any,
    kwargs: dict[str, Any],
    *,
    whole: bool = False,
    waited: Frame | None = None,
) -> tuple[Any, Any, dict[str, Any], Any]:
    """Rewrite what the application passes in; on any failure of ours, pass it on as it came.

    ``whole`` says that the answer comes in one piece, so that something may still be taken from it. ``waited`` is the
    fork for which ``ahead`` has waited: nothing is waited for here any more.
    """
    session = session_in(model)
    settled = ensure_config(config)
    frame = _frame(model, session, settled, given) if waited is None else waited
    conversation, scope = (frame.conversation, frame.scope) if frame else (thread_of(settled), scope_of(settled))
    sending = Sending(session, frame, None, kwargs.get("tools"), conversation, scope)
    token = SENDING.set(sending)
    if frame is None:
        if session.mode == "observe":
            sending.agent = session.attempt("agent", lambda: agent_in(settled), "")
        if session.mode != "observe":
            session.attempt("no fork", lambda: outside(session, settled), None)
        return given, config, kwargs, token
    if session.mode == "observe":
        return given, config, kwargs, token
    config = session.attempt("tracing", lambda: traced_config(config, settled, frame, sending), config)
    over: list[BudgetError] = []

    def changed() -> tuple[Any, dict[str, Any]] | None:
        if kept_elsewhere(model, kwargs):
            return _in_instructions(model, given, kwargs, frame)
        if not frame.laid:
            return _in_own_layout(model, given, kwargs, frame)
        try:
            return _rewritten(model, given, kwargs, frame, sending, whole=whole, asks=waited is None)
        except BudgetError as error:
            over.append(error)
            return None

    done = session.attempt("rewrite", lambda: (changed(),), None)
    if over:
        SENDING.reset(token)
        raise over[0]
    # What the application left to us to say is said in its own layout too.
    made = done[0] if done else session.attempt("rewrite", lambda: _in_own_layout(model, given, kwargs, frame), None)
    return (given, config, kwargs, token) if made is None else (made[0], config, made[1], token)


def waiting(model: Any, given: Any, config: Any) -> Frame | None:
    """The fork that a call of the model is now, where ``ahead`` may have to wait for something before it."""
    session = session_in(model)
    if session.mode == "observe":
        return None
    frame = _frame(model, session, ensure_config(config), given)
    return frame if frame is not None and _summarises(frame.session) else None


async def ahead(model: Any, given: Any, kwargs: dict[str, Any], frame: Frame | None, *, whole: bool = False) -> None:
    """Before ``enter``, which does not wait: the summary that a compaction wants of the model."""
    if frame is None or kept_elsewhere(model, kwargs):
        return
    try:
        now = _asked(model, given, kwargs, frame, whole=whole)
        await summarise_first(
            now.messages,
            now.frame,
            wrapping(model).views,
            allowed=now.said,
            model=model_name(model),
            summarise=asummariser(model, now.frame, now.kwargs),
        )
    except Exception as error:
        frame.session.attempt("summary", partial(_raise, error), None)


def _raise(error: Exception) -> None:
    raise error


def _frame(model: Any, session: AdapterSession, config: RunnableConfig, given: Any) -> Frame | None:
    frame = FRAME.get()
    if frame is not None and not session.related(frame.session):
        frame = None
    if wrapping(model).role is not None:
        frame = session.attempt("role", lambda: _bound(model, session, config, given), frame)
    return frame


def _bound(model: Any, session: AdapterSession, config: RunnableConfig, given: Any) -> Frame:
    """The fork of the role that the model was bound to."""
    role, instruction = wrapping(model).role or ("", "")
    read = (config.get("configurable") or {}).get("__pregel_read")
    ledger = ledger_in(None, session) if read is not None else None
    # A thread has a name; only without one it is told by what is said.
    said = () if thread_of(config) else model._convert_input(given).to_messages()
    said = [message for message in said if not isinstance(message, SystemMessage)]
    state, scope = conversation_of(session, config, ledger, said, returned=FRAME.get() is not None), scope_of(config)
    return Frame(session=session, role=role, instruction=instruction, conversation=state.id, state=state, scope=scope)


class _Asked(NamedTuple):
    """A call of the model as it is made for a fork."""

    messages: list[BaseMessage]
    kwargs: dict[str, Any]
    frame: Frame
    said: Sequence[str] | None
    """Tools of the role that its text has to name."""
    single: bool
    lane: ToolSet | None


def _asked(model: Any, given: Any, kwargs: dict[str, Any], frame: Frame, *, whole: bool) -> _Asked:
    responses = bool(getattr(model, "use_responses_api", False))
    messages = model._convert_input(given).to_messages()
    lane = _lane(model, messages, kwargs, frame)
    united, said = with_union(model, kwargs, frame, responses=responses, lane=lane)
    single = whole and one_call(model, united, frame)
    if single:
        united = without_limit(united)
        frame = replace(frame, instruction="\n\n".join(filter(None, (frame.instruction, ONE_CALL))))
    return _Asked(messages, united, frame, said, single, lane)


def _lane(model: Any, messages: Sequence[BaseMessage], kwargs: Mapping[str, Any], frame: Frame) -> ToolSet | None:
    """The lane of the role's tools; None where the union does not come into it."""
    session = frame.session
    if not session.prefix.tools or frame.base is not None or session.alone or "response_format" in kwargs:
        return None
    name = model_name(model)
    bound = [name_of(tool) for tool in kwargs.get("tools") or []]
    talk = frame.state or session.conversation(frame.conversation, scope=frame.scope)

    def said() -> list[int]:
        return [session.count(message.text, name) for message in messages if not isinstance(message, SystemMessage)]

    return session.lane(talk, frame.role, bound, name, spoken=said)


def _rewritten(
    model: Any, given: Any, kwargs: dict[str, Any], frame: Frame, sending: Sending, *, whole: bool, asks: bool
) -> tuple[Any, dict[str, Any]] | None:
    plain = frame
    messages, united, frame, said, single, lane = _asked(model, given, kwargs, frame, whole=whole)
    summarise = summariser(model, frame, united) if asks and _summarises(frame.session) else None
    name = model_name(model)
    done = rewrite(messages, frame, wrapping(model).views, allowed=said, model=name, summarise=summarise)
    kept = placed(done, frame, name, lane, shared=_worth(model, done, frame, lane))
    if kept is not None:
        done = kept
        if done.trailing and not shows_body(base_of(model)):
            done = replace(done, messages=[*done.messages, HumanMessage(done.trailing)], trailing="")
        # What goes out where the fork cannot be begun says what the application left to us all the same.
        own = _own(messages, list(dropwhile(_leads, messages)), plain, kwargs)
        sending.rewritten, sending.single, sending.asked = done, single, own or (messages, kwargs)
        return done.messages, united
    # The layout stays the application's; what was decided on its history holds from the first request on.
    sending.own = True
    return _own(messages, done.history, frame, kwargs)


def _in_own_layout(model: Any, given: Any, kwargs: dict[str, Any], frame: Frame) -> tuple[Any, dict[str, Any]] | None:
    """The request as the application made it, with what it leaves to us to say; None where that is nothing."""
    messages = model._convert_input(given).to_messages()
    return _own(messages, list(dropwhile(_leads, messages)), frame, kwargs)


def _in_instructions(
    model: Any, given: Any, kwargs: dict[str, Any], frame: Frame
) -> tuple[Any, dict[str, Any]] | None:
    """``_in_own_layout`` where the provider keeps the messages: what is said beside them is for one request alone."""
    frame.session.note(
        "requests that go on from what the provider keeps (use_previous_response_id, conversation) have the "
        "application's own layout; give the whole history as messages to share it"
    )
    lead = "\n\n".join(message.text for message in model._convert_input(given).to_messages() if _leads(message))
    own = str(kwargs.get("instructions") or "")
    texts = [*missing(f"{lead}\n\n{own}", frame), frame.passing if frame.volatile else "", own]
    said = "\n\n".join(text for text in texts if text)
    return None if said == own else (given, {**kwargs, "instructions": said})


def _own(
    messages: Sequence[BaseMessage], history: Sequence[BaseMessage], frame: Frame, kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]] | None:
    lead = len(messages) - sum(1 for _ in dropwhile(_leads, messages))
    laid = completed(messages[:lead], history, frame)
    same = len(laid) == len(messages) and all(a is b for a, b in zip(laid, messages, strict=True))
    return None if same else (laid, kwargs)


def _leads(message: BaseMessage) -> bool:
    return isinstance(message, SystemMessage)


def _summarises(session: AdapterSession) -> bool:
    return session.compaction is not None and session.compaction.summarise == "fork"


def with_union(
    model: Any, kwargs: dict[str, Any], frame: Frame, *, responses: bool, lane: ToolSet | None = None
) -> tuple[dict[str, Any], Sequence[str] | None]:
    """The tools of the role's lane (the union without one) in place of its own; what the tail has to say of them."""
    session = frame.session
    union = [tool for tool in session.prefix.tools if lane is None or tool.name in lane.tools]
    # An agent alone keeps its own order: helpers that are no forks begin with the same tools.
    if not union or frame.base is not None or "response_format" in kwargs:
        return kwargs, frame.allowed
    bound = [name_of(tool) for tool in kwargs.get("tools") or []]
    names, known = {tool.name for tool in union}, set(session.prefix.tool_names)
    formatted = union_of(model, union, kwargs, frame)
    if formatted is None:
        return kwargs, frame.allowed
    extra = [tool for tool in kwargs.get("tools") or [] if name_of(tool) not in known]
    if extra and (lane is None or lane.shares):
        listed = ", ".join(sorted(name_of(tool) for tool in extra))
        session.note(f"tools outside the shared union were appended for role {frame.role!r}: {listed}")
    kwargs = {**kwargs, "tools": [*formatted, *extra]}
    allowed = [name for name in bound if frame.allowed is None or name in frame.allowed]
    if set(allowed) >= names:
        return kwargs, None
    safe = session.profile(model_name(model)).tool_choice_safe
    free = kwargs.get("tool_choice") in (None, "auto")
    if safe == "allowed_tools" and free and shows_body(base_of(model)):
        choice = allowed_choice(allowed, "openai-responses" if responses else "openai-chat")
        return {**kwargs, "tool_choice": choice}, None
    if safe == "none" and free and not allowed:
        return {**kwargs, "tool_choice": "none"}, None
    return kwargs, allowed


def _worth(model: Any, done: Rewritten, frame: Frame, lane: ToolSet | None) -> bool:
    """Whether the shared part is long enough to be cached; a conversation that once was, stays so."""
    if lane is not None and not lane.shares:
        return False
    session = frame.session
    name = model_name(model)
    common = done.messages if frame.pinned else done.shared

    def shared() -> int:
        return sum(session.count(message.text, name) for message in common)

    moved = (f"{frame.conversation}\0{frame.role}", name, "moved")
    known = session.shared.sharing
    if done.tail and moved not in known and session.count(done.tail, name) > shared():
        session.note(
            f"role {frame.role!r} brings more text of its own than it shares with others, and is left as it is "
            "until the conversation is longer"
        )
        return False

    def tokens() -> int:
        carried = (tool for tool in session.prefix.tools if lane is None or tool.name in lane.tools)
        return shared() + sum(session.count(tool.schema.decode(), name) for tool in carried)

    if not session.shares(frame.conversation, name, tokens):
        return False
    known.add(moved)
    return True
