"""Reads the body that a client is about to send, and replaces it with the marked one as it is sent.

Both through the client's own ``_prepare_options``.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_framework import Content, Message

from cacheprefix import PendingCall
from cacheprefix.adapter import AdapterSession, Api, BlockVar, VolatileRole, begins, merge_usage, with_volatile

_APIS: Mapping[str, Api] = {
    "RawOpenAIChatCompletionClient": "openai-chat",
    "RawOpenAIChatClient": "openai-responses",
    "RawAnthropicClient": "anthropic",
}
_BESIDE = frozenset({"betas", "extra_body", "extra_headers", "extra_query", "text_format", "timeout"})
"""Arguments of the SDKs that are no fields of the request body."""
_PREPARE = "_prepare_options"
_LOGGERS = ("agent_framework.openai", "agent_framework.anthropic")
"""Of the framework's clients."""
_READ: BlockVar[Any] = BlockVar("cacheprefix_maf_read")
"""The client that prepares a request which is only read, meanwhile."""


@dataclass(slots=True)
class Sending:
    """One request on its way through a client, and what came of it."""

    session: AdapterSession
    api: Api
    prepared: Mapping[str, Any]
    turn: PendingCall
    volatile: str = ""
    volatile_role: VolatileRole = "user"
    usage: Any = None
    refuse: Callable[[Collection[str]], None] | None = None
    """Told which tools the answer calls, where some of those in the request are other roles'."""
    lists: bool = False
    """Whether it carries a list of allowed tools, which an endpoint may refuse."""

    @property
    def list_refused(self) -> bool:
        """Whether it carries a list of allowed tools, of which its endpoint is known by now to take none."""
        return self.lists and not self.session.takes_lists(str(self.prepared.get("model", "")))

    def replaced(self, fresh: Mapping[str, Any]) -> Mapping[str, Any]:
        """The client's arguments with the cache marks in them; unchanged where they differ from those seen before."""
        marked = self.turn.body
        if fresh != self.prepared:
            self.session.note("a client changed its request after cacheprefix saw it; it was sent without cache marks")
            return fresh
        if self.volatile:
            marked = with_volatile(marked, self.api, self.volatile, self.volatile_role)
        before = body_of(self.prepared)
        changed = {name: value for name, value in marked.items() if name not in before or value != before[name]}
        # Fields for which the SDK has no argument go into ``extra_body``.
        added = {name: value for name, value in changed.items() if name not in fresh}
        gone = before.keys() - marked.keys()
        kept = {name: value for name, value in fresh.items() if name not in gone}
        sent = {**kept, **{name: value for name, value in changed.items() if name in fresh}}
        return {**sent, "extra_body": {**(fresh.get("extra_body") or {}), **added}} if added else sent

    def update(self, update: Any) -> None:
        """Note a piece of a stream: the first one begins the answer, one of them holds the provider's usage."""
        if self.turn.first_token_at is None:
            self.session.attempt("first token", lambda: self._heard(update), None)
        self.session.attempt("usage", lambda: self._note(update), None)
        self._calls(update.contents)

    def _calls(self, contents: Iterable[Content]) -> None:
        """Have those refused of the tools that a part of an answer calls that are other roles'."""
        refuse, called = self.refuse, {content.name for content in contents if content.type == "function_call"}
        if refuse is not None and called:
            self.session.attempt("refusal", lambda: refuse({name for name in called if name}), None)

    def _heard(self, update: Any) -> None:
        raw = update.raw_representation
        if update.contents if raw is None else begins(raw):
            self.turn.first_token()

    def _note(self, update: Any) -> None:
        raws = (update.raw_representation, *(content.raw_representation for content in update.contents))
        found = next((usage for usage in map(_usage, raws) if usage is not None), None)
        if found is not None:
            self.usage = merge_usage(self.usage or {}, found)

    def answered(self, response: Any) -> None:
        """Record a whole answer's usage: the provider's own, else the framework's counts."""
        self.turn.finish(self.session.attempt("usage", lambda: self._used(response), None))
        self._calls(content for message in response.messages for content in message.contents)

    def _used(self, response: Any) -> Any:
        found = _usage(getattr(response, "raw_representation", None))
        return found or _native(getattr(response, "usage_details", None), self.api)

    def ended(self, error: BaseException | None) -> None:
        """Record that a stream ended (``error`` is None), or failed."""
        if error is None:
            self.turn.finish(self.usage)
        else:
            self.turn.fail()


class UnpreparedError(Exception):
    """A client refused what it was to prepare, by the error that is the cause."""


class Laid(list[Message]):
    """The messages of a request, as a list that carries its ``Sending`` to ``_prepare_options``."""

    sending: Sending | None = None


def api_of(client: Any) -> Api | None:
    """The API whose requests a client sends; None for a client that this adapter does not know."""
    found = (_APIS[base.__name__] for base in type(client).__mro__ if base.__name__ in _APIS)
    return next(found, None) if hasattr(client, _PREPARE) else None


