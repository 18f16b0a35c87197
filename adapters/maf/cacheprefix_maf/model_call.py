"""Makes one model call inside the client: lays it out as a fork, marks it for the cache, records its usage."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from agent_framework import AgentSession, ChatContext, Message, ResponseStream

from cacheprefix import Conversation
from cacheprefix.adapter import (
    FOLLOW,
    AdapterSession,
    Api,
    BlockVar,
    Bounded,
    ByObject,
    Request,
    RequestPlan,
    allowed_choice,
    merged_places,
    reason,
)
from cacheprefix.errors import BudgetError
from cacheprefix_maf.client_requests import (
    Laid,
    Sending,
    UnpreparedError,
    api_of,
    body_of,
    headers_in,
    prepared_by,
)
from cacheprefix_maf.history import condensed
from cacheprefix_maf.layout import Layout, laid_out, without_list
from cacheprefix_maf.member import Member
from cacheprefix_maf.tools import adopt, own_of, part_told_anew, refuse_called

_STATE = "cacheprefix"
"""Where, in an ``AgentSession``'s state, the decisions of a conversation are kept."""
_PLACES = "standing"
"""The key in there of the places of the roles' texts, by which their next requests are laid out."""
_BEGUN = "maf.background"
"""In a session's ``beside``: requests whose answers come later (``continuation_token``), by the answer's id."""
_MOST_BEGUN = 1_000
"""How many of these are kept; nobody may ask for them."""
_TAKEN: ByObject[AgentSession, _Taken] = ByObject()
_HELD: WeakKeyDictionary[Conversation, dict[str, weakref.ref[AgentSession]]] = WeakKeyDictionary()
"""By conversation and role: the ``AgentSession`` of the role's last request, held weakly."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """Which conversation the saved decisions of an ``AgentSession`` were loaded into."""

    name: str
    conversation: weakref.ref[Conversation]
    forgets: int
    """How often the application had it forgotten by then."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The member whose request is on its way to the client, and the framework's context of it."""

    member: Member
    context: ChatContext

    @property
    def bounded(self) -> bool:
        """Whether the application's own compaction changes the messages; then their layout is left alone."""
        given = self.context.kwargs.get("compaction_strategy")
        return (given or getattr(self.context.client, "compaction_strategy", None)) is not None

    def makes(self, request: Mapping[str, Any]) -> bool:
        """Whether this is the request itself, and not one that a middleware makes on its way, as of a guard.

        Privacy: that one is another agent's, which is shown nothing of this one's.
        """
        own, said = self.context.options, list(map(id, self.context.messages))
        options = request.get("options")
        # The framework's own compaction gives a list of its own, of the same messages.
        same = request["messages"] is self.context.messages or any(id(one) in said for one in request["messages"])
        return same and (options is own or not (options or own))


ASKED: BlockVar[Asked] = BlockVar("cacheprefix_maf_asked")


def called(base: Callable[..., Any], **request: Any) -> Any:
    """Make a client's call: unchanged where no middleware of ours is around it, else through the session."""
    asked = ASKED.get()
    # A client that is not known may hand its requests on to one that is: they stay its own.
    if asked is None or api_of(asked.context.client) is None or not asked.makes(request):
        return base(**request)
    begun = (request.get("options") or {}).get("continuation_token")
    if begun is not None:
        # No request: it asks for an answer that one of before is to have.
        return base(**request) if request.get("stream") else _polled(asked.member.session, begun, base(**request))
    if request.get("stream"):
        return ResponseStream.from_awaitable(_streamed(asked, base, request))
    return _answered(asked, base, request)


async def _polled(session: AdapterSession, begun: Mapping[str, Any], answer: Awaitable[Any]) -> Any:
    """An answer that may be there by now; with it came what its request cost."""
    response = await answer
    if response.continuation_token is None:
        sending = session.beside.get(_BEGUN, {}).pop(begun.get("response_id"), None)
        if sending is not None:
            sending.answered(response)
    return response


