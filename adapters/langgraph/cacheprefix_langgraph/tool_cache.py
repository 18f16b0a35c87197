"""Tool calls of ``ToolNode`` and of ``create_agent``, answered from the session's tool-result cache."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, Tool
from langgraph.prebuilt.tool_node import ToolCallRequest
from typing_extensions import override

from cacheprefix import Session
from cacheprefix.adapter import (
    AdapterSession,
    AnswerForm,
    Generations,
    NotKeptError,
    Origin,
    ToolUse,
    looks_like_error,
    origin_of,
)
from cacheprefix_langgraph.fork_context import configurable, scope_of, thread_of
from cacheprefix_langgraph.state import messages_in

Scope = Callable[[ToolCallRequest], "str | None"] | str | None

_KEEP = 1_000
_MCP = ("mcp.", "fastmcp.", "langchain_mcp_adapters.", "langchain.mcp.")


class CachedTools:
    """The two wrappers that ``ToolNode`` and middleware call around a tool. Safe for threads and tasks."""

    def __init__(self, session: AdapterSession, agent: str | None = None, scope: Scope = None) -> None:
        self._session = session
        self._agent = agent
        self._scope = scope
        # By address, and with the tool, so that no other one comes to stand there.
        self._stateful: Generations[int, tuple[BaseTool, bool]] = Generations(_KEEP)

    def wrap(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """The tool's answer, or the one it gave before; LangChain's tool events fire either way."""
        use = partial(self._use, request)
        return self._session.tool_calls.run(use, partial(handler, request), _form(request, handler))

    async def awrap(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
        """``wrap`` for coroutines."""

        async def refused(message: str) -> Any:
            return _as_error(await handler(_answering(request, message)))

        form = replace(_form(request, handler), refused=refused)
        use = partial(self._use, request)
        return await self._session.tool_calls.arun(use, partial(handler, request), form)

    def _use(self, request: ToolCallRequest) -> ToolUse | None:
        """The call as the cache sees it; None for a tool that is not there."""
        tool = request.tool
        if tool is None:
            return None
        config: Mapping[str, Any] = getattr(request.runtime, "config", None) or {}
        messages = messages_in(request.state, "messages") or []
        conversation, turn = _turn(config, messages)
        scope = self._scope(request) if callable(self._scope) else self._scope
        scope = scope_of(config) if scope is None else scope
        known = self._stateful.get(id(tool)) or (tool, _takes_more(tool))
        self._stateful.put(id(tool), known, 1)
        return ToolUse(
            request.tool_call["name"],
            request.tool_call["args"],
            origin(tool),
            conversation,
            _author(messages) if self._agent is None else self._agent,
            turn,
            # Ids may come again with the next answer; the history is then longer.
            f"{request.tool_call['id']}@{len(messages)}",
            scope,
            known[1],
            "langgraph",
            _runs(tool),
        )


def cached_tools(session: Session, *, agent: str | None = None, scope: Scope = None) -> dict[str, Any]:
    """Keyword arguments that put the session's tool cache around a node: ``ToolNode(tools, **cached_tools(session))``.

    ``PrefixMiddleware`` does the same for ``create_agent``. ``agent`` names whose repeated calls are counted
    together, by default the author of the message with the calls. ``scope`` is the tenant or user whose results these
    are, or a function that finds it in the request; by default the run's ``cacheprefix_scope``, and without it the
    session's. A tool that is handed more than its arguments (state, store, runtime, config) is cached only where a
    ``ToolSpec`` declares it cacheable. Without ``Session(tool_cache=...)`` tools simply run.
    """
    cached = CachedTools(session.adapter, agent, scope)
    return {"wrap_tool_call": cached.wrap, "awrap_tool_call": cached.awrap}


def origin(tool: BaseTool) -> Origin:
    """Where a tool comes from, told by what made it and not by its name."""
    made = (type(tool), getattr(tool, "func", None), getattr(tool, "coroutine", None))
    return "mcp" if "mcp" in (tool.metadata or {}) else origin_of(*made, mcp=_MCP)


def _runs(tool: BaseTool) -> Any:
    """What answers a call: the functions that a tool was made of, else the tool itself with what it holds."""
    if type(tool) not in {StructuredTool, Tool}:
        return tool
    schema = tool.args_schema
    # Privacy: a schema of the application's own has defaults and validators, which may be one user's; one that
    # LangChain makes of a function has that function's. One in plain JSON changes no argument.
    own = isinstance(schema, type) and not schema.__module__.startswith("langchain_core.")
    # One of the two may be shared by all users, as a function that only says that the tool is asynchronous.
    parts = (getattr(tool, "func", None), getattr(tool, "coroutine", None), schema if own else None)
    return tuple(part for part in parts if part is not None) or tool


def _form(request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> AnswerForm:
    """Answers as the messages that LangChain itself makes of what a tool returned."""
    return AnswerForm(
        _kept,
        lambda value: handler(_answering(request, value)),
        lambda message: _as_error(handler(_answering(request, message))),
    )


def _kept(message: Any) -> Any:
    """What is kept of an answer: its text, or content and artifact; nothing of an error, a command, other fields."""
    if (
        type(message) is not ToolMessage
        or message.status != "success"
        or message.additional_kwargs
        or message.response_metadata
        or looks_like_error(message.content)
    ):
        raise NotKeptError
    if isinstance(message.content, str) and message.artifact is None:
        return message.content
    return {"content": message.content, "artifact": message.artifact}


class _StandIn(BaseTool):
    """Gives an answer that is known already, so that LangChain itself tells of it and formats it as ever."""

    known: Any = None
    response_format: Any = "content_and_artifact"

    @override
    def _to_args_and_kwargs(self, *_: Any, **__: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # The same arguments were valid when the answer was made; how the tool takes them is its own affair.
        return (), {}

    @override
    def _run(self, *_: Any, **__: Any) -> Any:
        return self.known

    @override
    async def _arun(self, *_: Any, **__: Any) -> Any:
        return self.known


def _answering(request: ToolCallRequest, value: Any) -> ToolCallRequest:
    """The request with a tool that gives what is known."""
    tool = request.tool
    assert tool is not None
    known = (value["content"], value["artifact"]) if isinstance(value, Mapping) else (value, None)
    stand_in = _StandIn(
        name=tool.name,
        description=tool.description,
        args_schema=tool.args_schema,
        tags=tool.tags,
        metadata=tool.metadata,
        callbacks=tool.callbacks,
        known=known,
    )
    return request.override(tool=stand_in)


def _as_error(message: Any) -> Any:
    return message.model_copy(update={"status": "error"}) if isinstance(message, ToolMessage) else message


def _turn(config: Mapping[str, Any], messages: Sequence[BaseMessage]) -> tuple[str | None, str]:
    """Whose repeats these are, and since when: one agent's loop in one branch after one message of the user.

    (None, "") where that cannot be told apart from another run's, since nothing may be refused for another's calls.
    """
    thread = thread_of(config)
    last = next(((i, m) for i, m in reversed(list(enumerate(messages))) if isinstance(m, HumanMessage)), None)
    if last is None or not (thread or last[1].id):
        return None, ""
    namespace = str(configurable(config, "checkpoint_ns") or "")
    return f"{thread}|{namespace.rpartition('|')[0]}", last[1].id or str(last[0])


def _author(messages: Sequence[BaseMessage]) -> str:
    return (messages[-1].name or "") if messages else ""


def _takes_more(tool: BaseTool) -> bool:
    """Whether the framework hands a tool more than the arguments that the model wrote."""
    # A schema given as plain JSON is the whole of what the tool takes.
    if not isinstance(tool.args_schema, Mapping):
        shown: Any = tool.tool_call_schema
        given = set(getattr(tool.get_input_schema(), "model_fields", ()))
        if given - set(getattr(shown, "model_fields", given)):
            return True
    bodies = [body for name in ("func", "coroutine") if (body := getattr(tool, name, None)) is not None]
    for body in bodies or [tool._run]:
        for parameter in inspect.signature(body).parameters.values():
            if parameter.annotation is RunnableConfig or "RunnableConfig" in str(parameter.annotation):
                return True
    return False
