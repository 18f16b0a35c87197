"""``wrap``: a copy of the application's client whose model requests are measured and, in a role, become forks.

Every method of the SDKs that asks a model (``create``, ``parse``, ``stream``, raw responses) ends in the client's
``post``, so a generated subclass replaces that alone: it sees the finished body and the parsed answer.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any, TypeVar

from cacheprefix import Session, Turn
from cacheprefix.config import given_or_configured
from cacheprefix.errors import SetupError
from cacheprefix.profiles import merge_usage
from cacheprefix.prompt import Api
from cacheprefix_sdk._layout import Laid, laid_out
from cacheprefix_sdk._role import ROLE, Role

C = TypeVar("C")

_APIS: tuple[tuple[str, str, Api], ...] = (
    ("openai", "/chat/completions", "openai-chat"),
    ("openai", "/responses", "openai-responses"),
    ("anthropic", "/messages", "anthropic"),
)


def known(target: object) -> bool:
    """Whether ``target`` is a client of one of the two SDKs, synchronous or not."""
    modules = {base.__module__.partition(".")[0] for base in type(target).__mro__}
    return bool(modules & {"openai", "anthropic"}) and hasattr(target, "post") and hasattr(target, "copy")


def wrap(
    client: C, session: Session | None = None, *, role: str = "", instruction: str = "", conversation: str = ""
) -> C:
    """A copy of ``client``, of the same class, sharing its connections.

    Calls in a role (``with role("critic"):``, or bound here) are forks of the session's shared prefix; all others,
    and all in ``observe`` mode, are byte-identical to those of ``client`` and only measured. Raises ``SetupError`` for
    anything but a client of OpenAI or Anthropic.
    """
    given: Any = client
    if not known(given):
        raise SetupError(f"wrap takes a client of OpenAI or Anthropic, found {type(client).__name__}")
    session = given_or_configured(session)
    bound = Role(role, instruction, conversation) if role else None
    if bound is not None:
        session.join(bound.name)
    copy = given.copy()
    copy.__class__ = _subclass(getattr(type(given), "__unwrapped__", type(given)), session, bound)
    wrapped: C = copy
    return wrapped


def _subclass(base: Any, session: Session, bound: Role | None) -> type:
    vendor = next(m for m in (b.__module__.partition(".")[0] for b in base.__mro__) if m in ("openai", "anthropic"))

    def opened(path: str, body: Any) -> Laid | None:
        where = path.partition("?")[0]
        api = next((api for owner, end, api in _APIS if owner == vendor and where.endswith(end)), None)
        if api is None or not isinstance(body, dict):
            return None
        # What the SDKs leave out of the JSON they write.
        given = {name: value for name, value in body.items() if type(value).__name__ not in ("Omit", "NotGiven")}
        return laid_out(session, given, api, bound or ROLE.get())

    def post(self: Any, path: str, *, body: Any = None, **options: Any) -> Any:
        laid = opened(path, body)
        if laid is None:
            return base.post(self, path, body=body, **options)
        turn = laid.begin(session.queue(laid.body, laid.api, boundary=laid.boundary) if laid.forked else None)
        try:
            answer = base.post(self, path, body=turn.body, **options)
        except BaseException:
            turn.fail()
            raise
        if hasattr(answer, "_iterator"):
            return _watching(answer, _watched(answer._iterator, turn, laid))
        turn.finish(getattr(answer, "usage", None))
        return answer

    async def apost(self: Any, path: str, *, body: Any = None, **options: Any) -> Any:
        laid = opened(path, body)
        if laid is None:
            return await base.post(self, path, body=body, **options)
        turn = laid.begin(await session.aqueue(laid.body, laid.api, boundary=laid.boundary) if laid.forked else None)
        try:
            answer = await base.post(self, path, body=turn.body, **options)
        except BaseException:
            turn.fail()
            raise
        if hasattr(answer, "_iterator"):
            return _awatching(answer, _awatched(answer._iterator, turn, laid))
        turn.finish(getattr(answer, "usage", None))
        return answer

    own = {"post": apost if inspect.iscoroutinefunction(base.post) else post, "__unwrapped__": base}
    return type(base.__name__, (base,), {**own, "__module__": base.__module__, "__qualname__": base.__qualname__})


def _watching(stream: Any, events: Generator[Any, None, None]) -> Any:
    """The stream with its events watched; closing it early ends the call."""
    close, itself = type(stream).close, weakref.ref(stream)

    def closed() -> None:
        events.close()
        close(itself())

    # Weakly, as Anthropic's streams close their connection when they are dropped.
    stream._iterator, stream.close = events, closed
    return stream


def _awatching(stream: Any, events: AsyncGenerator[Any, None]) -> Any:
    close, itself = type(stream).close, weakref.ref(stream)

    async def closed() -> None:
        await events.aclose()
        await close(itself())

    stream._iterator, stream.close = events, closed
    return stream


def _watched(events: Iterator[Any], turn: Turn, laid: Laid) -> Generator[Any, None, None]:
    usage: dict[str, Any] = {}
    try:
        for event in events:
            turn.first_token()
            usage = _added(usage, event)
            if not laid.hides(event):
                yield event
    except GeneratorExit:
        turn.finish(usage or None)
        raise
    except BaseException:
        turn.fail()
        raise
    turn.finish(usage or None)


async def _awatched(events: AsyncIterator[Any], turn: Turn, laid: Laid) -> AsyncGenerator[Any, None]:
    usage: dict[str, Any] = {}
    try:
        async for event in events:
            turn.first_token()
            usage = _added(usage, event)
            if not laid.hides(event):
                yield event
    except GeneratorExit:
        turn.finish(usage or None)
        raise
    except BaseException:
        turn.fail()
        raise
    turn.finish(usage or None)


def _added(usage: dict[str, Any], event: Any) -> dict[str, Any]:
    """The usage so far with that of an event, wherever the three APIs put it."""
    places = (event, getattr(event, "message", None), getattr(event, "response", None))
    found = next((one for one in (getattr(place, "usage", None) for place in places) if one is not None), None)
    return usage if found is None else merge_usage(usage, found)