def body_of(prepared: Mapping[str, Any]) -> dict[str, Any]:
    """The request body in the SDK's arguments; a response class stands as its JSON schema, as the SDK sends it."""
    body = {name: value for name, value in prepared.items() if name not in _BESIDE}
    schema = prepared.get("text_format")
    if schema is not None and hasattr(schema, "model_json_schema"):
        form = {"type": "json_schema", "name": schema.__name__, "schema": schema.model_json_schema()}
        body["text"] = {**(body.get("text") or {}), "format": form}
    return {**body, **(prepared.get("extra_body") or {})}


def headers_in(prepared: Mapping[str, Any]) -> dict[str, Any]:
    """The request's headers in the SDK's arguments."""
    betas = prepared.get("betas")
    named = {"anthropic-beta": ",".join(map(str, betas))} if betas else {}
    return {**named, **(prepared.get("extra_headers") or {})}


async def prepared_by(
    client: Any, messages: Sequence[Message], options: Mapping[str, Any], beside: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments that the client would hand to its SDK for this request.

    Raises ``UnpreparedError`` where it refuses it.
    """
    prepare = getattr(client, _PREPARE)
    more = beside if api_of(client) == "anthropic" else {}
    validate = client._validate_options if inspect.iscoroutinefunction(prepare) else None
    try:
        with _READ.within(client):
            if validate is None:
                return dict(prepare(messages, options, **more))
            return dict(await prepare(messages, await validate(options)))
    except Exception as error:
        raise UnpreparedError(f"{type(error).__name__}: {error}") from error


def watch(client: Any, call: Callable[..., Any]) -> None:
    """Route this client's calls through ``call(base, **request)``, and send requests with a ``Sending`` as it says.

    In its class, where a copy of it, as of another customer's key, is asked by itself. ``_inner_get_response`` is
    replaced, since it runs after all middlewares, history providers and compaction.
    """
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_once)
    for name, made in ((_PREPARE, _preparing), ("_inner_get_response", functools.partial(_asking, call))):
        if name in vars(client):
            # The application's own, on this one client: it hides the class's.
            own = vars(client)[name]
            if not isinstance(own, _Own):
                vars(client)[name] = _Own(own, made(own))
            continue
        kind: Any = next(base for base in type(client).__mro__ if name in vars(base))
        own = vars(kind)[name]
        if not hasattr(own, "cacheprefix_own"):
            watched = functools.wraps(own)(made(own))
            watched.cacheprefix_own = own  # type: ignore[attr-defined]  # by which it is known
            setattr(kind, name, watched)


def _once(_: logging.LogRecord) -> bool:
    """Whether a line of the framework's is logged: what it says while we read a request, it says as that is sent."""
    return _READ.get() is None


class _Own:
    """A function that the application put on a client, such as a mock: what it is asked for beside a call, it has."""

    def __init__(self, own: Callable[..., Any], watched: Callable[..., Any]) -> None:
        self.own, self.watched = own, watched

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.watched(*given, **named)

    def __getattr__(self, name: str) -> Any:
        if name == "own":
            raise AttributeError(name)
        return getattr(self.own, name)


def _asking(call: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    def asked(*of: Any, **request: Any) -> Any:
        return call(functools.partial(own, *of), **request)

    return asked


def _preparing(own: Callable[..., Any]) -> Callable[..., Any]:
    def split(given: Sequence[Any]) -> tuple[Sending | None, list[Any]]:
        """The ``Sending`` among the arguments, and these without it: what else prepares the request must not see it."""
        found = next((one.sending for one in given if isinstance(one, Laid)), None)
        return found, [list(one) if isinstance(one, Laid) else one for one in given]

    def sent(sending: Sending | None, made: Mapping[str, Any]) -> Mapping[str, Any]:
        return made if sending is None else sending.session.attempt("send", lambda: sending.replaced(made), made)

    def prepare(*given: Any, **more: Any) -> Any:
        sending, plain = split(given)
        return sent(sending, own(*plain, **more))

    async def aprepare(*given: Any, **more: Any) -> Any:
        sending, plain = split(given)
        return sent(sending, await own(*plain, **more))

    return aprepare if inspect.iscoroutinefunction(own) else prepare


def _usage(raw: Any) -> Any:
    places = (raw, getattr(raw, "message", None), getattr(raw, "response", None))
    return next((found for place in places if (found := getattr(place, "usage", None)) is not None), None)


def _native(details: Mapping[str, Any] | None, api: Api) -> dict[str, Any] | None:
    """The framework's token counts in the provider's form; None without any.

    Its two cache counts have the same names for all clients.
    """
    if not details:
        return None
    read, written = (details.get(f"cache_{kind}_input_token_count") for kind in ("read", "creation"))
    given, made = details.get("input_token_count"), details.get("output_token_count")
    if api == "anthropic":
        return {
            "input_tokens": given,
            "output_tokens": made,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
        }
    cached = {"cached_tokens": read, **({} if written is None else {"cache_write_tokens": written})}
    if api == "openai-chat":
        return {"prompt_tokens": given, "completion_tokens": made, "prompt_tokens_details": cached}
    return {"input_tokens": given, "output_tokens": made, "input_tokens_details": cached}
