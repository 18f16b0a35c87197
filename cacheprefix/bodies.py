"""Lays out finished request bodies as forks, for adapters that see only bodies (an SDK, a proxy, plain HTTP).

``fork_body`` lays a body out; the ``ForkBody`` it returns begins the call, watches a stream and refuses tools of other
roles. ``allowed_choice``, ``begins`` and ``instruction_of`` serve adapters that lay out a framework's own objects too.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any

from cacheprefix.adapter_session import AdapterSession
from cacheprefix.calls.begin import Request, unasked
from cacheprefix.calls.history_runner import RestOfRequest, Views
from cacheprefix.calls.pending import PendingCall
from cacheprefix.contexts import BlockVar
from cacheprefix.conversation import Conversation
from cacheprefix.effects import Call as WaitingFor
from cacheprefix.effects import Flow, adrive, drive
from cacheprefix.errors import SetupError, ToolClashError, check_text
from cacheprefix.history.joints import joined
from cacheprefix.layout import FOLLOW, Pass, find_text, tail_text, with_volatile
from cacheprefix.layout.known_runs import RunAhead
from cacheprefix.layout.plan import (
    AgentRequest,
    Carried,
    OwnTools,
    RequestPlan,
    RoleTold,
    asked_again,
    failed,
    list_refused,
)
from cacheprefix.layout.prefix import Tool, tool_of
from cacheprefix.layout.role_position import LONG as LONG_ROLE
from cacheprefix.layout.role_position import CountedHistory
from cacheprefix.layout.shared_text import LEAST
from cacheprefix.layout.team import ToolSource
from cacheprefix.layout.tool_sets import ToolSet
from cacheprefix.profiles import merge_usage
from cacheprefix.prompt import (
    MESSAGE_TOKENS,
    Api,
    Prompt,
    Reason,
    digest_of,
    dumps_sorted,
    loads,
    provider_tools,
    reason,
)
from cacheprefix.wire.answers import begins, field_of, history_field, read_answer, result_messages, user_message
from cacheprefix.wire.anthropic import paused_turn
from cacheprefix.wire.apis import CHATS, SHAPES, chat_of, form_of
from cacheprefix.wire.message_views import views_of
from cacheprefix.wire.messages import Answer, Asks, as_list, asks
from cacheprefix.wire.openai_chat import SYSTEM_ROLES, tool_name

__all__ = [
    "LONG_ROLE",
    "ForkBody",
    "Role",
    "ToolSet",
    "Watched",
    "adopt_declared",
    "agreed",
    "allowed_choice",
    "begins",
    "current_role",
    "fork_body",
    "in_role",
    "instruction_of",
]


@dataclass(frozen=True, slots=True)
class Role:
    """Which role makes a call, and in which conversation."""

    name: str
    instruction: str = ""
    """The role's text. It is sent in the tail, before what the call's own system text adds to the shared one."""
    conversation: str = ""
    volatile: Mapping[str, str] = field(default_factory=dict)
    """Text for this call alone (time, retrieval), by key; it stands at the very end."""
    ahead: RunAhead | None = None
    """The calls of the run from this one on, where their number and order are known beforehand."""
    played: bool = False
    """Whether the layout of an open-ended run is chosen by simulating the cache (docs/never-dearer.md). It hardly ever
    costs more than without us then, but sharing may start later. Register all roles first (``AdapterSession.join``).
    What the simulation knows stays in this process: one that resumes the conversation may choose another layout."""
    unread: bool = False
    """Whether the answer goes to the application unread, so that nobody knows its id and its text."""

    def __post_init__(self) -> None:
        check_text("role", self.name)
        check_text("instruction", self.instruction)
        check_text("conversation", self.conversation, optional=True)
        if not isinstance(self.volatile, Mapping):
            raise SetupError(f"volatile is texts by name in a dict, found {type(self.volatile).__name__}")


_ROLE: BlockVar[Role] = BlockVar("cacheprefix_role", kept=True)


@contextmanager
def in_role(
    name: str, *, instruction: str = "", conversation: str = "", volatile: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Make calls of wrapped clients inside the block, and in tasks started there, forks of this role.

    Around a generator's ``yield`` it also holds for what its reader does between two steps: leave the block before.
    A task that serves others too (a queue's worker) is started outside, or enters a block for each request: it would
    ask for all of them in the role, the conversation and with the texts of whose block started it. Raises
    ``SetupError`` for what is no text.
    """
    if not str(name).strip():
        raise SetupError('a role has a name: with role("critic"); calls of no role need no block')
    with _ROLE.within(Role(name, instruction, conversation, {} if volatile is None else volatile)):
        yield


def bound_role(name: str, instruction: str, conversation: str) -> Role | None:
    """The role that calls are bound to for good; None where none is named.

    Raises ``SetupError`` where there is something to say of a role, and no role: it would be dropped.
    """
    check_text("role", name, optional=True)
    if name:
        return Role(name, instruction, conversation)
    if instruction or conversation:
        said = "conversation" if conversation else "instruction"
        raise SetupError(
            f"{said}= is a role's: give role= too, or say it where the role begins, "
            f'with role("critic", {said}=...); calls without a role belong to no conversation'
        )
    return None


def current_role() -> Role | None:
    """The role of the innermost ``in_role`` around the code that runs; None outside of all."""
    return _ROLE.get()


def agreed(bound: Iterable[tuple[AdapterSession, Role | None]]) -> tuple[AdapterSession, Role | None] | None:
    """The session and role of a call in a thread without a block of its own, by all the blocks that there are.

    None where they name several sessions, and no role where they name several.
    """
    # Privacy: it is not guessed which session a call belongs to; a wrong guess would show one session's shared text to
    # another's requests. Nor is its conversation, where one is named: the call may be what another user's block, which
    # has ended, has left running.
    known = [(session, role and replace(role, conversation="")) for session, role in bound]
    if not known or any(session is not known[0][0] for session, _ in known):
        return None
    session, role = known[0]
    return session, role if all(other == role for _, other in known) else None


