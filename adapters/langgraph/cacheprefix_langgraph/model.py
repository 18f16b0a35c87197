"""``wrap_model``: the application's chat model, whose requests become forks of the shared prefix.

The copy's class is a generated subclass, so ``isinstance`` checks, ``bind_tools``, structured output and
everything else the class offers stay as they are. Messages are rewritten where the application calls the
model (so that traces show, and LangChain's response cache keys, what is really sent); the finished body
is marked where the class builds it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableWithFallbacks

from cacheprefix import Session
from cacheprefix.adapter import (
    FOLLOW,
    AdapterSession,
    Flow,
    WaitingFor,
    adrive,
    drive,
    given_or_configured,
    users_session,
)
from cacheprefix.errors import SetupError, check_text
from cacheprefix_langgraph.calls import ahead, enter, waiting
from cacheprefix_langgraph.configured_models import configured, is_configured, known_to
from cacheprefix_langgraph.converse import Client, converse_of
from cacheprefix_langgraph.pending import SENDING, Sending, fail
from cacheprefix_langgraph.request_bodies import BASE, TRANSPORT, Body, api_of, base_of
from cacheprefix_langgraph.schemas import STRUCTURED, adopt_foreseen
from cacheprefix_langgraph.sending import (
    Prepared,
    begin,
    current,
    finish,
    finished,
    prepared,
    ready_made,
    session_in,
    undone,
    without_list,
)
from cacheprefix_langgraph.streams import again, awatch, awithin, began, behind, watch, whole, within
from cacheprefix_langgraph.tools import adopt, learn, made_with, render
from cacheprefix_langgraph.views import Views
from cacheprefix_langgraph.whole_answers import astreamed, streamed
from cacheprefix_langgraph.wrapping import Wrapping, stands_for, wrapped_with, wrapping, wrapping_of

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
    check_text("role", role, optional=True)
    check_text("instruction", instruction)
    given: object = model
    bound = given_or_configured(session)
    bound.adopt_tools((), render)
    known = Wrapping(bound, None if role is None else (role, instruction), prewarm)
    if not isinstance(given, BaseChatModel):
        if not is_configured(given):
            todo = "wrap the model first, then bind tools or add retries to the result"
            if isinstance(given, RunnableWithFallbacks):
                todo = "wrap each model: wrap_model(one, session).with_fallbacks([wrap_model(other, session)])"
            elif isinstance(given, str):
                todo = "make the model first: wrap_model(init_chat_model(name), session)"
            raise SetupError(f"wrap_model takes a LangChain chat model, found {type(given).__name__}; {todo}")
        made: Any = configured(given, known, lambda made: _copy(made, known))
    elif bound_of(model) is bound and role is None and not prewarm:
        return model
    else:
        made = _copy(given, known)
    if role is not None:
        bound.join(role)
        made_with(bound, "model", role, (), instruction)
    return made  # type: ignore[no-any-return]


def _copy(model: BaseChatModel, made: Wrapping) -> BaseChatModel:
    """A copy of a model, of a class that knows forks."""
    copy = model.model_copy()
    object.__setattr__(copy, "__class__", _subclass(_plain_class(model)))
    return _marked(copy, made)


def _plain_class(model: BaseChatModel) -> type[BaseChatModel]:
    """A model's class without us."""
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
    """The session a model was wrapped with, looking through bindings and fallbacks; None when it was not."""
    found = bound_of(model)
    return None if found is None else users_session(found)


def bound_of(model: Any) -> AdapterSession | None:
    """``session_of`` as adapters use a session."""
    while model is not None:
        found = wrapping_of(model) or known_to(model)
        if found is not None:
            return found.session
        model = stands_for(model)
    return None


