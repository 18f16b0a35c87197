"""Makes one ag2 request a fork: where the role's text stands among the events, and which tools it carries."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary

from ag2.context import ConversationContext
from ag2.events import BaseEvent, ModelRequest, ModelResponse, TextInput, ToolResultsEvent
from ag2.network.policies import AGENT_CLIENT_DEP, CHANNEL_DEP
from ag2.response import ResponseProto
from ag2.tools.final import FunctionToolSchema
from ag2.tools.schemas import ToolSchema
from ag2.utils import AGENT_CONTEXT_DEPENDENCY_KEY

from cacheprefix import Profile
from cacheprefix.adapter import (
    LONG_ROLE,
    AdapterSession,
    AgentRequest,
    CountedHistory,
    OwnTools,
    Reason,
    RequestPlan,
    RolePosition,
    ToolSource,
    digest_of,
    loads,
    provider_tools,
    reason,
)
from cacheprefix.errors import ToolClashError
from cacheprefix_ag2.state import Talk
from cacheprefix_ag2.team import Seat, Stays, Team, schema_key, team_of

ConversationId = str | Callable[[ConversationContext], str]
_SAID = (ModelRequest, ModelResponse, ToolResultsEvent)
_TURNS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""The id of the stream of a turn on a channel, by the object that ag2 makes of the channel for each turn. A turn asks
before it delegates."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the policy found for a request: the application's own prompts and events, and the role's texts."""

    prompts: list[str]
    shown: list[str]
    """The prompts as the context holds them, which whoever listens to the call sees."""
    events: list[BaseEvent]
    role: str
    talk: Talk
    instruction: str
    text: str
    moving: Mapping[str, str]
    """What the application's own prompts say for this request alone, by key."""
    said: Mapping[str, str]
    """What is said beside them (volatile)."""
    stays: Stays

    def beside(self, session: AdapterSession, *, forks: bool) -> str:
        """Text for this request alone, put behind everything else; the prompts' own only where it ``forks``."""
        return session.tail_for(self.role, "", volatile={**(self.moving if forks else {}), **self.said})


@dataclass(frozen=True, slots=True)
class GivenTools:
    """The tools that a request may call."""

    schemas: Sequence[ToolSchema]
    lasting: frozenset[str] | None = None
    """Names of those that the agent itself has; None where no others came with the call."""
    forced: bool = False
    """Whether the model has to call one of them, whichever: of the union it might be another agent's."""


class Tail(ModelRequest):
    """The role's text as a user message, in its place among the events, and the plan it belongs to."""

    def __init__(self, plan: Plan, text: str = "") -> None:
        super().__init__([TextInput(text or plan.text)])
        self._plan = plan

    def saying(self, said: Mapping[str, str]) -> Tail:
        """With more text for this request alone."""
        return Tail(replace(self._plan, said={**self._plan.said, **said}))


@dataclass(frozen=True, slots=True)
class Fork:
    """A request laid out as a fork."""

    plan: Plan
    events: list[BaseEvent]
    tools: Sequence[ToolSchema]
    laid: RequestPlan[BaseEvent]
    """The core's plan: the role's text as it is sent, how it is kept to its tools, and why."""
    loops: bool
    """Whether a later request may begin with this one, so that its end is written to the cache."""


def tail_in(events: Iterable[Any]) -> Tail | None:
    """The role's text among events, where a policy put it."""
    # A storage may give its events one by one, and once: a policy gives a list.
    if not isinstance(events, Sequence):
        return None
    return next((event for event in reversed(events) if isinstance(event, Tail)), None)


def channel_of(context: ConversationContext) -> Any:
    """The channel on which a request's agent takes its turn; None where it takes none there.

    ag2 gives what a turn was given to whom it delegates to, too: an agent as a tool has a stream of its own, on which
    nobody of the channel spoke. It may be the same agent.
    """
    given = context.dependencies
    channel, client = given.get(CHANNEL_DEP), given.get(AGENT_CLIENT_DEP)
    if channel is None or (client is not None and client.agent is not given.get(AGENT_CONTEXT_DEPENDENCY_KEY)):
        return None
    return channel if _TURNS.setdefault(channel, context.stream.id) == context.stream.id else None


