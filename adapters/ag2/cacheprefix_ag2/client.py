"""``PrefixConfig``: the application's model config, whose clients send forks of the shared prefix."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ag2.config import LLMClient, ModelConfig, ModelProvider
from ag2.context import ConversationContext
from ag2.events import BaseEvent, ModelRequest, ModelResponse, ToolResultsEvent
from ag2.network.policies import CHANNEL_DEP
from ag2.response import ResponseProto
from ag2.tools.final import FunctionToolSchema
from ag2.tools.schemas import ToolSchema
from ag2.utils import AGENT_CONTEXT_DEPENDENCY_KEY
from fast_depends.library.serializer import SerializerProto

from cacheprefix import Session
from cacheprefix.bodies import LONG_ROLE
from cacheprefix.config import given_or_configured
from cacheprefix.errors import ToolClashError
from cacheprefix.prompt import digest_of, loads
from cacheprefix_ag2.observe import SENDING, Captured, Sending, tap
from cacheprefix_ag2.policy import Plan, Tail, conversation_id, tail_in
from cacheprefix_ag2.team import Seat, Team, schema_key, team_of

SUBTASK = "subtask-"
"""How the names of the agents begin that ag2 makes for sub-tasks."""
_SAID = (ModelRequest, ModelResponse, ToolResultsEvent)


class PrefixConfig(ModelConfig):
    """Wraps any model config of ag2, for an agent that is not wrapped: beside a ``PrefixPolicy`` in ``assembly=``."""

    def __init__(self, config: ModelConfig, session: Session | None = None) -> None:
        self.config = config
        self.session = given_or_configured(session)

    @property
    def provider(self) -> ModelProvider:
        """The wrapped config's."""
        return self.config.provider

    @property
    def model(self) -> str:
        """The wrapped config's."""
        return self.config.model

    def copy(self, /, **overrides: Any) -> PrefixConfig:
        """With a copy of the wrapped config, changed by ``overrides``."""
        return PrefixConfig(self.config.copy(**overrides), self.session)

    def create(self) -> PrefixClient:
        """A client of the wrapped config, watched."""
        return PrefixClient(self.config.create(), self.session, model_of(self.config))

    def create_files_client(self) -> Any:
        """The wrapped config's."""
        return self.config.create_files_client()

    def __getattr__(self, name: str) -> Any:
        if name in ("config", "session"):
            raise AttributeError(name)
        return getattr(self.config, name)


def model_of(config: ModelConfig | None) -> str:
    """The model's name; empty where a config has none to tell, as ag2's scripted one."""
    try:
        return "" if config is None else config.model
    except NotImplementedError:
        return ""


@dataclass(frozen=True, slots=True)
class _Fork:
    """A laid-out request with the tools it carries."""

    events: list[BaseEvent]
    tools: Sequence[ToolSchema]
    sending: Sending


