"""The middlewares: every model request a fork of the shared prefix, every tool call through the session."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Mapping
from functools import partial, wraps
from typing import Any

from agent_framework import (
    Agent,
    AgentContext,
    AgentMiddleware,
    AgentMiddlewareLayer,
    ChatContext,
    ChatMiddleware,
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    FunctionTool,
)

from cacheprefix import Session
from cacheprefix.adapter import AnswerForm, NotKeptError, ToolUse, VolatileRole, given_or_configured
from cacheprefix_maf.client_requests import api_of, watch
from cacheprefix_maf.member import Member, ToolMemory, Volatile
from cacheprefix_maf.model_call import ASKED, Asked, called
from cacheprefix_maf.tools import Refusing, runner_of

Next = Callable[[], Awaitable[None]]

_RUNS_TOOL, _ASKS_NEXT = "final_wrapper", "current_handler"
"""The framework's names of what a function middleware calls: the tool itself, or the next middleware. Nothing public
tells them apart."""


def prefix_middleware(
    session: Session | None = None,
    *,
    role: str,
    name: str = "",
    conversation: str = "",
    tool_memory: ToolMemory = "keep",
    volatile: Volatile | None = None,
    volatile_role: VolatileRole = "user",
    scope: str | None = None,
) -> list[AgentMiddleware | ChatMiddleware | FunctionMiddleware]:
    """The middlewares for one agent: ``Agent(..., middleware=prefix_middleware(session, role="critic"))``.

    ``name`` is the agent's name where it is not the role. Requests of one ``conversation`` share their decisions; by
    default an ``AgentSession`` is a conversation. ``tool_memory="drop"`` leaves the agent's own tool traffic of
    earlier turns out of its requests, which shows it less than the framework does. ``volatile`` gives texts for one
    request (time, retrieval), which stand behind everything cached, under ``volatile_role``. ``scope`` is the tenant,
    by default the session's. Without a session one is made from the configuration.
    """
    member = Member(
        given_or_configured(session), role, name or role, conversation, tool_memory, volatile, volatile_role, scope
    )
    return [*([_bound(_KnowsAgent, member)] if member.session.mode != "observe" else []), *middleware_of(member)]


def middleware_of(member: Member) -> list[ChatMiddleware | FunctionMiddleware]:
    """Both middlewares of a member, which has joined its session."""
    _keep_guards()
    if member.layout:
        member.session.join(member.role)
    return [_bound(PrefixChatMiddleware, member), _bound(PrefixFunctionMiddleware, member)]


class _OfMember:
    """What both middlewares are made of."""

    member: Member

    def __init__(self, session: Session | None = None, *, role: str, name: str = "", **options: Any) -> None:
        self.member = Member(given_or_configured(session), role, name or role, **options)
        self.member.session.join(role)
        _keep_guards()


def is_ours(middleware: Any) -> bool:
    """Whether a middleware of an agent was put there by this adapter."""
    return isinstance(middleware, _OfMember)


def _bound(kind: Any, member: Member) -> Any:
    made = kind.__new__(kind)
    made.member = member
    return made


def _keep_guards() -> None:
    """Have agents run the middlewares of ``run(client_kwargs=...)`` which they would drop for ours alone.

    In the class of the framework that drops them; it does for all other agents what it did.
    """
    own = AgentMiddlewareLayer.run
    if hasattr(own, "cacheprefix_own"):
        return

    @wraps(own)
    def run(agent: Any, *given: Any, **named: Any) -> Any:
        return own(agent, *given, **_guarded(agent, named))

    run.cacheprefix_own = own  # type: ignore[attr-defined]  # by which it is known
    AgentMiddlewareLayer.run = run  # type: ignore[method-assign,assignment]


def _guarded(agent: Any, named: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a run, with the middlewares in its ``client_kwargs`` among the run's own; as given without ours.

    What is wrong with the application's middlewares it is told as without us.
    """
    client, more = named.get("client_kwargs"), list(named.get("middleware") or ())
    guards = client.get("middleware") if isinstance(client, Mapping) else None
    if client is None or guards is None:
        return named
    around = [*(agent.middleware or ()), *more]
    member = next((one.member for one in around if is_ours(one)), None)
    sort = None if member is None else member.session.attempt("guards", _sorter, None)
    if sort is None:
        return named
    others = sort([one for one in around if not is_ours(one)])
    if others["chat"] or others["function"]:
        # The framework drops them without us, too.
        return named
    sorted_ = sort(guards, supported_categories=("chat", "function"))
    rest = {name: value for name, value in client.items() if name != "middleware"}
    return {**named, "middleware": [*more, *sorted_["function"], *sorted_["chat"]], "client_kwargs": rest}