@dataclass(frozen=True, slots=True)
class ForkBody:
    """A body ready to be sent, beside the body that the application gave."""

    session: AdapterSession
    api: Api
    body: dict[str, Any]
    """What is sent."""
    given: dict[str, Any]
    """What the application asked, with its whole history."""
    role: Role | None
    plan: RequestPlan[Any] | None = None
    """How it is laid out, and why; None for a call that no role makes."""
    tries: int = 0
    """How often an answer was refused so far because it called another role's tool."""
    prompt: Prompt | None = None
    """``given`` decoded, where that was done to find its conversation."""
    went_on: str = ""
    """The ``previous_response_id`` that the application sent, where ``given`` has the whole history in its place."""
    headers: Mapping[str, Any] | None = None
    """That it goes out with."""

    @property
    def tail(self) -> str:
        """The role's text as it is sent; empty in the application's own layout."""
        return self.plan.text if self.plan is not None and self.plan.forks else ""

    @property
    def forked(self) -> bool:
        """Whether it is laid out as a fork."""
        return self.plan is not None and self.plan.forks

    def as_asked(self, sent: Mapping[str, Any]) -> bool:
        """Whether what is sent is the application's own request, as it made it."""
        return sent is self.given and not self.went_on

    def queue(self) -> Pass:
        """Wait, in this thread, for a sibling that writes the same prefix to the cache; ``begin`` takes the result."""
        return self.session.waiting.queue(**self._asking_for) if self._waits else FOLLOW

    async def aqueue(self) -> Pass:
        """``queue`` without blocking the event loop."""
        return await self.session.waiting.aqueue(**self._asking_for) if self._waits else FOLLOW

    @property
    def _asking_for(self) -> dict[str, Any]:
        """What the gate is asked with."""
        asked = {"body": self.body, "api": self.api, "boundary": self._shared}
        return {**asked, "headers": self.headers, "plan": self.plan}

    @property
    def _waits(self) -> bool:
        """Whether it is asked at the gate."""
        return self.plan is not None and self.plan.waits

    @property
    def _shared(self) -> Callable[[Prompt], int] | None:
        """What finds the end of what siblings share; None in the application's own layout."""
        return self._boundary if self.forked else None

    def begin(self, leave: Pass = FOLLOW) -> PendingCall:
        """Begin the call: send the result's ``body``, then ``finish`` it with the answer's usage, or ``watch`` it."""
        role, session = self.role, self.session
        changed = self.forked or self.body is not self.given or bool(self.tries)
        plan = self.plan
        asked = Request(
            self.body,
            self.api,
            agent=role.name if role else "",
            conversation=role.conversation if role else "",
            boundary=self._shared,
            original=self._unmodified if changed else None,
            headers=self.headers,
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
        """The request that the application would have sent without us, for the estimate of what that would cost."""
        if self.tries:
            # Money: the application would not have asked a second time.
            return unasked(given)
        return self.session.decode(self.given, self.api) if self.prompt is None else self.prompt

    def own(self) -> dict[str, Any]:
        """The application's own request, to send in place of a fork that failed."""
        role, session = self.role, self.session
        if role is None:
            return self.given
        return session.attempt("layout", lambda: _completed(session, self.given, self.api, role), self.given)

    def refusal(self, answer: Any) -> ForkBody | None:
        """The request to send again where the answer (a dict or an SDK's object) calls another role's tool, else None.

        First the same request with that answer and the refusal behind it; the second time the application's own.
        """
        # Only forks carry other roles' tools. A request in its own layout carries its own, or those of a thread or
        # template, which its body need not name.
        permitted = self.plan.restriction.permitted if self.plan is not None and self.plan.forks else None
        if permitted is None or not (isinstance(answer, Mapping) or hasattr(answer, "model_dump")):
            return None
        read = self.session.attempt("refusal", lambda: read_answer(answer, self.api), Answer("", (), (), None))
        if {call.name for call in read.calls} <= set(permitted):
            return None
        assert self.role is not None
        self.session.note(f"role {self.role.name!r} called a tool of another role; it was refused and asked again")
        if self.tries:
            plan: RequestPlan[Any] = asked_again({call.name for call in read.calls} - set(permitted))
            return replace(self, body=self.own(), plan=plan, went_on="", tries=2)
        listed = ", ".join(permitted) or "none"
        why = f"was not run: tools available to the role {self.role.name!r} are: {listed}."
        refusals = result_messages([(call, f"Tool {call.name!r} {why}", True) for call in read.calls], self.api)
        name = history_field(self.api)
        return replace(self, body={**self.body, name: [*self.body[name], *read.messages, *refusals]}, tries=1)

    def without_list(self) -> ForkBody | None:
        """The application's own request, where the endpoint has just refused this one's list of allowed tools."""
        allowed = self.plan.restriction.allowed if self.plan is not None and self.plan.forks else None
        if not allowed or self.session.takes_lists(str(self.body.get("model", ""))):
            return None
        return replace(self, body=self.own(), plan=list_refused(), went_on="", tries=2)

    def ask(self, send: Callable[[Mapping[str, Any]], Any], streamed: Streamed, told: Told | None = None) -> Any:
        """Send this request with ``send(body)`` and return the answer; asked again where it calls another role's tool.

        ``streamed`` wraps an answer that is a stream, by ``watch``; ``told`` gives what a whole one says. What ``send``
        raises reaches the application.
        """
        return drive(self._asking(send, streamed, told, later=False))

    async def aask(
        self, send: Callable[[Mapping[str, Any]], Awaitable[Any]], streamed: Streamed, told: Told | None = None
    ) -> Any:
        """``ask`` for an asynchronous client."""
        return await adrive(self._asking(send, streamed, told, later=True))

    def _asking(
        self, send: Callable[[Mapping[str, Any]], Any], streamed: Streamed, told: Told | None, *, later: bool
    ) -> Flow[Any]:
        """Send, once more for each refusal, and return the last answer, a stream as ``streamed`` wraps it.

        ``later`` is for callers in an event loop.
        """
        asked = self
        while True:
            leave = yield WaitingFor(asked.aqueue if later else asked.queue)
            try:
                with asked.begin(leave) as turn:
                    answer = yield WaitingFor(send, turn.body)
            except Exception:
                again = asked.without_list()
                if again is None:
                    raise
            else:
                stream = asked._watched(turn, answer, streamed)
                again = asked._finished(turn, answer, told) if stream is None else None
                if again is None:
                    return answer if stream is None else stream
            asked = again

    def _watched(self, turn: PendingCall, answer: Any, streamed: Streamed) -> Any:
        """A stream as ``streamed`` wraps it, None for a whole answer; where ``streamed`` fails, the answer as it is.

        The call then ends at once, with unknown usage.
        """
        failure = object()
        watched = self.session.attempt("stream", lambda: streamed(answer, self, turn), failure)
        if watched is not failure:
            return watched
        turn.finish(None)
        return answer

    def _finished(self, turn: PendingCall, answer: Any, told: Told | None) -> ForkBody | None:
        """End the call with a whole answer; gives the request to send again where ``refusal`` says so."""
        if told is not None:
            answer = self.session.attempt("answer", lambda: told(answer), answer)
        turn.finish(field_of(answer, "usage"), diagnostics=field_of(answer, "diagnostics"))
        self.answered(turn, answer)
        return self.refusal(answer)

    def answered(self, turn: PendingCall, answer: Any) -> None:
        """Remember an answer that the provider stores, with the history up to it as the application knows it.

        A later request may name it (``previous_response_id``). The stored history holds what we added to the request;
        the one that is remembered here does not.
        """
        self.session.attempt("kept answer", lambda: self._remember_stored(turn, answer), None)

    def _remember_stored(self, turn: PendingCall, answer: Any) -> None:
        """``answered``, which fails open around it."""
        session, given = self.session, self.given
        id_, output = field_of(answer, "id"), field_of(answer, "output")
        fields = SHAPES[self.api].FIELDS
        named = isinstance(output, list) if fields.system else str(id_).startswith(_NAMED)
        if not fields.chained or session.mode == "observe" or not isinstance(id_, str) or not named:
            return
        self.names_its_own(answer)
        if given.get("store") is False:
            # Privacy: the application has nothing stored, so nothing of it is remembered.
            return
        ready = field_of(answer, "status") not in ("queued", "in_progress")
        self._remember(turn, id_, self._messages(answer) if ready else None)

    def _messages(self, answer: Any) -> list[Any]:
        """What is appended to a history for an answer."""
        if SHAPES[self.api].FIELDS.system:
            return list(read_answer(answer, self.api).messages)
        # LiteLLM makes a choice of each item.
        each = [{"choices": [_plain(choice)]} for choice in field_of(answer, "choices")]
        return [message for one in each for message in read_answer(one, self.api).messages]

    def _remember(self, turn: PendingCall, id_: str, answered: Sequence[Any] | None) -> None:
        """Remember what was asked and ``answered``; None for an answer that is not there yet."""
        session, role, name = self.session, self.role, history_field(self.api)
        conversation = (*session.team.owner(None), role.conversation if role else "")
        history: list[Any] = []
        if turn.body.get(name) is not self.given.get(name) and answered is not None:
            # What was sent is not what the application asked: its own history is needed to go on from this answer.
            asked = _items(self.given.get(name))
            # A chat's system messages are for one request alone, as instructions are.
            history = [*asked[0 if SHAPES[self.api].FIELDS.system else _leading(asked) :], *answered]
        tokens = turn.seen.prompt.tokens if history and turn.seen else len(str(history)) // 4
        session.shared.kept.answered(id_, _speaker(session, role), conversation, history, tokens)

    def unended(self, turn: PendingCall, so_far: SoFar) -> None:
        """Remember an answer whose stream has not ended, and may never: it has an id that a request may name."""
        if so_far.id and self.session.mode != "observe" and self.given.get("store") is not False:
            id_ = so_far.id
            self.session.attempt("kept answer", lambda: self._remember(turn, id_, so_far.messages()), None)

    def names_its_own(self, answer: Any) -> Any:
        """The answer, which names the one that the application named, although we sent the history in its place."""
        if self.went_on and hasattr(answer, "previous_response_id"):
            answer.previous_response_id = self.went_on
        return answer

    def watch(self, turn: PendingCall, events: Any, usage: UsageOf | None = None) -> Watched:
        """A stream's events as they come; the call under way learns of the first token, the usage and the end.

        ``events`` is an iterator, an asynchronous one, or both, as LiteLLM's streams are. ``usage`` finds the usage in
        an event that has it in another place than the APIs.
        """
        return Watched(self, turn, events, usage or _usage_of)

    def passes(self, turn: PendingCall, event: Any, usage: dict[str, Any], usage_of: UsageOf) -> bool:
        """Note an event, adding its usage to ``usage``; False where the application must not see the event.

        That is the one that comes only because we asked for the usage.
        """
        self.session.attempt("stream", lambda: self._note_event(turn, event, usage, usage_of(event)), None)
        we_asked = self.body.get("stream_options") != self.given.get("stream_options")
        if we_asked:
            # Every other event carries ``usage: null`` then, which the application did not ask for either.
            getattr(event, "__pydantic_fields_set__", set()).discard("usage")
        return not (we_asked and getattr(event, "usage", None) is not None and not getattr(event, "choices", None))

    def _note_event(self, turn: PendingCall, event: Any, usage: dict[str, Any], brought: Any) -> None:
        """Tell the call of its first token, and add the usage that the event brought, if any, to ``usage``."""
        if turn.first_token_at is None and begins(event):
            turn.first_token()
        if self.api == "openai-responses" and getattr(event, "response", None) is not None:
            self._note_response(turn, event)
        if brought is not None:
            usage.update(merge_usage(usage, brought))

    def _note_response(self, turn: PendingCall, event: Any) -> None:
        """Remember the response that an event of the responses API ends; else give it the id the application sent."""
        if event.type in _ENDED:
            self.answered(turn, event.response)
        else:
            self.names_its_own(event.response)

    def _boundary(self, prompt: Prompt) -> int:
        """How many leading sections of ``prompt`` siblings share: all before the role's text."""
        found = prompt.last_of(self.tail)
        return len(prompt.sections) if found is None else found


_NAMED = "resp_"
"""What the ids of the responses API begin with."""
_ENDED = ("response.completed", "response.incomplete")
"""Events of a stream of the responses API with the whole answer."""
Streamed = Callable[[Any, ForkBody, PendingCall], Any]
"""Called with an answer, its request and its call: gives a stream with its events watched, None for a whole answer."""
Told = Callable[[Any], Any]
"""What an answer says: a dict, or an SDK's object."""
UsageOf = Callable[[Any], Any]
"""The usage that an event of a stream brings, or None."""


def _usage_of(event: Any) -> Any:
    """The usage in a stream event, where the APIs put it: in the event, its ``message`` or its ``response``."""
    places = (event, getattr(event, "message", None), getattr(event, "response", None))
    return next((one for one in (getattr(place, "usage", None) for place in places) if one is not None), None)


class SoFar:
    """What a stream has brought of an answer that a later request may name: of the responses API, until it ends.

    LiteLLM gives such answers as chunks of a chat.
    """

    def __init__(self) -> None:
        self.id = ""
        """The answer's id; empty before there is one, and from its end on."""
        self._items: list[Any] = []
        self._said: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}

    def note(self, event: Any) -> bool:
        """Note an event; says whether it brought the answer's id, or something whole."""
        if hasattr(event, "choices"):
            return self._note_chunk(event)
        kind, response = getattr(event, "type", ""), getattr(event, "response", None)
        if kind == "response.output_text.delta":
            self._said.append(event.delta)
        elif kind == "response.output_item.done":
            self._items.append(event.item)
            self._said.clear()
        elif response is not None:
            self.id = "" if kind in _ENDED else str(response.id)
        return kind == "response.output_item.done" or response is not None

    def _note_chunk(self, chunk: Any) -> bool:
        """``note`` for a chat's; what brings no such id is any other chat's, of which nothing is kept."""
        id_ = str(getattr(chunk, "id", ""))
        if not id_.startswith(_NAMED):
            return False
        first, self.id = not self.id, id_
        for delta in [choice.delta for choice in chunk.choices]:
            self._said += filter(None, [getattr(delta, "content", None)])
            for call in getattr(delta, "tool_calls", None) or ():
                known = self._calls.setdefault(call.index, {"id": "", "name": "", "arguments": ""})
                known["id"] = call.id or known["id"]
                for name in ("name", "arguments"):
                    known[name] += getattr(call.function, name, None) or ""
        return first

    def messages(self) -> list[Any]:
        """What the application has seen of the answer, as items that a request may hold."""
        if self._calls:
            calls = [
                {"id": one.pop("id"), "type": "function", "function": one} for one in map(dict, self._calls.values())
            ]
            return [{"role": "assistant", "content": "".join(self._said) or None, "tool_calls": calls}]
        items = list(read_answer({"output": [_plain(one) for one in self._items]}, "openai-responses").messages)
        # A provider's rule: reasoning is refused without the item that it was for.
        while items and items[-1].get("type") == "reasoning":
            items.pop()
        return [*items, {"role": "assistant", "content": "".join(self._said)}] if self._said else items


