"""Marks a request and reads its usage in the SDK's own ``post``, which gets the body exactly as it is sent.

AutoGen's clients do not pass cache marks on (Anthropic), nor cached-token counts back, streaming or not. ``post``
handles both, whatever HTTP library or client subclass is in use.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from cacheprefix import ForkPolicy, PendingCall, Prompt, Usage
from cacheprefix.adapter import (
    FOLLOW,
    AdapterSession,
    Api,
    BlockVar,
    ForkBody,
    Request,
    RequestPlan,
    VolatileRole,
    allowed_choice,
    forces_any,
    headers_of,
    normalise_usage,
    tapped,
    watched_in_place,
    with_volatile,
)

if TYPE_CHECKING:
    from cacheprefix_autogen.layout import Layout
    from cacheprefix_autogen.summaries import Holds
    from cacheprefix_autogen.tool_restriction import Restriction

T = TypeVar("T")

_PATHS: Mapping[str, Api] = {"/chat/completions": "openai-chat", "/v1/messages": "anthropic"}


class Undone(BaseException):
    """Raised where a laid-out request could not be begun, to ask anew with the application's own.

    A ``BaseException``, so that no handler of the application's catches it on the way.
    """


@dataclass(slots=True)
class Sending:
    """One request on its way through a client, and what came of it."""

    session: AdapterSession
    client: Any = None
    """AutoGen's own client, inside all wrappers."""
    agent: str = ""
    conversation: str = ""
    layout: Layout | None = None
    """How it was laid out; None where it is the application's own."""
    plan: RequestPlan[Any] | None = None
    """Why it was laid out so; None where a session only observes."""
    original: Callable[[Prompt], Prompt | None] | None = None
    """Gives the prompt that the application would have sent, with which costs are compared."""
    scope: str | None = None
    """The tenant whose request it is; None for the session's."""
    volatile: str = ""
    """Text for this request alone; it goes out behind everything else."""
    volatile_role: VolatileRole = "user"
    once: bool = False
    """Whether no later request is known to begin with this one: then it is marked only if it repeats an earlier one."""
    rewrite: bool = False
    """Whether the body may be changed: not in ``observe`` mode."""
    undone: bool = False
    """Whether the request could not be begun: it goes out as the application made it, unmeasured."""
    anew: bool = False
    """Whether it goes out as the application made it, after the same was refused for its list of allowed tools."""
    list_refused: bool = False
    """Whether the endpoint has refused it, and takes no list of allowed tools, which it had."""
    pending: PendingCall | None = None
    """The session's side of it, once it was begun."""
    api: Api = "openai-chat"
    report: Any = None
    """The usage that the provider reported; of a stream, so far."""
    asks_usage: bool = False
    """Whether a stream reports usage only because we asked: then it is removed from what the application sees."""
    sent: Mapping[str, Any] | None = None
    """The body before it was marked."""
    holds: Holds | None = None
    """The conversation and the messages that it was made of; None where nothing will ask for them."""
    words: tuple[str, ...] = ()
    """Its system texts and the role's: a client of the application's around AutoGen's may ask something else, too."""
    missed: bool = False
    """Whether a request with other texts went out meanwhile: such a client's own, or this one as it changed it."""

    @property
    def usage(self) -> Usage | None:
        """What was reported; None where nothing was."""
        return normalise_usage(self.report, self.api) if self.report else None

    def makes(self, body: Mapping[str, Any]) -> bool:
        """Whether a body is this request's, and not that of a guard which a client of the application's asks before it.

        Equal information: what belongs to this request alone, such as its volatile text, would go to that one.
        """
        said = list(_texts(body))
        return all(any(word in text for text in said) for word in self.words)

    def again(self) -> Sending:
        """What is to become of the same request where it is sent once more, as by a client that tries again."""
        return replace(self, pending=None, report=None, sent=None, asks_usage=False)

    async def open(
        self, sdk: Any, api: Api, body: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """Begin the request; if another one is just writing the same uncached prefix, wait for it.

        Gives the body and options to send, the very same objects when nothing changes. Raises ``Undone`` where
        it could not be begun and is not laid out as the application's own.
        """
        extra, own = options.get("extra_json"), options.get("headers") or {}
        headers = self.session.attempt("headers", lambda: headers_of(sdk, own), None)
        full = {**body, **extra} if extra else body
        self.api = api
        made = full if self.undone else await self._begun(api, full, headers)
        if made is full and not self.volatile:
            return body, options
        rest = {name: value for name, value in options.items() if name != "extra_json"} if extra else options
        return with_volatile(made, api, self.volatile, self.volatile_role), rest

    async def _begun(self, api: Api, full: Mapping[str, Any], headers: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """The body as the session begins it, after waiting for a sibling that writes the prefix. Raises ``Undone``."""
        changed = self._settled(api, full) if self.rewrite else full
        layout = self.layout
        forked = layout is not None and layout.shared is not None
        boundary, leave = self._boundary if forked else None, FOLLOW
        if forked or (self.plan is not None and self.plan.waits):
            leave = await self.session.waiting.aqueue(
                changed, api, boundary=boundary, scope=self.scope, headers=headers, plan=self.plan
            )
        asked = Request(
            changed,
            api,
            agent=self.agent,
            conversation=self.conversation,
            boundary=boundary,
            original=self.original,
            headers=headers,
            # Money: later requests are forks again, which read nothing that one sent anew would write.
            rewrite=self.rewrite and not self.anew,
            policy=None if layout is None else _policy(layout),
            scope=self.scope,
            continues=layout is not None and layout.continues,
            trailing=bool(self.volatile),
            repeated=self.once and not forked,
        )
        pending = self.session.begin(asked if self.plan is None else asked.laid_out(self.plan), leave)
        if pending.seen is not None or self.session.off:
            self.pending, self.sent = pending, pending.unmarked or changed
            return pending.body
        pending.fail()
        self.undone = True
        if self.layout is not None:
            raise Undone
        return full

    def _settled(self, api: Api, full: Mapping[str, Any]) -> Mapping[str, Any]:
        """The body with the role's limits on tools, and the usage of a stream asked for."""
        added: dict[str, Any] = {}
        if self.layout is not None and full.get("tools"):
            added = _limited(self.layout.restriction, api, full)
        if api == "openai-chat" and full.get("stream") and "stream_options" not in full:
            added["stream_options"] = {"include_usage": True}
            self.asks_usage = True
        return {**full, **added} if added else full

    def _boundary(self, prompt: Prompt) -> int | None:
        """How many sections of the prompt are shared with other requests; None where it is no fork."""
        if self.layout is None or self.layout.shared is None:
            return None
        system = 0
        if prompt.api == "openai-chat":
            head = takewhile(lambda section: section.tier != "messages", prompt.sections)
            system = len({section.path.split("]", 1)[0] for section in head if section.tier == "system"})
        end = system + self.layout.shared
        at = len(prompt.sections)
        # Searched from the end, where a fork's own part is, which is short.
        while at and prompt.sections[at - 1].tier == "messages" and message_index(prompt.sections[at - 1].path) >= end:
            at -= 1
        return at

    def answered(self, answer: Any) -> None:
        """Record an answer with the usage that the provider reports: at its end, where it is a stream."""
        turn = self.pending or PendingCall({})
        asked = {"stream_options": {"include_usage": True}} if self.asks_usage else {}
        events = watched_in_place(answer, ForkBody(self.session, self.api, asked, {}, None), turn)
        self.report = getattr(answer, "usage", None) if events is None else events.usage
        if events is None:
            turn.finish(self.report, diagnostics=getattr(answer, "diagnostics", None))

    def take(self, last: Sending) -> None:
        """Take what came of the same request when it was sent once more, where there was no answer before."""
        if not self.report:
            self.report, self.sent, self.api = last.report, last.sent, last.api

    def failed(self) -> None:
        """Record that there will be no answer."""
        if self.pending is not None:
            self.pending.fail()


def _limited(limits: Restriction, api: Api, full: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a body by which a role is kept to its own tools."""
    choice = full.get("tool_choice")
    forced = forces_any(choice)
    if forced and limits.permitted is not None:
        # A client of the application's around AutoGen's asks for a call: of the union it might be another role's tool.
        if not limits.permitted:
            return {"tool_choice": allowed_choice((), api)}
        if limits.allowed is None:
            own = [one for one in full["tools"] if (one.get("function") or one)["name"] in limits.permitted]
            return {"tools": own}
    if limits.allowed is None or api != "openai-chat" or not (forced or choice in (None, "auto", "none")):
        return {}
    allowed = allowed_choice(limits.allowed, api)
    if forced:
        allowed["allowed_tools"]["mode"] = "required"
    return {"tool_choice": allowed}


def _policy(layout: Layout) -> ForkPolicy:
    """Pay for a cache write of the request's end only where a later request may begin with it."""
    restriction = layout.restriction
    loops = bool(restriction.tools) and restriction.permitted != ()
    return ForkPolicy(skip_cache_write=not (layout.continues or loops), purpose="agent")


SENDING: BlockVar[Sending] = BlockVar("cacheprefix_autogen_sending")


def tap(client: Any) -> bool:
    """Watch the SDK under an AutoGen client; False where there is none that can be watched."""
    return tapped(getattr(client, "_client", None), _watched)


def _watched(sdk: Any, post: Callable[..., Any]) -> Callable[..., Any]:
    """An SDK's ``post`` that begins the request under way, and reads the usage of its answer."""

    async def watched(path: str, *, body: Any = None, options: Any = None, **rest: Any) -> Any:
        sending = SENDING.get()
        api = _PATHS.get(path)
        options = {} if options is None else options
        if api is None and path.endswith("/chat/completions"):
            api = "openai-chat"  # Azure puts the deployment before the path
        if sending is None or api is None or not isinstance(body, Mapping):
            return await post(path, body=body, options=options, **rest)
        if not sending.session.attempt("request", partial(sending.makes, body), otherwise=True):
            sending.missed = True
            return await post(path, body=body, options=options, **rest)
        first, sending = sending, sending if sending.pending is None else sending.again()
        try:
            body, options = await sending.open(sdk, api, body, options)
            result = await post(path, body=body, options=options, **rest)
        except BaseException:
            first.undone = sending.undone
            sending.failed()
            lists = sending.layout is not None and bool(sending.layout.restriction.allowed)
            first.list_refused = lists and not sending.session.takes_lists(str(body.get("model", "")))
            raise
        first.list_refused = False
        sending.answered(result)
        first.take(sending)
        return result

    return watched


def _texts(body: Mapping[str, Any]) -> Iterator[str]:
    """The texts of a body, but for those of its tools."""
    for message in (*body.get("messages", ()), {"content": body.get("system")}):
        content = message.get("content")
        for part in content if isinstance(content, list) else [{"text": content}]:
            text = part.get("text") if isinstance(part, Mapping) else None
            if isinstance(text, str):
                yield text


@asynccontextmanager
async def ending(stream: T) -> AsyncIterator[T]:
    """Close the stream with the block, so that its own clean-up has run before ours."""
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


def message_index(path: str) -> int:
    """The place in the body's message list that a section's path names."""
    return int(path[path.index("[") + 1 : path.index("]")])