class PrefixClient(LLMClient):
    """A client of ag2's, whose requests are measured and, where a policy laid them out, become forks."""

    def __init__(self, client: LLMClient, session: Session, model: str) -> None:
        self.client = client
        self.session = session
        self.model = model
        self.tapped = session.attempt("tap", lambda: tap(client), otherwise=False)
        if not self.tapped:
            session.note(f"{type(client).__name__} has no SDK to watch: its requests are left as they are, unmeasured")

    async def __call__(
        self,
        messages: Sequence[BaseEvent],
        context: ConversationContext,
        *,
        tools: Iterable[ToolSchema],
        response_schema: ResponseProto[Any] | None,
        serializer: SerializerProto,
    ) -> ModelResponse:
        """One answer of the wrapped client."""
        session, given = self.session, list(tools)
        beside: dict[str, Any] = {"response_schema": response_schema, "serializer": serializer}
        agent = context.dependencies.get(AGENT_CONTEXT_DEPENDENCY_KEY)
        # Sub-tasks get a name of their own each time.
        name = str(getattr(agent, "name", ""))
        name = "subtask" if name.startswith(SUBTASK) else name
        tail = tail_in(messages)
        if tail is None:
            sending = Sending(session, name, conversation_id(None, context))
            return await self._sent(messages, context, sending, given, beside)
        plan = tail._plan
        fork = session.attempt("fork", lambda: self._fork(messages, tail, given, response_schema), None)
        prompts = context.prompt
        if fork is None:
            # What only the session knows is said in the agent's own layout too.
            shared = session.prefix.system.strip() if session.mode == "fork" else ""
            missing = shared and shared not in "\n\n".join(plan.prompts)
            context.prompt = [shared, *plan.prompts] if missing else plan.prompts
            try:
                sending = Sending(session, plan.role, plan.talk.id, volatile=plan.volatile)
                response = await self._sent(plan.events, context, sending, given, beside)
            finally:
                context.prompt = prompts
        else:
            fork.sending.original = await self._original(plan, context, given, beside)
            response = await self._sent(fork.events, context, fork.sending, fork.tools, beside)
        if CHANNEL_DEP not in context.dependencies:
            await self._save(plan, context)
        return response

    async def _save(self, plan: Plan, context: ConversationContext) -> None:
        """Append what is to be remembered to the stream's history; a channel's stream does not outlive its turn."""
        try:
            state = plan.talk.unsaved(self.session, await context.stream.history.get_events())
            if state is not None:
                await context.send(state)
        except Exception as error:
            self.session.attempt("state", partial(_raise, error), None)

    async def _sent(
        self,
        events: Sequence[BaseEvent],
        context: ConversationContext,
        sending: Sending,
        tools: Sequence[ToolSchema],
        beside: dict[str, Any],
    ) -> ModelResponse:
        token = SENDING.set(sending)
        try:
            return await self.client(events, context, tools=tools, **beside)
        finally:
            SENDING.reset(token)

    async def _original(
        self, plan: Plan, context: ConversationContext, tools: Sequence[ToolSchema], beside: dict[str, Any]
    ) -> Any:
        """The body as the application's own client makes it, without sending it."""
        prompts, context.prompt = context.prompt, plan.prompts
        try:
            await self._sent(plan.events, context, Sending(self.session, "", "", capture=True), tools, beside)
        except Captured as found:
            return found.body
        except Exception as error:
            # The request itself, which is made next, tells the application.
            self.session.attempt("estimate", partial(_raise, error), None)
        finally:
            context.prompt = prompts
        return None

    def _fork(
        self, messages: Sequence[BaseEvent], tail: Tail, given: Sequence[ToolSchema], schema: ResponseProto[Any] | None
    ) -> _Fork | None:
        """The request as a fork; None where sharing is not possible or gains nothing."""
        session, plan = self.session, tail._plan
        team = team_of(session)
        if not self.tapped:
            return None
        first = "\n".join(plan.prompts).lstrip().startswith(session.prefix.system.strip())
        tail_tokens = session.count(plan.text, self.model)
        seat, carried = _seated(team, Seat(self.model, schema_key(schema), tail=tail_tokens, first=first), given)
        with session.shared.lock:
            team.seats[plan.role] = seat
        opened = next((event for event in plan.events if isinstance(event, ModelRequest)), None)
        team.heard(plan.role, plan.talk, repr(opened and opened.parts))
        asked = _spoken(session, self.model, opened) if opened is not None else 0
        # Once settled it stays, as another layout in mid-conversation is paid for from the beginning.
        known = plan.talk.layouts.setdefault(f"{plan.stays} {plan.role}", team.layout(plan.role, plan.stays, asked))
        forks, union = known[0], known[1] and not seat.plain
        if not forks:
            self._placed(plan, messages, messages.index(tail), shares=False)
            return None
        tools = carried if union else given
        said, allowed = self._restricted(seat) if union else (None, None)
        text = session.tail_for(plan.role, plan.instruction, tools=said)
        spoken = sum(_spoken(session, self.model, event) for event in plan.events)
        schemas = sum(session.count(tool.schema.decode(), self.model) for tool in session.prefix.tools) if union else 0
        # A short text counts: with it, the agent's own requests would soon be kept, and leaving those is paid for.
        spoken += tail_tokens if tail_tokens < LONG_ROLE else 0
        shares = session.shares(plan.talk.id, self.model, lambda: spoken + schemas)
        at, continues = self._placed(plan, messages, messages.index(tail), shares=shares)
        if at is None:
            return None
        events = [event for event in messages if event is not tail]
        events[at:at] = [Tail(plan, text)] if text else []
        loops = continues or plan.stays == "stream" or (plan.stays == "turn" and bool(given))
        sending = Sending(session, plan.role, plan.talk.id, plan, text, loops, allowed, volatile=plan.volatile)
        return _Fork(events, tools, sending)

    def _placed(
        self, plan: Plan, messages: Sequence[BaseEvent], end: int, *, shares: bool
    ) -> tuple[int | None, bool]:
        """How many events stand before the role's text, which the policy put at ``end``; None for its own layout.

        A long text keeps the place that it last had while that costs less (``Session.place``), which is asked for
        other requests too, since it goes by what the role's earlier ones were.
        """
        session = self.session
        others = [*messages[:end], *([] if plan.stays == "turn" else messages[end + 1 :])]
        # A storage keeps of a stream what is said, and little else; so the place is counted in that.
        said = [(at, event) for at, event in enumerate(others, 1) if isinstance(event, _SAID)]
        found = session.place(
            session.conversation(plan.talk.id),
            plan.role,
            plan.text,
            [event for _, event in said],
            self.model,
            digest=lambda event: digest_of(type(event).__name__, *_texts(event)),
            tokens=lambda event: _spoken(session, self.model, event),
            shared=shares,
            joint=plan.stays != "stream",
            # ag2 marks what it sends to Anthropic.
            cached=True,
        )
        if found.at is None:
            return None, False
        if plan.stays == "stream" and session.count(plan.text, self.model) < LONG_ROLE:
            return end, False
        if found.at == len(said):
            return len(others), found.continues
        return (said[found.at - 1][0] if found.at else 0), found.continues

    def _restricted(self, seat: Seat) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
        """Tools to name in the role's text, and those to restrict it to by ``tool_choice``."""
        if set(seat.tools) >= set(self.session.prefix.tool_names):
            return None, None
        safe = self.session.profile(self.model).tool_choice_safe
        if safe == "allowed_tools" or (safe == "none" and not seat.tools):
            return None, seat.tools
        return seat.tools, None