def _plain(item: Any) -> Any:
    """An item of an answer as a dict."""
    return item if isinstance(item, Mapping) else item.model_dump(exclude_none=True, warnings=False)


_PULLED: BlockVar[tuple[Watched, ...]] = BlockVar("cacheprefix_pulled")
"""The streams whose next event the code that runs here looks for: one may stand in another."""


class Watched:
    """A stream's events on their way to the application; the call ends with them, also where nobody reads them.

    Read and closed as the stream itself can be, with ``await`` and without.
    """

    def __init__(self, fork: ForkBody, turn: PendingCall, events: Any, usage: UsageOf) -> None:
        self._fork, self._turn, self._events, self._usage_of = fork, turn, events, usage
        self.usage: dict[str, Any] = {}
        """What the events have said of it so far."""
        self._diagnostics: Any = None
        self._any_event = False
        self._last: Any = None
        self._so_far = SoFar()
        turn.leave.rests()

    @contextmanager
    def _pulling(self) -> Iterator[None]:
        """Around what looks for the next event: ends the call with the stream, or where that breaks off."""
        with _PULLED.within((*(_PULLED.get() or ()), self)):
            try:
                yield
            except (StopIteration, StopAsyncIteration):
                self._ended()
                raise
            except BaseException:
                self._left()
                self._turn.fail()
                raise

    def _passes(self, event: Any) -> bool:
        """Note an event; False where the application must not see it."""
        self._any_event, self._last = True, event
        self._diagnostics = getattr(getattr(event, "message", None), "diagnostics", None) or self._diagnostics
        if SHAPES[self._fork.api].FIELDS.chained:
            self._fork.session.attempt("kept answer", lambda: self._note(event), None)
        return self._fork.passes(self._turn, event, self.usage, self._usage_of)

    def _note(self, event: Any) -> None:
        """Note what an event says of an answer that a request may name before it has ended."""
        if self._so_far.note(event):
            self._fork.unended(self._turn, self._so_far)

    def _left(self) -> None:
        """What came is all that the application has of the answer, where no event with a whole one has come."""
        self._fork.unended(self._turn, self._so_far)
        # Once: its conversation may be forgotten before the stream is dropped.
        self._so_far.id = ""

    def _ended(self, *, cut: bool = False) -> None:
        """End the call with the usage that the events brought; unknown usage where they brought none."""
        usage: Any = self.usage
        if self._any_event and not usage and self._usage_of is not _usage_of:
            # LiteLLM writes it into the last event once the provider's stream has ended.
            usage = self._fork.session.attempt("usage", lambda: self._usage_of(self._last), None)
        self._left()
        self._turn.finish(usage or None, diagnostics=self._diagnostics, cut=cut)

    def _abandoned(self) -> None:
        """The stream was closed or dropped before its end: the call counts, unless not one event had come."""
        if self._any_event:
            self._ended(cut=True)
        else:
            self._turn.fail()

    def response_closed(self) -> None:
        """The HTTP response underneath was closed, which ends the call; not by who reads the stream to its end.

        There the response closes by itself and the reader ends the call. Closed by another thread, or over HTTP/2 by
        another task, it wakes no reader who waits for its socket: siblings would wait along with that one.
        """
        if self not in (_PULLED.get() or ()):
            self._abandoned()

    def __del__(self) -> None:
        self._abandoned()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._pulling():
            while True:
                with self._turn.reading():
                    event = next(self._events)
                if self._passes(event):
                    return event

    def close(self) -> None:
        """The application reads no further: the call ends; the stream underneath is the application's to close."""
        self._abandoned()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        with self._pulling():
            while True:
                with self._turn.reading():
                    event = await anext(self._events)
                if self._passes(event):
                    return event

    async def aclose(self) -> None:
        """``close`` for who awaits it."""
        self._abandoned()


