"""Workbenches and tools whose repeated calls are answered from the session's tool cache."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from autogen_core import EVENT_LOGGER_NAME, trace_tool_span
from autogen_core.logging import ToolCallEvent
from autogen_core.tools import BaseTool, FunctionTool, TextResultContent, ToolResult, Workbench

from cacheprefix import Session
from cacheprefix.adapter import AdapterSession, AnswerForm, NotKeptError, ToolUse, looks_like_error, origin_of
from cacheprefix.errors import SetupError, check_text

T = TypeVar("T", Workbench, BaseTool[Any, Any])

_events = logging.getLogger(EVENT_LOGGER_NAME)
_CALLER = "cacheprefix_caller"
_MCP = ("autogen_ext.tools.mcp.",)


@dataclass(frozen=True, slots=True)
class Caller:
    """For whom a workbench or tool is called. ``conversation`` is asked at each call; None counts no repeats."""

    session: AdapterSession
    agent: str = ""
    conversation: Callable[[], str | None] = lambda: None
    scope: str | None = None
    used: Callable[[], None] = lambda: None
    """Told of every call that goes through the cache."""
    target: Any = None
    """The workbench or tool itself, which the cached one stands for."""

    def use(
        self, name: str, arguments: Mapping[str, Any], made: Any, *, stateful: bool, form: str, tool: Any = None
    ) -> ToolUse:
        """The call of ``made`` as the cache sees it: a workbench keeps texts, a tool what its function returned."""
        self.used()
        return ToolUse(
            name,
            arguments,
            origin_of(type(made), mcp=_MCP),
            self.conversation(),
            self.agent,
            scope=self.scope,
            stateful=stateful,
            form=form,
            tool=_function(self.target if tool is None else tool),
        )


def cached(
    target: T, session: Session, *, agent: str = "", conversation: str | None = None, scope: str | None = None
) -> T:
    """A workbench or tool (``FunctionTool``, an MCP tool) whose repeated calls the session's tool cache answers.

    For tools that no wrapped agent calls: a ``ToolAgent``'s, a core agent's own. ``wrap`` does it for the agents it
    wraps. The result is of the same class and shares the original's state; the original stays as it is. ``scope`` is
    the tenant or user whose results these are, by default the session's. With a ``conversation`` repeated calls are
    counted; ``session.tool_calls.new_turn`` starts afresh.

    Raises ``SetupError`` for anything else.
    """
    given: object = target
    if not isinstance(given, (Workbench, BaseTool)):
        raise SetupError(f"cached takes an AutoGen workbench or tool, found {type(given).__name__}")
    check_text("agent", agent)
    check_text("conversation", conversation, optional=True)
    check_text("scope", scope, optional=True)
    return cached_by(target, Caller(session.adapter, agent, lambda: conversation, scope))


def cached_by(target: T, caller: Caller) -> T:
    """``cached`` with a caller."""
    known: Any = type(target)
    kind = known.__mro__[1] if hasattr(known, _CALLER) else known
    subclass = _workbench(kind) if issubclass(kind, Workbench) else _tool(kind)
    made = object.__new__(subclass)
    # One state for both: a server that is started through the one is there for the other.
    made.__dict__ = target.__dict__
    known_by = getattr(target, _CALLER, None)
    object.__setattr__(made, _CALLER, replace(caller, target=target if known_by is None else known_by.target))
    return made  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=64)
def _workbench(base: Any) -> Any:
    """A workbench's class whose calls are answered from the session's tool cache."""

    async def call_tool(
        self: Any,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: Any = None,
        call_id: str | None = None,
    ) -> Any:
        run = functools.partial(base.call_tool, self, name, arguments, cancellation_token, call_id)
        return await _Call(self, name, arguments, call_id).answered(run)

    async def call_tool_stream(
        self: Any,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: Any = None,
        call_id: str | None = None,
    ) -> AsyncGenerator[Any, None]:
        call = _Call(self, name, arguments, call_id)
        passed: asyncio.Queue[Any] = asyncio.Queue()

        async def run() -> Any:
            result: Any = None
            async for event in base.call_tool_stream(self, name, arguments, cancellation_token, call_id):
                if isinstance(event, ToolResult):
                    result = event
                else:
                    passed.put_nowait(event)
            return result

        async with contextlib.aclosing(_while_running(call.answered(run), passed)) as events:
            async for event in events:
                yield event

    own = {"call_tool": call_tool, "__del__": _leave}
    if hasattr(base, "call_tool_stream"):
        own["call_tool_stream"] = call_tool_stream
    return _subclass(base, own)


@functools.lru_cache(maxsize=256)
def _tool(base: Any) -> Any:
    """A tool's class whose calls are answered from the session's tool cache."""

    async def run_json(self: Any, args: Mapping[str, Any], cancellation_token: Any, call_id: str | None = None) -> Any:
        def told(value: Any) -> Any:
            _tell(self, args, self.return_value_as_string(value), call_id)
            return value

        def refused(message: str) -> Any:
            _tell(self, args, message, call_id)
            return message

        def use() -> ToolUse:
            return caller.use(self.name, args, self, stateful=self.state_type() is not None, form="autogen-tool")

        caller: Caller = getattr(self, _CALLER)
        run = functools.partial(base.run_json, self, args, cancellation_token, call_id=call_id)
        return await caller.session.tool_calls.arun(use, run, AnswerForm(known=told, refused=refused))

    return _subclass(base, {"run_json": run_json, "__del__": _leave})


class _Call:
    """One call of a workbench, from the cache's side."""

    def __init__(self, bench: Any, name: str, arguments: Mapping[str, Any] | None, call_id: str | None) -> None:
        self._bench = bench
        self._name = name
        self._arguments = dict(arguments or {})
        self._call_id = call_id
        original = getattr(bench, "_override_name_to_original", {}).get(name, name)
        self._tool = next((tool for tool in getattr(bench, "_tools", ()) if tool.name == original), None)

    async def answered(self, run: Callable[[], Any]) -> Any:
        """The result of ``run``, or the one known already under the name of this call."""
        caller: Caller = getattr(self._bench, _CALLER)

        def use() -> ToolUse:
            made = self._bench if self._tool is None else self._tool
            stateful = self._tool is not None and self._tool.state_type() is not None
            # Privacy: one of a class of the application's may do more than call the tool, as what its user may see.
            tool = self._tool if type(caller.target).__module__.startswith("autogen_core.") else None
            return caller.use(self._name, self._arguments, made, stateful=stateful, form="autogen", tool=tool)

        return await caller.session.tool_calls.arun(use, run, AnswerForm(_kept, self._known, self._refused))

    def _known(self, value: Any) -> ToolResult:
        """A known result as the workbench gives it."""
        if isinstance(value, ToolResult):
            return self._told(value.model_copy(update={"name": self._name}))
        return self._told(ToolResult(name=self._name, result=_texts([value] if isinstance(value, str) else value)))

    def _refused(self, message: str) -> ToolResult:
        """The result that says why a call was not run."""
        return self._told(ToolResult(name=self._name, result=_texts([message]), is_error=True))

    def _told(self, result: ToolResult) -> ToolResult:
        """AutoGen's own span and log event, as the tool would have left them."""
        if self._tool is not None:
            _tell(self._tool, self._arguments, result.to_text(), self._call_id)
        else:
            with trace_tool_span(tool_name=self._name, tool_call_id=self._call_id):
                pass
        return result


