"""``wrap`` and ``install``: measure LiteLLM's completions and, within a role, send them as forks.

All calls end in ``litellm.completion`` or ``litellm.acompletion``; a router's and those with fallbacks once for each
attempt, with that attempt's model. Both functions are replaced: outside of a session they do what LiteLLM's own do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from types import MethodType
from typing import Any, TypeVar

import litellm
from litellm.constants import OPENAI_CHAT_COMPLETION_PARAMS as PARAMS
from litellm.llms.base_llm.base_utils import type_to_response_format_param
from litellm.router import Router

from cacheprefix import Session, adapter
from cacheprefix.adapter import in_role as role
from cacheprefix.errors import SetupError
from cacheprefix.wire import for_litellm, for_responses

__all__ = ["install", "role", "unwrap", "wrap"]

T = TypeVar("T")
Bound = tuple[adapter.AdapterSession, adapter.Role | None]
_BOUND: adapter.BlockVar[Bound] = adapter.BlockVar("cacheprefix_litellm")
_INSTALLED: list[Bound] = []
_OWN: dict[str, Callable[..., Any]] = {name: getattr(litellm, name) for name in ("completion", "acompletion")}
_CONNECTION = {"api_base", "api_key", "api_version", "base_url", "default_headers", "deployment_id", "extra_headers"}
_CONNECTION |= {"max_retries", "organization", "request_timeout", "timeout"}
_BODY = {"cached_content", "model", "messages", "previous_response_id", "prompt_cache_options", *PARAMS} - _CONNECTION
"""Names of the arguments that go into the request's body."""
_REFUSED = {"prompt_cache_key", "prompt_cache_retention", "stream_options", "tool_choice", "tools"}
"""Fields that a fork may add, and that LiteLLM refuses for a provider that does not know them."""
_NO_REQUEST = ("fallbacks", "model_list", "mock_response", "mock_tool_calls", "mock_timeout")
"""Arguments by which LiteLLM calls itself for each attempt or deployment: each of those calls is a request. By the
others it makes an answer up that no provider has read (``litellm.utils.should_run_mock_completion``)."""
_WRAPPING = adapter.RLock()
"""Several threads may wrap one router at once, each for a request of its own."""
_ATTEMPTS = [each for each in ("_completion", "_acompletion") if each in vars(Router)]
"""Names of a router's methods for one attempt. Up to LiteLLM 1.108 they are in its class, and may run in another thread
than the caller's. From 1.110 on there are none: attempts run in the caller's, and no class may derive from Router."""


def wrap(target: T, session: Session | None = None, *, role: str = "", conversation: str = "") -> T:
    """``litellm.completion`` or ``litellm.acompletion`` as one that asks in the session, or a router made to do so.

    A router stays the same object, until ``unwrap``. Calls in a role (``with role("critic"):``, or bound here) are
    forks of the shared prefix; all others are measured as they were asked. Raises ``SetupError`` for anything else,
    for a conversation without a role, and for a router that is wrapped otherwise already.
    """
    if not (name := known(target)):
        raise SetupError(f"wrap takes completion or acompletion of litellm, or a Router, not {type(target).__name__}")
    joined, bound = _bound(session, role, conversation)
    if isinstance(target, Router):
        _have_asked(target, joined, bound)
    if isinstance(target, Router) or joined.off:
        return target
    wrapped: T = adapter.inside(partial(_BOUND.within, (joined, bound)), partial(_call, name), _OWN[name])
    return wrapped


def _have_asked(router: Any, session: adapter.AdapterSession, role: adapter.Role | None) -> None:
    """Have a router ask in a session, and in a role where one is bound."""
    with _WRAPPING:
        places = (type(router), *map(vars(router).get, _OWN))
        held = next((place.cacheprefix_bound for place in places if hasattr(place, "cacheprefix_bound")), None)
        if held is not None and held != (session, role):
            # Privacy: both would ask by this one object, and a tenant's requests go to whose session came last.
            raise SetupError(
                "this router is wrapped already, in another session, role or conversation: unwrap(router) first. Leave "
                "one that several users share unwrapped, and say whose a call is in a block around it, with "
                "install(session) and role(...): each task has its own, and a wrapped router goes by its own instead"
            )
        if held is not None or session.off:
            return
        if _ATTEMPTS:
            kind = type(router)
            # At once: what other threads have under way asks in no session, or in this one.
            made: dict[str, Any] = {each: _attempts(each, kind, session, role) for each in _ATTEMPTS}
            made |= {"__init__": _made(kind), "discard": _discard, "cacheprefix_bound": (session, role)}
            router.__class__ = adapter.derived(kind, **made)
        for each in () if _ATTEMPTS else _OWN:
            own = getattr(router, each)
            asks: Any = adapter.inside(partial(_BOUND.within, (session, role)), own, own)
            asks.cacheprefix_own, asks.cacheprefix_bound = vars(router).get(each), (session, role)
            # In this way it reaches what the router itself asks by, as of a batch.
            setattr(router, each, asks)