def fork_body(
    session: AdapterSession,
    body: Mapping[str, Any],
    api: Api,
    role: Role | None,
    *,
    asks_usage: bool = True,
    lists: bool = True,
    own: tuple[Reason, ...] = (),
    headers: Mapping[str, Any] | None = None,
) -> ForkBody:
    """Lay a body out as a fork of ``role``: shared system text and tools, the conversation as it is, the role's text.

    The role's text stands last; a long one stays where the role last had it while that costs less.

    ``body`` is JSON as ``openai-chat``, ``openai-responses`` or ``anthropic`` takes it, and is not changed. Without a
    role and in observe mode it is sent as it is. While less is shared than the provider caches, it keeps its own layout
    and only gets the text that the user gave to the session alone. ``asks_usage`` is False where nobody watches the
    stream: then its usage is not asked for, as the event that brings it would reach the application. ``lists`` is False
    where the client takes no list of allowed tools as ``tool_choice``: the role's text names them then. ``own`` holds
    reasons to keep the application's layout, whatever sharing saves. ``headers`` are those of the request: a beta of
    Anthropic's has a cache of its own. On a failure of ours the application's own request
    goes out; raises only ``BudgetError``, for a request budget that cannot be met.
    """
    given, went_on = dict(body), ""
    if session.mode != "observe" and SHAPES[api].FIELDS.chained:
        given, went_on = session.attempt("kept answer", lambda: _with_history(session, body, api, role), (given, ""))
    plain = ForkBody(session, api, given, given, role, went_on=went_on, headers=headers)
    if role is None or session.mode == "observe":
        return plain
    session.join(role.name)
    if not role.conversation:
        # Privacy: a body names no conversation. It belongs to one only if it begins with all that was said there.
        prompt = session.attempt("conversation", lambda: session.decode(given, api), None)
        messages = () if prompt is None else prompt.digests[prompt.head :]
        role = replace(role, conversation=session.unnamed(messages))
        plain = replace(plain, role=role, prompt=prompt)
    read = session.attempt("layout", lambda: _read(session, given, api, role), None)
    if read is None:
        return replace(plain, body=plain.own(), plan=failed("layout"))
    speaker = role
    asked = session.attempt("layout", lambda: read.request(session, given, api, speaker, own, lists=lists), None)
    if asked is None:
        return replace(plain, body=plain.own(), plan=failed("layout"))
    plan = session.plan(asked)
    if plan.unasked:
        # Text for this request alone would be something to answer, where the provider answers nothing.
        speaker = replace(role, volatile={})
    if plan.at is None:
        # The plan of a step that failed has no history: the request goes out with the application's whole one.
        failing = plan.reasons[-1].why == "failed"
        sent = plain.own() if failing else _own_layout(session, given, api, speaker, list(plan.history))
        return replace(plain, body=sent, plan=plan)
    fork = session.attempt("layout", lambda: _fork_layout(session, given, api, read, plan), None)
    if fork is None:
        return replace(plain, body=plain.own(), plan=failed("layout"))
    if asks_usage and fork.get("stream"):
        for name, value in SHAPES[api].FIELDS.asks_usage.items():
            fork.setdefault(name, dict(value))
    return replace(plain, body=fork, plan=plan)