def _kept(result: Any) -> Any:
    """What is kept of a workbench's result: its text or texts, or itself where it holds more; nothing of an error."""
    if not isinstance(result, ToolResult) or result.is_error:
        raise NotKeptError
    texts = [part.content for part in result.result if isinstance(part, TextResultContent)]
    if any(looks_like_error(text) for text in texts):
        raise NotKeptError
    if len(texts) < len(result.result):
        return result
    return texts[0] if len(texts) == 1 else texts


def _function(target: Any) -> Any:
    """What answers a call: the function that a tool was made of, else the tool or workbench with what it holds."""
    kept_by = getattr(target, _CALLER, None)
    target = target if kept_by is None else kept_by.target
    # Privacy: one of a class of the application's may do more than ask the function.
    return getattr(target, "_func", target) if type(target) is FunctionTool else target


def _texts(texts: list[str]) -> list[Any]:
    """Texts as a workbench's result has them."""
    return [TextResultContent(content=text) for text in texts]


def _tell(tool: Any, arguments: Mapping[str, Any], result: str, call_id: str | None) -> None:
    """AutoGen's own span and log event of a tool that ran."""
    with trace_tool_span(tool_name=tool.name, tool_description=tool.description, tool_call_id=call_id):
        pass
    _events.info(ToolCallEvent(tool_name=tool.name, arguments=dict(arguments), result=result))


async def _while_running(work: Any, passed: asyncio.Queue[Any]) -> AsyncGenerator[Any, None]:
    """What ``work`` passes on while it runs, and at the end what it gives. Left early, it is cancelled."""
    ended = object()
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda _: passed.put_nowait(ended))
    try:
        while (event := await passed.get()) is not ended:
            yield event
        yield task.result()
    finally:
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def _subclass(base: Any, own: dict[str, Any]) -> Any:
    """A class with methods of ours that AutoGen takes for the one it was made from."""
    provider = getattr(base, "component_provider_override", None) or f"{base.__module__}.{base.__qualname__}"
    body = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__slots__": (_CALLER,),
        "component_provider_override": provider,
        **own,
    }
    return type(base)(base.__name__, (base,), body)


def _leave(self: Any) -> None:
    """The state is the original's: only that one may end what runs behind it."""
