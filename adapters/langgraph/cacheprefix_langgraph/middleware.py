"""``PrefixMiddleware``: a ``create_agent`` agent as a fork of the shared prefix. Put it last in the list."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState, dynamic_prompt
from langchain.agents.middleware.types import (
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    PrivateStateAttr,
    ToolCallRequest,
)
from langchain.agents.structured_output import OutputToolBinding, ToolStrategy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from typing_extensions import NotRequired

from cacheprefix import ForkPolicy, Session
from cacheprefix.adapter import (
    AdapterSession,
    VolatileRole,
    check_volatile,
    given_or_configured,
    tail_text,
    users_session,
)
from cacheprefix.errors import SetupError, check_text
from cacheprefix_langgraph.fork_context import ForkSettings, Frame, configurable, runs, scope_of, within_frame
from cacheprefix_langgraph.model import bound_of, shadow, wrap_model
from cacheprefix_langgraph.parts import at_end, own_text
from cacheprefix_langgraph.state import CHANNEL, DECIDED, conversation_of, is_taken, level_of, update_of, write_beside
from cacheprefix_langgraph.tool_cache import CachedTools, Scope
from cacheprefix_langgraph.tools import adopt, check_names, made_with, name_of, names_given, render, usable

_CLEARED = (
    "ContextEditingMiddleware clears another tool result with nearly every request, and what stands behind it is not "
    "read again (measured dearer than clearing nothing); Session(budget=ToolResultBudget(...)) cuts each result once, "
    "at first sight"
)
_SUMMARISED = (
    "SummarizationMiddleware rewrites the history by a request that shares nothing with the conversation; "
    "Session(compaction=...) summarises by a fork of the prefix, and only where that pays"
)


def advise(session: AdapterSession, messages: Sequence[BaseMessage]) -> None:
    """Note traces that LangChain's own history middleware left in a request."""
    for message in messages:
        edited = message.response_metadata.get("context_editing") if isinstance(message, ToolMessage) else None
        if isinstance(edited, Mapping) and edited.get("cleared"):
            session.note(_CLEARED)
        elif message.additional_kwargs.get("lc_source") == "summarization":
            session.note(_SUMMARISED)


_CHANGES = ("wrap_model_call", "awrap_model_call")
"""Hooks that may give a request other tools than the agent was made with."""

_MARKS = ("langchain_anthropic", "AnthropicPromptCachingMiddleware")
"""Marks the tools that there are, read in langchain-anthropic 1.x on 2026-11-28. That of ``dynamic_prompt`` changes the
system prompt alone."""

_ROLE = "agent"
"""What an agent is called whose role nobody named."""

ENTRY = "cacheprefix_entry"
"""The state's key for the number of messages that an agent with a pinned role was entered with."""
_KEEP = 64
"""How many wrapped models an agent keeps."""


class _State(AgentState[Any]):
    """Where nothing of a history is decided on: the layout of a thread's requests, in its checkpoints alone."""

    cacheprefix: NotRequired[Annotated[dict[str, Any], PrivateStateAttr, DECIDED]]


class _OpenState(AgentState[Any]):
    """With a budget or a compaction: what was decided is handed on to the graph around the agent."""

    cacheprefix: NotRequired[Annotated[dict[str, Any], DECIDED]]


class _PinnedState(_State):
    cacheprefix_entry: NotRequired[Annotated[int, PrivateStateAttr]]


class _OpenPinnedState(_OpenState):
    cacheprefix_entry: NotRequired[Annotated[int, PrivateStateAttr]]


_STATES: dict[tuple[bool, bool], type[Any]] = {
    (False, False): _State,
    (False, True): _PinnedState,
    (True, False): _OpenState,
    (True, True): _OpenPinnedState,
}
"""By whether histories are decided on, and whether the role's text is pinned."""