def conversation_id(context: ConversationContext) -> str:
    """The id of a request's conversation where the application gives none: its channel's, else its stream's."""
    channel = channel_of(context)
    return str(context.stream.id if channel is None else channel.channel_id)


def tail_position(events: Sequence[BaseEvent], talk: Talk, *, private: bool) -> tuple[int, Stays]:
    """How many events stand before the role's text, and for how long it keeps that place.

    In a channel's turn (``private``) it stands before the turn's tool loop, which no other agent sees. In a stream of
    several roles it stands at the end, since they share all events. In a stream of one role it stands behind the first
    request, for good.
    """
    asked = [index for index, event in enumerate(events) if isinstance(event, ModelRequest)]
    if private and asked:
        return asked[-1] + 1, "turn"
    if not asked or len(talk.speakers) > 1:
        return len(events), "call"
    return asked[0] + 1, "stream"


def fork_of(
    session: AdapterSession,
    model: str,
    messages: Sequence[BaseEvent],
    given: GivenTools,
    schema: ResponseProto[Any] | None,
    covered: tuple[Reason, ...] = (),
) -> Fork | RequestPlan[BaseEvent]:
    """Lay the request out as a fork; where it keeps the agent's own layout, give the plan with the reasons.

    ``messages`` contain the policy's ``Tail``; ``given`` are the agent's own tools, ``schema`` its response's schema.
    ``covered`` says why parts of a fork would be lost, where the application puts others over them.
    """
    tail = tail_in(messages)
    assert tail is not None
    plan, team, tools = tail._plan, team_of(session), given.schemas
    seat, kit = _joined(session, model, plan, given, schema)
    forks, union = _decided(session, model, plan)
    union = union and not seat.plain
    own = reason("alone") if len(team.seats) == 1 else reason("lane_of_its_own")
    known = provider_tools(type(tool).__name__ for tool in tools if not isinstance(tool, FunctionToolSchema))
    places: list[tuple[int | None, bool]] = []

    def placed(_: Profile | None = None, *, shares: bool = True) -> RolePosition:
        places.append(_placed(session, model, plan, messages, messages.index(tail), shares=shares))
        return RolePosition(places[0][0])

    # ``_placed`` looks at the events itself, so the planner gets no history, only the shared tokens.
    nothing: CountedHistory[BaseEvent] = CountedHistory((), repr, lambda _: 0)
    laid = session.plan(
        AgentRequest(
            plan.role,
            model,
            session.conversation(plan.talk.id),
            plan.instruction,
            lambda _: nothing,
            tools=OwnTools(seat.tools, carried="union" if union else "own"),
            holds_shared=session.holds_shared((*plan.prompts, "\n".join(plan.prompts))),
            own=covered or (() if forks else (own,)),
            known=(*known, *((reason("forced_tool"),) if given.forced else ())),
            shared=_shared_tokens(session, model, plan, union=union),
            place=placed,
            text_counts=True,
        )
    )
    # The place depends on the role's earlier requests, so those in the agent's own layout are counted too.
    if not places:
        placed(shares=False)
    at, continues = places[0]
    if laid.at is None or at is None:
        return laid
    events = [event for event in messages if event is not tail]
    events[at:at] = [Tail(plan, laid.text)] if laid.text else []
    loops = continues or plan.stays == "stream" or (plan.stays == "turn" and bool(tools))
    return Fork(plan, events, kit.carried(session, plan.talk) if union else tools, laid, loops)


