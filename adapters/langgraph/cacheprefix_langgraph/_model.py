"""``wrap_model``: the application's chat model, whose requests become forks of the shared prefix.

The copy's class is a generated subclass, so ``isinstance`` checks, ``bind_tools``, structured output and
everything else the class offers stay as they are. Messages are rewritten where the application calls the
model (so that traces show, and LangChain's response cache keys, what is really sent); the finished body
is marked where the class builds it.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import agenerate_from_stream, generate_from_stream
from langchain_core.runnables import Runnable

from cacheprefix import Session
from cacheprefix.config import given_or_configured
from cacheprefix.errors import SetupError
from cacheprefix.prefix import FOLLOW
from cacheprefix_langgraph._bodies import BASE, TRANSPORT, Body, api_of, base_of
from cacheprefix_langgraph._choice import first_call_only
from cacheprefix_langgraph._configured import configured
from cacheprefix_langgraph._enter import ahead, enter, waiting
from cacheprefix_langgraph._prewarm import PREWARM
from cacheprefix_langgraph._sending import (
    HELD,
    ROLE,
    SENDING,
    SESSION,
    VIEWS,
    aprepared,
    begin,
    current,
    fail,
    finish,
    prepared,
    undone,
)
from cacheprefix_langgraph._stream import again, awatch, awithin, behind, watch, within
from cacheprefix_langgraph._tools import adopt, render
from cacheprefix_langgraph._views import Views

if TYPE_CHECKING:
    from langchain_core.outputs import ChatGenerationChunk, ChatResult

M = TypeVar("M", bound=Runnable[Any, Any])

_ENTRIES = (SESSION, ROLE, PREWARM)
_EVENTS = "v3"
"""The version of LangChain's events whose streams a model makes itself; the others come by ``astream``."""


def wrap_model(
    model: M, session: Session | None = None, *, role: str | None = None, instruction: str = "", prewarm: bool = False
) -> M:
    """A copy of ``model`` whose calls inside a fork extend the session's shared prefix.

    Outside a fork, and in ``observe`` mode, requests are byte-identical to those of ``model``. Wrapping a
    wrapped model with the same session gives it back; with another session the new one takes over. Wrap the model
    itself, then bind tools or add retries; with fallbacks, wrap each one. What ``init_chat_model`` leaves to be
    configured is wrapped as it is. A class that does not show its request bodies shares messages only.

    With ``role`` every call of the copy is that role's fork, wherever it is made: for prebuilt graphs that call
    the model in nodes of their own, such as ``create_supervisor(..., model=wrap_model(llm, session, role=...))``.
    With ``prewarm`` the first of several parallel siblings writes the shared part with a request for no answer
    (Anthropic only), and all of them read it.
    Raises ``SetupError`` for anything that is not a LangChain chat model.
    """
    given: object = model
    session = given_or_configured(session)
    session.adopt_tools((), render)
    entries = {SESSION: session, **({PREWARM: True} if prewarm else {})}
    if role is not None:
        entries[ROLE] = (role, instruction)
    if not isinstance(given, BaseChatModel):
        wrapped = configured(given, lambda made: _copy(made, session, entries))
        if wrapped is None:
            message = (
                f"wrap_model takes a LangChain chat model, found {type(given).__name__}; "
                "wrap the model first, then bind tools or add retries to the result"
            )
            raise SetupError(message)
        made: Any = wrapped
    elif session_of(model) is session and role is None and not prewarm:
        return model
    else:
        made = _copy(given, session, entries)
    if role is not None:
        session.join(role)
    return made  # type: ignore[no-any-return]


def _copy(model: BaseChatModel, session: Session, entries: dict[str, Any]) -> BaseChatModel:
    base = base_of(model) if session_of(model) is not None else type(model)
    copy = model.model_copy()
    object.__setattr__(copy, "__class__", _subclass(base))
    return _marked(copy, session, entries)


def _marked(copy: BaseChatModel, session: Session, entries: dict[str, Any]) -> BaseChatModel:
    copy.__dict__.update(entries)
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