def well_formed(body: Mapping[str, Any], api: Api) -> bool:
    """Whether a body's messages and tools have the shape of ``api``, as far as they can be looked at without reading.

    A body for which this is False is the application's error, or a provider's of its own kind: it is sent as it is,
    unmeasured, and nothing of ours has failed.
    """
    responses = api == "openai-responses"
    said, tools = body.get("input" if responses else "messages"), body.get("tools")
    if responses and (said is None or isinstance(said, str)):
        said = ()
    if not isinstance(said, (list, tuple)) or not all(isinstance(one, Mapping) for one in said):
        return False
    tools_listed = tools is None or (isinstance(tools, (list, tuple)) and all(map(_has_function, tools)))
    if not tools_listed or not isinstance(body.get("model", ""), str):
        return False
    system = body.get("instructions" if responses else "system")
    if system is not None and not _is_text(system, Mapping):
        return False
    return all(_is_item(one) for one in said) if responses else all(_is_message(one, api) for one in said)


def _is_message(message: Mapping[str, Any], api: Api) -> bool:
    calls, content = message.get("tool_calls"), message.get("content")
    if not isinstance(message.get("role"), str) or (content is None and api == "anthropic"):
        return False
    called = calls is None or (isinstance(calls, (list, tuple)) and all(map(_has_function, calls)))
    return called and (content is None or _is_text(content, (str, Mapping)))


def _is_item(item: Mapping[str, Any]) -> bool:
    # Whatever has no role is told by its type, of which there are new ones each year.
    named = isinstance(item.get("role", ""), str) and isinstance(item.get("type") or "", str)
    content = item.get("content")
    return named and (content is None or _is_text(content, Mapping))


def _has_function(one: object) -> bool:
    """Whether a tool, or a call of one, is an object whose ``function``, if any, is one too."""
    return isinstance(one, Mapping) and isinstance(one.get("function") or {}, Mapping)


def _is_text(content: object, block: type | tuple[type, ...]) -> bool:
    """Whether this is a text, or a list of blocks of such a type."""
    return isinstance(content, str) or (
        isinstance(content, (list, tuple)) and all(isinstance(one, block) for one in content)
    )


def allowed_choice(names: Sequence[str], api: Api) -> Any:
    """The ``tool_choice`` that allows only ``names``, with the array of tools as it is.

    OpenAI's ``allowed_tools``, and ``none`` for no names; Anthropic has only the latter. The profile says whether
    either leaves the cache valid, and by which source (``tool_choice_safe`` and its evidence).
    """
    return chat_of(api).allowed_choice(names)


LAID_OUT = frozenset(
    ("messages", "input", "system", "instructions", "tools", "tool_choice", "functions", "function_call",
     "response_format")
)  # fmt: skip
"""The fields of a body that a layout is made of, and the schema of an answer, which makes it another prompt."""


def overlaid(over: Mapping[str, Any]) -> tuple[Reason, ...]:
    """Why a request keeps the application's layout, where that puts the fields ``over`` over the finished body.

    Empty where no layout is made of them. Equal information: they would stand in the place of parts of a fork.
    """
    covered = any(name in LAID_OUT and value not in (None, "auto") for name, value in over.items())
    return (reason("own_prompt", "extra_body"),) if covered else ()


def instruction_of(texts: Sequence[str], shared: str) -> str:
    """A role's own text: its system texts joined, without duplicates and without the shared text, however spaced."""
    own = (_without(shared, text) for text in texts) if shared.strip() else texts
    return "\n\n".join(dict.fromkeys(part for part in own if part))


def _without(shared: str, text: str) -> str:
    """``text`` without its first occurrence of ``shared``."""
    span = find_text(shared, text)
    return text.strip() if span is None else (text[: span[0]] + text[span[1] :]).strip()


_BEGINS = ("prefix", "partial")
"""Fields by which a message says that it is the beginning of an answer: DeepSeek's and Mistral's, and LiteLLM's own
(api-docs.deepseek.com/guides/chat_prefix_completion, docs.litellm.ai/docs/completion/prefix); Moonshot's and Qwen's
(platform.kimi.ai/docs/guide/use-partial-mode-feature-of-kimi-api). All as of 2026-11-27."""
_PLAIN = frozenset({"role", "content"})
"""Fields of a message that is a text and nothing else."""


@dataclass(frozen=True, slots=True)
class _Read:
    """The parts of a body: its history, the role's own text, its tools."""

    history: list[Any]
    """The messages behind the leading system messages."""
    text: str
    """The role's own text, without the shared one."""
    tools: list[Any]
    shared: bool
    """Whether it may carry the union's tools: it has none that the provider defines."""
    shared_at: int | None
    """Characters of its own system text in front of the shared one; None where that stands nowhere in it."""
    quotes: bool
    """Whether its own system text says the shared one: a user's message that says it too quotes it."""
    holds: bool
    """Privacy: whether it may be shown the shared text, as it has that itself or the user gave it for all."""
    differ: tuple[str, ...] = ()
    """Names of its tools that the union has with another schema: then its own array stays as it is."""

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
        """The body as the planner takes it (``AgentRequest``)."""
        model, conversation = str(body.get("model", "")), session.conversation(role.conversation)

        def history(told: RoleTold) -> CountedHistory[Any]:
            """The messages under a role's text and tools, with the answers begun at their end apart."""
            tokens_told, carried = session.count(told.text, model), told.carries(names)
            rest = RestOfRequest(own_tokens=tokens_told, tools=carried, declared=self.tools, zones=True)
            messages = session.histories.condensed(conversation, self.history, model, api, rest)
            end = len(messages) - _begun_answers(session, messages, body, api)
            return CountedHistory(messages[:end], digest, tokens, messages[end:], together)

        def together(before: Any, behind: Any) -> bool:
            form = form_of(api)
            return form is not None and joined(*views_of((before, behind), form, session.counter(model)))

        def digest(message: Any) -> str:
            """A message's name: the same whatever cache marks it carries."""
            return digest_of(dumps_sorted(_unmarked(message), "message"))

        def tokens(message: Any) -> int:
            """About how many tokens a message has."""
            # Of thousands of messages each is asked for: a plain dictionary is known at once.
            content = message.get("content") if isinstance(message, (dict, Mapping)) else None
            if isinstance(content, str) and message.keys() <= _PLAIN:
                return session.count(content, model) + MESSAGE_TOKENS
            return session.count(str(message), model)

        kept = _read_elsewhere(session, body, api, role)
        names = tuple(tool_name(tool) for tool in self.tools)
        free = body.get("tool_choice") in (None, "auto")
        forced = for_own_tools(body.get("tool_choice"), names, session.prefix.tool_names)
        carried: Carried = names if forced else "open"
        # OpenAI's custom tools take free text, and the application defines them.
        kinds = (_kind(tool) for tool in self.tools if not _is_function(tool))
        known = provider_tools(kind for kind in kinds if kind != "custom")
        return AgentRequest(
            role.name,
            model,
            conversation,
            self.text,
            history,
            spoken=lambda behind: list(map(tokens, self.history[behind:])),
            api=api,
            tools=OwnTools(names, carried=carried, free=free, lists=lists, differ=self.differ) if self.shared else None,
            volatile=role.volatile,
            known=(*known, reason("forced_tool")) if forced else known,
            own=own if kept is None else (*own, kept),
            alike=(role.ahead is not None or role.played) and self.shared_at == 0,
            played=role.played,
            cached=_marked(body, api),
            ahead=role.ahead,
            joint=role.ahead is None or role.ahead.joint,
            holds_shared=self.holds,
            shared_at=self.shared_at,
            schema=_schema(session, body, api),
            asks=_asks(_items(body.get(history_field(api)))),
        )


