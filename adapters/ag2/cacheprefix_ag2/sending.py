"""The place where a request is finished: the SDK's own ``post``, which sees the body as it will be sent.

ag2's clients hand over neither the body nor a way to set cache marks; every request of theirs ends here.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cacheprefix import ForkPolicy, PendingCall, Prompt
from cacheprefix.adapter import (
    FOLLOW,
    AdapterSession,
    Api,
    BlockVar,
    ForkBody,
    Request,
    RequestPlan,
    allowed_choice,
    condensed_body,
    headers_of,
    tapped,
    watched_in_place,
)
from cacheprefix.wire import history_field
from cacheprefix_ag2.layout import Fork

_PATHS: tuple[tuple[str, Api], ...] = (
    ("/chat/completions", "openai-chat"),
    ("/responses", "openai-responses"),
    ("/messages", "anthropic"),
)
_LOGGERS = ("ag2.config.anthropic.anthropic_client", "ag2.config.anthropic.mappers")
"""Of ag2's clients."""
_MARK = "cache_control"
_PARTS = frozenset({"chat", "completions", "messages", "responses"})
"""Parts of the SDKs' clients on the way to what makes a request."""


class Captured(BaseException):
    """Carries the body of a request that was not sent.

    No ``Exception``: nothing went wrong, and the application's own client may handle those.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__("captured")
        self.body = body


def _nothing() -> None:
    """What is done where nothing is to be done."""


@dataclass(slots=True)
class Sending:
    """One model call of an agent on its way; with tools that the provider runs it may be several requests."""

    session: AdapterSession
    agent: str
    talk: str
    fork: Fork | None = None
    """The layout; None where it is the application's own."""
    capture: bool = False
    """Whether the body is wanted in place of an answer."""
    kept: list[Any] | None = None
    """Messages of the body to capture that its SDK was not given (``Unsaid``)."""
    original: Mapping[str, Any] | None = None
    """The body as the application made it; it is sent where a fork could not be begun."""
    volatile: str = ""
    """Text for this request alone, put behind the application's own layout."""

    made: Callable[[], None] = _nothing
    """Called when the body is made."""
    laid: RequestPlan[Any] | None = None
    """How it is laid out, and why; None for a call that no policy laid out."""
    answered: bool = False
    """Whether an answer to one of its requests has come, or has begun to come."""

    async def begin(self, body: Mapping[str, Any], api: Api, headers: Mapping[str, Any] | None) -> PendingCall:
        """The turn of a request, behind a sibling that is writing the same cold prefix."""
        self.made()
        if self.capture:
            field = history_field(api)
            # What the application puts over its messages stands in their place.
            raise Captured(body if self.kept is None or body.get(field) != [] else {**body, field: self.kept})
        session, fork, original = self.session, self.fork, self.original
        # A request that continues this answer is not the application's first one any more.
        self.original = None
        forked, loops, laid = fork is not None, fork is not None and fork.loops, body
        if session.mode != "observe":
            laid = session.attempt("settings", lambda: self._settled(body, api), body)
            tail = "" if fork is None else fork.laid.text
            laid = condensed_body(session, session.conversation(self.talk), laid, api, tail)
        own = body if original is None and laid is not body else original
        beside = self.volatile if fork is None else fork.plan.beside(session, forks=True)
        boundary, leave = self._boundary if forked else None, FOLLOW
        if forked or (self.laid is not None and self.laid.waits):
            leave = await session.waiting.aqueue(laid, api, boundary=boundary, headers=headers, plan=self.laid)
        asked = Request(
            laid,
            api,
            agent=self.agent,
            conversation=self.talk,
            boundary=boundary,
            original=None if own is None else lambda _: session.decode(own, api),
            headers=headers,
            rewrite=forked or session.attempt("routing", lambda: self._routed(body, api), otherwise=False),
            policy=ForkPolicy(purpose="agent", skip_cache_write=not loops) if forked else None,
            continues=loops,
            trailing=bool(beside),
        )
        turn = session.begin(asked if self.laid is None else asked.laid_out(self.laid), leave)
        if turn.seen is None and (original is not None or not forked):
            # It writes nothing that a sibling waits for.
            leave.release(ok=False)
            turn.body = body if original is None else original
            beside = self.volatile
        if beside:
            name = history_field(api)
            turn.body = {**turn.body, name: [*turn.body[name], {"role": "user", "content": beside}]}
        return turn

    def _routed(self, body: Mapping[str, Any], api: Api) -> bool:
        """Whether a request in the application's own layout gets the routing key too, and nothing else.

        Else it would land where its siblings' prompts are not cached.
        """
        session = self.session
        return session.mode != "observe" and session.profile(str(body.get("model", "")), api).markers is None

    def _settled(self, body: Mapping[str, Any], api: Api) -> Mapping[str, Any]:
        """A fork's body without ag2's own marks, one of which would stand on the role's text."""
        if self.fork is None:
            return body
        body = self.session.markable(_unmarked(body) if api == "anthropic" else body, api)
        allowed = self.fork.laid.restriction.allowed
        if allowed is None or body.get("tool_choice", "auto") != "auto" or not body.get("tools"):
            return body
        return {**body, "tool_choice": allowed_choice(allowed, api)}

    def _boundary(self, prompt: Prompt) -> int:
        """Where the shared part ends: before the role's text."""
        found = None if self.fork is None else prompt.last_of(self.fork.laid.text)
        return len(prompt.sections) if found is None else found


