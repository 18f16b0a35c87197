"""Sending a request: its body, its place behind siblings, and how it is begun and ended."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from cacheprefix import Prompt
from cacheprefix.adapter import (
    FOLLOW,
    AdapterSession,
    Boundary,
    Flow,
    Pass,
    Request,
    RequestPlan,
    WaitingFor,
    failed,
    list_refused,
    reason,
    unmodified,
    with_volatile,
)
from cacheprefix_langgraph.fork_context import FRAME, Rewritten, siblings
from cacheprefix_langgraph.layout import apart, boundary
from cacheprefix_langgraph.parts import leads
from cacheprefix_langgraph.pending import SENDING, Sending, fail
from cacheprefix_langgraph.prewarming import warm, warming, warms
from cacheprefix_langgraph.request_bodies import (
    TRANSPORT,
    Body,
    api_of,
    as_sent,
    base_of,
    headers_of,
    likeness,
    only_asks,
    own_body,
    readable,
    shows_body,
)
from cacheprefix_langgraph.state import keep_inside
from cacheprefix_langgraph.tools import CHOSEN
from cacheprefix_langgraph.whole_answers import can_stream
from cacheprefix_langgraph.wrapping import wrapping

if TYPE_CHECKING:
    from langchain_core.outputs import ChatResult

    from cacheprefix import PendingCall


_MARKS = frozenset({"cache_control", "prompt_cache_breakpoint", "prompt_cache_options", "prompt_cache_retention"})
"""Options and fields by which an application says itself what is to be kept."""


_TRACED = ("ls_", "structured_output_format")
"""How options begin that are for tracers alone."""


class Prepared(NamedTuple):
    """The messages and options that the model's own class builds its request from."""

    messages: Any
    kwargs: dict[str, Any]
    streams: bool
    """Whether a whole answer is to be streamed, so that others start with its first token."""


def prepared(
    model: Any, sending: Sending, messages: Any, stop: Any, kwargs: dict[str, Any], *, later: bool
) -> Flow[Prepared]:
    """Make the body of a fork, after waiting for a sibling that writes its prefix.

    Where that fails behind the rewrite, messages and options are the application's own again. ``later`` is for callers
    in an event loop.
    """
    body = _body(model, sending, messages, stop, kwargs)
    if body is None:
        return _prepared(sending, messages, kwargs)
    warming_call = partial(warming, model, body, sending, stop, kwargs)
    streams = yield from _in_its_turn(model, body, sending, warming_call, later=later)
    return _prepared(sending, messages, kwargs, streams=streams)


def _in_its_turn(
    model: Any, body: Body, sending: Sending, warming_call: Callable[[], PendingCall | None], *, later: bool
) -> Flow[bool]:
    """Wait for a sibling that writes the prefix, then begin the request; whether its answer is to be streamed.

    ``warming_call`` makes the request that warms the cache for all siblings, where the first of them sends one.
    ``later`` is for callers in an event loop.
    """
    session, leave = _session(model, sending), FOLLOW
    waiting = session.waiting
    asked = _asked(model, body, sending)
    if asked is not None:
        headers = headers_of(model, body.payload)
        queue = partial(
            waiting.aqueue if later else waiting.queue,
            boundary=asked[1], scope=sending.scope, headers=headers, plan=sending.plan,
        )  # fmt: skip
        # Whether it is streamed stands in no body of Bedrock's.
        fast = sending.streamed or _lets_go_early(model, body)
        leave = yield WaitingFor(partial(queue, streams=fast), asked[0], body.api)
    try:
        pending = warming_call() if leave.leader and warms(model, body) else None
        if pending is not None:
            yield from warm(model, pending, leave, session, later=later)
        streams = _could_stream(model, body, sending, leave)
        if streams:
            followed = partial(waiting.afollowed if later else waiting.followed, **_asking(model, body, sending))
            streams = yield WaitingFor(followed, leave)
        return _begun(model, body, sending, leave) and streams
    except BaseException:
        # Cancelled, above all: the leader's task is gone, and the next one leads.
        leave.release(ok=False)
        if sending.pending is None:
            waiting.unsent(sending.plan)
        raise


def _prepared(sending: Sending, messages: Any, kwargs: dict[str, Any], *, streams: bool = False) -> Prepared:
    """What the class builds its request from: as laid out, or the application's own where that was undone."""
    if sending.undone is None:
        return Prepared(messages, kwargs, streams)
    given, options = sending.undone
    kept = {name: value for name, value in kwargs.items() if name not in CHOSEN}
    return Prepared(given, {**kept, **{name: options[name] for name in CHOSEN if name in options}}, streams=False)