def for_own_tools(choice: Any, names: Collection[str], union: Collection[str] | None = None) -> bool:
    """Whether a ``tool_choice`` is one for a role's own tools, ``names``, and would be another one among ``union``.

    By it the model has to call a tool, whichever, and of the union it might be another role's; or it names a tool that
    the role does not have, which a provider refuses. Without ``union`` the latter alone.
    """
    if union is not None and forces_any(choice) and not set(names) >= set(union):
        return True
    return not _named_by(choice) <= set(names)


def _asks(messages: Sequence[Any]) -> Asks:
    """What the messages of a body ask; nothing where it has none, as one with a stored template."""
    system = any(map(_is_system, messages))
    return asks((_only_text(one) for one in messages if not _is_system(one)), system=system)


def _only_text(message: Any) -> str | None:
    """The text of a message that is nothing else; None where it has calls, results, pictures or whatever more."""
    if not isinstance(message, Mapping) or message.get("role") not in ("user", "assistant"):
        return None
    content = message.get("content")
    if any(value for name, value in message.items() if name not in (*_PLAIN, "name", "type", "id")):
        return None
    if isinstance(content, (str, NoneType)):
        return content or ""
    blocks = content if isinstance(content, (list, tuple)) else [None]
    texts = [text for block in blocks if isinstance(text := field_of(block, "text"), str)]
    return "".join(texts) if len(texts) == len(blocks) else None


def forces_any(choice: Any) -> bool:
    """Whether by a ``tool_choice`` the model has to call a tool, whichever: of the union it might be another role's.

    As any provider has it, and LangChain (``True``) and Microsoft Agent Framework (``mode``), which may name one too.
    """
    if isinstance(choice, Mapping):
        # Bedrock's has its kind for a name.
        kind = choice.get("type") or choice.get("mode") or next(iter(choice), None)
        choice = None if choice.get("required_function_name") else kind
    return choice in ("required", "any", True)


def _named_by(choice: Any) -> set[str]:
    """The tools that a ``tool_choice`` names, in any of the forms that ``forces_any`` takes, ``allowed_tools`` too."""
    if not isinstance(choice, Mapping):
        return {choice} if isinstance(choice, str) and choice not in ("auto", "none", "required", "any") else set()
    inner = choice.get("allowed_tools", choice)
    # A list of names in Agent Framework, one of tools for OpenAI's two APIs, and Bedrock has an object around a name.
    listed = inner.get("tools") if isinstance(inner, Mapping) else inner
    one = choice.get("required_function_name") or tool_name(choice.get("tool") or choice)
    found = [name if isinstance(name, str) else tool_name(name) for name in as_list(listed)]
    return {name for name in (one, *found) if name}


def _schema(session: AdapterSession, body: Mapping[str, Any], api: Api) -> str:
    """A name of the answer's schema; empty without one, and where the provider caches prompts whatever it is.

    A verbosity beside it, or a format without a schema, names nothing.
    """
    rules = session.profile(str(body.get("model", "")), api)
    given = ((name, body.get(name)) for name in SHAPES[api].FIELDS.schema if rules.placement(name) != "none")
    texts = [dumps_sorted(value, name) for name, value in given if isinstance(value, Mapping)]
    return digest_of(*texts) if any('"schema"' in text for text in texts) else ""


def _marked(body: Mapping[str, Any], api: Api) -> bool:
    """Whether the application itself sets ``cache_control``, so that the provider caches its own layout too."""
    messages = body.get(history_field(api))
    listed = messages if isinstance(messages, list) else []
    contents = [one.get("content") for one in listed if isinstance(one, Mapping)]
    lists = (given for given in (body.get("system"), body.get("tools"), *contents) if isinstance(given, list))
    blocks = (block for given in lists for block in given)
    return "cache_control" in body or any(isinstance(one, Mapping) and "cache_control" in one for one in blocks)


def _unmarked(message: Any) -> Any:
    """A message without ``cache_control``, so that it compares equal to itself in later requests.

    Applications mark their newest message only: in the next request the same message has no mark.
    """
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list):
        return message
    blocks = [
        {name: value for name, value in one.items() if name != "cache_control"} if isinstance(one, Mapping) else one
        for one in content
    ]
    # A single block of text may have been a plain string before it was marked.
    plain = len(blocks) == 1 and isinstance(blocks[0], Mapping) and blocks[0].keys() == {"type", "text"}
    return {**message, "content": blocks[0]["text"] if plain else blocks}


def _read(session: AdapterSession, body: Mapping[str, Any], api: Api, role: Role) -> _Read:
    """Take a body apart; its tools are put into the union."""
    history = _items(body.get(history_field(api)))
    fields = SHAPES[api].FIELDS
    system_texts = [_text(body.get(fields.system))] if fields.system else []
    while history and _is_system(history[0]):
        system_texts.append(_text(history.pop(0).get("content")))
    tools = list(body.get("tools") or [])
    # A provider's rule: what is said of ``tools`` (``tool_choice``) holds for the older ``functions`` too, or the two
    # exclude each other. A request that has the latter keeps to them.
    shared = not body.get("functions") and all(map(_is_function, tools))
    differ = adopt_declared(session, role.name, tools, of_run=True) if shared else ()
    shared_text = session.prefix.system
    span = find_text(shared_text, system_texts[0]) if system_texts else None
    shared_at = None if span is None else len(system_texts[0][: span[0]].strip())
    quotes = any(find_text(session.prefix.text, one) is not None for one in system_texts)
    contents = (_text(one.get("content")) for one in history if isinstance(one, Mapping))
    holds = session.holds_shared((*system_texts, *contents))
    text = instruction_of((role.instruction, *system_texts), shared_text)
    return _Read(history, text, tools, shared, shared_at, quotes, holds, differ)


def adopt_declared(
    session: AdapterSession, role: str, tools: Sequence[Any], *, of_run: bool = False, text: str | None = None
) -> tuple[str, ...]:
    """Put tools, as a body declares them, into the union; gives the names of those that have another schema there.

    With any such clash none is put in, and the role keeps its own tools, which is noted. ``of_run`` says that a request
    brings them, which may be made for its user; ``text`` is what the role is told, where its agent is made with them.
    """
    if text is not None:
        # First: where an agent is made anew, its tools are not everybody's.
        session.makes(("agent", role), text, tools)
    try:
        # Copies: what the application later does to its dicts must not change the prefix.
        source = ToolSource(of_run=of_run, again=of_run)
        session.adopt_tools(copy.deepcopy(list(tools)), dict, grows=True, source=source)
    except ToolClashError as error:
        mine = [tool_of(tool, dict) for tool in tools]
        union = {tool.name: tool.schema for tool in session.prefix.among(tool.name for tool in mine)}
        session.note(f"role {role!r} keeps its own tools, which others share no cache with: {error}")
        return tuple(tool.name for tool in mine if union.get(tool.name, tool.schema) != tool.schema)
    return ()