async def _answered(asked: Asked, base: Callable[..., Any], request: dict[str, Any]) -> Any:
    """Ask for a whole answer; one that is still under way is kept until a poll brings its end."""
    sending, made = await _opened(asked, request)
    while True:
        if sending is None:
            return await base(**made)
        try:
            # A class of the application's asks the one that it derives from, which is watched too.
            with sending.turn, ASKED.within(None):
                response = await base(**made)
            break
        except Exception:
            if not sending.list_refused:
                raise
        sending, made = await _opened(asked, request, sending)
    begun = response.continuation_token
    if begun is None:
        sending.answered(response)
    else:
        waiting: Bounded[str, Sending] = asked.member.session.beside.setdefault(_BEGUN, Bounded(_MOST_BEGUN))
        waiting[begun.get("response_id")] = sending
    return response


async def _streamed(asked: Asked, base: Callable[..., Any], request: dict[str, Any]) -> Any:
    """Make a call whose answer is a stream, the framework's own, which tells us what passes and how it ends."""
    sending, made = await _opened(asked, request)
    if sending is None:
        return base(**made)
    sent = [sending]
    try:
        with ASKED.within(None):
            stream = base(**made)
    except BaseException:
        sending.turn.fail()
        raise
    if sending.lists:
        stream = _anew_where_refused(asked, base, request, stream, sent)

    def passed(update: Any) -> Any:
        sent[-1].update(update)
        return update

    def reading() -> AbstractContextManager[None]:
        return sent[-1].turn.reading()

    # While clean-up runs, an error can be read from the stream alone.
    held = weakref.ref(stream)
    stream.with_cleanup_hook(lambda: sent[-1].ended(getattr(held(), "_stream_error", None)))
    # A stream dropped half-read reports no end until garbage collection: the framework's telemetry refers to it in a
    # circle.
    sending.turn.leave.rests()
    stream.with_pull_context_manager(reading)
    return stream.with_transform_hook(passed)


def _anew_where_refused(
    asked: Asked, base: Callable[..., Any], request: dict[str, Any], stream: Any, sent: list[Sending]
) -> Any:
    """The stream, or where the endpoint refuses its list of allowed tools, the one of the application's own request.

    ``sent`` gets that one's ``Sending``.
    """
    streams = [stream]

    async def updates() -> AsyncIterator[Any]:
        begun = False
        while True:
            try:
                async for update in streams[-1]:
                    begun = True
                    yield update
                return
            except Exception:
                # Here it is learnt that the list was refused.
                sent[-1].turn.fail()
                if begun or not sent[-1].list_refused:
                    raise
            finally:
                await streams[-1].close()
            again, made = await _opened(asked, request, sent[-1])
            if again is not None:
                sent.append(again)
            with ASKED.within(None):
                streams.append(base(**made))

    return ResponseStream(updates(), finalizer=lambda _: streams[-1].get_final_response())


async def _opened(
    asked: Asked, request: dict[str, Any], refused: Sending | None = None
) -> tuple[Sending | None, dict[str, Any]]:
    """Lay out and begin a request: gives its ``Sending`` (None where that failed), and the arguments to call with.

    ``refused`` is the same request with a list of tools that the endpoint took for an error: it goes out as the
    application made it. Where a step of ours fails these are the application's own, with the volatile text behind them.
    """
    member, session = asked.member, asked.member.session
    request = session.attempt("layout", lambda: _owned(request), request)
    stored = session.attempt("layout", lambda: _stored(asked.context.client, request["options"]), otherwise=False)
    # The user's own function: its errors are raised to the application.
    if refused is not None:
        volatile = refused.volatile
    else:
        volatile = member.volatile_text() if session.mode != "observe" and not stored else ""
    try:
        return await _prepared(asked, volatile, refused is not None, **request)
    except BudgetError:
        raise
    except Exception as error:
        session.failed("layout", error)
    if volatile:
        # Our layout failed, but the user's volatile text still has to reach the model.
        request = {**request, "messages": [*request["messages"], Message("user", [volatile])]}
    return None, request


def _owned(request: dict[str, Any]) -> dict[str, Any]:
    """The arguments without the stand-in tools that an earlier request of this run put beside the agent's own."""
    options = request["options"]
    own = own_of(options.get("tools"))
    return request if len(own) == len(options.get("tools") or ()) else {**request, "options": {**options, "tools": own}}


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as it is to be sent."""

    layout: Layout | None
    """How it is laid out; None where that is left to the application."""
    prepared: dict[str, Any]
    """The arguments that the client would hand to its SDK for it."""
    body: Mapping[str, Any]
    changed: bool = False
    """Whether it differs from the application's own request."""


