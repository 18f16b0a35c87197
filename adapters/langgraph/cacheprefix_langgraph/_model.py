"""``wrap_model``: the application's chat model, whose requests become forks of the shared prefix.

The copy's class is a generated subclass, so ``isinstance`` checks, ``bind_tools``, structured output and
everything else the class offers stay as they are. Messages are rewritten where the application calls the
model (so that traces show, and LangChain's response cache keys, what is really sent); the finished body
is marked where the class builds it.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import agenerate_from_stream, generate_from_stream
from langchain_core.messages import BaseMessage
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.runnables.config import ensure_config

from cacheprefix import Session
from cacheprefix.errors import SetupError
from cacheprefix.prefix import FOLLOW, Pass
from cacheprefix.prompt import Api, Prompt, loads
from cacheprefix.session import Boundary, unmodified
from cacheprefix_langgraph._frame import FRAME, Frame, Rewritten, thread_of
from cacheprefix_langgraph._rewrite import boundary, rewrite
from cacheprefix_langgraph._tools import allowed_choice, name_of, render
from cacheprefix_langgraph._views import Views

if TYPE_CHECKING:
    from langchain_core.outputs import ChatGenerationChunk, ChatResult

    from cacheprefix.session import Turn

M = TypeVar("M", bound=BaseChatModel)

_TRANSPORT = ("stream", "stream_options")
"""Body fields that say how the answer comes; they belong to no prompt."""

SESSION = "__cacheprefix_session__"
VIEWS = "__cacheprefix_views__"


@dataclass(slots=True)
class Sending:
    """One request between the rewrite and its answer."""

    frame: Frame | None
    rewritten: Rewritten | None
    tools: Sequence[Any] | None
    """The tools as the application had bound them."""
    conversation: str
    turn: Turn | None = None
    payload: dict[str, Any] | None = None
    """The finished body, where it was made before the class asks for it."""


_SENDING: ContextVar[Sending | None] = ContextVar("cacheprefix_langgraph_sending", default=None)


def wrap_model(model: M, session: Session | None = None) -> M:
    """A copy of ``model`` whose calls inside a fork extend the session's shared prefix.

    Outside a fork, and in ``observe`` mode, requests are byte-identical to those of ``model``. Wrapping a
    wrapped model with the same session gives it back; with another session the new one takes over.
    Raises ``SetupError`` for anything that is not a LangChain chat model.
    """
    if not isinstance(model, BaseChatModel):
        message = (
            f"wrap_model takes a LangChain chat model, found {type(model).__name__}; "
            "wrap the model first, then bind tools or add retries to the result"
        )
        raise SetupError(message)
    session = session or Session()
    session.adopt_tools((), render)
    known = getattr(model, SESSION, None)
    if known is session:
        return model
    base = type(model).__mro__[1] if known is not None else type(model)
    copy = model.model_copy()
    object.__setattr__(copy, "__class__", _subclass(base))
    copy.__dict__[SESSION] = session
    copy.__dict__[VIEWS] = Views()
    if session.mode == "fork" and getattr(copy, "stream_usage", False) is None:
        copy.stream_usage = True  # type: ignore[attr-defined]
    return copy


def session_of(model: Any) -> Session | None:
    """The session a model was wrapped with, looking through bindings; None when it was not."""
    while model is not None:
        found = getattr(model, "__dict__", {}).get(SESSION)
        if isinstance(found, Session):
            return found
        model = getattr(model, "bound", None)
    return None


def api_of(payload: Mapping[str, Any], model: BaseChatModel) -> Api:
    """The wire form of a payload that a chat model class built."""
    if "anthropic" in model._llm_type:
        return "anthropic"
    return "openai-responses" if "input" in payload else "openai-chat"


@functools.lru_cache(maxsize=64)
def _subclass(base: type[BaseChatModel]) -> type[BaseChatModel]:
    class Forked(base):  # type: ignore[valid-type,misc]
        def invoke(self, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            given, kwargs, token = _enter(self, input, config, kwargs)
            try:
                return base.invoke(self, given, config, stop=stop, **kwargs)
            finally:
                _SENDING.reset(token)

        async def ainvoke(self, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            given, kwargs, token = _enter(self, input, config, kwargs)
            try:
                return await base.ainvoke(self, given, config, stop=stop, **kwargs)
            finally:
                _SENDING.reset(token)

        # Not generators themselves: the fork is the one in force when the application asks for the stream.
        def stream(self, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            given, kwargs, token = _enter(self, input, config, kwargs)
            sending = _SENDING.get()
            _SENDING.reset(token)
            return _within(sending, base.stream(self, given, config, stop=stop, **kwargs))

        def astream(self, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            given, kwargs, token = _enter(self, input, config, kwargs)
            sending = _SENDING.get()
            _SENDING.reset(token)
            return _awithin(sending, base.astream(self, given, config, stop=stop, **kwargs))

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            session = self.__dict__[SESSION]
            if session.mode == "fork":
                session.attempt("bind_tools", lambda: session.adopt_tools(tools, render), None)
            return base.bind_tools(self, tools, **kwargs)

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
            sending, token = _sending()
            try:
                if _prepared(self, base, sending, messages, stop, kwargs):
                    # Others wait for this one's first token, so it is streamed and put together again.
                    return generate_from_stream(self._stream(messages, stop, run_manager, **kwargs))
                result = base._generate(self, messages, stop, run_manager, **kwargs)
            except BaseException:
                _fail(sending)
                raise
            finally:
                _reset(token)
            _finish(sending, result)
            return result

        async def _agenerate(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
        ) -> ChatResult:
            sending, token = _sending()
            try:
                if await _aprepared(self, base, sending, messages, stop, kwargs):
                    return await agenerate_from_stream(self._astream(messages, stop, run_manager, **kwargs))
                result = await base._agenerate(self, messages, stop, run_manager, **kwargs)
            except BaseException:
                _fail(sending)
                raise
            finally:
                _reset(token)
            _finish(sending, result)
            return result

        def _stream(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
        ) -> Iterator[ChatGenerationChunk]:
            sending, token = _sending()
            try:
                _prepared(self, base, sending, messages, stop, kwargs)
            finally:
                _reset(token)
            return _watch(sending, base._stream(self, messages, stop, run_manager, **kwargs))

        async def _astream(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
        ) -> AsyncIterator[ChatGenerationChunk]:
            sending, token = _sending()
            _reset(token)
            await _aprepared(self, base, sending, messages, stop, kwargs)
            async for chunk in _awatch(sending, base._astream(self, messages, stop, run_manager, **kwargs)):
                yield chunk

        def _get_request_payload(self, input_: Any, *, stop: Any = None, **kwargs: Any) -> dict[str, Any]:
            payload: dict[str, Any] = base._get_request_payload(self, input_, stop=stop, **kwargs)  # type: ignore[attr-defined]
            sending = _SENDING.get()
            if sending is None:
                return payload
            if sending.payload is not None:
                # Made before, when siblings may have had to wait; how the answer comes is the class's own business.
                made, sending.payload = sending.payload, None
                return {**made, **{name: payload[name] for name in _TRANSPORT if name in payload}}
            if sending.turn is not None:
                return payload
            return _begin(self, base, payload, sending, FOLLOW)

    for name in ("_stream", "_astream", "_generate", "_agenerate", "_get_request_payload"):
        if not _defines(base, name):
            delattr(Forked, name)
    Forked.__name__, Forked.__qualname__, Forked.__module__ = (
        base.__name__,
        base.__qualname__,
        base.__module__,
    )
    return Forked


def _defines(base: type, name: str) -> bool:
    return any(name in c.__dict__ for c in base.__mro__ if c is not BaseChatModel and issubclass(c, BaseChatModel))


def _enter(model: Any, given: Any, config: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any], Any]:
    """Rewrite what the application passes in; on any failure of ours, pass it on as it came."""
    session: Session = model.__dict__[SESSION]
    frame = FRAME.get()
    if frame is not None and not session.related(frame.session):
        frame = None
    settled = ensure_config(config)
    sending = Sending(frame, None, kwargs.get("tools"), frame.conversation if frame else thread_of(settled))
    token = _SENDING.set(sending)
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
    if not union or "response_format" in kwargs:
        return kwargs, frame.allowed
    bound = [name_of(tool) for tool in kwargs.get("tools") or []]
    names = set(session.prefix.tool_names)
    natives = [tool.native if tool.native is not None else _plain(tool.schema) for tool in union]
    formatted = list(type(model).__mro__[1].bind_tools(model, natives).kwargs["tools"])
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


def _plain(schema: bytes) -> dict[str, Any]:
    return {"type": "function", "function": loads(schema)}


def _model_name(model: Any) -> str:
    return str(getattr(model, "model_name", None) or getattr(model, "model", "") or "")


def _worth(model: Any, done: Rewritten, frame: Frame) -> bool:
    """Whether the shared part is long enough to be cached; a conversation that once was, stays so."""
    session = frame.session
    name = _model_name(model)

    def tokens() -> int:
        end = len(done.messages) - done.own - (1 if done.tail and not frame.pinned else 0)
        shared = sum(session.count(message.text, name) for message in done.messages[:end])
        return shared + sum(session.count(tool.schema.decode(), name) for tool in session.prefix.tools)

    return session.shares(frame.conversation, name, tokens)


def _prepared(
    model: Any, base: type[BaseChatModel], sending: Sending, messages: Any, stop: Any, kwargs: dict[str, Any]
) -> bool:
    """Make the body of a fork, after waiting for a sibling that writes its prefix; whether others now wait for it."""
    waiting = _waiting(model, base, sending, messages, stop, kwargs)
    if waiting is None:
        return False
    payload, api, limit = waiting
    leave = _session(model, sending).queue(payload, api, boundary=limit)
    leads = leave.leader
    sending.payload = _begin(model, base, payload, sending, leave)
    return leads


async def _aprepared(
    model: Any, base: type[BaseChatModel], sending: Sending, messages: Any, stop: Any, kwargs: dict[str, Any]
) -> bool:
    """``_prepared`` without blocking the event loop."""
    waiting = _waiting(model, base, sending, messages, stop, kwargs)
    if waiting is None:
        return False
    payload, api, limit = waiting
    leave = await _session(model, sending).aqueue(payload, api, boundary=limit)
    leads = leave.leader
    sending.payload = _begin(model, base, payload, sending, leave)
    return leads


def _waiting(
    model: Any, base: type[BaseChatModel], sending: Sending, messages: Any, stop: Any, kwargs: dict[str, Any]
) -> tuple[dict[str, Any], Api, Boundary] | None:
    """Body, API and boundary of a fork that has not begun yet."""
    done = sending.rewritten
    if done is None or sending.turn is not None or not hasattr(base, "_get_request_payload"):
        return None
    payload: dict[str, Any] = base._get_request_payload(model, messages, stop=stop, **kwargs)
    return payload, api_of(payload, model), _boundary(model, base, payload, sending)


def _session(model: Any, sending: Sending) -> Session:
    frame = sending.frame
    session: Session = frame.session if frame is not None else model.__dict__[SESSION]
    return session


def _boundary(model: Any, base: type[BaseChatModel], payload: dict[str, Any], sending: Sending) -> Boundary:
    done = sending.rewritten
    if done is None:
        return None
    session, api = _session(model, sending), api_of(payload, model)

    def own_sections(messages: list[BaseMessage]) -> int:
        body = base._get_request_payload(model, messages)  # type: ignore[attr-defined]
        return len(session.decode({"messages": [], **body, "tools": []}, api).tier("messages"))

    return boundary(done, own_sections)


def _begin(
    model: Any, base: type[BaseChatModel], payload: dict[str, Any], sending: Sending, leave: Pass
) -> dict[str, Any]:
    session = _session(model, sending)
    frame, done = sending.frame, sending.rewritten
    api = api_of(payload, model)

    def original(prompt: Prompt) -> Prompt | None:
        if done is None:
            return None
        return unmodified(
            prompt,
            system=done.system,
            tools=sending.tools,
            tail=done.tail,
            count=session.count,
            restored=done.restored,
        )

    sending.turn = session.begin(
        payload,
        api,
        agent=frame.role if frame else "",
        conversation=sending.conversation,
        boundary=_boundary(model, base, payload, sending),
        original=original if done is not None else None,
        rewrite=done is not None,
        policy=frame.policy if frame else None,
        leave=leave,
    )
    body = sending.turn.body
    return body if isinstance(body, dict) else dict(body)


def _sending() -> tuple[Sending, Any]:
    """The request under way; a fresh one where the class was called without ``invoke`` (its own batch, an agent)."""
    sending = _SENDING.get()
    if sending is None or (sending.turn is not None and sending.payload is None):
        frame = FRAME.get()
        sending = Sending(frame, None, None, frame.conversation if frame else "")
    return sending, _SENDING.set(sending)


def _reset(token: Any) -> None:
    _SENDING.reset(token)


def _fail(sending: Sending) -> None:
    if sending.turn is not None:
        sending.turn.fail()


def _finish(sending: Sending, result: ChatResult) -> None:
    turn = sending.turn
    if turn is None:
        return
    message = result.generations[0].message if result.generations else None
    turn.finish(usage_of(message))


def usage_of(message: Any) -> Any:
    """The richest usage a message carries: the provider's own where the class kept it, else LangChain's."""
    if message is None:
        return None
    metadata = getattr(message, "response_metadata", None) or {}
    return metadata.get("token_usage") or metadata.get("usage") or getattr(message, "usage_metadata", None)


def _within(sending: Sending | None, chunks: Iterator[Any]) -> Iterator[Any]:
    """Iterate with the request in force only while the wrapped code runs."""
    while True:
        token = _SENDING.set(sending)
        try:
            chunk = next(chunks)
        except StopIteration:
            return
        finally:
            _SENDING.reset(token)
        yield chunk


async def _awithin(sending: Sending | None, chunks: AsyncIterator[Any]) -> AsyncIterator[Any]:
    while True:
        token = _SENDING.set(sending)
        try:
            chunk = await chunks.__anext__()
        except StopAsyncIteration:
            return
        finally:
            _SENDING.reset(token)
        yield chunk


def _watch(sending: Sending, chunks: Iterator[ChatGenerationChunk]) -> Iterator[ChatGenerationChunk]:
    """Pass a stream on; note its first chunk and add up its usage."""
    usage: UsageMetadata | None = None
    try:
        for chunk in _within(sending, chunks):
            if sending.turn is not None:
                sending.turn.first_token()
            usage = _added(usage, chunk)
            yield chunk
    except GeneratorExit:
        _close(sending, usage)
        raise
    except BaseException:
        _fail(sending)
        raise
    _close(sending, usage)


async def _awatch(sending: Sending, chunks: AsyncIterator[ChatGenerationChunk]) -> AsyncIterator[ChatGenerationChunk]:
    usage: UsageMetadata | None = None
    try:
        async for chunk in _awithin(sending, chunks):
            if sending.turn is not None:
                sending.turn.first_token()
            usage = _added(usage, chunk)
            yield chunk
    except GeneratorExit:
        _close(sending, usage)
        raise
    except BaseException:
        _fail(sending)
        raise
    _close(sending, usage)


def _added(usage: UsageMetadata | None, chunk: ChatGenerationChunk) -> UsageMetadata | None:
    found = getattr(chunk.message, "usage_metadata", None)
    if not found:
        return usage
    return found if usage is None else add_usage(usage, found)


def _close(sending: Sending, usage: UsageMetadata | None) -> None:
    if sending.turn is not None:
        sending.turn.finish(usage)
