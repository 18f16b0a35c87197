"""Makes one ag2 request a fork: where the role's text stands among the events, and which tools it carries."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from ag2.context import ConversationContext
from ag2.events import BaseEvent, ModelRequest, ModelResponse, TextInput, ToolResultsEvent
from ag2.network.client.tools.say import make_say_tool
from ag2.network.policies import AGENT_CLIENT_DEP, CHANNEL_DEP
from ag2.response import ResponseProto
from ag2.tools.final import FunctionToolSchema
from ag2.tools.schemas import ToolSchema
from ag2.utils import AGENT_CONTEXT_DEPENDENCY_KEY

from cacheprefix.adapter import (
    LONG_ROLE,
    AdapterSession,
    AgentRequest,
    CountedHistory,
    OwnTools,
    Reason,
    RequestPlan,
    Tool,
    ToolSource,
    digest_of,
    loads,
    provider_tools,
    reason,
)
from cacheprefix.errors import ToolClashError
from cacheprefix.wire import asks
from cacheprefix_ag2.state import Talk
from cacheprefix_ag2.team import Seat, schema_key, team_of

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
    channel: bool
    """Whether it is a turn on a channel, whose own tool loop no other agent sees."""

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
    """Whether the model has to call one of them, whichever, or one that is not among them: of the union that might be
    another agent's."""


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
    plan, tools = tail._plan, given.schemas
    # The very object: ag2's events are equal where they say the same, an application's where it likes.
    end = next(at for at, event in enumerate(messages) if event is tail)
    plan.talk.speakers.add(plan.role)
    names = _united(session, plan.talk, given)
    # Tools that no union can hold stand in front of all that others could read, but for those who have just these.
    apart = "" if names is not None else digest_of(*map(repr, tools))
    first = "\n".join(plan.prompts).lstrip().startswith(session.prefix.system.strip())
    answered = schema_key(schema)
    alone = team_of(session).seated(plan.role, Seat(model, apart, first=first), answered)
    known = provider_tools(type(tool).__name__ for tool in tools if not isinstance(tool, FunctionToolSchema))
    # A stream's storage may keep little but messages and results, so places are counted in those.
    said = [(at, event) for at, event in enumerate(messages[:end], 1) if isinstance(event, _SAID)]

    def tokens(event: BaseEvent) -> int:
        return _tokens(session, model, event)

    # Nobody else reads what is said on a stream of its own, and in a channel's turn what the tools say.
    single = not plan.channel and len(plan.talk.speakers) == 1
    goes_on = single or (plan.channel and bool(tools))
    history = CountedHistory(
        [event for _, event in said], _digest, tokens, messages[end + 1 :], lambda _, later: _answers(later)
    )
    laid = session.plan(
        AgentRequest(
            plan.role,
            model,
            session.conversation(plan.talk.id),
            plan.instruction,
            lambda _: history,
            spoken=lambda behind: list(map(tokens, history.messages[behind:])),
            tools=None if names is None else OwnTools(names, mutual=single or plan.channel, differ=()),
            holds_shared=session.holds_shared((*plan.prompts, "\n".join(plan.prompts))),
            own=covered or ((alone,) if alone is not None else ()),
            asks=asks(_only_texts(plan.events), system=False),
            known=(*known, *((reason("forced_tool"),) if given.forced else ())),
            alike=team_of(session).alike,
            joint=not single,
            holds=plan.channel,
            # On a channel ag2 leaves out of an agent's requests what it said itself.
            hears_itself=not plan.channel,
            # ag2 marks what it sends to Anthropic, so the application's own layout is kept there too.
            cached=True,
            text_counts=True,
            schema=answered,
        )
    )
    if laid.at is None:
        return laid
    at = end if laid.at == len(said) else said[laid.at - 1][0] if laid.at else 0
    if single and session.count(plan.text, model) < LONG_ROLE:
        # Behind the first request, for good: later turns only append.
        at = next((place for place, event in said if isinstance(event, ModelRequest)), at)
    events = [event for event in messages if event is not tail]
    events[at:at] = [Tail(plan, laid.text)] if laid.text else []
    return Fork(plan, events, _carried(session, tools, laid), laid, laid.continues or goes_on)