def _begun(model: Any, body: Body, sending: Sending, leave: Pass) -> bool:
    """Begin the request. Returns whether its answer may be streamed, so that siblings go on with its first token."""
    made = begin(model, body, sending, leave)
    if undone(sending) is not None:
        return False
    if body.own:
        sending.payload, sending.seen = made, body.payload
    return sending.pending is not None and sending.pending.seen is not None


def _could_stream(model: Any, body: Body, sending: Sending, leave: Pass) -> bool:
    """Whether a leader's whole answer can be received as a stream, where somebody waits for its first token."""
    whole = leave.leader and leave.worth.streams and not sending.streamed
    return whole and body.own and body.streamable and _may_stream(model, body)


def _asking(model: Any, body: Body, sending: Sending) -> dict[str, Any]:
    """The agent and model of a request, and whether forks run beside it that may soon ask for the same prefix."""
    frame, name = sending.frame, str(_seen(body, model)["model"])
    if frame is None:
        return {"agent": sending.agent, "model": name}
    return {"agent": frame.role, "model": name, "expected": siblings(frame.session, frame.conversation)}


def undone(sending: Sending, messages: Any = None, kwargs: Mapping[str, Any] | None = None) -> Prepared | None:
    """The application's own request, in the place of a rewritten one that could not be begun; else None."""
    if sending.rewritten is None or (sending.pending is not None and sending.pending.seen is not None):
        return None
    _undo(sending, failed("begin"))
    return _prepared(sending, messages, dict(kwargs or {}))


def without_list(model: Any, sending: Sending) -> Prepared | None:
    """The application's own request, where the endpoint has just refused this one's list of allowed tools; else None.

    Called where the refusal was raised; the call that was refused ends here.
    """
    plan, call = sending.plan, sending.pending
    if plan is None or not plan.restriction.allowed or call is None or sending.rewritten is None:
        return None
    # The session learns from the error whether it was for the list.
    fail(sending)
    if _session(model, sending).takes_lists(str(call.body.get("model", ""))):
        return None
    _undo(sending, list_refused())
    sending.pending = None
    return _prepared(sending, (), {})


def _undo(sending: Sending, plan: RequestPlan[BaseMessage]) -> None:
    """Put the application's own request in the place of one that could not be begun, or was refused."""
    sending.undone, sending.rewritten, sending.payload, sending.single = sending.asked, None, None, False
    sending.plan, sending.body = plan, None


def _lets_go_early(model: Any, body: Body) -> bool:
    """Whether this request, should it lead, lets the others go before the end of its answer."""
    streams = body.streamable and _may_stream(model, body) and base_of(model)._stream is not BaseChatModel._stream
    return bool(body.payload.get("stream")) or warms(model, body) or streams


def _may_stream(model: Any, body: Body) -> bool:
    """Whether nothing of the model or of this request forbids to stream its answer."""
    if not (wrapping(model).streams and can_stream(model, body.api) and only_asks(base_of(model))):
        return False
    disabled = getattr(model, "disable_streaming", False)
    return not (disabled is True or (disabled == "tool_calling" and body.payload.get("tools")))


def _body(model: Any, sending: Sending, messages: Any, stop: Any, kwargs: dict[str, Any]) -> Body | None:
    """The body of a request that has not begun yet, where it is to be begun before the class sends it."""
    if sending.pending is not None or sending.undone is not None:
        return None
    session = _session(model, sending)
    if not shows_body(base_of(model)):
        return likeness(session, model, messages, stop, kwargs)
    if sending.rewritten is None:
        # What the class makes of the application's own request is the application's business.
        waits = session.waiting.gate is not None and _waits(sending)
        sending.built = messages, stop, _options(sending, kwargs)
        return own_body(model, *sending.built) if waits else None
    try:
        sending.built = messages, stop, _options(sending, kwargs)
        return own_body(model, *sending.built)
    except Exception as error:
        _undo(sending, failed("begin"))
        own = _prepared(sending, messages, kwargs)
        # What the class makes of the application's own request is the application's business.
        own_body(model, own.messages, stop, _options(sending, own.kwargs))
        session.shared.notices.failed("body", error)
        return None