def _seated(team: Team, seat: Seat, given: Sequence[ToolSchema]) -> tuple[Seat, list[ToolSchema]]:
    """An agent's seat in the team with its tools, and the union of tools in place of its own."""
    own = [tool for tool in given if isinstance(tool, FunctionToolSchema)]
    seat = replace(seat, tools=tuple(tool.function.name for tool in own), plain=len(own) != len(given))
    if seat.plain:
        return replace(seat, tools=(*seat.tools, *(repr(tool) for tool in given))), []
    try:
        union = adopt(team.session, own)
    except ToolClashError as error:
        team.session.note(f"an agent keeps its own tools, which others share no cache with: {error}")
        return replace(seat, plain=True), []
    extra = [tool for tool in own if tool.function.name not in team.session.prefix.tool_names]
    return seat, [*union, *extra]


def adopt(session: Session, tools: Sequence[FunctionToolSchema]) -> list[ToolSchema]:
    """The union with ``tools``, in order of names. Raises ``ToolClashError`` when one name has two schemas."""
    # Copies: what the application later does to its tools must not change the prefix.
    union = session.adopt_tools(copy.deepcopy(list(tools)), _schema)
    return [
        tool.native
        if isinstance(tool.native, FunctionToolSchema)
        else FunctionToolSchema.from_dict({"function": loads(tool.schema)})
        for tool in union
    ]


def _schema(tool: FunctionToolSchema) -> dict[str, Any]:
    function = tool.function
    return {"name": function.name, "description": function.description, "parameters": function.parameters}


def _raise(error: Exception) -> None:
    raise error


def _texts(event: BaseEvent) -> list[str]:
    """What an event says."""
    texts = [str(getattr(part, "content", "")) for part in getattr(event, "parts", ())]
    if isinstance(event, ModelResponse):
        texts.append(event.content or "")
    for result in getattr(event, "results", ()):
        texts += [str(getattr(part, "content", "")) for part in result.result.parts]
    return texts


def _spoken(session: Session, model: str, event: BaseEvent) -> int:
    """Tokens of what an event says, roughly: enough to see whether a prompt is long enough to be cached."""
    return sum(session.count(text, model) for text in _texts(event) if text)
