"""``PrefixConfig``: the application's model config, whose clients send forks of the shared prefix."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ag2.config import LLMClient, ModelConfig, ModelProvider
from ag2.context import ConversationContext, Stream
from ag2.events import BaseEvent, ModelResponse
from ag2.response import ResponseProto
from ag2.tools.final import FunctionTool, FunctionToolSchema, Toolkit
from ag2.tools.schemas import ToolSchema
from ag2.utils import AGENT_CONTEXT_DEPENDENCY_KEY
from fast_depends.library.serializer import SerializerProto

from cacheprefix import Session
from cacheprefix.adapter import (
    RequestPlan,
    for_own_tools,
    forces_any,
    given_or_configured,
    list_refused,
    overlaid,
    users_session,
)
from cacheprefix.adapter import failed as failed_plan
from cacheprefix_ag2.layout import Fork, GivenTools, Plan, channel_of, conversation_id, fork_of, tail_in
from cacheprefix_ag2.sending import SENDING, Captured, Sending, Unsaid, tap
from cacheprefix_ag2.state import PrefixState

SUBTASK = "subtask-"
"""The beginning of the names that ag2 gives to agents for sub-tasks."""


class PrefixConfig(ModelConfig):
    """Wraps any model config of ag2, for an agent that is not wrapped: beside a ``PrefixPolicy`` in ``assembly=``."""

    def __init__(self, config: ModelConfig, session: Session | None = None) -> None:
        self.config = config
        self._bound = given_or_configured(session)

    @property
    def session(self) -> Session:
        """The session whose prefix the models' requests extend."""
        return users_session(self._bound)

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
        made = PrefixClient(self.config.create(), self.session, model_of(self.config))
        made.by_hand = True
        return made

    def create_files_client(self) -> Any:
        """The wrapped config's."""
        return self.config.create_files_client()

    def __getattr__(self, name: str) -> Any:
        if name in ("config", "_bound"):
            raise AttributeError(name)
        return getattr(self.config, name)


def kept_tools(agent: Any) -> list[Any]:
    """The tools that an agent has in whatever call."""
    return [*agent.tools, *agent._additional_tools]


def named(tools: Iterable[Any]) -> Iterator[str]:
    """The names of an agent's function tools, those in its toolkits included."""
    for tool in tools:
        if isinstance(tool, Toolkit):
            yield from named(tool.tools)
        elif isinstance(tool, FunctionTool):
            yield tool.name


def model_of(config: ModelConfig | None) -> str:
    """The model's name; empty where a config has none, as ag2's scripted one: a turn asks for no more than a client."""
    try:
        return "" if config is None else str(config.model)
    except (AttributeError, NotImplementedError):
        return ""


def options_of(client: LLMClient) -> Mapping[str, Any]:
    """What an ag2 client asks its SDK with in each request; a client of the application's own may call anything so."""
    found = getattr(client, "_create_options", None)
    return found if isinstance(found, Mapping) else {}


def put_back(context: ConversationContext, ours: list[str], prompts: list[str]) -> None:
    """Have a context hold ``prompts`` again, where it still holds ours: what the application put there stays."""
    if context.prompt is ours:
        context.prompt = prompts


def _for_own(choice: Any, tools: Sequence[ToolSchema]) -> bool:
    """Whether a ``tool_choice`` would be another one among other agents' tools than among these."""
    names = [tool.function.name for tool in tools if isinstance(tool, FunctionToolSchema)]
    return forces_any(choice) or for_own_tools(choice, names)


def _put_over(client: LLMClient) -> dict[str, Any]:
    """The fields that the application has its SDK put over a client's finished bodies (``extra_body``)."""
    # ag2's client for Anthropic keeps them by themselves.
    return {**(options_of(client).get("extra_body") or {}), **(getattr(client, "_extra_body", None) or {})}


@dataclass(frozen=True, slots=True)
class _Request:
    """What a client is called with beside the events; the context holds the prompts."""

    context: ConversationContext
    tools: Sequence[ToolSchema]
    schema: ResponseProto[Any] | None
    serializer: SerializerProto


class _Unheard:
    """A stream on which nobody hears what is sent."""

    def __init__(self, stream: Stream) -> None:
        self.id, self.history = stream.id, stream.history

    async def send(self, event: BaseEvent, context: ConversationContext) -> None:
        """Nothing."""


def _unsaying(client: LLMClient, sending: Sending) -> LLMClient:
    """A client whose SDK makes the body to capture without its messages; the same one where that cannot be copied."""
    try:
        # The application's own may be answering another request.
        apart: Any = copy.copy(client)
        apart._client = Unsaid(apart._client, sending)
    except Exception:
        # A class of the application's may be of any kind; asked itself, it makes the same body in more time.
        return client
    return apart  # type: ignore[no-any-return]