async def _prepared(
    asked: Asked,
    volatile: str,
    anew: bool,  # noqa: FBT001 - the request's own arguments come by name
    *,
    messages: Sequence[Message],
    options: Mapping[str, Any],
    stream: bool = False,
    **rest: Any,
) -> tuple[Sending | None, dict[str, Any]]:
    """Lay out, shorten and begin a request; may raise, ``_opened`` then sends the application's own."""
    member, client, held = asked.member, asked.context.client, asked.context.session
    session, api = member.session, api_of(client) or "openai-chat"
    own = list(options.get("tools") or ())
    request = {"messages": messages, "options": options, "stream": stream, **rest}
    try:
        given = await prepared_by(client, messages, options, rest)
    except UnpreparedError:
        # The application's own request: asked for it, the client raises that to the application.
        return None, request
    stored = _stored(client, options)
    writes = session.mode != "observe" and not stored
    if stored:
        session.note(f"agent {member.role!r} is only measured: the service keeps its history (store=False shares)")
    named = member.named(held)
    name = named or (held.session_id if held else "")
    made = Outgoing(None, given, body_of(given))
    if writes:
        name = name or _continued(member, given, api)
        session.attempt("tools", lambda: part_told_anew(session), None)
        adopt(member, member.lasting(own), of_run=True)
        made = await _composed(asked, name, messages, options, made, rest, several=bool(named), anew=anew)
    if made.layout is not None and made.layout.plan.unasked:
        # Text for this request alone would be something to answer, where the provider answers nothing.
        volatile = ""
    layout, headers = made.layout, session.attempt("headers", lambda: headers_in(given), None)
    boundary = layout.boundary if layout is not None and layout.plan.forks else None
    leave = FOLLOW
    if layout is not None and layout.plan.waits:
        leave = await session.waiting.aqueue(
            made.body, api,
            boundary=boundary, scope=member.scope, streams=stream, headers=headers, plan=layout.plan,
        )  # fmt: skip
    why: RequestPlan[Any] = RequestPlan(
        "own", (reason("kept_by_provider") if stored else reason("own_history", "compacted"),)
    )
    turn = session.begin(
        Request(
            made.body,
            api,
            agent=member.role,
            conversation=name,
            boundary=boundary,
            original=(lambda _: session.decode(body_of(given), api)) if made.changed else None,
            headers=headers,
            # Money: later requests are forks again, which read nothing that this one would write.
            rewrite=writes and not anew,
            repeated=writes and layout is not None and layout.passing,
            scope=member.scope,
            continues=layout is not None and layout.plan.continues,
            trailing=bool(volatile),
        ).laid_out(why if layout is None else layout.plan),
        leave,
    )
    if turn.seen is None:
        # It could not be begun and goes out as the application made it: requests that wait for its write go on.
        leave.release(ok=False)
        made = Outgoing(None, given, body_of(given))
        turn.body = made.body
    sending = Sending(session, api, made.prepared, turn, volatile, member.volatile_role)
    layout = made.layout
    sending.lists = layout is not None and layout.union and bool(layout.plan.restriction.allowed)
    if layout is not None and layout.union and layout.plan.tools is not None:
        sending.refuse = partial(refuse_called, member, asked.context.options, layout.plan.tools.tools)
    sent = Laid(messages if layout is None else layout.messages)
    sent.sending = sending
    return sending, {**request, "messages": sent, "options": options if layout is None else layout.options}


async def _composed(
    asked: Asked,
    name: str,
    messages: Sequence[Message],
    options: Mapping[str, Any],
    made: Outgoing,
    rest: Mapping[str, Any],
    *,
    several: bool,
    anew: bool,
) -> Outgoing:
    """Lay out and shorten a request of the conversation ``name``, which may be ``several`` agents'.

    ``made`` is the application's own, which it stays where it goes out ``anew``.
    """
    member, client, held = asked.member, asked.context.client, asked.context.session
    session, api, model = member.session, api_of(client) or "openai-chat", str(made.prepared.get("model", ""))
    conversation = _conversation(asked, name, several=several)
    if not asked.bounded:
        # Privacy: an ``AgentSession`` outside of a named conversation holds a history that no other role has.
        private = held is not None and not several
        over = made.prepared.get("extra_body") or {}
        if anew:
            layout = without_list(member, messages, options)
        else:
            layout = laid_out(member, conversation, messages, options, api, model, private=private, over=over)
        prepared = made.prepared
        if layout.changed:
            prepared = await prepared_by(client, layout.messages, layout.options, rest)
        body = body_of(prepared)
        body = session.markable(body, api) if layout.plan.forks else body
        allowed = layout.plan.restriction.allowed
        if allowed is not None and layout.union:
            body["tool_choice"] = allowed_choice(allowed, api)
        short = condensed(session, conversation, body, api, layout.tail, messages)
        made = Outgoing(layout, prepared, short, layout.changed or short is not body)
    if held is not None:
        _save(held, session, conversation, several=several)
    return made