@functools.lru_cache(maxsize=64)
def _subclass(base: type[BaseChatModel]) -> type[BaseChatModel]:
    """A model class of the application's that knows forks, and is ``base`` in all else.

    What the application calls (``invoke``, ``stream`` and their kin) lays the request out; what LangChain then calls
    (``_generate``, ``_stream``, ``_get_request_payload``, ``_create`` and theirs) begins it and sends it.
    """

    class Forked(base):  # type: ignore[valid-type,misc]
        # -------------------------------------------------------------- what the application calls

        def invoke(self, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            made = enter(self, input, config, kwargs, whole=True)
            with SENDING.within(made.sending):
                answer = base.invoke(self, made.given, made.config, stop=stop, **made.options)
            return made.wanted(answer)

        async def ainvoke(self, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            waited = waiting(self, input, config)
            await ahead(self, input, kwargs, waited, whole=True)
            made = enter(self, input, config, kwargs, whole=True, waited=waited)
            with SENDING.within(made.sending):
                answer = await base.ainvoke(self, made.given, made.config, stop=stop, **made.options)
            return made.wanted(answer)

        # Not generators themselves: the fork is the one in force when the application asks for the stream.
        def stream(self, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            made = enter(self, input, config, kwargs)
            return within(made.sending, base.stream(self, made.given, made.config, stop=stop, **made.options))

        def astream(self, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            waited = waiting(self, input, config)

            def begun() -> AsyncGenerator[Any, None]:
                made = enter(self, input, config, kwargs, waited=waited)
                return awithin(made.sending, base.astream(self, made.given, made.config, stop=stop, **made.options))

            return begun() if waited is None else behind(lambda: ahead(self, input, kwargs, waited), begun)

        def stream_events(self, input: Any, config: Any = None, *, version: Any = "v2", **kwargs: Any) -> Any:  # noqa: A002
            if version != _EVENTS:
                return base.stream_events(self, input, config, version=version, **kwargs)
            made = enter(self, input, config, kwargs)
            held = _holding(self, made.sending)
            return base.stream_events(held, made.given, made.config, version=version, **made.options)

        def astream_events(self, input: Any, config: Any = None, *, version: Any = "v2", **kwargs: Any) -> Any:  # noqa: A002
            if version != _EVENTS:
                return base.astream_events(self, input, config, version=version, **kwargs)
            waited = waiting(self, input, config)

            async def begun() -> Any:
                await ahead(self, input, kwargs, waited)
                made = enter(self, input, config, kwargs, waited=waited)
                held = _holding(self, made.sending)
                return await base.astream_events(held, made.given, made.config, version=version, **made.options)

            return begun()

        # -------------------------------------------------------------- what makes other models of this one

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

        # -------------------------------------------------------------- what LangChain calls

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
            sending = current(self)
            with _asking(self, sending):
                ready = drive(_streamed_or_ready(self, sending, messages, stop, kwargs, later=False))
                if isinstance(ready, Prepared):
                    try:
                        result = base._generate(self, ready.messages, stop, run_manager, **ready.kwargs)
                    except Exception:
                        own = without_list(self, sending)
                        if own is None:
                            raise
                        result = base._generate(self, own.messages, stop, run_manager, **own.kwargs)
                else:
                    result = ready
            finish(sending, result)
            return result

        async def _agenerate(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
        ) -> ChatResult:
            sending = current(self)
            with _asking(self, sending):
                ready = await adrive(_streamed_or_ready(self, sending, messages, stop, kwargs, later=True))
                if isinstance(ready, Prepared):
                    try:
                        result = await base._agenerate(self, ready.messages, stop, run_manager, **ready.kwargs)
                    except Exception:
                        own = without_list(self, sending)
                        if own is None:
                            raise
                        result = await base._agenerate(self, own.messages, stop, run_manager, **own.kwargs)
                else:
                    result = ready
            finish(sending, result)
            return result

        def _stream(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
        ) -> Iterator[ChatGenerationChunk]:
            sending = current(self)
            sending.streamed = True
            ready = drive(prepared(self, sending, messages, stop, kwargs, later=False))

            def ask(made: Prepared) -> Iterator[ChatGenerationChunk]:
                return base._stream(self, made.messages, stop, run_manager, **made.kwargs)

            return watch(self, sending, ask, ready)

        async def _astream(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
        ) -> AsyncIterator[ChatGenerationChunk]:
            sending = current(self)
            sending.streamed = True
            ready = await adrive(prepared(self, sending, messages, stop, kwargs, later=True))

            def ask(made: Prepared) -> AsyncIterator[ChatGenerationChunk]:
                return base._astream(self, made.messages, stop, run_manager, **made.kwargs)

            async with aclosing(awatch(self, sending, ask, ready)) as chunks:
                async for chunk in chunks:
                    yield chunk

        def _get_request_payload(self, input_: Any, *, stop: Any = None, **kwargs: Any) -> dict[str, Any]:
            sending = SENDING.get()
            made = None if sending is None else ready_made(sending, input_, stop, kwargs)
            if sending is not None and made is not None:
                # Made before, when siblings may have had to wait; how the answer comes is the class's own business.
                return _as_asked({**made, **{name: kwargs[name] for name in TRANSPORT if name in kwargs}}, sending)
            payload: dict[str, Any] = base._get_request_payload(self, input_, stop=stop, **kwargs)  # type: ignore[attr-defined]
            if sending is None or sending.pending is not None:
                return payload
            payload = begin(self, Body(payload, api_of(payload, self), own=True), sending, FOLLOW)
            own = undone(sending, input_, kwargs)
            if own is not None:
                payload = base._get_request_payload(self, own.messages, stop=stop, **own.kwargs)  # type: ignore[attr-defined]
            return payload if sending.rewritten is None else _as_asked(payload, sending)

        def _create(self, payload: dict[str, Any]) -> Any:
            return base._create(self, _as_sent(payload))  # type: ignore[attr-defined]

        async def _acreate(self, payload: dict[str, Any]) -> Any:
            return await base._acreate(self, _as_sent(payload))  # type: ignore[attr-defined]

    _fit(Forked, base)
    return Forked


def _fit(kind: Any, base: type[BaseChatModel]) -> None:
    """Make a generated class look like the one it was made from, without methods that this one lacks."""
    setattr(kind, BASE, base)
    for name in ("_stream", "_astream", "_generate", "_agenerate", "_get_request_payload", "_create", "_acreate"):
        if not _defines(base, name):
            delattr(kind, name)
    for name in vars(kind).keys() & vars(BaseChatModel).keys() | {"bind_tools"}:
        # Frameworks look at signatures: langgraph-supervisor at that of ``bind_tools``.
        if inspect.isfunction(vars(kind).get(name)):
            functools.update_wrapper(vars(kind)[name], getattr(base, name), updated=())
    if "stream_events" not in BaseChatModel.__dict__:
        # LangChain before version 1.4 has no events of its own for models.
        del kind.stream_events, kind.astream_events
    if converse_of(base) is not None:
        kind.client = Client(finished)
    _name_as(kind, base)


def _name_as(kind: Any, base: type) -> None:
    """Give a generated class the name and the module of another one."""
    kind.__name__, kind.__qualname__, kind.__module__ = base.__name__, base.__qualname__, base.__module__


@contextmanager
def _asking(model: Any, sending: Sending) -> Iterator[None]:
    """A block in which a request is in force; what is raised there ends it."""
    with SENDING.within(sending):
        try:
            yield
        except BaseException:
            if sending.refused:
                # The request was refused for itself, and not as a stream.
                wrapping(model).streams = True
            fail(sending)
            raise


def _streamed_or_ready(
    model: Any, sending: Sending, messages: Any, stop: Any, kwargs: dict[str, Any], *, later: bool
) -> Flow[ChatResult | Prepared]:
    """A whole answer, where others wait for its first token; else what the model's class is to ask with.

    Such an answer comes as a stream and is put together again. ``later`` is for callers in an event loop.
    """
    ready = yield from prepared(model, sending, messages, stop, kwargs, later=later)
    if not ready.streams:
        return ready
    try:
        receive: Any = astreamed if later else streamed
        result: ChatResult = yield WaitingFor(receive, model, *whole(model, sending), began(sending))
    except Exception as error:
        own = without_list(model, sending)
        if own is not None:
            return own
        if not again(model, sending, error):
            raise
        return (yield from prepared(model, sending, messages, stop, kwargs, later=later))
    return result


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
    """The body to send, where the class was shown another one (``_as_asked``); else the one given."""
    sending = SENDING.get()
    if sending is None or sending.body is None:
        return payload
    body, sending.body = sending.body, None
    return body


def _holding(model: Any, sending: Sending) -> Any:
    """A copy of the model for one request, which knows it in whatever task its stream is read."""
    return wrapped_with(model.model_copy(), replace(wrapping(model), held=sending))


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

    _name_as(Configured, kind)
    copy = model.model_copy()
    object.__setattr__(copy, "__class__", Configured)
    return copy


def _defines(base: type, name: str) -> bool:
    """Whether a model class, or one that it is made from, has a method of its own."""
    return any(name in c.__dict__ for c in base.__mro__ if c is not BaseChatModel and issubclass(c, BaseChatModel))