class PrefixClient(LLMClient):
    """A client of ag2's, whose requests are measured and, where a policy laid them out, become forks."""

    lasting: frozenset[str] | None = None
    """Names of the tools that the agent itself has; None where no others came with the call whose turn this serves."""
    by_hand = False
    """Whether a ``PrefixConfig`` made it: nobody saw then whether tools came with the call."""

    def __init__(self, client: LLMClient, session: Session, model: str) -> None:
        self.client = client
        self.session = session
        self._bound = session.adapter
        self.model = model
        self.tapped = self._bound.attempt("tap", lambda: tap(client), otherwise=False)
        if not self.tapped:
            self._bound.unseen(
                f"{type(client).__name__} has no SDK to watch: its requests are left as they are, unmeasured"
            )

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
        session = self._bound
        given = _Request(context, list(tools), response_schema, serializer)
        lasting = self._lasting(context)
        tail = tail_in(messages)
        if tail is None:
            agent = context.dependencies.get(AGENT_CONTEXT_DEPENDENCY_KEY)
            # ag2 names each sub-task anew; in reports they are one agent.
            name = str(getattr(agent, "name", ""))
            name = "subtask" if name.startswith(SUBTASK) else name
            return await self._sent(messages, given, Sending(session, name, conversation_id(context)))
        plan = tail._plan
        found: Fork | RequestPlan[Any] = failed_plan("fork")
        options = options_of(self.client)
        if self.tapped:
            found = session.attempt(
                "fork",
                lambda: fork_of(
                    session,
                    self.model,
                    messages,
                    GivenTools(given.tools, lasting, _for_own(options.get("tool_choice"), given.tools)),
                    response_schema,
                    overlaid(_put_over(self.client)),
                ),
                found,
            )
        fork = found if isinstance(found, Fork) else None
        laid = found.laid if isinstance(found, Fork) else found
        # Text for this request alone would be something to answer, where the provider answers nothing.
        volatile = "" if laid.unasked else plan.beside(session, forks=False)
        sending = Sending(session, plan.role, plan.talk.id, fork, volatile=volatile)
        sending.laid = laid
        response = None if fork is None else await self._forked(fork, plan, given, sending)
        if response is None:
            if fork is not None:
                sending = Sending(session, plan.role, plan.talk.id, volatile=volatile, laid=list_refused())
            # Text that was given to the session alone has to reach the model in the agent's own layout too.
            missing = session.unsaid(["\n".join(plan.prompts)], plan.role) if session.mode != "observe" else ""
            prompts = [missing, *plan.prompts] if missing else plan.prompts
            response = await self._sent(plan.events, given, sending, prompts=(prompts, plan.shown))
        # A channel's stream ends with its turn, so nothing is saved in it.
        if channel_of(context) is None:
            await self._save(plan, context)
        return response

    async def _forked(self, fork: Fork, plan: Plan, given: _Request, sending: Sending) -> ModelResponse | None:
        """The answer to a fork; None where the endpoint refused its list of allowed tools."""
        ours = given.context.prompt, plan.shown
        sending.original, failed = await self._original(plan, given)
        try:
            response = await self._sent(fork.events, given, sending, tools=fork.tools, prompts=ours)
        except Exception:
            lists = bool(fork.laid.restriction.allowed) and not self._bound.takes_lists(self.model)
            # What an answer has said already, listeners have heard: it is not asked for anew.
            if sending.answered or not lists:
                raise
            return None
        if failed is not None:
            self._bound.failed("estimate", failed)
        return response

    def _lasting(self, context: ConversationContext) -> frozenset[str] | None:
        """Names of the tools that others may be shown; None for all."""
        agent = context.dependencies.get(AGENT_CONTEXT_DEPENDENCY_KEY)
        if not self.by_hand or agent is None:
            return self.lasting
        # Privacy: what the agent does not have itself may have come with the call, and be made for who asks.
        nothing: frozenset[str] = frozenset()
        return self._bound.attempt("tools", lambda: frozenset(named(kept_tools(agent))), nothing)

    async def _save(self, plan: Plan, context: ConversationContext) -> None:
        """Append the conversation's state to the stream's history, where it has changed."""
        try:
            state = plan.talk.unsaved(self._bound, await context.stream.history.get_events())
            if state is not None:
                await context.send(state)
                held = await context.stream.history.get_events()
                plan.talk.kept = plan.talk.kept or any(isinstance(event, PrefixState) for event in held)
        except Exception as error:
            self._bound.failed("state", error)

    async def _sent(
        self,
        events: Sequence[BaseEvent],
        given: _Request,
        sending: Sending,
        *,
        tools: Sequence[ToolSchema] | None = None,
        prompts: tuple[list[str], list[str]] | None = None,
        client: LLMClient | None = None,
    ) -> ModelResponse:
        """The wrapped client's answer, or another ``client``'s, with other ``tools`` where they are given.

        ``prompts`` are those that the request is made with, and those that the context holds from then on.
        """
        context = given.context
        if prompts is not None:
            ours, shown = prompts
            context.prompt = ours
            # Listeners of the application's are called with this context, while the answer comes.
            sending.made = functools.partial(put_back, context, ours, shown)
        token = SENDING.set(sending)
        try:
            asked = self.client if client is None else client
            return await asked(
                events,
                context,
                tools=given.tools if tools is None else tools,
                response_schema=given.schema,
                serializer=given.serializer,
            )
        finally:
            SENDING.reset(token)
            sending.made()

    async def _original(self, plan: Plan, given: _Request) -> tuple[Any, Exception | None]:
        """The body as the application's own client would make it, not sent; None and the error where that fails."""
        # In a context apart: what an application's client says there and notes, it does with the request itself.
        apart: Any = copy.copy(given.context)
        apart.stream = _Unheard(given.context.stream)
        apart.variables, apart.dependencies = dict(apart.variables), dict(apart.dependencies)
        asked, sending = replace(given, context=apart), Sending(self._bound, "", "", capture=True)
        client = _unsaying(self.client, sending)
        try:
            await self._sent(plan.events, asked, sending, prompts=(plan.prompts, plan.shown), client=client)
        except Captured as found:
            return found.body, None
        except Exception as error:
            # Where the request itself fails too, which is made next, this is the application's, and no failure of ours.
            return None, error
        return None, None
