"""Copies of OpenAI's and Anthropic's own clients whose model requests are forks, and streams that are watched.

Every method of the SDKs that asks a model (``create``, ``parse``, ``stream``, raw responses) ends in the client's
``post``, so a generated subclass replaces that alone: it sees the finished body and the parsed answer.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import inspect
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from cacheprefix.adapter_session import AdapterSession
from cacheprefix.bodies import ForkBody, Role, Watched, fork_body, gone_on, well_formed
from cacheprefix.calls.pending import PendingCall
from cacheprefix.locks import Lock
from cacheprefix.prompt import Api
from cacheprefix.wire.written import written

C = TypeVar("C")
_APIS: dict[str, dict[str, Api]] = {
    "openai": {"/chat/completions": "openai-chat", "/responses": "openai-responses"},
    "anthropic": {"/messages": "anthropic"},
}
_BESIDE = ("/responses/compact", "/responses/input_tokens")
"""Where OpenAI's SDK asks about a history that may be named by an answer (``previous_response_id``)."""
_RAW = "X-Stainless-Raw-Response"
"""The header by which both SDKs are asked for a raw response; it is not sent."""


def vendor_of(target: object) -> str | None:
    """The SDK whose client ``target`` is, synchronous or not; None where it is none."""
    return _vendor(target) if hasattr(target, "post") and hasattr(target, "copy") else None


def _vendor(target: object) -> str | None:
    """The SDK whose class ``target`` is of, or of one derived from it."""
    modules = [base.__module__.partition(".")[0] for base in type(target).__mro__]
    return next((module for module in modules if module in _APIS), None)


def watched_client(client: C, session: AdapterSession, role: Callable[[], Role | None], *, parses: bool = False) -> C:
    """A copy of a client that ``vendor_of`` knows, of the same class, sharing its connections.

    Each request is a fork of the role that ``role`` gives when it is made; without one it goes out as it was asked.
    ``parses`` says that whoever asks it for raw streams parses them.
    """
    copied, kind = _copied(client), type(client)
    apis = _APIS[vendor_of(client) or ""]
    copied.__class__ = _subclass(getattr(kind, "__unwrapped__", kind), apis, session, role, parses=parses)
    for name in _made_anew(client, copied):
        session.unseen(
            f"{type(client).__qualname__}.{name}: a method in it was replaced on this client before wrap, so that it "
            "asks unchanged and unmeasured; wrap the client first, then replace it"
        )
    watched: C = copied
    return watched


def _copied(client: Any) -> Any:
    """A copy of a client with all that the application gave it, sharing its connections."""
    # Not the SDK's ``copy``, which makes a client with arguments of its own: a subclass may take others, and what the
    # application has set or counts as it makes one would be lost, or done twice.
    made = copy.copy(client)
    if "post" in vars(made):
        # What the application put in the way of this one client is asked, and hides nothing of ours.
        vars(made)[_OWN_POST] = vars(made).pop("post")
    return made


_OWN_POST = "_cacheprefix_post"
"""The attribute of a copied client that has the application's own ``post``, where it gave the client one."""


def _send(base: Any, client: Any, path: str, **options: Any) -> Any:
    """Ask as a copied client would without us, ``base`` being its class then."""
    own = vars(client).get(_OWN_POST)
    return base.post(client, path, **options) if own is None else own(path, **options)


def _made_anew(client: Any, copied: Any) -> list[str]:
    """Have a copied client ask by itself: what it took over of the SDK's holds on to the methods of ``client``.

    Gives the names of what stays as it is, since the application, or what traces it, has replaced methods in there.
    """
    replaced = []
    for name, part in tuple(vars(copied).items()):
        if getattr(part, "_client", None) is not client or _vendor(part) is None:
            continue
        if _has_replaced(part, client):
            replaced.append(name)
        elif isinstance(getattr(type(client), name, None), functools.cached_property):
            # It is made when it is asked for.
            del vars(copied)[name]
        else:
            # Anthropic's clients for other clouds make their ``messages`` at once.
            setattr(copied, name, type(part)(copied))
    return replaced


def _has_replaced(part: Any, client: Any) -> bool:
    """Whether in a part of a client, or in a part of it, something stands in the place of a method."""
    for name, value in tuple(vars(part).items()):
        if inspect.isfunction(getattr(type(part), name, None)):
            return True
        if getattr(value, "_client", None) is client and _has_replaced(value, client):
            return True
    return False