def _joined(
    session: AdapterSession, model: str, plan: Plan, given: GivenTools, schema: ResponseProto[Any] | None
) -> tuple[Seat, _Tools]:
    """Note in the team what the agent asks with: gives its seat, and the tools that there are."""
    team = team_of(session)
    first = "\n".join(plan.prompts).lstrip().startswith(session.prefix.system.strip())
    tail_tokens = session.count(plan.text, model)
    seat, tools = _seated(team, plan.talk, Seat(model, schema_key(schema), tail=tail_tokens, first=first), given)
    with session.shared.lock:
        team.seats[plan.role] = seat
    return seat, tools


def _decided(session: AdapterSession, model: str, plan: Plan) -> list[bool]:
    """Whether the role's requests in this conversation are forks, and whether they carry the union of tools."""
    team = team_of(session)
    opened = next((event for event in plan.events if isinstance(event, ModelRequest)), None)
    team.heard(plan.role, plan.talk, _request_key(opened))
    asked = _tokens(session, model, opened) if opened is not None else 0
    # Once decided it stays: another layout in mid-conversation is paid for uncached from its beginning.
    return plan.talk.layouts.setdefault(f"{plan.stays} {plan.role}", team.layout(plan.role, plan.stays, asked))


def _request_key(request: ModelRequest | None) -> str:
    """A key of a request, equal for those that say the same: ag2's own ``repr`` holds the first 80 characters alone."""
    said = [
        (type(part).__name__, getattr(part, name))
        for part in (() if request is None else request.parts)
        for name in ("content", "data", "url", "file_id")
        if hasattr(part, name)
    ]
    # A file of many megabytes is read once, and never written down.
    return digest_of(*(f"{kind} {blake2b(one).hexdigest() if isinstance(one, bytes) else one}" for kind, one in said))


def _shared_tokens(session: AdapterSession, model: str, plan: Plan, *, union: bool) -> int:
    """Tokens that the role's request has in common with the others': events, shared text, with ``union`` the tools."""
    shared = sum(_tokens(session, model, event) for event in plan.events) + session.count(session.prefix.text, model)
    tools = session.prefix.among(plan.talk.tools) if union else ()
    return shared + sum(session.count(tool.schema.decode(), model) for tool in tools)


def _placed(
    session: AdapterSession, model: str, plan: Plan, messages: Sequence[BaseEvent], end: int, *, shares: bool
) -> tuple[int | None, bool]:
    """How many events stand before the role's text (None for the agent's own layout), and whether it continues.

    The policy put the text at ``end``. The second value says whether the role's next request may begin with this one.
    A long text keeps its last place while that costs less. ``shares`` is False for a request that is no fork.
    """
    others = [*messages[:end], *([] if plan.stays == "turn" else messages[end + 1 :])]
    # A stream's storage may keep little but messages and results, so the place is counted in those.
    said = [(at, event) for at, event in enumerate(others, 1) if isinstance(event, _SAID)]
    found = session.place(
        session.conversation(plan.talk.id),
        plan.role,
        plan.text,
        [event for _, event in said],
        model,
        digest=lambda event: digest_of(type(event).__name__, *_texts(event)),
        tokens=lambda event: _tokens(session, model, event),
        joined=lambda _, later: isinstance(later, ToolResultsEvent),
        shared=shares,
        joint=plan.stays != "stream",
        # ag2 marks what it sends to Anthropic, so the application's own layout is kept there too.
        cached=True,
    )
    if found.at is None:
        return None, False
    # In a stream of its own a short text stands where the policy put it, for good.
    if plan.stays == "stream" and session.count(plan.text, model) < LONG_ROLE:
        return end, False
    if found.at == len(said):
        return len(others), found.continues
    return (said[found.at - 1][0] if found.at else 0), found.continues


