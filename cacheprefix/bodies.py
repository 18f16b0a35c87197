"""Request bodies as forks: for an adapter that sees finished bodies, whatever made them (an SDK, a proxy, plain HTTP).

``fork_body`` lays a body out; the ``ForkBody`` it gives begins the turn, watches a stream and refuses tools of other
roles. ``allowed_choice``, ``begins`` and ``instruction_of`` serve adapters that lay out a framework's own objects too.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from typing import Any

from cacheprefix.adapter_session import AdapterSession
from cacheprefix.calls.begin import Request
from cacheprefix.calls.history_runner import RestOfRequest
from cacheprefix.calls.pending import PendingCall
from cacheprefix.errors import ToolClashError
from cacheprefix.layout import FOLLOW, Pass, Tool, find_text, tail_text, with_volatile
from cacheprefix.layout.known_runs import RunAhead
from cacheprefix.layout.plan import AgentRequest, OwnTools, RequestPlan, RoleTold, failed
from cacheprefix.layout.prefix import tool_of
from cacheprefix.layout.role_position import LONG as LONG_ROLE
from cacheprefix.layout.role_position import CountedHistory
from cacheprefix.layout.shared_text import LEAST
from cacheprefix.layout.tool_sets import ToolSet
from cacheprefix.profiles import merge_usage
from cacheprefix.prompt import MESSAGE_TOKENS, Api, MessageView, Prompt, Reason, digest_of, dumps_sorted, loads, reason
from cacheprefix.wire import apply, form_of, sendable, views_of
from cacheprefix.wire.answers import begins, history_field, read_answer, result_messages, user_message
from cacheprefix.wire.apis import CHATS, SHAPES, chat_of
from cacheprefix.wire.messages import Answer
from cacheprefix.wire.openai_chat import SYSTEM_ROLES, tool_name

__all__ = [
    "LONG_ROLE",
    "AsyncWatched",
    "ForkBody",
    "Role",
    "ToolSet",
    "Watched",
    "adopt_declared",
    "allowed_choice",
    "begins",
    "current_role",
    "fork_body",
    "in_role",
    "instruction_of",
]


@dataclass(frozen=True, slots=True)
class Role:
    """Whose call it is, and of which conversation."""

    name: str
    instruction: str = ""
    """Stands at the end, before what the call's own system text adds to the shared one."""
    conversation: str = ""
    volatile: Mapping[str, str] = field(default_factory=dict)
    """Text for this call alone (time, retrieval), by key; it stands at the very end."""
    ahead: RunAhead | None = None
    """The calls of the run from this one on, where their number and order are known beforehand."""
    played: bool = False
    """Whether an open-ended run is laid out by playing its layouts (docs/never-dearer.md): hardly ever dearer than
    without us, and later to share what nobody asked for yet. Tell of all roles first (``AdapterSession.join``). What it
    goes by is kept in this process: another one that takes the conversation up may lay it out otherwise."""


_ROLE: ContextVar[Role | None] = ContextVar("cacheprefix_role", default=None)


