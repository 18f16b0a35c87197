"""``wrap_model``: the application's chat model, whose requests become forks of the shared prefix.

The copy's class is a generated subclass, so ``isinstance`` checks, ``bind_tools``, structured output and
everything else the class offers stay as they are. Messages are rewritten where the application calls the
model (so that traces show, and LangChain's response cache keys, what is really sent); the finished body
is marked where the class builds it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable

from cacheprefix import Session
from cacheprefix.adapter import FOLLOW, AdapterSession, given_or_configured, users_session
from cacheprefix.errors import SetupError
from cacheprefix_langgraph.calls import ahead, enter, waiting
from cacheprefix_langgraph.configured_models import configured
from cacheprefix_langgraph.pending import SENDING, Sending, fail
from cacheprefix_langgraph.request_bodies import BASE, TRANSPORT, Body, api_of, base_of
from cacheprefix_langgraph.schemas import STRUCTURED, adopt_foreseen
from cacheprefix_langgraph.sending import (
    aprepared,
    begin,
    current,
    finish,
    prepared,
    session_in,
    undone,
)
from cacheprefix_langgraph.streams import again, awatch, awithin, began, behind, watch, whole, within
from cacheprefix_langgraph.tools import adopt, first_call_only, learn, render
from cacheprefix_langgraph.views import Views
from cacheprefix_langgraph.whole_answers import astreamed, streamed
from cacheprefix_langgraph.wrapping import Wrapping, wrapped_with, wrapping, wrapping_of

if TYPE_CHECKING:
    from langchain_core.outputs import ChatGenerationChunk, ChatResult

M = TypeVar("M", bound=Runnable[Any, Any])

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
    bound = given_or_configured(session)
    bound.adopt_tools((), render)
    known = Wrapping(bound, None if role is None else (role, instruction), prewarm)
    if not isinstance(given, BaseChatModel):
        wrapped = configured(given, lambda made: _copy(made, known))
        if wrapped is None:
            message = (
                f"wrap_model takes a LangChain chat model, found {type(given).__name__}; "
                "wrap the model first, then bind tools or add retries to the result"
            )
            raise SetupError(message)
        made: Any = wrapped
    elif bound_of(model) is bound and role is None and not prewarm:
        return model
    else:
        made = _copy(given, known)
    if role is not None:
        bound.join(role)
    return made  # type: ignore[no-any-return]


def _copy(model: BaseChatModel, made: Wrapping) -> BaseChatModel:
    copy = model.model_copy()
    object.__setattr__(copy, "__class__", _subclass(_plain_class(model)))
    return _marked(copy, made)


def _plain_class(model: BaseChatModel) -> type[BaseChatModel]:
    return base_of(model) if wrapping_of(model) is not None else type(model)


def _marked(copy: BaseChatModel, made: Wrapping) -> BaseChatModel:
    """The copy, which knows what ``made`` says, with a memory of messages of its own."""
    wrapped: BaseChatModel = wrapped_with(copy, replace(made, views=Views(), held=None))
    return wrapped


def shadow(model: BaseChatModel, session: AdapterSession) -> BaseChatModel:
    """A wrapped model that is ``model`` in all but its class: one set of fields, clients and whatever changes in them.

    For where the application goes on to hold the model itself, and has not asked for a copy.
    """
    kind = _subclass(_plain_class(model))
    made = kind.__new__(kind)
    for slot in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"):
        object.__setattr__(made, slot, getattr(model, slot))
    return _marked(made, Wrapping(session))


def session_of(model: Any) -> Session | None:
    """The session a model was wrapped with, looking through bindings; None when it was not."""
    found = bound_of(model)
    return None if found is None else users_session(found)


def bound_of(model: Any) -> AdapterSession | None:
    """``session_of`` as adapters use a session."""
    while model is not None:
        found = wrapping_of(model)
        if found is not None:
            return found.session
        model = getattr(model, "bound", None)
    return None


@functools.lru_cache(maxsize=64)
def _subclass(base: type[BaseChatModel]) -> type[BaseChatModel]:
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
            waited = waiting(self, input, config)
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
            waited = waiting(self, input, config)

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
            waited = waiting(self, input, config)

            async def begun() -> Any:
                await ahead(self, input, kwargs, waited)
                given, ours, options, token = enter(self, input, config, kwargs, waited=waited)
                held = _holding(self, token)
                return await base.astream_events(held, given, ours, version=version, **options)

            return begun()

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            session = session_in(self)
            if session.mode != "observe":
                if kwargs.get(STRUCTURED):
                    session.attempt("schemas", lambda: adopt_foreseen(session, self, calls=True), None)
                session.attempt("bind_tools", lambda: adopt(session, tools), None)
            bound = base.bind_tools(self, tools, **kwargs)
            learn(base, bound)
            return bound

        def configurable_fields(self, **kwargs: Any) -> Any:
            # A configured model is made anew from its class and fields, so the class has to know the session.
            return base.configurable_fields(_remade(self), **kwargs)

        def configurable_alternatives(self, which: Any, **kwargs: Any) -> Any:
            for name, other in kwargs.items():
                if isinstance(other, BaseChatModel):
                    kwargs[name] = _copy(other, wrapping(self))
            return base.configurable_alternatives(self, which, **kwargs)

        def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Any:
            # A copy belongs to the same session; a session is never copied.
            known = wrapping(self)
            return base.__deepcopy__(self, {**(memo or {}), id(known): known})

        def __reduce_ex__(self, protocol: Any) -> Any:
            # In another process there is no such session: what comes out there is the model as the class has it.
            return unpickled, (_unwrapped(self, base), kept(wrapping(self)))

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
            sending, token = current(self)
            try:
                ready = prepared(self, base, sending, messages, stop, kwargs)
                if ready.streams:
                    # Others wait for this one's first token, so it comes as a stream and is put together again.
                    try:
                        result = streamed(self, *whole(self, sending), began(sending))
                    except Exception as error:
                        if not again(self, sending, error):
                            raise
                        ready = prepared(self, base, sending, messages, stop, kwargs)
                    else:
                        finish(sending, result)
                        return result
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
                if ready.streams:
                    try:
                        result = await astreamed(self, *whole(self, sending), began(sending))
                    except Exception as error:
                        if not again(self, sending, error):
                            raise
                        ready = await aprepared(self, base, sending, messages, stop, kwargs)
                    else:
                        finish(sending, result)
                        return result
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
            sending.streamed = True
            try:
                ready = prepared(self, base, sending, messages, stop, kwargs)
            finally:
                SENDING.reset(token)
            return watch(sending, base._stream(self, ready.messages, stop, run_manager, **ready.kwargs))

        async def _astream(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
        ) -> AsyncIterator[ChatGenerationChunk]:
            sending, token = current(self)
            sending.streamed = True
            SENDING.reset(token)
            ready = await aprepared(self, base, sending, messages, stop, kwargs)
            async for chunk in awatch(sending, base._astream(self, ready.messages, stop, run_manager, **ready.kwargs)):
                yield chunk

        def _get_request_payload(self, input_: Any, *, stop: Any = None, **kwargs: Any) -> dict[str, Any]:
            sending = SENDING.get()
            if sending is not None and sending.payload is not None:
                # Made before, when siblings may have had to wait; how the answer comes is the class's own business.
                made, sending.payload = sending.payload, None
                return _as_asked({**made, **{name: kwargs[name] for name in TRANSPORT if name in kwargs}}, sending)
            payload: dict[str, Any] = base._get_request_payload(self, input_, stop=stop, **kwargs)  # type: ignore[attr-defined]
            if sending is None or sending.turn is not None:
                return payload
            payload = begin(self, base, Body(payload, api_of(payload, self), own=True), sending, FOLLOW)
            own = undone(sending, input_, kwargs)
            if own is not None:
                payload = base._get_request_payload(self, own.messages, stop=stop, **own.kwargs)  # type: ignore[attr-defined]
            return payload

        def _create(self, payload: dict[str, Any]) -> Any:
            return base._create(self, _as_sent(payload))  # type: ignore[attr-defined]

        async def _acreate(self, payload: dict[str, Any]) -> Any:
            return await base._acreate(self, _as_sent(payload))  # type: ignore[attr-defined]

    setattr(Forked, BASE, base)
    for name in ("_stream", "_astream", "_generate", "_agenerate", "_get_request_payload", "_create", "_acreate"):
        if not _defines(base, name):
            delattr(Forked, name)
    for name in vars(Forked).keys() & vars(BaseChatModel).keys() | {"bind_tools"}:
        # Frameworks look at signatures: langgraph-supervisor at that of ``bind_tools``.
        if inspect.isfunction(vars(Forked).get(name)):
            functools.update_wrapper(vars(Forked)[name], getattr(base, name), updated=())
    if "stream_events" not in BaseChatModel.__dict__:
        # LangChain before version 1.4 has no events of its own for models.
        del Forked.stream_events, Forked.astream_events
    Forked.__name__, Forked.__qualname__, Forked.__module__ = (
        base.__name__,
        base.__qualname__,
        base.__module__,
    )
    return Forked


def _as_asked(payload: dict[str, Any], sending: Sending) -> dict[str, Any]:
    """The body that the class is to read the answer by: without tools that only the union brought.

    LangChain's class for Anthropic gives a streamed text as text where its body has no tools, and as a list of blocks
    where it has some. What is sent waits in ``sending`` for the class's own function that sends.
    """
    if not (sending.streamed and payload.get("tools")) or sending.tools or "max_tokens" not in payload:
        return payload
    sending.body = payload
    return {name: value for name, value in payload.items() if name not in ("tools", "tool_choice")}


def _as_sent(payload: dict[str, Any]) -> dict[str, Any]:
    sending = SENDING.get()
    if sending is None or sending.body is None:
        return payload
    body, sending.body = sending.body, None
    return body


def _holding(model: Any, token: Any) -> Any:
    """A copy of the model for one request, which knows it in whatever task its stream is read."""
    copy = wrapped_with(model.model_copy(), replace(wrapping(model), held=SENDING.get()))
    SENDING.reset(token)
    return copy


def _unwrapped(model: Any, base: type[BaseChatModel]) -> BaseChatModel:
    """The model without us: the class's own, with the same fields."""
    copy = model.model_copy()
    object.__setattr__(copy, "__class__", base)
    plain: BaseChatModel = wrapped_with(copy, None)
    return plain


_KEPT: WeakValueDictionary[str, Wrapping] = WeakValueDictionary()
"""What pickled models of this process were wrapped with, as long as there is one."""


def kept(made: Wrapping) -> str:
    """A name under which ``unpickled`` finds it in this process."""
    name = next((name for name, one in _KEPT.items() if one is made), None) or token_hex(16)
    _KEPT[name] = made
    return name


def unpickled(model: BaseChatModel, name: str) -> BaseChatModel:
    """A model that was pickled: wrapped with the same session where that lives, else as it is."""
    made = _KEPT.get(name)
    if made is None:
        return model
    object.__setattr__(model, "__class__", _subclass(type(model)))
    wrapped: BaseChatModel = wrapped_with(model, made)
    return wrapped


def _remade(model: Any) -> Any:
    """The model with a class of its own, whose new instances belong to the same session."""
    made = wrapping(model)
    kind = type(model)

    class Configured(kind):  # type: ignore[valid-type,misc]
        def __init__(self, **data: Any) -> None:
            super().__init__(**data)
            _marked(self, made)

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