class PrefixMiddleware(AgentMiddleware):
    """Moves the agent's system prompt to the end of the request and shares everything before it.

    ``role`` names the agent in the prompt and in reports. ``tools`` are those it may use, or their names; by default
    all it was created with. Making the agent raises ``SetupError`` for a name that none of them has; where they are
    known in a request alone, that is warned about. With ``pinned=True`` the role's text stands where the agent was
    entered, before its own tool loop: cheaper when the loop is not handed on to other agents; by default it is at the
    very end, so that everything the agent reads can be shared with those who come after it. Where the session has no
    other role, nothing moves: the agent's system text is the prefix, and only what a fork adds to it goes to the end.
    Where the session has a tool cache, repeated tool calls are answered from it, as ``cached_tools`` describes;
    ``scope`` is the tenant whose results they are.

    What it does not need it leaves out, since LangChain draws and runs each hook and keeps each state key: the tools'
    only with ``tools`` or a tool cache, the agent's entry only with ``pinned``. In ``observe`` mode there are none at
    all, and what is measured are the calls of models that are wrapped (``wrap_model``).
    """

    def __init__(
        self,
        session: Session | None = None,
        *,
        role: str = "agent",
        instruction: str = "",
        tools: Sequence[Any] | None = None,
        pinned: bool = False,
        volatile: Callable[[Any], Mapping[str, str]] | None = None,
        volatile_role: VolatileRole = "user",
        policy: ForkPolicy | None = None,
        scope: Scope = None,
    ) -> None:
        super().__init__()
        check_volatile(volatile, volatile_role)
        check_text("role", role)
        check_text("instruction", instruction)
        self._session = given_or_configured(session)
        self._cached = CachedTools(self._session, role, scope)
        self._session.adopt_tools((), render)
        self._session.join(role)
        self._base: str | None = None
        self.role = role
        self.instruction = instruction
        self.allowed = names_given(tools)
        self._open = False
        """Whether no tool of the agent's last request had a name in ``allowed``, so that nothing is refused by it."""
        self.pinned = pinned
        self.volatile = volatile
        self.volatile_role = volatile_role
        self.policy = policy
        self._models: dict[int, tuple[Any, Any]] = {}
        self._asked = (-1, 0)
        """When this agent's last request was made: index of the session's last call, and in how many graphs."""
        if self._session.mode == "observe":
            self._session.note(
                "PrefixMiddleware adds nothing to an agent in observe mode: calls of models wrapped with wrap_model "
                "are measured, others are not"
            )
            return
        decides = self._session.histories.limited
        self.state_schema = _STATES[decides, pinned]
        restricts = tools is not None or self._session.tool_calls.active
        hooks = tuple(hook for hook, needed in ((_Entry, pinned), (_Tools, restricts)) if needed)
        # LangChain goes by what the class defines.
        kind: Any = type(self)
        self.__class__ = _with_hooks(kind, (_Model, *hooks))

    @property
    def name(self) -> str:
        """The name LangChain tells middleware apart by."""
        return f"PrefixMiddleware[{self.role}]"

    @property
    def tools(self) -> tuple[BaseTool, ...]:  # type: ignore[override]
        """None of its own. LangChain asks for them while an agent is made, and its tools are shared from then on."""
        if self._session.mode != "observe":
            self._session.attempt("tools", self._adopt, None)
        none: tuple[AdapterSession, ...] = ()
        others = none if self._session.off else self._session.attempt("session", _sessions_in_the_making, none)
        if not all(map(self._session.related, others)):
            raise SetupError(
                f"the agent of the role {self.role!r} has a PrefixMiddleware of another session too: give it one"
            )
        if self.allowed and not self._session.off:
            check_names(self.role, self.allowed, self._session.attempt("tools", _names_in_the_making, ()))
        return ()

    def _adopt(self) -> None:
        """Share the tools of the agent that is just being made, as far as the arguments of ``create_agent`` tell.

        Nothing else shows them before the agent's first request, and tools stand in front of all else: those that come
        with a request have what others wrote before written once more.
        """
        given = _agent_in_the_making()
        if given is not None:
            tools = list(_tools_in(given))
            # First: where an agent is made anew, its tools are not everybody's.
            text = _text_in(given, self.instruction)
            made_with(self._session, "agent", self.role, tools, text)
            adopt(self._session, tools)
            self._look_for_namesakes(text)

    def _look_for_namesakes(self, text: str) -> None:
        """Say where agents that are told different things have the role that nobody named."""
        if self.role != _ROLE or runs():
            # An agent that is made in a run may be one that is made for each user.
            return
        told = self._session.beside.setdefault("agents of no name", set())
        told.add(text.strip())
        if len(told - {""}) > 1:
            self._session.note(
                f"agents with different system prompts are all called {_ROLE!r}, as PrefixMiddleware calls one that "
                "has no name, and one role shares with nobody: give each PrefixMiddleware(session, role=...) its own"
            )

    def rehearsing(self, session: AdapterSession) -> PrefixMiddleware:
        """A copy that lays out the first request in another session, without what the application says at each call."""
        made = copy.copy(self)
        made._session, made._base, made._models, made.volatile = session, None, {}, None
        return made

    def prepared(self, request: ModelRequest) -> tuple[Frame | None, ModelRequest]:
        """The fork that a request is, and the request as the agent's model is to be asked it.

        Where that fails, the application's own layout with what it left to us to say.
        """
        # Outside of what fails open: an error of the application's own function is the application's.
        fork = self._fork
        said = fork.said_now(request.state)
        prepared = self._session.attempt("middleware", lambda: self._prepare(request, said), None)
        if prepared is not None:
            return prepared
        plain = fork.unlaid(said)
        if plain is None or self._session.related(bound_of(request.model)):
            # The wrapped model says what the application left to us to say.
            return plain, request
        text = self._session.attempt("middleware", lambda: tail_text(self.role, self.instruction, volatile=said), "")
        return None, request.override(messages=at_end(request.messages, [HumanMessage(text)])) if text else request

    @property
    def _fork(self) -> ForkSettings:
        """What its requests are made forks with."""
        return ForkSettings(
            self._session,
            self.role,
            self.instruction,
            self.allowed,
            pinned=self.pinned,
            volatile=self.volatile,
            volatile_role=self.volatile_role,
            policy=self.policy,
        )

    @property
    def session(self) -> Session:
        """The session whose prefix the agent's requests extend."""
        return users_session(self._session)

    def _model(self, model: Any) -> Any:
        """The model, wrapped: one copy for as long as it is asked."""
        if self._session.related(bound_of(model)):
            return model
        known = self._models.get(id(model))
        if known is None or known[0] is not model:
            if len(self._models) >= _KEEP:
                self._models.clear()
            ours = shadow(model, self._session) if isinstance(model, BaseChatModel) else wrap_model(model, self.session)
            known = self._models[id(model)] = (model, ours)
        return known[1]

    def _prepare(self, request: ModelRequest, said: Mapping[str, str]) -> tuple[Frame, ModelRequest]:
        """The fork that a request is, and the request with the wrapped model; ``said`` is for this call alone."""
        config = var_child_runnable_config.get() or _run_in(request.runtime)
        # The channel is not there until something was decided: then the checkpoint holds no decision. As a node of
        # another graph the agent begins anew each time, without its private state: the process keeps what it held.
        # So it does where that graph has no channel that takes what an agent with a budget or a compaction hands on.
        returned = self._returned(config, request)
        known = _ledger_in(request) or {}
        talk = conversation_of(self._session, config, known, request.messages, returned=returned, key="messages")
        frame = replace(self._fork.frame(talk, said, scope=scope_of(config)), answers=True)
        if self.allowed:
            named = [name_of(tool) for tool in request.tools]
            self._open = bool(named) and usable(self._session, self.role, self.allowed, named) is None
        model = self._model(request.model)
        if self._session.alone and not self.instruction:
            # Nobody else shares, so the agent's own system text is the prefix: its forks begin with it.
            own = [] if request.system_message is None else [request.system_message]
            if self._base is None:
                self._base = own_text([*own, *request.messages], frame)
            frame.base = self._base
        self._session.attempt("advice", lambda: advise(self._session, request.messages), None)
        self._session.attempt("unseen", lambda: self._look_for_unseen(request), None)
        entry = request.state.get(ENTRY) if self.pinned else None
        frame.shared = request.messages[:entry] if isinstance(entry, int) else list(request.messages)
        return frame, request.override(model=model)

    def _returned(self, config: Mapping[str, Any] | None, request: ModelRequest) -> bool:
        """Whether what is decided for this request is in the state that the agent's next run begins with."""
        if not self._session.histories.limited:
            return not level_of(config)
        return is_taken(self._session, config, request.state)

    def _look_for_unseen(self, request: ModelRequest) -> None:
        """Say where a tool has asked an agent whose requests did not come by here, as deepagents' helpers may."""
        last, newest = self._session.shared.totals.last, request.messages[-1] if request.messages else None
        # A helper that forks its lead's requests has this middleware too, in a graph inside the lead's.
        metadata = (var_child_runnable_config.get() or {}).get("metadata") or {}
        depth = str(metadata.get("langgraph_checkpoint_ns")).count("|")
        before, self._asked = self._asked, (-1 if last is None else last.index, depth)
        if self._asked != (before[0] + 1, before[1]) or not isinstance(newest, ToolMessage):
            # Since this agent's last request others have come by, or nobody was asked.
            return
        asks = {_name(tool) for tool in request.tools if _module(tool).startswith("deepagents.middleware.subagents")}
        if newest.name in asks:
            self._session.unseen(
                f"agents that {self.role!r} asks by the tool {newest.name!r} send requests that are not seen here "
                "and in no sum: give each of them a PrefixMiddleware(session, role=...) of its own"
            )

    def _answered(self, request: ModelRequest, frame: Frame | None, response: Any) -> Any:
        """The response, with the decisions that were made for it."""
        if frame is None or frame.state is None:
            return response
        talk = frame.state
        before = _ledger_in(request)

        def answered() -> Any:
            update = update_of(self._session, talk, before)
            if not update:
                return response
            self._look_for_lost(request)
            if write_beside(var_child_runnable_config.get(), update):
                return response
            command: Command[Any] = Command(update={CHANNEL: update})
            return ExtendedModelResponse(model_response=response, command=command)

        return self._session.attempt("ledger", answered, response)

    def _look_for_lost(self, request: ModelRequest) -> None:
        """Say where another process goes on without what was decided: an agent's private state goes with its node.

        Only where the role's text stays where it stood, as at the end it stands there in any process, or where it may
        have been decided on the history.
        """
        config, last = var_child_runnable_config.get(), self._session.shared.totals.last
        kept = last is not None and last.agent == self.role and any(one.why == "role_kept" for one in last.reasons)
        if not (kept or self._session.histories.limited) or self._returned(config, request):
            return
        # Of LangGraph's own, which is internal and may be absent. What is saved in this process no other one goes on.
        saver = configurable(config, "__pregel_checkpointer")
        if isinstance(saver, BaseCheckpointSaver) and type(saver) is not InMemorySaver:
            # What such an agent decided on its history is handed on to a graph that has a place for it.
            other = "Add PrefixState to the graph's state, or make" if self._session.histories.limited else "Make"
            self._session.note(
                f"{self.role!r} is a node of a graph, and its PrefixMiddleware keeps in this process alone where its "
                f"text stands: in another one a thread's next run writes the prompt anew. {other} it a node by "
                f"subgraph(agent, session, role={self.role!r}), of a wrapped model and without PrefixMiddleware"
            )

    def _refusal(self, request: ToolCallRequest) -> ToolMessage | None:
        """The answer to a call of another role's tool, which the union showed to the model; None where it may go on."""
        name = request.tool_call["name"]
        if self.allowed is None or self._open or name in self.allowed:
            if request.tool is not None or name not in self._session.prefix.tool_names:
                return None
            reason = "this agent was created without it"
        else:
            reason = f"allowed are: {', '.join(self.allowed) or 'none'}"
        return ToolMessage(
            f"Tool {name!r} is not available to the role {self.role!r}; {reason}.",
            tool_call_id=request.tool_call["id"] or "",
            name=name,
            status="error",
        )