def _options(sending: Sending, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The options with which the class will build its body: as it does when it streams, without what is for itself."""
    if not sending.streamed:
        return dict(kwargs)
    return {name: value for name, value in kwargs.items() if name != "stream_usage"} | {"stream": True}


def session_in(model: Any) -> AdapterSession:
    """The session a wrapped model belongs to."""
    return wrapping(model).session


def _session(model: Any, sending: Sending) -> AdapterSession:
    """The session that a request goes through: its fork's, else the model's."""
    return session_in(model) if sending.frame is None else sending.frame.session


def _asked(model: Any, body: Body, sending: Sending) -> tuple[dict[str, Any], Boundary] | None:
    """The body and the shared part's end, by which siblings wait for each other; None for one that waits for none."""
    if not _waits(sending):
        return None
    return _session(model, sending).attempt("gate", lambda: (_seen(body, model), _boundary(model, body, sending)), None)


def _waits(sending: Sending) -> bool:
    """Whether it is asked at the gate: a request that is laid out, or keeps its own layout by what it costs."""
    return sending.rewritten is not None or (sending.plan is not None and sending.plan.waits)


def _seen(body: Body, model: Any) -> dict[str, Any]:
    """The body as the session reads it."""
    return readable(body.payload, model)


def _boundary(model: Any, body: Body, sending: Sending) -> Boundary:
    """What finds the end of the part that siblings share; None for a request that is no fork."""
    done = sending.rewritten
    if done is None:
        return None
    session = _session(model, sending)

    def own_sections(messages: list[BaseMessage]) -> int:
        alone = own_body(model, messages, None, {}) if body.own else None
        alone = alone or likeness(session, model, messages, None, {})
        if alone is None:
            return 0
        seen = {"messages": [], "contents": [], **_seen(alone, model), "tools": []}
        seen.pop("messages" if body.api == "gemini" else "contents")
        return len(session.decode(seen, body.api).tier("messages"))

    return boundary(done, own_sections)


def ready_made(sending: Sending, messages: Any, stop: Any, kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """The body that was made before the class asks for it; None where it asks for another one.

    A class of the application's may ask with other messages or options than it was called with: nothing may be lost.
    """
    made, sending.payload = sending.payload, None
    if made is None or sending.built is None:
        return made
    known, ended, options = sending.built

    def same() -> bool:
        alike = len(known) == len(messages) and all(map(operator.is_, known, messages)) and ended == stop
        return alike and _asked_for(options) == _asked_for(kwargs)

    if sending.session.attempt("body", same, otherwise=False):
        return made
    fail(sending)
    sending.pending = None
    return None


def _asked_for(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in TRANSPORT}


def finished(model: Any, given: dict[str, Any]) -> dict[str, Any]:
    """What a class's client is to send in the place of what the class gives it. Never raises."""
    sending = SENDING.get()
    if sending is None:
        return given
    if sending.payload is not None:
        made, sending.payload = sending.payload, None
        if given == sending.seen:
            return made
        # A class of the application's changes the body on its way: nothing of that may be lost.
        fail(sending)
        sending.pending = None
    if sending.pending is not None:
        return given
    return begin(model, Body(given, api_of(given, model), own=True), sending, FOLLOW)


def begin(model: Any, body: Body, sending: Sending, leave: Pass) -> dict[str, Any]:
    """The body as it is to be sent. Never raises."""
    made = _session(model, sending).attempt("begin", lambda: _begin(model, body, sending, leave), None)
    if made is None:
        fail(sending)
        sending.pending = None
        leave.release(ok=False)
        return _session(model, sending).attempt("body", lambda: _with_passing(body, sending, model), body.payload)
    return made


def _with_passing(body: Body, sending: Sending, model: Any) -> dict[str, Any]:
    """A body that could not be begun, with the text that the application gave for this request alone."""
    done = sending.rewritten
    if done is None or not done.trailing or not body.own:
        return body.payload
    return as_sent(with_volatile(_seen(body, model), body.api, done.trailing, done.trailing_role), body.payload)


def _begin(model: Any, body: Body, sending: Sending, leave: Pass) -> dict[str, Any]:
    """Begin the request in its session, which marks it for the cache; its body as it is to be sent."""
    session = _session(model, sending)
    frame, done = sending.frame, sending.rewritten
    # A routing key of its own would part a lone agent from the helpers that share its tools.
    alone = frame is not None and frame.base is not None and body.api != "anthropic"
    plan = sending.plan
    asked = Request(
        _seen(body, model),
        body.api,
        agent=frame.role if frame else sending.agent,
        conversation=sending.conversation if frame is None or frame.state is None else frame.state,
        boundary=_boundary(model, body, sending),
        original=_original(model, body, sending),
        headers=headers_of(model, body.payload),
        rewrite=body.own and done is not None and not alone,
        repeated=body.own and plan is not None and plan.repeats,
        policy=frame.policy if frame else None,
        scope=sending.scope,
        continues=done is not None and done.continues,
        passes=done is not None and done.passes,
        trailing=bool(done is not None and done.trailing),
    )
    sending.pending = session.begin(asked if plan is None else asked.laid_out(plan), leave)
    sent = sending.pending.body
    if done is not None and done.trailing and body.own:
        sent = with_volatile(sent, body.api, done.trailing, done.trailing_role)
    return as_sent(sent, body.payload)


def _original(model: Any, body: Body, sending: Sending) -> Callable[[Prompt], Prompt | None] | None:
    """What gives the prompt that the application would have sent, for the estimate of its cost; None where it is sent.

    Where a fork only moved texts, they are moved back in the fork's own prompt. Where messages were changed or are
    gone, or the application says itself what is kept, its request is built again.
    """
    if sending.given is None:
        return None
    (messages, options), done, session = sending.given, sending.rewritten, _session(model, sending)
    system = tuple(one.text for one in messages if leads(one))

    def moved_back(prompt: Prompt, done: Rewritten) -> Prompt:
        settings = {name: value for name, value in prompt.settings.items() if name not in CHOSEN}
        return unmodified(
            replace(apart(prompt), settings=settings),
            system=done.system,
            tools=sending.tools,
            tail=done.tail,
            count=session.count,
            restored=done.restored,
        )

    def built_again() -> Prompt | None:
        # LangChain takes these out before the class sees its options.
        seen = _options(sending, {name: value for name, value in options.items() if not name.startswith(_TRACED)})
        if body.own:
            own: Body | None = own_body(model, list(messages), None, seen)
        else:
            own = likeness(session, model, messages, None, seen)
        return None if own is None else session.decode(_seen(own, model), body.api)

    def original(prompt: Prompt) -> Prompt | None:
        moved_only = done is not None and done.given is None and system == tuple(done.system)
        if done is not None and moved_only and not _marks_or_chooses(prompt, messages, options):
            return moved_back(prompt, done)
        return built_again()

    return original


def _marks_or_chooses(prompt: Prompt, messages: Sequence[BaseMessage], options: Mapping[str, Any]) -> bool:
    """Whether the application itself set cache marks, how tools are chosen, or system text in blocks."""
    tools = [tool for tool in options.get("tools") or () if isinstance(tool, dict)]
    marks_tools = any(_MARKS & tool.keys() for tool in tools)
    marks = bool(prompt.marked) or prompt.top_marker is not None or not _MARKS.isdisjoint(options) or marks_tools
    chooses = any(options.get(name) is not None for name in CHOSEN if name != "tools")
    blocks = any(leads(one) and not isinstance(one.content, str) for one in messages)
    return marks or chooses or blocks


def current(model: Any) -> Sending:
    """The request under way; a fresh one where the class was called without ``invoke`` (its own batch, an agent)."""
    held = wrapping(model).held
    sending = SENDING.get() if held is None else held
    if sending is None or (sending.pending is not None and sending.payload is None):
        frame = FRAME.get()
        conversation, scope = (frame.conversation, frame.scope) if frame else ("", None)
        sending = Sending(session_in(model), frame, None, None, conversation, scope)
        if frame is not None:
            # ``generate`` of the class goes by no front door of ours.
            sending.plan = RequestPlan("own", (reason("own_prompt", "generate"),))
    return sending


def finish(sending: Sending, result: ChatResult) -> None:
    """Say what came of the request: the usage of its whole answer."""
    close(sending, sending.session.attempt("usage", lambda: usage_of(message_of(result)), None))


def close(sending: Sending, usage: Any, *, cut: bool = False) -> None:
    """End the request, and tell tracers what the cache did: they keep the metadata until the run ends.

    ``cut`` says that its answer was broken off.
    """
    if sending.pending is None:
        return
    pending, traced = sending.pending, sending.traced
    session, talk = sending.session, None if sending.frame is None else sending.frame.state

    def told() -> None:
        verdict = pending.finish(usage, cut=cut)
        if verdict is not None and traced is not None:
            traced["cacheprefix_cause"] = str(verdict.cause)

    # The answer is there, whatever becomes of what we make of it.
    session.attempt("finish", told, None)
    if talk is not None:
        session.attempt("ledger", lambda: keep_inside(session, talk, sending.step), None)


def message_of(result: Any) -> Any:
    """The message of a finished answer; None for one without, and for what is none of LangChain's (a test's fake)."""
    generations = getattr(result, "generations", None)
    return getattr(generations[0], "message", None) if generations else None


def usage_of(message: Any) -> Any:
    """The richest usage a message carries: the provider's own where the class kept it, else LangChain's."""
    if message is None:
        return None
    metadata = getattr(message, "response_metadata", None) or {}
    return metadata.get("token_usage") or metadata.get("usage") or getattr(message, "usage_metadata", None)