def known(target: object) -> str:
    """``Router``, ``completion`` or ``acompletion``; empty for what is none of these."""
    if isinstance(target, Router):
        return "Router"
    name, home = str(getattr(target, "__name__", "")), str(getattr(target, "__module__", ""))
    return name if name in _OWN and home.partition(".")[0] == "litellm" else ""


def unwrap(router: T) -> T:
    """The router with LiteLLM's own class and methods again."""
    with _WRAPPING:
        router.__class__ = getattr(router.__class__, "__unwrapped__", router.__class__)
        for name, held in [each for each in vars(router).items() if hasattr(each[1], "cacheprefix_own")]:
            setattr(router, name, own) if (own := held.cacheprefix_own) else delattr(router, name)
    return router


def _discard(router: Any) -> Any:
    """Up to LiteLLM 1.108 its word for a router that is done, which it holds for good itself: the session is let go."""
    return unwrap(router).discard()


@contextmanager
def install(session: Session | None = None, *, role: str = "", conversation: str = "") -> Iterator[Session]:
    """While the block runs, all that calls LiteLLM by its module asks in the session: routers and libraries too.

    Of several blocks side by side, each has the calls of its own thread or task. A call in a thread without one has the
    session and the role that all of them name, and none of their conversations.
    """
    bound = _bound(session, role, conversation)
    _INSTALLED.append(bound)
    try:
        with _BOUND.within(bound):
            yield bound[0].session
    finally:
        _INSTALLED.remove(bound)


def _bound(session: Session | None, role: str, conversation: str) -> Bound:
    """The session and the role in force, with LiteLLM's functions watched from now on."""
    joined, bound = adapter.given_or_configured(session), adapter.bound_role(role, "", conversation)
    if bound:
        joined.join(role)
    for name, own in _OWN.items():
        if getattr(litellm, name) is own:
            made = vars(litellm)[name] = adapter.inside(nullcontext, partial(_call, name), own)
            # Where pickle looks for it: in ``litellm.main`` LiteLLM's own stays.
            made.__module__ = litellm.__name__
    return joined, bound


def _made(kind: Any) -> Callable[..., None]:
    """How a router is made of a wrapped one's class (``type(router)(...)``): as one that is in no session."""

    @wraps(kind.__init__)
    def init(router: Any, *given: Any, **named: Any) -> None:
        if not vars(router):
            # Privacy: it may be another tenant's.
            router.__class__ = kind
        kind.__init__(router, *given, **named)

    return init


def _attempts(name: str, kind: Any, session: adapter.AdapterSession, role: adapter.Role | None) -> property:
    """A router's method for one attempt, bound to the caller's role: it may run in a thread that has none."""

    def method(router: Any) -> Any:
        asking, given = adapter.current_role(), inspect.getattr_static(kind, name)

        def block() -> AbstractContextManager[None]:
            return _BOUND.within((session, role or adapter.current_role() or asking))

        if inspect.isfunction(given) and not vars(router).get(name):
            return MethodType(adapter.inside(block, given, given), router)
        # The application may have given this one router its own, such as a mock, or all of them.
        own = vars(router).get(name) or (given.__get__(router, kind) if hasattr(type(given), "__get__") else given)
        return adapter.inside(block, own, own)

    def delete(router: Any) -> None:
        if name not in vars(router):
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}", name=name, obj=router)
        del vars(router)[name]

    return property(method, lambda one, given: vars(one).update({name: given}), delete)


def _call(name: str, *given: Any, **named: Any) -> Any:
    """Call LiteLLM's own function with the request as the session lays it out."""
    own, bound = _OWN[name], _BOUND.get() or adapter.agreed(tuple(_INSTALLED))
    if bound is None or bound[0].off or any(map(named.get, _NO_REQUEST)):
        return own(*given, **named)
    session, role, headers = bound[0], bound[1] or adapter.current_role(), named.get("extra_headers")
    read = session.attempt("body", lambda: _read(session, own, given, named), None)
    if read is None:
        return own(*given, **named)
    asked, body, rules, over = read
    why = [] if rules.known else [adapter.reason("rules_unknown", body["model"].partition("/")[0])]
    # Bedrock's guardrail judges what users say and no system text: a role's text among that would be judged too.
    why += [adapter.reason("own_prompt", "guardrailConfig")] if asked.get("guardrailConfig") else []
    # What LiteLLM itself puts into the body of some models is as if it stood there.
    why += adapter.overlaid({"system": asked.get("system"), "instructions": asked.get("instructions"), **over})
    # ``lists=False``: LiteLLM takes no list of allowed tools as ``tool_choice``.
    fork = adapter.fork_body(session, body, "openai-chat", role, lists=False, own=(*why,), headers=headers)

    def arguments(laid: Mapping[str, Any]) -> dict[str, Any]:
        laid = dict(laid) if rules.markers in (None, "openai") else for_litellm(dict(laid))
        if rules.markers == "openai" and _by_responses({**asked, **laid}):
            # Money: LiteLLM would drop the mark behind the shared text, and nothing would be read.
            laid = for_responses(laid)
        if asked.get("supports_system_message") is False:
            # LiteLLM puts the system text before the next message's, and fails on lists: a marked text is in one.
            laid = {**laid, "messages": [_as_text(one) for one in laid["messages"]]}
            # Money: with the marks gone nothing would be cached where the provider is told to go by them.
            if "prompt_cache_options" not in body:
                laid.pop("prompt_cache_options", None)
        fresh = {one: value for one, value in laid.items() if value is not body.get(one) and one not in over}
        added = fresh.keys() & _REFUSED - asked.keys()
        known = litellm.get_supported_openai_params(asked["model"], asked.get("custom_llm_provider")) if added else ()
        out = (body.keys() - laid.keys()) | (added - set(known or ()))
        return {one: value for one, value in {**asked, **fresh}.items() if one not in out}

    def send(laid: Mapping[str, Any]) -> Any:
        made = None if fork.as_asked(laid) else session.attempt("body", lambda: arguments(laid), None)
        return own(*given, **named) if made is None else own(**made)

    def streamed(answer: Any, fork: adapter.ForkBody, turn: Any) -> Any:
        we_asked = fork.body.get("stream_options") != fork.given.get("stream_options")
        if we_asked and isinstance(answer, litellm.CustomStreamWrapper):
            # We asked for the usage, and not the application: LiteLLM keeps it out of the chunks that it sees.
            answer.stream_options, answer.send_stream_usage = None, False
        return _streamed(answer, fork, turn)

    return (fork.aask if name == "acompletion" else fork.ask)(send, streamed)