@dataclass(frozen=True, slots=True)
class _Tools:
    """The tools of a request that may carry the union."""

    own: Sequence[FunctionToolSchema] = ()
    joining: Sequence[FunctionToolSchema] = ()
    """Those of its own that are in the union."""
    union: Sequence[FunctionToolSchema] = ()

    def open_to(self, session: AdapterSession, talk: Talk) -> set[str]:
        """Names of those of the union that a conversation may be shown."""
        # Privacy: an agent that was made later may have been made for one user, and so may its tools.
        names = {tool.function.name for tool in self.joining}
        return {*session.tools_open_to(session.conversation(talk.id)), *names}

    def carried(self, session: AdapterSession, talk: Talk) -> list[FunctionToolSchema]:
        """What a request has that carries the union.

        A tool that came after its conversation began would change the prompt from its beginning: the agent's own such
        tools stand behind the union. Asked once ``plan`` has noted who asks, by which it shows whose tools are whose.
        """
        # Privacy: what seemed to be a team's when the conversation began may be other users' agents' by now.
        names = set(talk.tools) & self.open_to(session, talk) if session.mixed else set(talk.tools)
        extra = [tool for tool in self.own if tool.function.name not in names]
        return [*(tool for tool in self.union if tool.function.name in names), *extra]


def _seated(team: Team, talk: Talk, seat: Seat, given: GivenTools) -> tuple[Seat, _Tools]:
    """Bring an agent's tools into the union: its seat with their names, and what its request's tools are made of.

    None of the latter where no union can hold them: then the seat is ``plain``, and the request keeps its own.
    """
    own = [tool for tool in given.schemas if isinstance(tool, FunctionToolSchema)]
    plain = len(own) != len(given.schemas) or given.forced
    seat = replace(seat, tools=tuple(tool.function.name for tool in own), plain=plain)
    if seat.plain:
        return replace(seat, tools=(*seat.tools, *(repr(tool) for tool in given.schemas))), _Tools()
    # Privacy: what came with this call may be made for who asks, its description too; no other stream is shown it.
    joining = [tool for tool in own if given.lasting is None or tool.function.name in given.lasting]
    union = adopt(team.session, joining, "an agent", of_run=True)
    shared = {tool.function.name: _schema(tool) for tool in union or ()}
    beside = {tool.function.name: _schema(tool) for tool in own if tool not in joining}
    if union is None or any(shared.get(name, schema) != schema for name, schema in beside.items()):
        return replace(seat, plain=True), _Tools()
    team.session.bring_tools(team.session.conversation(talk.id), {tool.function.name for tool in joining})
    tools = _Tools(own, joining, union)
    shown = tools.open_to(team.session, talk)
    talk.tools = talk.tools or [tool.function.name for tool in union if tool.function.name in shown]
    return seat, tools


def adopt(
    session: AdapterSession, tools: Sequence[FunctionToolSchema], who: str, *, of_run: bool = False
) -> list[FunctionToolSchema] | None:
    """Add ``tools`` to the union and give it, in order of names; None with a note where one name has two schemas.

    ``of_run`` says that a request brings them: the agent may be made for one user.
    """
    try:
        # Copies: what the application later does to its tools must not change the prefix.
        union = session.adopt_tools(copy.deepcopy(list(tools)), _schema, grows=True, source=ToolSource(of_run=of_run))
    except ToolClashError as error:
        session.note(f"{who} keeps its own tools, which others share no cache with: {error}")
        return None
    return [
        tool.native
        if isinstance(tool.native, FunctionToolSchema)
        else FunctionToolSchema.from_dict({"function": loads(tool.schema)})
        for tool in union
    ]


def _schema(tool: FunctionToolSchema) -> dict[str, Any]:
    function = tool.function
    return {"name": function.name, "description": function.description, "parameters": function.parameters}


def _texts(event: BaseEvent) -> list[str]:
    """The texts of an event."""
    texts = [str(getattr(part, "content", "")) for part in getattr(event, "parts", ())]
    if isinstance(event, ModelResponse):
        texts.append(event.content or "")
    for result in getattr(event, "results", ()):
        texts += [str(getattr(part, "content", "")) for part in result.result.parts]
    return texts


def _tokens(session: AdapterSession, model: str, event: BaseEvent) -> int:
    """Tokens of an event's texts, roughly: enough to tell whether a prompt reaches the provider's minimum."""
    return sum(session.count(text, model) for text in _texts(event) if text)