@functools.lru_cache(maxsize=64)
def _subclass(base: type[BaseChatModel]) -> type[BaseChatModel]:
    streams, later_streams = _defines(base, "_stream"), _defines(base, "_astream")

    class Forked(base):  # type: ignore[valid-type,misc]
        def invoke(self, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            given, config, kwargs, token = enter(self, input, config, kwargs, whole=True)
            sending = SENDING.get()
            try:
                answer = base.invoke(self, given, config, stop=stop, **kwargs)
            finally:
                SENDING.reset(token)
            return first_call_only(answer) if sending is not None and sending.single else answer

        async def ainvoke(self, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            waited = waiting(self, config)
            await ahead(self, input, kwargs, waited, whole=True)
            given, config, kwargs, token = enter(self, input, config, kwargs, whole=True, waited=waited)
            sending = SENDING.get()
            try:
                answer = await base.ainvoke(self, given, config, stop=stop, **kwargs)
            finally:
                SENDING.reset(token)
            return first_call_only(answer) if sending is not None and sending.single else answer

        # Not generators themselves: the fork is the one in force when the application asks for the stream.
        def stream(self, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            given, config, kwargs, token = enter(self, input, config, kwargs)
            sending = SENDING.get()
            SENDING.reset(token)
            return within(sending, base.stream(self, given, config, stop=stop, **kwargs))

        def astream(self, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            waited = waiting(self, config)

            def begun() -> AsyncIterator[Any]:
                given, ours, options, token = enter(self, input, config, kwargs, waited=waited)
                sending = SENDING.get()
                SENDING.reset(token)
                return awithin(sending, base.astream(self, given, ours, stop=stop, **options))

            return begun() if waited is None else behind(lambda: ahead(self, input, kwargs, waited), begun)

        def stream_events(self, input: Any, config: Any = None, *, version: Any = "v2", **kwargs: Any) -> Any:  # noqa: A002
            if version != _EVENTS:
                return base.stream_events(self, input, config, version=version, **kwargs)
            given, config, kwargs, token = enter(self, input, config, kwargs)
            held = _holding(self, token)
            return base.stream_events(held, given, config, version=version, **kwargs)

        def astream_events(self, input: Any, config: Any = None, *, version: Any = "v2", **kwargs: Any) -> Any:  # noqa: A002
            if version != _EVENTS:
                return base.astream_events(self, input, config, version=version, **kwargs)
            waited = waiting(self, config)

            async def begun() -> Any:
                await ahead(self, input, kwargs, waited)
                given, ours, options, token = enter(self, input, config, kwargs, waited=waited)
                held = _holding(self, token)
                return await base.astream_events(held, given, ours, version=version, **options)

            return begun()

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            session = self.__dict__[SESSION]
            if session.mode == "fork":
                session.attempt("bind_tools", lambda: adopt(session, tools), None)
            return base.bind_tools(self, tools, **kwargs)

        def configurable_fields(self, **kwargs: Any) -> Any:
            # A configured model is made anew from its class and fields, so the class has to know the session.
            return base.configurable_fields(_remade(self), **kwargs)

        def configurable_alternatives(self, which: Any, **kwargs: Any) -> Any:
            session = self.__dict__[SESSION]
            entries = {name: self.__dict__[name] for name in _ENTRIES if name in self.__dict__}
            for name, other in kwargs.items():
                if isinstance(other, BaseChatModel):
                    kwargs[name] = _copy(other, session, entries)
            return base.configurable_alternatives(self, which, **kwargs)

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
            sending, token = current(self)
            try:
                ready = prepared(self, base, sending, messages, stop, kwargs)
                if ready.streams and streams:
                    # Others wait for this one's first token, so it is streamed and put together again.
                    try:
                        return generate_from_stream(self._stream(messages, stop, run_manager, **kwargs))
                    except Exception as error:
                        if not again(sending, error):
                            raise
                result = base._generate(self, ready.messages, stop, run_manager, **ready.kwargs)
            except BaseException:
                fail(sending)
                raise
            finally:
                SENDING.reset(token)
            finish(sending, result)
            return result

        async def _agenerate(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
        ) -> ChatResult:
            sending, token = current(self)
            try:
                ready = await aprepared(self, base, sending, messages, stop, kwargs)
                if ready.streams and (streams or later_streams):
                    try:
                        return await agenerate_from_stream(self._astream(messages, stop, run_manager, **kwargs))
                    except Exception as error:
                        if not again(sending, error):
                            raise
                result = await base._agenerate(self, ready.messages, stop, run_manager, **ready.kwargs)
            except BaseException:
                fail(sending)
                raise
            finally:
                SENDING.reset(token)
            finish(sending, result)
            return result

        def _stream(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
        ) -> Iterator[ChatGenerationChunk]:
            sending, token = current(self)
            try:
                ready = prepared(self, base, sending, messages, stop, kwargs)
            finally:
                SENDING.reset(token)
            return watch(sending, base._stream(self, ready.messages, stop, run_manager, **ready.kwargs))

        async def _astream(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
        ) -> AsyncIterator[ChatGenerationChunk]:
            sending, token = current(self)
            SENDING.reset(token)
            ready = await aprepared(self, base, sending, messages, stop, kwargs)
            async for chunk in awatch(
                sending, base._astream(self, ready.messages, stop, run_manager, **ready.kwargs)
            ):
                yield chunk

        def _get_request_payload(self, input_: Any, *, stop: Any = None, **kwargs: Any) -> dict[str, Any]:
            sending = SENDING.get()
            if sending is not None and sending.payload is not None:
                # Made before, when siblings may have had to wait; how the answer comes is the class's own business.
                made, sending.payload = sending.payload, None
                return {**made, **{name: kwargs[name] for name in TRANSPORT if name in kwargs}}
            payload: dict[str, Any] = base._get_request_payload(self, input_, stop=stop, **kwargs)  # type: ignore[attr-defined]
            if sending is None or sending.turn is not None:
                return payload
            payload = begin(self, base, Body(payload, api_of(payload, self), own=True), sending, FOLLOW)
            own = undone(sending, input_, kwargs)
            if own is not None:
                payload = base._get_request_payload(self, own.messages, stop=stop, **own.kwargs)  # type: ignore[attr-defined]
            return payload

    setattr(Forked, BASE, base)
    for name in ("_stream", "_astream", "_generate", "_agenerate", "_get_request_payload"):
        if not _defines(base, name):
            delattr(Forked, name)
    if "stream_events" not in BaseChatModel.__dict__:
        # LangChain before version 1.4 has no events of its own for models.
        del Forked.stream_events, Forked.astream_events
    Forked.__name__, Forked.__qualname__, Forked.__module__ = (
        base.__name__,
        base.__qualname__,
        base.__module__,
    )
    return Forked


def _holding(model: Any, token: Any) -> Any:
    """A copy of the model for one request, which knows it in whatever task its stream is read."""
    copy = model.model_copy()
    copy.__dict__[HELD] = SENDING.get()
    SENDING.reset(token)
    return copy


def _remade(model: Any) -> Any:
    """The model with a class of its own, whose new instances belong to the same session."""
    session = session_of(model)
    entries = {name: model.__dict__[name] for name in _ENTRIES if name in model.__dict__}
    kind = type(model)

    class Configured(kind):  # type: ignore[valid-type,misc]
        def __init__(self, **data: Any) -> None:
            super().__init__(**data)
            _marked(self, session, entries)  # type: ignore[arg-type]

    Configured.__name__, Configured.__qualname__, Configured.__module__ = (
        kind.__name__,
        kind.__qualname__,
        kind.__module__,
    )
    copy = model.model_copy()
    object.__setattr__(copy, "__class__", Configured)
    return copy


def _defines(base: type, name: str) -> bool:
    return any(name in c.__dict__ for c in base.__mro__ if c is not BaseChatModel and issubclass(c, BaseChatModel))