@contextmanager
def in_role(
    name: str, *, instruction: str = "", conversation: str = "", volatile: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Calls of wrapped clients inside the block, and in tasks started there, are forks of this role."""
    token = _ROLE.set(Role(name, instruction, conversation, volatile or {}))
    try:
        yield
    finally:
        _ROLE.reset(token)


def current_role() -> Role | None:
    """The role of the innermost ``in_role`` around the code that runs; None outside of all."""
    return _ROLE.get()


@dataclass(frozen=True, slots=True)
class ForkBody:
    """A body ready to be sent, and what it was before."""

    session: AdapterSession
    api: Api
    body: dict[str, Any]
    given: dict[str, Any]
    role: Role | None
    plan: RequestPlan[Any] | None = None
    """How it is laid out, and why; None for a call that no role makes."""
    tries: int = 0
    prompt: Prompt | None = None
    """The body as it came, where it was decoded to find its conversation."""
    went_on: str = ""
    """The answer that the application went on from, where ``given`` has the whole history in its place."""

    @property
    def tail(self) -> str:
        """The role's text as it is sent; empty in the application's own layout."""
        return self.plan.text if self.plan is not None and self.plan.forks else ""

    @property
    def forked(self) -> bool:
        """Whether it is laid out as a fork."""
        return self.plan is not None and self.plan.forks

    def queue(self) -> Pass:
        """Wait, in this thread, for a sibling that writes the same cold prefix; for ``begin``."""
        return self.session.waiting.queue(self.body, self.api, boundary=self._boundary) if self.forked else FOLLOW

    async def aqueue(self) -> Pass:
        """``queue`` without blocking the event loop."""
        waiting = self.session.waiting
        return await waiting.aqueue(self.body, self.api, boundary=self._boundary) if self.forked else FOLLOW

    def begin(self, leave: Pass = FOLLOW) -> PendingCall:
        """The turn of this request: send its ``body``, then ``finish`` it with the answer's usage, or ``watch`` it."""
        role, session = self.role, self.session
        changed = self.forked or self.body is not self.given
        plan = self.plan
        asked = Request(
            self.body,
            self.api,
            agent=role.name if role else "",
            conversation=role.conversation if role else "",
            boundary=self._boundary if self.forked else None,
            original=self._unmodified if changed else None,
            rewrite=self.forked,
            repeated=plan is not None and plan.repeats,
            continues=plan is not None and plan.continues,
        )
        if plan is not None:
            asked = asked.laid_out(plan)
        turn = session.begin(asked, leave)
        if self.forked and turn.seen is None:
            turn.body = self.own()
        return turn

    def _unmodified(self, given: Prompt) -> Prompt:
        """The request as the application made it."""
        if self.tries:
            # It stands in for an answer that the application never saw.
            return replace(given, sections=())
        return self.session.decode(self.given, self.api) if self.prompt is None else self.prompt

    def own(self) -> dict[str, Any]:
        """The application's own request, in place of a fork that failed."""
        role, session = self.role, self.session
        if role is None:
            return self.given
        return session.attempt("layout", lambda: _completed(session, self.given, self.api, role), self.given)

    def refusal(self, answer: Any) -> ForkBody | None:
        """What to ask instead where the answer (a dict or an SDK's object) calls a tool of another role, else None.

        First the same request with that answer and the refusal behind it; the second time the application's own.
        """
        # In its own layout a request carries its own tools, or a thread's or template's, which it need not name.
        permitted = self.plan.restriction.permitted if self.plan is not None and self.plan.forks else None
        if permitted is None or not (isinstance(answer, Mapping) or hasattr(answer, "model_dump")):
            return None
        read = self.session.attempt("refusal", lambda: read_answer(answer, self.api), Answer("", (), (), None))
        if {call.name for call in read.calls} <= set(permitted):
            return None
        assert self.role is not None
        self.session.note(f"role {self.role.name!r} called a tool of another role; it was refused and asked again")
        if self.tries:
            return ForkBody(self.session, self.api, self.own(), self.given, self.role)
        listed = ", ".join(permitted) or "none"
        why = f"was not run: tools available to the role {self.role.name!r} are: {listed}."
        told = result_messages([(call, f"Tool {call.name!r} {why}", True) for call in read.calls], self.api)
        name = history_field(self.api)
        return replace(self, body={**self.body, name: [*self.body[name], *read.messages, *told]}, tries=1)

    def ask(self, send: Callable[[Mapping[str, Any]], Any], streamed: Streamed) -> Any:
        """The answer to this request, which ``send`` makes of a body; a call of another role's tool is asked again.

        A stream is given as ``streamed`` has it watched (``watch``). What ``send`` raises is the application's.
        """
        asked, answer = self, None
        while True:
            with asked.begin(asked.queue()) as turn:
                answer = send(turn.body)
            stream = asked._watched(turn, answer, streamed)
            again = asked._finished(turn, answer) if stream is None else None
            if again is None:
                return answer if stream is None else stream
            asked = again

    async def aask(self, send: Callable[[Mapping[str, Any]], Awaitable[Any]], streamed: Streamed) -> Any:
        """``ask`` for an asynchronous client."""
        asked, answer = self, None
        while True:
            with asked.begin(await asked.aqueue()) as turn:
                answer = await send(turn.body)
            stream = asked._watched(turn, answer, streamed)
            again = asked._finished(turn, answer) if stream is None else None
            if again is None:
                return answer if stream is None else stream
            asked = again

    def _watched(self, turn: PendingCall, answer: Any, streamed: Streamed) -> Any:
        """What ``streamed`` gives; the answer itself, of unknown usage, where it fails."""
        failure = object()
        found = self.session.attempt("stream", lambda: streamed(answer, self, turn), failure)
        if found is not failure:
            return found
        turn.finish(None)
        return answer

    def _finished(self, turn: PendingCall, answer: Any) -> ForkBody | None:
        turn.finish(getattr(answer, "usage", None))
        self.answered(turn, answer)
        return self.refusal(answer)

    def answered(self, turn: PendingCall, answer: Any) -> None:
        """Remember an answer that the provider keeps, and what its history holds without what we added to it."""
        self.session.attempt("kept answer", lambda: self._answered(turn, answer), None)

    def _answered(self, turn: PendingCall, answer: Any) -> None:
        session, given = self.session, self.given
        id_, output = getattr(answer, "id", None), getattr(answer, "output", None)
        chained = SHAPES[self.api].FIELDS.chained
        if not chained or session.mode == "observe" or not isinstance(id_, str) or not isinstance(output, list):
            return
        if self.went_on:
            # What the application reads there is what it asked.
            answer.previous_response_id = self.went_on
        if given.get("store") is False:
            return
        role, name = self.role, history_field(self.api)
        talk = (*session.team.owner(None), role.conversation if role else "")
        said: list[Any] = []
        if turn.body.get(name) is not given.get(name):
            said = [*_items(given.get(name)), *read_answer(answer, self.api).messages]
        tokens = turn.seen.prompt.tokens if said and turn.seen else len(str(said)) // 4
        session.shared.kept.answered(id_, _speaker(session, role), talk, said, tokens)

    def watch(self, turn: PendingCall, events: Iterator[Any], usage: UsageOf | None = None) -> Watched:
        """The events of a stream as they come; the turn learns of the first one, of the usage and of the end.

        ``usage`` finds it in an event where that is not as the APIs have it.
        """
        return Watched(self, turn, events, usage or _usage_of)

    def awatch(self, turn: PendingCall, events: AsyncIterator[Any], usage: UsageOf | None = None) -> AsyncWatched:
        """``watch`` for an asynchronous stream."""
        return AsyncWatched(self, turn, events, usage or _usage_of)

    def passes(self, turn: PendingCall, event: Any, usage: dict[str, Any], usage_of: UsageOf) -> bool:
        """Note an event and its usage; False for one that came only because we asked for the usage."""
        self.session.attempt("stream", lambda: self._noted(turn, event, usage, usage_of(event)), None)
        ours = self.body.get("stream_options") != self.given.get("stream_options")
        if ours:
            # Every event says then that it has none.
            getattr(event, "__pydantic_fields_set__", set()).discard("usage")
        return not (ours and getattr(event, "usage", None) is not None and not getattr(event, "choices", None))

    def _noted(self, turn: PendingCall, event: Any, usage: dict[str, Any], found: Any) -> None:
        if turn.first_token_at is None and begins(event):
            turn.first_token()
        if self.api == "openai-responses" and getattr(event, "response", None) is not None:
            self._told(turn, event)
        if found is not None:
            usage.update(merge_usage(usage, found))

    def _told(self, turn: PendingCall, event: Any) -> None:
        if event.type in ("response.completed", "response.incomplete"):
            self.answered(turn, event.response)
        elif self.went_on:
            event.response.previous_response_id = self.went_on

    def _boundary(self, prompt: Prompt) -> int:
        """Where the shared part ends: before the role's text."""
        data = self.tail.encode("utf-8", "surrogatepass")
        found = (at for at in range(len(prompt.sections) - 1, -1, -1) if prompt.sections[at].data == data)
        return next(found, len(prompt.sections)) if self.tail else len(prompt.sections)


Streamed = Callable[[Any, ForkBody, PendingCall], Any]
"""Gives an answer that is a stream with its events watched, and None for one that is whole."""
UsageOf = Callable[[Any], Any]
"""The usage that an event of a stream brings, or None."""


def _usage_of(event: Any) -> Any:
    places = (event, getattr(event, "message", None), getattr(event, "response", None))
    return next((one for one in (getattr(place, "usage", None) for place in places) if one is not None), None)


class _Watching:
    """What is known of a stream: it ends its turn however it ends itself, also where nobody ever read it."""

    def __init__(self, fork: ForkBody, turn: PendingCall, events: Any, usage: UsageOf) -> None:
        self._fork, self._turn, self._events, self._usage_of = fork, turn, events, usage
        self._usage: dict[str, Any] = {}
        self._reading = False
        self._heard = False
        self._last: Any = None
        turn.leave.rests()

    def _passes(self, event: Any) -> bool:
        self._heard, self._last = True, event
        return self._fork.passes(self._turn, event, self._usage, self._usage_of)

    def _ended(self) -> None:
        usage: Any = self._usage
        if self._heard and not usage and self._usage_of is not _usage_of:
            # LiteLLM writes it into the last event once the provider's stream has ended.
            usage = self._fork.session.attempt("usage", lambda: self._usage_of(self._last), None)
        self._turn.finish(usage or None)

    def _left(self) -> None:
        """Closed or dropped: a call all the same, with what usage came; none where not even its beginning did."""
        if self._heard:
            self._ended()
        else:
            self._turn.fail()

    def response_closed(self) -> None:
        """The response underneath was closed: by whoever reads no further, or at its end, of which the reader knows."""
        if not self._reading:
            self._left()

    def __del__(self) -> None:
        self._left()


class Watched(_Watching):
    """A stream's events on their way to the application."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._reading = True
        try:
            while True:
                with self._turn.reading():
                    event = next(self._events)
                if self._passes(event):
                    return event
        except StopIteration:
            self._ended()
            raise
        except BaseException:
            self._turn.fail()
            raise
        finally:
            self._reading = False

    def close(self) -> None:
        """The application reads no further; the stream underneath is its own to close."""
        self._left()


class AsyncWatched(_Watching):
    """``Watched`` for an asynchronous stream."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        self._reading = True
        try:
            while True:
                with self._turn.reading():
                    event = await anext(self._events)
                if self._passes(event):
                    return event
        except StopAsyncIteration:
            self._ended()
            raise
        except BaseException:
            self._turn.fail()
            raise
        finally:
            self._reading = False

    async def aclose(self) -> None:
        """The application reads no further; the stream underneath is its own to close."""
        self._left()


def fork_body(
    session: AdapterSession,
    body: Mapping[str, Any],
    api: Api,
    role: Role | None,
    *,
    asks_usage: bool = True,
    lists: bool = True,
    own: tuple[Reason, ...] = (),
) -> ForkBody:
    """A body as a fork of ``role``: shared system text and tools, the conversation as it is, the role's text last.

    A long role text stays where the role last had it while that costs less (``AdapterSession.place``).

    ``body`` is JSON as ``openai-chat``, ``openai-responses`` or ``anthropic`` takes it, and is not changed. It stays as
    it is without a role and in observe mode; while less is shared than the provider caches it only gets what it leaves
    to the session to say. ``asks_usage`` is False where nobody watches the stream: then its usage is not asked for, as
    the event that brings it would reach the application. ``lists`` is False where the client takes no list of allowed
    tools, which are then said in words. ``own`` says why the request keeps its layout, whatever sharing saves. Fails
    open; raises only ``BudgetError``, for a request budget that cannot be met.
    """
    given, went_on = dict(body), ""
    if session.mode != "observe" and SHAPES[api].FIELDS.chained:
        given, went_on = session.attempt("kept answer", lambda: _gone_on(session, body, api, role), (given, ""))
    plain = ForkBody(session, api, given, given, role, went_on=went_on)
    if role is None or session.mode == "observe":
        return plain
    session.join(role.name)
    if not role.conversation:
        prompt = session.attempt("conversation", lambda: session.decode(given, api), None)
        said = () if prompt is None else prompt.digests[prompt.head :]
        role = replace(role, conversation=session.unnamed(said))
        plain = replace(plain, role=role, prompt=prompt)
    read = session.attempt("layout", lambda: _read(session, given, api, role), None)
    if read is None:
        return replace(plain, body=plain.own(), plan=failed("layout"))
    plan = session.plan(read.request(session, given, api, role, own, lists=lists))
    if plan.at is None:
        # One that failed knows nothing of the history: the request goes out with all that it said.
        failing = plan.reasons[-1].why == "failed"
        sent = plain.own() if failing else _own(session, given, api, role, list(plan.history))
        return replace(plain, body=sent, plan=plan)
    laid = session.attempt("layout", lambda: _laid(session, given, api, read, plan), None)
    if laid is None:
        return replace(plain, body=plain.own(), plan=failed("layout"))
    if asks_usage and laid.get("stream"):
        for name, value in SHAPES[api].FIELDS.asks_usage.items():
            laid.setdefault(name, dict(value))
    return replace(plain, body=laid, plan=plan)


def allowed_choice(names: Sequence[str], api: Api) -> Any:
    """The ``tool_choice`` that allows only ``names``, with the array of tools as it is.

    OpenAI's ``allowed_tools``, and ``none`` for no names; on Anthropic nothing but no names can be said. Where either
    leaves the cache whole, and by which source, stands in the profile (``tool_choice_safe`` and its evidence).
    """
    return chat_of(api).allowed_choice(names)


def instruction_of(texts: Sequence[str], shared: str) -> str:
    """A role's text: its system texts without the shared text in them, whatever its white space, each once."""
    own = (_without(shared, text) for text in texts) if shared.strip() else texts
    return "\n\n".join(dict.fromkeys(part for part in own if part))


def _without(shared: str, text: str) -> str:
    span = find_text(shared, text)
    return text.strip() if span is None else (text[: span[0]] + text[span[1] :]).strip()


@dataclass(frozen=True, slots=True)
class _Read:
    """What a body says: its history, the role's own text, its tools."""

    history: list[Any]
    text: str
    tools: list[Any]
    shared: bool
    """Whether its tools may be those of all: it has none that the provider runs."""
    begins: bool
    """Whether its own system text begins with the shared one."""
    holds: bool
    """Whether it may be shown the shared text: it says that itself, or the user gave it."""
    differ: tuple[str, ...] = ()
    """Names of its tools that the union has with another schema: then it carries its own as they are."""

    def request(
        self,
        session: AdapterSession,
        body: Mapping[str, Any],
        api: Api,
        role: Role,
        own: tuple[Reason, ...],
        *,
        lists: bool,
    ) -> AgentRequest[Any]:
        """What the role asks, for the planner."""
        model = str(body.get("model", ""))

        def history(told: RoleTold) -> CountedHistory[Any]:
            known = _condensed(session, self.history, role, model, api, told.text, told.carries(names))
            end = len(known) - _begun(session, known, body, api)
            return CountedHistory(known[:end], digest, tokens, known[end:])

        def digest(message: Any) -> str:
            return digest_of(dumps_sorted(_unmarked(message), "message"))

        def tokens(message: Any) -> int:
            content = message.get("content") if isinstance(message, Mapping) else None
            if isinstance(content, str) and message.keys() <= {"role", "content"}:
                return session.count(content, model) + MESSAGE_TOKENS
            return session.count(str(message), model)

        if not body.get(history_field(api)):
            # A fork would ask what the application did not, or what its provider refuses.
            own = (*own, reason("own_prompt", "it asks nothing"))
        names = tuple(tool_name(tool) for tool in self.tools)
        free = body.get("tool_choice") in (None, "auto")
        return AgentRequest(
            role.name,
            model,
            session.conversation(role.conversation),
            self.text,
            history,
            spoken=lambda: list(map(tokens, self.history)),
            api=api,
            tools=OwnTools(names, free=free, lists=lists, differ=self.differ) if self.shared else None,
            volatile=role.volatile,
            known=_providers(self.tools),
            own=(*own, reason("kept_by_provider")) if _kept_elsewhere(session, body, api, role) else own,
            alike=(role.ahead is not None or role.played) and self.begins,
            played=role.played,
            cached=_marked(body, api),
            ahead=role.ahead,
            joint=role.ahead is None or role.ahead.joint,
            holds_shared=self.holds,
        )


def _marked(body: Mapping[str, Any], api: Api) -> bool:
    """Whether the application itself marks the request for the cache, so that the provider keeps its own layout."""
    messages = body.get(history_field(api))
    said = [one.get("content") for one in messages if isinstance(one, Mapping)] if isinstance(messages, list) else []
    lists = (given for given in (body.get("system"), body.get("tools"), *said) if isinstance(given, list))
    blocks = (block for given in lists for block in given)
    return "cache_control" in body or any(isinstance(one, Mapping) and "cache_control" in one for one in blocks)


def _unmarked(message: Any) -> Any:
    """A message without marks for the cache, which the newest one has and no other: it is the same message later."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list):
        return message
    blocks = [
        {name: value for name, value in one.items() if name != "cache_control"} if isinstance(one, Mapping) else one
        for one in content
    ]
    # A single text may have been a plain one before it was marked.
    plain = len(blocks) == 1 and isinstance(blocks[0], Mapping) and blocks[0].keys() == {"type", "text"}
    return {**message, "content": blocks[0]["text"] if plain else blocks}


def _read(session: AdapterSession, body: Mapping[str, Any], api: Api, role: Role) -> _Read:
    history = _items(body.get(history_field(api)))
    fields = SHAPES[api].FIELDS
    own = [_text(body.get(fields.system))] if fields.system else []
    while history and _leads(history[0]):
        own.append(_text(history.pop(0).get("content")))
    tools = list(body.get("tools") or [])
    shared = all(map(_plain, tools)) and bool(tools or session.prefix.tools)
    differ = adopt_declared(session, role.name, tools) if shared else ()
    known = session.prefix.system
    span = find_text(known, own[0]) if known.strip() and own else None
    begins = span is not None and not own[0][: span[0]].strip()
    holds = session.holds_shared((*own, *(_text(one.get("content")) for one in history if isinstance(one, Mapping))))
    return _Read(history, instruction_of((role.instruction, *own), known), tools, shared, begins, holds, differ)


def adopt_declared(session: AdapterSession, role: str, tools: Sequence[Any]) -> tuple[str, ...]:
    """Put tools, as a body declares them, into the union; where some have another schema there, their names, and none.

    The role keeps its own tools then, which is noted.
    """
    try:
        # Copies: what the application later does to its dicts must not change the prefix.
        session.adopt_tools(copy.deepcopy(list(tools)), dict, grows=True)
    except ToolClashError as error:
        union = {tool.name: tool.schema for tool in session.prefix.tools}
        mine = (tool_of(tool, dict) for tool in tools)
        session.note(f"role {role!r} keeps its own tools, which others share no cache with: {error}")
        return tuple(tool.name for tool in mine if union.get(tool.name, tool.schema) != tool.schema)
    return ()


def _laid(
    session: AdapterSession, body: Mapping[str, Any], api: Api, read: _Read, plan: RequestPlan[Any]
) -> dict[str, Any]:
    """The body as planned."""
    fields, shared, at = SHAPES[api].FIELDS, session.prefix.text, plan.at
    system = [{"role": "system", "content": shared}] if shared and fields.leading else []
    spoken = [user_message(plan.text)] if plan.text else []
    said = _said_once(plan.history, shared)
    history = [*system, *said[:at], *spoken, *said[at:]]
    laid = {**body, history_field(api): history, **_tools(session, read, plan, api)}
    for name in ("system", "instructions"):
        laid.pop(name, None)
    if fields.system and not fields.leading and shared:
        laid[fields.system] = shared
    return laid


def _said_once(history: Sequence[Any], shared: str) -> list[Any]:
    """The messages, those of the user without the shared text where they say it beside something else."""
    sought = " ".join(shared.split())
    # A short one may be said by anybody, and is no handbook.
    if len(sought) < LEAST:
        return list(history)

    def without(text: Any) -> Any:
        # A message that says nothing else stays: an empty one is refused, and the model must be asked something.
        return (isinstance(text, str) and len(text) >= len(sought) and _without(sought, text)) or text

    def once(message: Any) -> Any:
        content = message.get("content") if isinstance(message, Mapping) and message.get("role") == "user" else None
        if isinstance(content, list):
            parts = [_with_text(part, without) for part in content]
            return message if all(map(operator.is_, parts, content)) else {**message, "content": parts}
        found = without(content)
        return message if found == content else {**message, "content": found}

    return list(map(once, history))


def _with_text(part: Any, changed: Callable[[Any], Any]) -> Any:
    text = part.get("text") if isinstance(part, Mapping) else None
    found = changed(text)
    return part if found == text else {**part, "text": found}


def _tools(session: AdapterSession, read: _Read, plan: RequestPlan[Any], api: Api) -> dict[str, Any]:
    """The tools that the plan has the request carry, and how the role is kept to its own."""
    if plan.tools is None or read.differ:
        return {}
    union = [tool for tool in session.prefix.tools if isinstance(tool, Tool)]
    names, known = set(plan.tools.tools), {tool.name for tool in union}
    kept = [_rendered(tool.native, loads(tool.schema), api) for tool in union if tool.name in names]
    sent = [*kept, *(tool for tool in read.tools if tool_name(tool) not in known)]
    allowed = plan.restriction.allowed
    choice = {} if allowed is None else {"tool_choice": allowed_choice(allowed, api)}
    return {"tools": sent, **choice} if sent else {}


def _own(
    session: AdapterSession, given: dict[str, Any], api: Api, role: Role, history: Sequence[Any]
) -> dict[str, Any]:
    """The application's own layout with what was decided on its history."""
    name = history_field(api)
    before = given.get(name) or []
    if isinstance(before, str):
        if history != [user_message(before)]:
            given = {**given, name: history}
    elif isinstance(before, list):
        lead = len(before) - len(list(dropwhile(_leads, before)))
        if len(before) != lead + len(history) or not all(map(operator.is_, before[lead:], history)):
            given = {**given, name: [*before[:lead], *history]}
    # What is neither no API takes: it goes out as it came, and the provider says so.
    return session.attempt("layout", lambda: _completed(session, given, api, role), given)


def _gone_on(
    session: AdapterSession, body: Mapping[str, Any], api: Api, role: Role | None
) -> tuple[dict[str, Any], str]:
    """The request as it was asked; where it goes on from an answer to a fork, with the whole history in its place.

    The provider kept what the fork said at its end, for its role alone, and the shared text.
    """
    given, earlier, name = dict(body), body.get("previous_response_id"), history_field(api)
    if not isinstance(earlier, str):
        return given, ""
    said = session.shared.kept.gone_on(earlier, _speaker(session, role))
    if not said:
        return given, ""
    del given["previous_response_id"]
    return {**given, name: [*said, *_items(given.get(name))]}, earlier


def _speaker(session: AdapterSession, role: Role | None) -> tuple[str, str]:
    return session.name, role.name if role else ""


def _items(given: Any) -> list[Any]:
    return [user_message(given)] if isinstance(given, str) else list(given or ())


def _kept_elsewhere(session: AdapterSession, body: Mapping[str, Any], api: Api, role: Role) -> bool:
    """Whether the provider keeps the history that a request goes on from, or may be asked to go on from this one.

    What a fork says at its end would then stay there, for other roles to read, and the shared text once a request:
    only ``instructions`` are for one request alone. An application that has histories kept begins them without a sign
    of it, so that what its roles' requests begin is laid out so once one was gone on with. A ``conversation`` is named
    by all its requests.
    """
    fields = SHAPES[api].FIELDS
    if body.get(fields.thread) is not None:
        return True
    if not fields.chained:
        return False
    if any(body.get(name) is not None for name in (*fields.chained, *filter(None, (fields.template,)))):
        return True
    return body.get("store") is not False and session.shared.kept.begins(_speaker(session, role))


def _begun(session: AdapterSession, history: Sequence[Any], body: Mapping[str, Any], api: Api) -> int:
    """1 where the last message is the beginning of the answer, which the model goes on from; else 0.

    Nothing may stand behind it. Models that take none answer 400, and OpenAI's read an answer that was given before.
    """
    last = history[-1] if history else None
    begins = SHAPES[api].FIELDS.begun and isinstance(last, Mapping) and last.get("role") == "assistant"
    return int(begins and session.profile(str(body.get("model", "")), api).prefill)


def _leads(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") in SYSTEM_ROLES


def _completed(session: AdapterSession, body: dict[str, Any], api: Api, role: Role) -> dict[str, Any]:
    """A body in the application's own layout with what it leaves to the session to say: shared, role's, passing text.

    The very same body where it says all of that itself.
    """
    fields = SHAPES[api].FIELDS
    if fields.template and body.get(fields.template) is not None:
        # Instructions would stand in place of the template's.
        return body
    name, place = history_field(api), fields.system
    history = _items(body.get(name))
    own = body.get(place) if place else None
    lead = [one.get("content") for one in history if _leads(one)]
    said = "\n\n".join(_text(one) for one in (own, *lead))
    known, instruction = session.unsaid((said,), role.name), role.instruction.strip()
    if instruction and find_text(instruction, f"{said}\n{known}") is not None:
        instruction = ""
    missing = "\n\n".join(filter(None, (known, instruction)))
    passing = tail_text("", "", volatile=role.volatile)
    thread = body.get(fields.thread)
    if isinstance(thread, Mapping):
        # What the provider has from the thread's first request on; it refuses a later one that says it.
        missing = missing if thread.get("type") == "create" else ""
    elif place and _kept_elsewhere(session, body, api, role):
        # The input stays in the provider's history, the instructions do not.
        missing, passing = "\n\n".join(filter(None, (missing, passing))), ""
        return {**body, place: "\n\n".join(filter(None, (missing, _text(own))))} if missing else body
    if not history or not (missing or passing):
        return body
    if missing and place is None:
        history.insert(0, {"role": "system", "content": missing})
    elif missing and place and isinstance(own, list):
        body = {**body, place: [{"type": "text", "text": missing}, *own]}
    elif missing and place:
        body = {**body, place: f"{missing}\n\n{own}" if own else missing}
    begun = len(history) - _begun(session, history, body, api)
    made = with_volatile({**body, name: history[:begun]}, api, passing)
    return {**made, name: [*made[name], *history[begun:]]}


def _condensed(
    session: AdapterSession, history: list[Any], role: Role, model: str, api: Api, tail: str, tools: Sequence[str]
) -> list[Any]:
    """The history with large results shortened and, where that is due and pays, compacted.

    ``tail`` is sent behind it, ``tools`` beside it.
    """
    form = form_of(api)
    none: tuple[MessageView, ...] = ()
    if form is None:
        return history
    views = session.attempt("views", lambda: views_of(history, form, session.counter(model)), none)
    # Outside of attempt: it fails open by itself, and a request budget that cannot be met is to be heard of.
    talk = session.conversation(role.conversation)
    own = session.count(tail, model)
    rest = RestOfRequest(own_tokens=own, tools=tools, zones=True)
    decisions = session.histories.condense(talk, views, model, api, rest) if views else ()
    if not decisions:
        return history
    return session.attempt("condense", lambda: sendable(apply(history, decisions, form)), history)


def _rendered(native: Any, schema: Mapping[str, Any], api: Api) -> Any:
    """A tool as the application declared it, where that is this API's form."""
    shape = chat_of(api)
    return dict(native) if isinstance(native, Mapping) and shape.declares(native) else shape.tool(schema)


def _providers(tools: Sequence[Any]) -> tuple[Reason, ...]:
    """That a request has tools which the provider runs, by their types: they are in no union."""
    kinds = {_kind(tool) for tool in tools if not _plain(tool)}
    return (reason("provider_tools", ", ".join(sorted(kinds))),) if kinds else ()


def _kind(tool: Any) -> str:
    """What a tool says that it is; where that is no name, its own type: a report shows no part of a prompt."""
    said = tool.get("type") if isinstance(tool, Mapping) else None
    return said if isinstance(said, str) else type(tool).__name__


def _plain(tool: Any) -> bool:
    """Whether a tool is a function of the application's, and not one that the provider runs."""
    return isinstance(tool, Mapping) and any(shape.declares(tool) for shape in CHATS.values())


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n\n".join(str(block.get("text", "")) for block in content if isinstance(block, Mapping))
    return content if isinstance(content, str) else ""
