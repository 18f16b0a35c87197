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

from cacheprefix import Session
from cacheprefix.errors import SetupError
from cacheprefix.prefix import FOLLOW
from cacheprefix_langgraph._enter import enter
from cacheprefix_langgraph._sending import (
    ROLE,
    SENDING,
    SESSION,
    TRANSPORT,
    VIEWS,
    aprepared,
    begin,
    current,
    fail,
    finish,
    prepared,
)
from cacheprefix_langgraph._stream import awatch, awithin, watch, within
from cacheprefix_langgraph._tools import render
from cacheprefix_langgraph._views import Views

if TYPE_CHECKING:
    from langchain_core.outputs import ChatGenerationChunk, ChatResult

M = TypeVar("M", bound=BaseChatModel)


def wrap_model(model: M, session: Session | None = None, *, role: str | None = None, instruction: str = "") -> M:
    """A copy of ``model`` whose calls inside a fork extend the session's shared prefix.

    Outside a fork, and in ``observe`` mode, requests are byte-identical to those of ``model``. Wrapping a
    wrapped model with the same session gives it back; with another session the new one takes over.

    With ``role`` every call of the copy is that role's fork, wherever it is made: for prebuilt graphs that call
    the model in nodes of their own, such as ``create_supervisor(..., model=wrap_model(llm, session, role=...))``.
    Raises ``SetupError`` for anything that is not a LangChain chat model.
    """
    given: object = model
    if not isinstance(given, BaseChatModel):
        message = (
            f"wrap_model takes a LangChain chat model, found {type(given).__name__}; "
            "wrap the model first, then bind tools or add retries to the result"
        )
        raise SetupError(message)
    session = session or Session()
    session.adopt_tools((), render)
    known = getattr(model, SESSION, None)
    if known is session and role is None:
        return model
    base = type(model).__mro__[1] if known is not None else type(model)
    copy = model.model_copy()
    object.__setattr__(copy, "__class__", _subclass(base))
    copy.__dict__[SESSION] = session
    copy.__dict__[VIEWS] = Views()
    if role is not None:
        copy.__dict__[ROLE] = (role, instruction)
        session.join(role)
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
    class Forked(base):  # type: ignore[valid-type,misc]
        def invoke(self, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            given, kwargs, token = enter(self, input, config, kwargs)
            try:
                return base.invoke(self, given, config, stop=stop, **kwargs)
            finally:
                SENDING.reset(token)

        async def ainvoke(self, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            given, kwargs, token = enter(self, input, config, kwargs)
            try:
                return await base.ainvoke(self, given, config, stop=stop, **kwargs)
            finally:
                SENDING.reset(token)

        # Not generators themselves: the fork is the one in force when the application asks for the stream.
        def stream(self, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            given, kwargs, token = enter(self, input, config, kwargs)
            sending = SENDING.get()
            SENDING.reset(token)
            return within(sending, base.stream(self, given, config, stop=stop, **kwargs))

        def astream(self, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            given, kwargs, token = enter(self, input, config, kwargs)
            sending = SENDING.get()
            SENDING.reset(token)
            return awithin(sending, base.astream(self, given, config, stop=stop, **kwargs))

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            session = self.__dict__[SESSION]
            if session.mode == "fork":
                session.attempt("bind_tools", lambda: session.adopt_tools(tools, render), None)
            return base.bind_tools(self, tools, **kwargs)

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
            sending, token = current()
            try:
                if prepared(self, base, sending, messages, stop, kwargs):
                    # Others wait for this one's first token, so it is streamed and put together again.
                    return generate_from_stream(self._stream(messages, stop, run_manager, **kwargs))
                result = base._generate(self, messages, stop, run_manager, **kwargs)
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
            sending, token = current()
            try:
                if await aprepared(self, base, sending, messages, stop, kwargs):
                    return await agenerate_from_stream(self._astream(messages, stop, run_manager, **kwargs))
                result = await base._agenerate(self, messages, stop, run_manager, **kwargs)
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
            sending, token = current()
            try:
                prepared(self, base, sending, messages, stop, kwargs)
            finally:
                SENDING.reset(token)
            return watch(sending, base._stream(self, messages, stop, run_manager, **kwargs))

        async def _astream(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
        ) -> AsyncIterator[ChatGenerationChunk]:
            sending, token = current()
            SENDING.reset(token)
            await aprepared(self, base, sending, messages, stop, kwargs)
            async for chunk in awatch(sending, base._astream(self, messages, stop, run_manager, **kwargs)):
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
            return begin(self, base, payload, sending, FOLLOW)

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