def _subclass(
    base: Any, apis: Mapping[str, Api], session: AdapterSession, role: Callable[[], Role | None], *, parses: bool
) -> Any:
    """A class of an SDK's client that sends its model requests as forks, and is ``base`` in all else."""

    def opened(client: Any, path: str, body: Any, options: dict[str, Any]) -> tuple[ForkBody | None, Any]:
        """The request as a fork, and the application's body to send where there is none; changes ``options``."""
        api = next((api for end, api in apis.items() if path.partition("?")[0].endswith(end)), None)
        if api is None or not isinstance(body, dict):
            return None, beside(path, body)
        sdks: Any = options.get("options") or {}
        # ``extra_body``, which the SDK puts over the body: a fork's would lose the role's text under its messages.
        over = sdks.get("extra_json")
        read = written(body, over if isinstance(over, Mapping) else {}, prepares=hasattr(base, "_copy_and_prepare"))
        if over and read.extra is not over:
            options["options"] = {**sdks, "extra_json": read.extra}
        if read.failed is not None:
            session.failed("body", read.failed)
        given = read.plain
        if given is None or not well_formed(given, api):
            return None, read.body
        # A raw response is parsed by the application: whatever the stream holds, it sees.
        own = sdks.get("headers") or {}
        raw = own.get(_RAW)
        asks = role()
        if asks is not None and raw and (not parses if given.get("stream") else raw == "stream"):
            # Whether it is parsed is seen too late: it may be read as bytes.
            asks = replace(asks, unread=True)
        headers = session.attempt("headers", lambda: headers_of(client, own), None)
        return fork_body(session, given, api, asks, asks_usage=not raw, headers=headers), read.body

    def beside(path: str, body: Any) -> Any:
        """The body of what is asked about a history and not of the model; the very same where it names no fork's."""
        if not isinstance(body, dict) or not path.partition("?")[0].endswith(_BESIDE):
            return body
        return gone_on(session, body, "openai-responses", role())

    def post(self: Any, path: str, *, body: Any = None, **options: Any) -> Any:
        fork, body = opened(self, path, body, options)
        if fork is None:
            return _send(base, self, path, body=body, **options)
        return fork.ask(lambda sent: _send(base, self, path, **_placed(fork, sent, body, options)), _streamed, _told)

    async def apost(self: Any, path: str, *, body: Any = None, **options: Any) -> Any:
        fork, body = opened(self, path, body, options)
        if fork is None:
            return await _send(base, self, path, body=body, **options)
        return await fork.aask(
            lambda sent: _send(base, self, path, **_placed(fork, sent, body, options)), _astreamed, _told
        )

    def deleted(path: str) -> None:
        """Let the history of an answer go that the provider has deleted: it is sent no more."""
        above, _, id_ = path.rpartition("/")
        if above.endswith("/responses"):
            session.attempt("kept answer", lambda: session.shared.kept.deleted(id_), None)

    def delete(self: Any, path: str, **options: Any) -> Any:
        answer = base.delete(self, path, **options)
        deleted(path)
        return answer

    async def adelete(self: Any, path: str, **options: Any) -> Any:
        answer = await base.delete(self, path, **options)
        deleted(path)
        return answer

    if inspect.iscoroutinefunction(base.post):
        return derived(base, post=apost, delete=adelete)
    return derived(base, post=post, delete=delete)


_COMPACTING: weakref.WeakSet[AdapterSession] = weakref.WeakSet()
"""Sessions whose forks may be compacted by who asks with a client of its own."""


def compacts_by(kind: Any, session: AdapterSession) -> None:
    """Let a framework's class, whose ``client`` asks to compact by an answer's id, name the history of a fork instead.

    Privacy: the provider would compact what was sent, with the role's text, for all roles to go on from.
    """
    _COMPACTING.add(session)
    given = kind.client.fget
    if not hasattr(given, "cacheprefix_own"):

        def client(self: Any) -> Any:
            return _compacting(given(self))

        client.cacheprefix_own = given  # type: ignore[attr-defined]  # by which it is known
        kind.client = property(client, doc=kind.client.__doc__)


def _compacting(client: Any) -> Any:
    """A copy of an asynchronous client of OpenAI's that names histories in place of forks; another one as it is."""
    if vendor_of(client) != "openai" or hasattr(type(client), "__unwrapped__"):
        return client
    base: Any = type(client)

    def post(self: Any, path: str, *, body: Any = None, **options: Any) -> Any:
        if isinstance(body, dict) and path.endswith(_BESIDE):
            earlier = str(body.get("previous_response_id"))
            told: Any = (one.shared.kept.said(earlier) for one in tuple(_COMPACTING))
            said = next(filter(None, told), ())
            if said:
                rest = {name: value for name, value in body.items() if name != "previous_response_id"}
                body = {**rest, "input": [*said, *(rest.get("input") or ())]}
        return _send(base, self, path, body=body, **options)

    made = _copied(client)
    made.__class__ = derived(base, post=post)
    _made_anew(client, made)
    return made