class _Model(AgentMiddleware):
    """Makes the agent's requests forks."""

    prepared: Callable[[ModelRequest], tuple[Frame | None, ModelRequest]]
    _answered: Callable[[ModelRequest, Frame | None, Any], Any]

    def wrap_model_call(self, request: ModelRequest, handler: Callable[[ModelRequest], ModelResponse]) -> Any:
        """Rewrite the request, and let the model finish its body."""
        frame, changed = self.prepared(request)
        with within_frame(frame):
            response = handler(changed)
        return self._answered(request, frame, response)

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse]]
    ) -> Any:
        """Rewrite the request, and let the model finish its body."""
        frame, changed = self.prepared(request)
        with within_frame(frame):
            response = await handler(changed)
        return self._answered(request, frame, response)


class _Entry(AgentMiddleware):
    """Where a role's text is pinned: remembers where the agent's own messages begin."""

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002
        """Remember where the agent's own messages begin."""
        return {ENTRY: len(state.get("messages") or [])}

    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Remember where the agent's own messages begin."""
        return self.before_agent(state, runtime)


class _Tools(AgentMiddleware):
    """Where the role may use only some of its tools, or results are cached."""

    _refusal: Callable[[ToolCallRequest], ToolMessage | None]
    _cached: CachedTools

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Refuse a tool of the union that this role may not use; answer a known call from the tool cache."""
        return self._refusal(request) or self._cached.wrap(request, handler)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Refuse a tool of the union that this role may not use; answer a known call from the tool cache."""
        return self._refusal(request) or await self._cached.awrap(request, handler)