def _carried(
    session: AdapterSession, own: Sequence[ToolSchema], laid: RequestPlan[BaseEvent]
) -> Sequence[ToolSchema]:
    """The tools which a request's plan has it carry."""
    if laid.tools is None or laid.tools.name:
        return own
    return [_native(tool) for tool in session.prefix.among(laid.tools.tools)]


def _united(session: AdapterSession, talk: Talk, given: GivenTools) -> tuple[str, ...] | None:
    """Bring an agent's tools into the union: the names of all its own. None where no union can hold them."""
    own = [tool for tool in given.schemas if isinstance(tool, FunctionToolSchema)]
    if len(own) != len(given.schemas) or given.forced:
        return None
    # Privacy: what came with this call may be made for who asks, its description too; no other stream is shown it.
    # What ag2 itself gives each agent with a turn on a channel, to post there, says the same to all.
    joining = [tool for tool in own if given.lasting is None or tool.function.name in given.lasting or _says(tool)]
    if not adopt(session, joining, "an agent", of_run=True):
        return None
    by_name = {tool.function.name: _schema(tool) for tool in own}
    if any(loads(tool.schema) != by_name[tool.name] for tool in session.prefix.among(by_name)):
        return None
    session.bring_tools(session.conversation(talk.id), {tool.function.name for tool in joining})
    return tuple(by_name)


def adopt(
    session: AdapterSession, tools: Sequence[FunctionToolSchema], who: str, *, of_run: bool = False
) -> bool:
    """Add ``tools`` to the union; False, with a note, where one name has two schemas.

    ``of_run`` says that a request brings them: the agent may be made for one user.
    """
    try:
        # Copies: what the application later does to its tools must not change the prefix.
        session.adopt_tools(copy.deepcopy(list(tools)), _schema, grows=True, source=ToolSource(of_run=of_run))
    except ToolClashError as error:
        session.note(f"{who} keeps its own tools, which others share no cache with: {error}")
        return False
    return True


def _says(tool: FunctionToolSchema) -> bool:
    """Whether a tool is ag2's own for posting on a channel."""
    return _schema(tool) == _say()


@cache
def _say() -> dict[str, Any]:
    made: Any = make_say_tool(None)  # type: ignore[arg-type]
    return _schema(made.schema)


def _native(tool: Tool) -> FunctionToolSchema:
    """A tool of the union as ag2 has it."""
    if isinstance(tool.native, FunctionToolSchema):
        return tool.native
    return FunctionToolSchema.from_dict({"function": loads(tool.schema)})


def _schema(tool: FunctionToolSchema) -> dict[str, Any]:
    function = tool.function
    return {"name": function.name, "description": function.description, "parameters": function.parameters}


def _answers(event: BaseEvent) -> bool:
    """Whether an event answers the calls of the one before it, from which no text may part it."""
    return isinstance(event, ToolResultsEvent)


def _digest(event: BaseEvent) -> str:
    return digest_of(type(event).__name__, *_texts(event))


def _texts(event: BaseEvent) -> list[str]:
    """The texts of an event."""
    texts = [str(getattr(part, "content", "")) for part in getattr(event, "parts", ())]
    if isinstance(event, ModelResponse):
        texts.append(event.content or "")
    for result in getattr(event, "results", ()):
        texts += [str(getattr(part, "content", "")) for part in result.result.parts]
    return texts


def _only_texts(events: Sequence[BaseEvent]) -> Iterator[str | None]:
    """What each part of a conversation says; None for one that is no text, as calls, results and pictures."""
    for event in events:
        if isinstance(event, ModelRequest):
            yield from (part.content if isinstance(part, TextInput) else None for part in event.parts)
        elif isinstance(event, ModelResponse):
            yield None if event.tool_calls.calls or event.files else event.content or ""
        elif isinstance(event, _SAID):
            yield None


def _tokens(session: AdapterSession, model: str, event: BaseEvent) -> int:
    """Tokens of an event's texts, roughly: enough to tell whether a prompt reaches the provider's minimum."""
    return sum(session.count(text, model) for text in _texts(event) if text)