def _sorter() -> Any:
    """The framework's own function that tells kinds of middlewares apart; in a private module, which may change."""
    from agent_framework._middleware import categorize_middleware  # noqa: PLC0415 - see above

    return categorize_middleware


class _KnowsAgent(_OfMember, AgentMiddleware):
    """Notes the agent that runs, which nothing else tells of where the middlewares were put in by hand."""

    async def process(self, context: AgentContext, call_next: Next) -> None:
        """Note the agent, by whose tools those that come with a run are told apart."""
        if isinstance(context.agent, Agent):
            self.member.agent = weakref.ref(context.agent)
        await call_next()


class PrefixChatMiddleware(_OfMember, ChatMiddleware):
    """Makes each model request of an agent a fork; takes the options of ``prefix_middleware``."""

    async def process(self, context: ChatContext, call_next: Next) -> None:
        """Let the client lay the request out and mark it, when all other middlewares are done with it."""
        self.member.session.attempt("tap", lambda: self._watch(context.client), None)
        token = ASKED.set(Asked(self.member, context))
        try:
            await call_next()
        finally:
            ASKED.reset(token)

    def _watch(self, client: Any) -> None:
        if api_of(client) is not None:
            watch(client, called)
            return
        kind = type(client).__name__
        self.member.session.unseen(f"requests of {kind} are neither measured nor changed: it is not known")


class PrefixFunctionMiddleware(_OfMember, FunctionMiddleware):
    """Answers repeated tool calls from the session's tool cache, and refuses those of other roles' tools."""

    async def process(self, context: FunctionInvocationContext, call_next: Next) -> None:
        """Run the tool, unless its answer is known or it is not this role's."""
        member, tool = self.member, context.function
        if isinstance(tool, Refusing):
            context.result = tool.said
            return
        member.session.attempt("agent as tool", lambda: self._look_at(runner_of(tool)), None)

        async def run() -> Any:
            await call_next()
            return context.result

        def known(value: Any) -> Any:
            return value if isinstance(value, str) else [Content.from_text(text) for text in value]

        form = AnswerForm(_kept, known)
        use = partial(self._use, context, call_next)
        context.result = await member.session.tool_calls.arun(use, run, form)

    def _look_at(self, runner: Any) -> None:
        """Say of an agent that works as a tool, and is not wrapped, that its requests are not seen."""
        if runner is not None and not any(isinstance(one, _OfMember) for one in runner.middleware or ()):
            name = runner.name or runner.id
            self.member.session.unseen(
                f"agent {name!r} works as a tool of {self.member.role!r}, and is in no report: wrap it by itself, too"
            )

    def _use(self, context: FunctionInvocationContext, call_next: Next) -> ToolUse:
        member, tool, held = self.member, context.function, context.session
        return ToolUse(
            tool.name,
            dict(context.arguments) if isinstance(context.arguments, Mapping) else context.arguments.model_dump(),
            "mcp" if any(key.startswith("_mcp") for key in tool.additional_properties or ()) else "local",
            conversation=member.named(held) or (held.session_id if held else None),
            agent=member.role,
            call=str(context.metadata.get("call_id", "")),
            scope=member.scope,
            stateful=tool._context_parameter_name is not None,
            form="maf",
            tool=_answered_by(tool),
            guarded=self._guarded(call_next),
        )

    def _guarded(self, call_next: Next) -> bool:
        """Whether another middleware stands between ours and the tool, as those of a run do; yes where nobody knows."""
        name = getattr(call_next, "__name__", "")
        if name not in (_RUNS_TOOL, _ASKS_NEXT):
            self.member.session.note(
                "no tool result is kept: this release of agent_framework does not tell whether another middleware "
                "is to be asked about a call; install agent-framework-core 1.23, or a newer cacheprefix-maf"
            )
        # Privacy: another middleware may have let another user's call pass.
        return name != _RUNS_TOOL


def _answered_by(tool: FunctionTool) -> Any:
    """What answers a call: the function that a tool was made of, with its object; else the tool with what it holds."""
    function, parser = getattr(tool, "func", None), getattr(tool, "result_parser", None)
    # Privacy: a method that is a tool is one function for all objects of its class.
    held = [one for one in (getattr(tool, "_instance", None), parser) if one is not None]
    # Privacy: one of a class of the application's may do more than ask the function; what reads its answers may be made
    # for one user.
    if function is None or not type(tool).__module__.startswith("agent_framework."):
        return tool
    return (function, *held) if held else function


def _kept(result: Any) -> Any:
    """What is kept of a result: its text or texts; nothing of one that holds more."""
    if isinstance(result, str):
        return result
    if isinstance(result, list) and result and all(getattr(one, "type", "") == "text" for one in result):
        return [one.text or "" for one in result]
    raise NotKeptError