def _read(session: adapter.AdapterSession, own: Any, given: Any, named: Any) -> tuple[Any, Any, Any, Any] | None:
    """The arguments by name, the body that they make in OpenAI's form, its provider's rules, and what is put over it.

    None for what is no request in that form: that is LiteLLM's to refuse, or to read in its own way.
    """
    asked = {**dict(zip(inspect.signature(own).parameters, given, strict=False)), **named}
    body = {name: value for name, value in asked.items() if name in _BODY and value is not None}
    over = asked.get("extra_body") or {}
    body |= {name: value for name, value in over.items() if name in _BODY - adapter.LAID_OUT}
    custom, schema = asked.get("custom_llm_provider"), body.get("response_format")
    lists = {name: body.get(name) for name in ("messages", "tools")}
    body |= {name: [*map(_plain, one)] for name, one in lists.items() if isinstance(one, (list, tuple))}
    # LiteLLM takes dictionaries, and no other mappings.
    whole = all(isinstance(one, dict) for one in body.get("messages") or ())
    if not whole or not body.get("model") or not adapter.well_formed(body, "openai-chat"):
        return None
    if isinstance(schema, type):
        if not hasattr(schema, "model_json_schema"):
            return None
        body["response_format"] = type_to_response_format_param(schema)
    body["model"] = f"{custom}/{body['model']}" if custom else body["model"]
    return asked, body, session.profile(body["model"]), over


def _by_responses(asked: Mapping[str, Any]) -> bool:
    """Whether LiteLLM asks OpenAI's Responses API instead: for some models, and for some with tools."""
    check = getattr(litellm.main, "responses_api_bridge_check", None)
    if check is None:
        return False
    model, provider, _, _ = litellm.get_llm_provider(
        asked["model"], asked.get("custom_llm_provider"), asked.get("api_base") or asked.get("base_url")
    )
    known = {**asked, "model": model, "custom_llm_provider": provider}
    taken = inspect.signature(check).parameters.keys() & known.keys()
    return bool(check(**{name: known[name] for name in taken})[0].get("mode") == "responses")


def _plain(value: Any) -> Any:
    """A message, or a part of one, with LiteLLM's own objects as plain fields; the very same object without any."""
    if hasattr(value, "model_dump"):
        return value.model_dump(exclude_none=True)
    if isinstance(value, dict):
        made: Any = {name: one if isinstance(one, str) else _plain(one) for name, one in value.items()}
        return value if all(made[name] is one for name, one in value.items()) else made
    if isinstance(value, (list, tuple)):
        made = [_plain(one) for one in value]
        return value if all(one is given for one, given in zip(made, value, strict=True)) else made
    return value


def _as_text(message: Any) -> Any:
    """A message whose content is a list of one text, with that text for its content; any other as it is."""
    parts = message.get("content")
    one = parts[0] if isinstance(parts, list) and len(parts) == 1 else {}
    return {**message, "content": one["text"]} if one.get("type") == "text" else message


def _streamed(answer: Any, fork: adapter.ForkBody, turn: Any) -> Any:
    stream = isinstance(answer, litellm.CustomStreamWrapper)
    cached = answer.custom_llm_provider == "cached_response" if stream else _hidden(answer).get("cache_hit")
    if cached:
        turn.fail(sent=False)  # LiteLLM's own cache has answered, and no provider
        return answer
    return adapter.watched_stream(answer, lambda chunks: fork.watch(turn, chunks, _usage)) if stream else None


def _usage(chunk: Any) -> Any:
    found = getattr(chunk, "usage", None) or _hidden(chunk).get("usage")
    return found if getattr(found, "prompt_tokens", 0) else None


def _hidden(answer: Any) -> Mapping[str, Any]:
    return getattr(answer, "_hidden_params", None) or {}


adapter.supported("cacheprefix-litellm")