class Unsaid:
    """An SDK's client, or a part of it, that makes the body to capture without its messages, which ``Sending`` keeps.

    OpenAI's SDK goes through the types of each message on the event loop, for long histories as long as all the rest of
    a turn takes, and leaves what is JSON as it is.
    """

    def __init__(self, own: Any, sending: Sending) -> None:
        self._own = own
        self._sending = sending

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._own, name)
        if name in _PARTS:
            return Unsaid(found, self._sending)
        return functools.partial(self._asked, found) if name in ("create", "stream") else found

    def _asked(self, own: Callable[..., Any], /, **given: Any) -> Any:
        field = "input" if "input" in given else "messages"
        messages = given.get(field)
        if type(messages) is list and _is_json(messages):
            self._sending.kept, given[field] = messages, []
        return own(**given)


def _is_json(value: Any) -> bool:
    """Whether a value stands in JSON as it is: no object of a class, which an SDK would write out."""
    if type(value) is dict:
        return all(type(name) is str and _is_json(each) for name, each in value.items())
    if type(value) is list:
        return all(map(_is_json, value))
    return value is None or type(value) in (str, int, float, bool)


SENDING: BlockVar[Sending] = BlockVar("cacheprefix_ag2_sending")


def tap(client: Any) -> bool:
    """Watch the SDK under an ag2 client; False where there is none that can be watched."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_once)
    return tapped(getattr(client, "_client", None), _watched)


def _once(_: logging.LogRecord) -> bool:
    """Whether a line of ag2's is logged: what it says while a body is captured, it says as the request is sent."""
    sending = SENDING.get()
    return sending is None or not sending.capture


def _watched(sdk: Any, post: Callable[..., Any]) -> Callable[..., Any]:
    """An SDK's ``post`` that begins the request under way, and reads the usage of its answer."""

    async def watched(path: str, *, body: Any = None, **rest: Any) -> Any:
        sending = SENDING.get()
        where = path.partition("?")[0]
        api = next((api for end, api in _PATHS if where.endswith(end)), None)
        if sending is None or api is None or not isinstance(body, dict):
            return await post(path, body=body, **rest)
        # What the SDKs leave out of the JSON they write, and what they add to it.
        full = {name: value for name, value in body.items() if type(value).__name__ not in ("Omit", "NotGiven")}
        options = rest.get("options") or {}
        full |= options.get("extra_json") or {}
        headers = sending.session.attempt("headers", lambda: headers_of(sdk, options.get("headers") or {}), None)
        with await sending.begin(full, api, headers) as turn:
            if turn.body is not full:
                # It holds what the SDK would put over it: over our marks, and the text for this request alone.
                rest["options"] = {name: value for name, value in options.items() if name != "extra_json"}
                body = dict(turn.body)
            answer = await post(path, body=body, **rest)
        sending.answered = True
        if watched_in_place(answer, ForkBody(sending.session, api, full, full, None), turn) is None:
            turn.finish(getattr(answer, "usage", None), diagnostics=getattr(answer, "diagnostics", None))
        return answer

    return watched


def _unmarked(body: Mapping[str, Any]) -> dict[str, Any]:
    """Without cache marks on system blocks and messages; the app's own messages stay as they were."""

    def plain(content: Any) -> Any:
        if not isinstance(content, list):
            return content
        return [
            {key: value for key, value in block.items() if key != _MARK} if isinstance(block, dict) else block
            for block in content
        ]

    messages = [{**one, "content": plain(one.get("content"))} for one in body.get("messages") or []]
    return {**body, **({"system": plain(body["system"])} if "system" in body else {}), "messages": messages}