def _name(tool: Any) -> str:
    return str(getattr(tool, "name", ""))


def _module(tool: Any) -> str:
    return str(getattr(getattr(tool, "func", None), "__module__", ""))


@functools.cache
def _with_hooks(kind: Any, hooks: Any) -> type[Any]:
    """The class with the hooks that an instance needs."""
    body = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind, *hooks), body)


def _agent_in_the_making() -> Mapping[str, Any] | None:
    """The arguments of ``create_agent`` where that is making an agent; None elsewhere."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not inspect.unwrap(create_agent).__code__:
        frame = frame.f_back
    return None if frame is None else frame.f_locals


def _names_in_the_making() -> tuple[str, ...]:
    """Names of the tools of the agent that is just being made; none where they are not known."""
    given = _agent_in_the_making()
    return () if given is None else tuple(map(name_of, _tools_in(given)))


def _sessions_in_the_making() -> tuple[AdapterSession, ...]:
    """The sessions in force of all ``PrefixMiddleware`` of the agent that is just being made."""
    given = _agent_in_the_making() or {"middleware": ()}
    sessions = (one._session for one in given["middleware"] if isinstance(one, PrefixMiddleware))
    return tuple(one for one in sessions if not one.off)


def _text_in(given: Mapping[str, Any], instruction: str) -> str:
    """What ``create_agent`` was told to tell an agent, beside our own ``instruction``."""
    told = given.get("system_prompt")
    return f"{instruction}\n{told.text if isinstance(told, BaseMessage) else told or ''}"


def _tools_in(given: Mapping[str, Any]) -> Iterator[Any]:
    """The tools of an agent by the arguments of ``create_agent``."""
    others = [one for one in given["middleware"] if not isinstance(one, PrefixMiddleware)]
    if any(_may_change_tools(type(one)) for one in others):
        return
    for one in others:
        yield from getattr(one, "tools", ())
    # What is no list LangChain refuses itself.
    for one in given["tools"] if isinstance(given["tools"], Sequence) else ():
        yield one if isinstance(one, (BaseTool, Mapping)) else tool(one)
    form = given["response_format"]
    if isinstance(form, ToolStrategy):
        yield from (OutputToolBinding.from_schema_spec(spec).tool for spec in form.schema_specs)


def _may_change_tools(kind: Any) -> bool:
    """Whether middleware may give a request other tools than the agent's, as far as is known of its class."""
    hooks = [getattr(kind, name) for name in _CHANGES if getattr(kind, name) is not getattr(AgentMiddleware, name)]
    if (kind.__module__.partition(".")[0], kind.__name__) == _MARKS:
        return False
    words = f"{dynamic_prompt.__name__}."
    return not all(one.__module__ == dynamic_prompt.__module__ and one.__qualname__.startswith(words) for one in hooks)


def _run_in(runtime: Any) -> dict[str, Any] | None:
    """A configuration made from an agent's runtime, for async agents before Python 3.11, which are given none."""
    told = getattr(runtime, "execution_info", None)
    if told is None:
        return None
    known = {"thread_id": told.thread_id, "checkpoint_ns": told.checkpoint_ns, "__pregel_runtime": runtime}
    return {"configurable": known}


def _ledger_in(request: ModelRequest) -> Mapping[str, Any] | None:
    """The decisions that a request's state holds; None where nothing was decided yet."""
    found = request.state.get(CHANNEL)
    return found if isinstance(found, Mapping) else None