def _placed(fork: ForkBody, sent: Any, asked: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``post`` by which this is sent: the application's own, or a body that has its ``extra_body``."""
    if fork.as_asked(sent):
        return {**options, "body": asked}
    own = options.get("options") or {}
    if own.get("extra_json"):
        options = {**options, "options": {name: value for name, value in own.items() if name != "extra_json"}}
    return {**options, "body": sent}


def headers_of(client: Any, own: Mapping[str, Any]) -> dict[str, Any]:
    """The headers that a client of either SDK sends: its application's, and over them the request's ``own``."""
    held = (getattr(client, "_custom_headers", {}), own)
    return {name.lower(): value for given in held for name, value in given.items()}


def derived(base: Any, **own: Any) -> Any:
    """A class derived from ``base`` that goes by its name, with members of its own; ``__unwrapped__`` is ``base``.

    A copy of what is of it is of it too. What is pickled is as without us: another process has no session of ours.
    """

    def reduced(self: Any, protocol: Any) -> Any:
        made: Any = base.__reduce_ex__(self, max(protocol, 2))
        if not isinstance(made, tuple) or made[0] is not copyreg.__newobj__ or made[1][0] is not type(self):  # type: ignore[attr-defined]
            return made
        return (_New(type(self)), made[1][1:], *made[2:])

    named = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__unwrapped__": base}
    return type(base.__name__, (base,), {"__reduce_ex__": reduced, **own, **named})


class _New:
    """Makes an object of a derived class; of the class that this is derived from where it was pickled."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def __call__(self, *given: Any) -> Any:
        return self._kind.__new__(self._kind, *given)

    def __reduce__(self) -> Any:
        kind = self._kind
        while "__unwrapped__" in vars(kind):
            kind = kind.__unwrapped__
        return functools.partial, (copyreg.__newobj__, kind)  # type: ignore[attr-defined]


Tap = Callable[[Any, Callable[..., Any]], Callable[..., Any]]
"""Makes, of an SDK's client and its ``post``, the one by which it is to send."""


def tapped(sdk: Any, tap: Tap) -> bool:
    """Have an SDK's asynchronous client send by what ``tap`` makes of its ``post``; False where it has none.

    By a class of its own, derived from the SDK's: a copy of its client asks by itself, as with another customer's key.
    """
    own: Any = getattr(sdk, "post", None)
    if not callable(own):
        return False
    with _TAPPING:
        _have_tapped(sdk, own, tap)
    return True


_TAPPING = Lock()
"""Two threads may wrap agents of one client at once; each of its requests would be begun twice."""


def _have_tapped(sdk: Any, own: Any, tap: Tap) -> None:
    """``tapped``, once for each client."""
    kind: Any = type(sdk)
    if tap in _taps_of(kind):
        return
    sdk.__class__ = _tapping_class(kind, tap)
    # What the application gave this one client would hide the class's.
    if "post" in vars(sdk):
        sdk.post = tap(sdk, own)
    # Parts that were made before took the method with them. No others are made here: they would be copied along.
    for part in _parts_made(sdk, sdk):
        part._post = sdk.post if part._post == own else tap(sdk, part._post)


@functools.lru_cache(maxsize=64)
def _tapping_class(base: Any, tap: Tap) -> Any:
    async def post(self: Any, path: str, **request: Any) -> Any:
        return await tap(self, functools.partial(base.post, self))(path, **request)

    post.cacheprefix_tap = tap  # type: ignore[attr-defined]  # by which it is known
    return derived(base, post=post)


def _taps_of(kind: Any) -> Iterator[Any]:
    """What a client's class sends by: a class with a ``post`` of its own may ask none of those that it derives from."""
    posts = (vars(base)["post"] for base in kind.__mro__ if "post" in vars(base))
    return itertools.takewhile(bool, (getattr(post, "cacheprefix_tap", None) for post in posts))


def _parts_made(holder: Any, sdk: Any) -> Iterator[Any]:
    """The parts of a client that send by its ``post``, such as ``chat.completions``, as far as they are made yet."""
    for part in tuple(vars(holder).values()):
        if getattr(part, "_client", None) is sdk and hasattr(part, "_post"):
            yield part
            yield from _parts_made(part, sdk)


def _told(answer: Any) -> Any:
    """What a whole answer says: a raw response that has been read is its JSON, anything else is itself."""
    response = getattr(answer, "http_response", None)
    if response is None or not response.is_closed:
        return answer
    try:
        return response.json()
    except ValueError:
        return answer


def _streamed(answer: Any, fork: ForkBody, turn: PendingCall) -> Any:
    """The stream with its events watched; closing it early ends the call."""
    if not hasattr(answer, "_iterator"):
        return _raw(answer, fork, turn)
    return _closes(answer, fork.watch(turn, answer._iterator), "close", _closing_class)


def _astreamed(answer: Any, fork: ForkBody, turn: PendingCall) -> Any:
    return _raw(answer, fork, turn) if watched_in_place(answer, fork, turn) is None else answer


def watched_in_place(answer: Any, fork: ForkBody, turn: PendingCall) -> Watched | None:
    """The events of an SDK's asynchronous stream, which has them watched from now on; None for any other answer.

    Closing the stream or its response early ends the call. None, too, where watching it fails.
    """
    if not hasattr(answer, "_iterator"):
        return None

    def watched() -> Watched:
        events = fork.watch(turn, answer._iterator)
        _closes(answer, events, "aclose", _aclosing_class)
        return events

    return fork.session.attempt("stream", watched, None)


def _closes(stream: Any, events: Watched, name: str, closing: Callable[[Any], Any]) -> Any:
    """The stream with these events, which end with it and with its response, whose method to close it is ``name``."""
    stream._iterator = stream._cacheprefix_events = events
    # A class of its own: a function of the object's would keep it alive, or lose it in ``ask().close()``.
    stream.__class__ = closing(type(stream))
    vars(stream.response)[name] = _closing(stream.response, name, events)
    return stream


@functools.cache
def _closing_class(base: Any) -> Any:
    def close(self: Any) -> None:
        self._cacheprefix_events.close()
        base.close(self)

    return derived(base, close=close)


@functools.cache
def _aclosing_class(base: Any) -> Any:
    async def close(self: Any) -> None:
        await self._cacheprefix_events.aclose()
        await base.close(self)

    return derived(base, close=close)


def _raw(answer: Any, fork: ForkBody, turn: PendingCall) -> Any:
    """A raw response that is a stream: watched from where it is parsed, and of unknown usage where it is read itself.

    None for anything else; a raw one that is whole is parsed to what names the answer that the application named.
    """
    if not hasattr(answer, "parse"):
        return None
    if not fork.body.get("stream"):
        if fork.went_on:
            _parsed(answer, fork.names_its_own)
        return None
    unread = weakref.finalize(answer, turn.finish, None)
    # Nobody sees when it is read as bytes: those who wait for it go on as behind a stream that rests.
    turn.leave.rests()

    def watched(stream: Any) -> Any:
        if not hasattr(stream, "_iterator") or unread.detach() is None:
            return stream
        return (_astreamed if hasattr(stream, "__aiter__") else _streamed)(stream, fork, turn)

    return _parsed(answer, watched)


def _parsed(answer: Any, change: Callable[[Any], Any]) -> Any:
    """A raw response whose ``parse`` gives what ``change`` makes of it."""
    own: Any = type(answer)
    answer._cacheprefix_change, answer.__class__ = change, _parsing_class(own)
    return answer


@functools.cache
def _parsing_class(base: Any) -> Any:
    async def awaited(self: Any, parsed: Any) -> Any:
        return self._cacheprefix_change(await parsed)

    def parse(self: Any, *given: Any, **named: Any) -> Any:
        found = base.parse(self, *given, **named)
        return awaited(self, found) if inspect.isawaitable(found) else self._cacheprefix_change(found)

    return derived(base, parse=parse)


def _closing(response: Any, name: str, events: Watched) -> Any:
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


def watched_stream(stream: C, watch: Callable[[Any], Watched]) -> C:
    """A stream that is its own iterator, with its events as ``watch`` passes them on.

    The same object, of a class derived from its own. ``aclose`` ends the call, as dropping the stream does.
    """
    own: Any = type(stream)
    vars(stream)["_cacheprefix_events"] = watch(_Events(stream))
    stream.__class__ = _watched_class(own)
    return stream


class _Events:
    """A stream's own events, without keeping it alive."""

    def __init__(self, stream: object) -> None:
        self._stream, self._own = weakref.ref(stream), type(stream)

    def __next__(self) -> Any:
        return self._own.__next__(self._stream())  # type: ignore[attr-defined]  # a stream's class has it, or the other

    async def __anext__(self) -> Any:
        return await self._own.__anext__(self._stream())  # type: ignore[attr-defined]  # the same


@functools.cache
def _watched_class(base: Any) -> Any:
    """A class of streams, derived from an SDK's, that hand out what ``watch`` makes of their events."""
    def pull(self: Any) -> Any:
        return next(self._cacheprefix_events)

    async def apull(self: Any) -> Any:
        return await anext(self._cacheprefix_events)

    async def aclose(self: Any) -> None:
        await self._cacheprefix_events.aclose()
        await base.aclose(self)

    return derived(base, __next__=pull, __anext__=apull, aclose=aclose)