def _fork_layout(
    session: AdapterSession, body: Mapping[str, Any], api: Api, read: _Read, plan: RequestPlan[Any]
) -> dict[str, Any]:
    """The body as a fork: shared system text, the history with the role's text at ``plan.at``, the planned tools."""
    fields, shared, at = SHAPES[api].FIELDS, session.prefix.text, plan.at
    system = [{"role": "system", "content": shared}] if shared and fields.leading else []
    role_message = [user_message(plan.text)] if plan.text else []
    # What the request's own system text says as well, a user asks about: it stays whole.
    messages = list(plan.history) if read.quotes else _shared_text_once(plan.history, shared)
    history = [*system, *messages[:at], *role_message, *messages[at:]]
    fork = {**body, history_field(api): history, **_tools(session, read, plan, api)}
    for name in ("system", "instructions"):
        fork.pop(name, None)
    if fields.system and not fields.leading and shared:
        fork[fields.system] = shared
    return fork


_GIVEN = frozenset({"user", "system", "developer"})
"""Roles of messages that the model is given, and has not said."""


def _shared_text_once(history: Sequence[Any], shared: str) -> list[Any]:
    """The messages, with the shared text cut from those that hold it: it stands in the system text in front.

    It is cut from the user's messages, and from the application's that do not stand first; never from answers.
    """
    sought = " ".join(shared.split())
    # A short text may stand in a message by chance, and little is saved by cutting it.
    if len(sought) < LEAST:
        return list(history)

    def without(text: Any) -> Any:
        """A text less the shared one; as it is where it holds nothing else."""
        # A message that holds nothing else stays: an empty one is refused, and the model must be asked something.
        return (isinstance(text, str) and len(text) >= len(sought) and _without(sought, text)) or text

    def cut(message: Any) -> Any:
        """A message of the user's or the application's less the shared text; any other as it is."""
        content = message.get("content") if isinstance(message, Mapping) and message.get("role") in _GIVEN else None
        if isinstance(content, list):
            parts = [_with_text(part, without) for part in content]
            return message if all(map(operator.is_, parts, content)) else {**message, "content": parts}
        shorter = without(content)
        return message if shorter == content else {**message, "content": shorter}

    return list(map(cut, history))


def _with_text(part: Any, changed: Callable[[Any], Any]) -> Any:
    """A part of a message with its text changed by ``changed``; the very same object where nothing changes."""
    text = part.get("text") if isinstance(part, Mapping) else None
    after = changed(text)
    return part if after == text else {**part, "text": after}


def _tools(session: AdapterSession, read: _Read, plan: RequestPlan[Any], api: Api) -> dict[str, Any]:
    """The body's ``tools`` and ``tool_choice`` as planned; empty where the body's own stay as they are."""
    if plan.tools is None or read.differ:
        return {}
    union = session.prefix
    shared = [_rendered(tool, api) for tool in union.among(plan.tools.tools)]
    # Tools outside the union stand last, so that what is shared stands before them.
    sent = [*shared, *(tool for tool in read.tools if union.tool(tool_name(tool)) is None)]
    allowed = plan.restriction.allowed
    choice = {} if allowed is None else {"tool_choice": allowed_choice(allowed, api)}
    return {"tools": sent, **choice} if sent else {}


def _own_layout(
    session: AdapterSession, given: dict[str, Any], api: Api, role: Role, history: Sequence[Any]
) -> dict[str, Any]:
    """The application's own layout, with its history as shortened and compacted (``history``)."""
    name = history_field(api)
    before = given.get(name) or []
    if isinstance(before, str):
        if history != [user_message(before)]:
            given = {**given, name: history}
    elif isinstance(before, list):
        lead = _leading(before)
        if len(before) != lead + len(history) or not all(map(operator.is_, before[lead:], history)):
            given = {**given, name: [*before[:lead], *history]}
    # A history that is neither text nor a list is valid in no API: it goes out as it came, and the provider refuses it.
    return session.attempt("layout", lambda: _completed(session, given, api, role), given)


def _with_history(
    session: AdapterSession, body: Mapping[str, Any], api: Api, role: Role | None
) -> tuple[dict[str, Any], str]:
    """The body, with ``previous_response_id`` replaced by the whole history where it names an answer to a fork.

    Privacy and money: the history that the provider stored for that answer holds the fork's tail, which is for its role
    alone, and the shared text a second time. Also gives the id that was replaced; empty for none.
    """
    given, earlier, name = dict(body), body.get("previous_response_id"), history_field(api)
    if not isinstance(earlier, str):
        return given, ""
    messages = session.shared.kept.gone_on(earlier, _speaker(session, role))
    if not messages:
        return given, ""
    del given["previous_response_id"]
    now = _items(given.get(name))
    # A chat's system messages stand in front of all.
    lead = [] if SHAPES[api].FIELDS.system else now[: _leading(now)]
    return {**given, name: [*lead, *messages, *now[len(lead) :]]}, earlier


def gone_on(session: AdapterSession, body: dict[str, Any], api: Api, role: Role | None) -> dict[str, Any]:
    """A body with the whole history where it names an answer to a fork; the very same where it names none.

    For requests beside those of a model (``responses.compact``), whose answer holds the history that they name.
    """
    if session.mode == "observe" or not well_formed(body, api):
        return body
    given, earlier = session.attempt("kept answer", lambda: _with_history(session, body, api, role), (body, ""))
    return given if earlier else body


def _speaker(session: AdapterSession, role: Role | None) -> tuple[str, str]:
    """Who asks: the session's name and the role's."""
    return session.name, role.name if role else ""


def _items(given: Any) -> list[Any]:
    """A body's history as a list of messages; a plain text is one message of the user."""
    return [user_message(given)] if isinstance(given, str) else list(given or ())


def _provider_keeps_history(session: AdapterSession, body: Mapping[str, Any], api: Api, role: Role) -> bool:
    """Whether the provider stores the history that a request continues, or later ones may continue this request there.

    Privacy: a fork's tail would stay in that history, for other roles to read, and the shared text once a request; only
    ``instructions`` are for one request alone. The first request of such a history shows nothing of this. So once a
    role has continued a stored answer, its requests count as ones that may be continued. Requests of a
    ``conversation`` all name it.
    """
    fields = SHAPES[api].FIELDS
    if body.get(fields.thread) is not None:
        return True
    if not fields.chained:
        return False
    if any(body.get(name) is not None for name in (*fields.chained, *filter(None, (fields.template,)))):
        return True
    if body.get("background"):
        # The answer is not there yet: who goes on from it needs the history that the provider keeps.
        return True
    if not fields.system:
        return False
    return body.get("store") is not False and (role.unread or session.shared.kept.begins(_speaker(session, role)))


def compacts(fields: Mapping[str, Any]) -> bool:
    """Whether the provider is asked to put the history together, by the fields of a body.

    By ``context_management``: OpenAI's ``compaction``, in a list, and Anthropic's ``compact_20260112``, among
    ``edits``; or by Anthropic's ``compaction``, for an answer that is nothing else (anthropic 2.11, read 2026-11-28).
    """
    edits = fields.get("context_management")
    listed = edits.get("edits") if isinstance(edits, Mapping) else edits
    kinds = [one.get("type") for one in listed if isinstance(one, Mapping)] if isinstance(listed, (list, tuple)) else []
    edited = any(isinstance(kind, str) and kind.startswith("compact") for kind in kinds)
    return edited or fields.get("compaction") is not None