def _continued(member: Member, given: Mapping[str, Any], api: Api) -> str:
    """The conversation that a request without its name or an ``AgentSession`` continues, by its messages."""
    session = member.session
    prompt = session.attempt("conversation", lambda: session.decode(body_of(given), api), None)
    return session.unnamed(() if prompt is None else prompt.digests[prompt.head :], member.scope)


def _conversation(asked: Asked, name: str, *, several: bool) -> Conversation:
    """The conversation with the decisions so far, after loading what its ``AgentSession`` has saved.

    Without a named conversation, what was saved replaces what is known. In a named one each agent has an
    ``AgentSession`` of its own, perhaps saved at different times: these are merged, unless a role comes with another
    session than before. Then the application goes back to an earlier state, which replaces what is known, so that the
    same is sent as in another process.
    """
    member, held = asked.member, asked.context.session
    conversation = member.session.conversation(name, scope=member.scope)
    if held is None:
        return conversation
    taken, saved = _TAKEN.get(held), held.state.get(_STATE)
    roles = _HELD.setdefault(conversation, {}) if several else {}
    forgets = member.session.forgets(name, member.scope)
    if taken is not None and taken.name == name and taken.forgets < forgets:
        # Privacy: the application had the conversation forgotten since, so its saved decisions are removed too.
        held.state.pop(_STATE, None)
    elif taken is None or taken.conversation() is not conversation:
        if saved:
            earlier = roles.get(member.role)
            merge = several and (earlier is None or earlier() is held)
            if not merge:
                roles.clear()
            member.session.attempt("restore", lambda: conversation.restore(saved, rebase=True, merge=merge), None)
            _restore_places(member.session, conversation, saved.get(_PLACES) or {}, merge=merge)
        elif not several and any(isinstance(one, Mapping) and one.get("messages") for one in held.state.values()):
            # The session brings a history without decisions: it was saved before any was taken. Start anew.
            member.session.forget(name, member.scope)
            conversation = member.session.conversation(name, scope=member.scope)
    _TAKEN[held] = _Taken(name, weakref.ref(conversation), member.session.forgets(name, member.scope))
    roles[member.role] = weakref.ref(held)
    return conversation


def _save(held: AgentSession, session: AdapterSession, conversation: Conversation, *, several: bool) -> None:
    """Save the decisions and the places of the roles' texts into an ``AgentSession``; nothing where there are none.

    With ``several`` agents' sessions in one conversation all are updated: in another process, whichever agent asks
    first then knows the decisions of all.
    """
    places = session.places(conversation)
    if not len(conversation.ledger) and not places:
        return
    state = {**conversation.to_json(places=False), **({_PLACES: places} if places else {})}
    held.state[_STATE] = state
    if several:
        for each in filter(None, [one() for one in tuple(_HELD.get(conversation, {}).values())]):
            each.state[_STATE] = state


def _restore_places(
    session: AdapterSession, conversation: Conversation, saved: Mapping[str, Any], *, merge: bool
) -> None:
    """Restore the places of the roles' texts; with ``merge`` together with those known already."""
    known = session.places(conversation) if merge else {}
    session.restore_places(conversation, merged_places(known, saved) if known else saved)


def _stored(client: Any, options: Mapping[str, Any]) -> bool:
    """Whether the provider stores the history, so that the request does not contain all of it."""
    options = {**options, **(options.get("extra_body") or {})}
    given = options.get("store")
    stored = getattr(client, "STORES_BY_DEFAULT", False) if given is None else given
    named = ("conversation_id", "conversation", "previous_response_id", "background")
    return bool(stored) or any(options.get(name) for name in named)
