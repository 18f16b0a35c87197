"""``wrap``: a copy of the application's client whose model requests are measured and, in a role, become forks.

Every method of the SDKs that asks a model (``create``, ``parse``, ``stream``, raw responses) ends in the client's
``post``, so a generated subclass replaces that alone: it sees the finished body and the parsed answer.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from cacheprefix import Session
from cacheprefix.adapter import (
    AdapterSession,
    Api,
    AsyncWatched,
    ForkBody,
    Role,
    Watched,
    fork_body,
    given_or_configured,
    supported,
)
from cacheprefix.errors import SetupError

C = TypeVar("C")
_ROLE: ContextVar[Role | None] = ContextVar("cacheprefix_sdk_role", default=None)
_APIS: dict[str, dict[str, Api]] = {
    "openai": {"/chat/completions": "openai-chat", "/responses": "openai-responses"},
    "anthropic": {"/messages": "anthropic"},
}
_RAW = "X-Stainless-Raw-Response"
"""The header by which both SDKs are asked for a raw response; it is not sent."""


@contextmanager
def role(
    name: str, *, instruction: str = "", conversation: str = "", volatile: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Calls of wrapped clients inside the block, and in tasks started there, are forks of this role."""
    token = _ROLE.set(Role(name, instruction, conversation, volatile or {}))
    try:
        yield
    finally:
        _ROLE.reset(token)


def vendor_of(target: object) -> str | None:
    """The SDK whose client ``target`` is, synchronous or not; None where it is none."""
    modules = [base.__module__.partition(".")[0] for base in type(target).__mro__]
    found = next((module for module in modules if module in _APIS), None)
    return found if hasattr(target, "post") and hasattr(target, "copy") else None


def wrap(
    client: C, session: Session | None = None, *, role: str = "", instruction: str = "", conversation: str = ""
) -> C:
    """A copy of ``client``, of the same class, sharing its connections.

    Calls in a role (``with role("critic"):``, or bound here) are forks of the session's shared prefix; all others,
    and all in ``observe`` mode, are byte-identical to those of ``client`` and only measured. Raises ``SetupError`` for
    anything but a client of OpenAI or Anthropic.
    """
    given: Any = client
    vendor = vendor_of(given)
    if vendor is None:
        raise SetupError(f"wrap takes a client of OpenAI or Anthropic, found {type(client).__name__}")
    joined = given_or_configured(session)
    bound = Role(role, instruction, conversation) if role else None
    if bound is not None:
        joined.join(bound.name)
    copy = given.copy()
    if joined.off:
        off: C = copy
        return off
    copy.__class__ = _subclass(getattr(type(given), "__unwrapped__", type(given)), _APIS[vendor], joined, bound)
    wrapped: C = copy
    return wrapped


def _subclass(base: Any, apis: Mapping[str, Api], session: AdapterSession, bound: Role | None) -> type:
    def opened(path: str, body: Any, options: Mapping[str, Any]) -> ForkBody | None:
        api = next((api for end, api in apis.items() if path.partition("?")[0].endswith(end)), None)
        if api is None or not isinstance(body, dict):
            return None
        # What the SDKs leave out of the JSON they write.
        given = {name: value for name, value in body.items() if type(value).__name__ not in ("Omit", "NotGiven")}
        # A raw response is parsed by the application: whatever the stream holds, it sees.
        raw = _RAW in ((options.get("options") or {}).get("headers") or {})
        return fork_body(session, given, api, bound or _ROLE.get(), asks_usage=not raw)

    def post(self: Any, path: str, *, body: Any = None, **options: Any) -> Any:
        fork = opened(path, body, options)
        answer = base.post(self, path, body=body, **options) if fork is None else None
        while fork is not None:
            with fork.begin(fork.queue()) as turn:
                answer = base.post(self, path, body=turn.body, **options)
            if hasattr(answer, "_iterator"):
                return _watching(answer, fork.watch(turn, answer._iterator))
            turn.finish(getattr(answer, "usage", None))
            fork.answered(turn, answer)
            fork = fork.refusal(answer)
        return answer

    async def apost(self: Any, path: str, *, body: Any = None, **options: Any) -> Any:
        fork = opened(path, body, options)
        answer = await base.post(self, path, body=body, **options) if fork is None else None
        while fork is not None:
            with fork.begin(await fork.aqueue()) as turn:
                answer = await base.post(self, path, body=turn.body, **options)
            if hasattr(answer, "_iterator"):
                return _awatching(answer, fork.awatch(turn, answer._iterator))
            turn.finish(getattr(answer, "usage", None))
            fork.answered(turn, answer)
            fork = fork.refusal(answer)
        return answer

    own = {"post": apost if inspect.iscoroutinefunction(base.post) else post, "__unwrapped__": base}
    return type(base.__name__, (base,), {**own, "__module__": base.__module__, "__qualname__": base.__qualname__})


def _watching(stream: Any, events: Watched) -> Any:
    """The stream with its events watched; closing it early ends the call."""
    # Weakly, as Anthropic's streams close their connection when they are dropped.
    close, itself = type(stream).close, weakref.ref(stream)

    def closed() -> None:
        events.close()
        close(itself())

    stream._iterator, stream.close = events, closed
    stream.response.close = _closing(stream.response, "close", events)
    return stream


def _awatching(stream: Any, events: AsyncWatched) -> Any:
    close, itself = type(stream).close, weakref.ref(stream)

    async def closed() -> None:
        await events.aclose()
        await close(itself())

    stream._iterator, stream.close = events, closed
    stream.response.aclose = _closing(stream.response, "aclose", events)
    return stream


def _closing(response: Any, name: str, events: Watched | AsyncWatched) -> Any:
    """The response's own method, which tells the watched events too: OpenAI's helpers close nothing else."""
    close, watched = getattr(response, name), weakref.ref(events)

    def closed() -> Any:
        # Its own again, so that it is freed without the garbage collector.
        vars(response).pop(name, None)
        known = watched()
        if known is not None:
            known.response_closed()
        return close()

    return closed


supported("cacheprefix-sdk")