def _read_elsewhere(session: AdapterSession, body: Mapping[str, Any], api: Api, role: Role) -> Reason | None:
    """Why others would read what a fork says at its end; None where nobody would."""
    if compacts(body):
        # Privacy: what the provider makes of all messages comes back in the answer, for whoever goes on from it.
        return reason("own_history", "compacted by the provider")
    return reason("kept_by_provider") if _provider_keeps_history(session, body, api, role) else None


def _begun_answers(session: AdapterSession, history: Sequence[Any], body: Mapping[str, Any], api: Api) -> int:
    """How many messages at the end are the beginning of the answer, which goes on: a prefill, or a paused turn.

    A provider's rule: nothing may stand behind a prefill. Models that take none answer 400, and OpenAI's take an
    assistant's last message for an answer that was given before, as do all to whom it must be said (``_BEGINS``).
    """
    last = history[-1] if history else None
    if api == "anthropic" and (held := paused_turn(history)):
        return held
    if not isinstance(last, Mapping) or last.get("role") != "assistant":
        return 0
    if any(last.get(name) is True for name in _BEGINS):
        return 1
    rules = session.profile(str(body.get("model", "")), api)
    # A form that the provider does not speak is translated on the way, as LiteLLM does it: the message keeps its place.
    return int(rules.prefill and (SHAPES[api].FIELDS.begun or api not in rules.apis))


def _is_system(message: Any) -> bool:
    """Whether it is a system or developer message."""
    return isinstance(message, Mapping) and message.get("role") in SYSTEM_ROLES


def _completed(session: AdapterSession, body: dict[str, Any], api: Api, role: Role) -> dict[str, Any]:
    """A body in the application's own layout, with the text that the user gave to the session alone put in.

    That is the shared text, the role's instruction and its volatile text, each where the body lacks it. The very same
    body where nothing is lacking.
    """
    fields = SHAPES[api].FIELDS
    name, place = history_field(api), fields.system
    if fields.template and body.get(fields.template) is not None:
        # A provider's rule: instructions would replace those of the stored template, and system text is refused beside
        # what was cached by name: it stands in there. What a chat says next stays nowhere.
        said = tail_text(role.name, role.instruction, volatile=role.volatile)
        if said and place:
            session.warn_once(
                f"template {role.name}",
                f"role {role.name!r} asks by a stored prompt, whose instructions ours would replace: its instruction "
                "and volatile text were not sent; put them into the stored prompt or its variables, or into the input",
            )
            return body
        return {**body, name: [*_items(body.get(name)), user_message(said)]} if said else body
    history = _items(body.get(name))
    own = body.get(place) if place else None
    lead = [one.get("content") for one in history if _is_system(one)]
    system_text = "\n\n".join(_text(one) for one in (own, *lead))
    given_text, instruction = session.unsaid((system_text,), role.name), role.instruction.strip()
    if instruction and find_text(instruction, f"{system_text}\n{given_text}") is not None:
        instruction = ""
    missing = "\n\n".join(filter(None, (given_text, instruction)))
    volatile = tail_text("", "", volatile=role.volatile)
    thread = body.get(fields.thread)
    if isinstance(thread, Mapping):
        # A provider's rule: a thread takes its system text with its first request, and refuses it in later ones.
        missing = missing if thread.get("type") == "create" else ""
    elif _read_elsewhere(session, body, api, role):
        # Privacy: the messages stay in the history that others go on from, the instructions do not.
        missing, volatile = "\n\n".join(filter(None, (missing, volatile))), ""
        if place:
            return {**body, place: _led(missing, own)} if missing else body
    if not history or not (missing or volatile):
        return body
    if missing and place is None:
        history.insert(0, {"role": "system", "content": missing})
    elif missing and place:
        body = {**body, place: _led(missing, own)}
    end = len(history) - _begun_answers(session, history, body, api)
    made = with_volatile({**body, name: history[:end]}, api, volatile)
    return {**made, name: [*made[name], *history[end:]]}


def _led(text: str, own: Any) -> Any:
    """A system text, or a list of its blocks, with ``text`` in front."""
    if isinstance(own, list):
        return [{"type": "text", "text": text}, *own]
    return f"{text}\n\n{own}" if own else text


def condensed_body(
    session: AdapterSession,
    conversation: Conversation,
    body: Mapping[str, Any],
    api: Api,
    tail: str,
    views: Views | None = None,
) -> Mapping[str, Any]:
    """A body with large tool results shortened and, where that is due and pays, compacted; the very same where not.

    Its leading system messages stay as they are, and so does the role's text, ``tail``. Raises ``BudgetError`` where
    the session's request budget cannot be met.
    """
    name, model = history_field(api), str(body.get("model", ""))
    messages = body.get(name)
    if not isinstance(messages, list) or not session.histories.decides(conversation):
        return body
    stay = set(range(_leading(messages)))
    stay.update([at for at, one in enumerate(messages) if tail and _says(one, tail)][-1:])
    beside = "\n".join(_text(messages[at].get("content")) for at in sorted(stay))
    own = max(0, session.count(beside, model) - session.count(session.prefix.text, model))
    tools = list(body.get("tools") or ())
    rest = RestOfRequest(own_tokens=own, tools=tuple(map(tool_name, tools)), declared=tools, zones=True)
    places = [at for at in range(len(messages)) if at not in stay]
    short = session.histories.condensed(conversation, messages, model, api, rest, places=places, views=views)
    return body if short is messages else {**body, name: short}


def _leading(messages: Sequence[Any]) -> int:
    """How many system messages stand in front."""
    return next((at for at, one in enumerate(messages) if not _is_system(one)), len(messages))


def _says(message: Any, text: str) -> bool:
    """Whether it is a message of the user's that says this text alone."""
    if not isinstance(message, Mapping) or message.get("role") != "user":
        return False
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"text": content}]
    return [field_of(block, "text") for block in blocks] == [text]


def _rendered(tool: Tool, api: Api) -> Any:
    """A tool as the application declared it, or converted where that is another API's form."""
    native, shape = tool.native, chat_of(api)
    if not isinstance(native, Mapping) or not shape.declares(native):
        return shape.tool(loads(tool.schema))
    # Privacy: all of it is copied, as a client or a callback that writes into one request's tools (LiteLLM's do) would
    # write into everybody's.
    return copy.deepcopy(dict(native))


def _kind(tool: Any) -> str:
    """A tool's ``type`` as it declares it, else the Python type's name."""
    # Privacy: it stands in a report, which shows no part of a prompt, so that only a name is taken.
    declared = tool.get("type") if isinstance(tool, Mapping) else None
    return declared if isinstance(declared, str) else type(tool).__name__


def _is_function(tool: Any) -> bool:
    """Whether a tool is a function of the application's, and not one that the provider defines."""
    return isinstance(tool, Mapping) and any(shape.declares(tool) for shape in CHATS.values())


def _text(content: Any) -> str:
    """The text of a message's content: a string, or its text blocks joined by empty lines."""
    if isinstance(content, list):
        return "\n\n".join(str(block.get("text", "")) for block in content if isinstance(block, Mapping))
    return content if isinstance(content, str) else ""
