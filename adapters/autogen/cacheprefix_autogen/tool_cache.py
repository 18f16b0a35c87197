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
from cacheprefix.errors import SetupError
from cacheprefix.session import ToolUse
from cacheprefix.toolcache import Origin, looks_like_error

T = TypeVar("T", Workbench, BaseTool[Any, Any])

_events = logging.getLogger(EVENT_LOGGER_NAME)
_CALLER = "cacheprefix_caller"
_MCP = "autogen_ext.tools.mcp"


class _NotKeptError(Exception):
    """The answer is an error that the framework has put into words; the next call runs again."""


@dataclass(frozen=True, slots=True)
class Caller:
    """For whom a workbench or tool is called. ``conversation`` is asked at each call; None counts no repeats."""

    session: Session
    agent: str = ""
    conversation: Callable[[], str | None] = lambda: None
    scope: str | None = None
    used: Callable[[], None] = lambda: None
    """Told of every call that goes through the cache."""
    target: Any = None
    """The workbench or tool itself, which the cached one stands for."""

    def use(
        self, name: str, arguments: Mapping[str, Any], origin: Origin, *, stateful: bool, form: str, tool: Any
    ) -> ToolUse:
        """The call as the cache sees it. A workbench keeps texts, a tool what its function returned."""
        self.used()
        said = self.conversation()
        runs = _function(self.target if tool is None else tool)
        return ToolUse(
            name, arguments, origin, said, self.agent, scope=self.scope, stateful=stateful, form=form, tool=runs
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
        message = f"cached takes an AutoGen workbench or tool, found {type(given).__name__}"
        raise SetupError(message)
    return cached_by(target, Caller(session, agent, lambda: conversation, scope))


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
    async def call_tool(
        self: Any,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: Any = None,
        call_id: str | None = None,
    ) -> Any:
        call = _Call(self, name, arguments, call_id)

        async def run() -> Any:
            return call.kept(await base.call_tool(self, name, arguments, cancellation_token, call_id))

        return await call.answered(run)

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
            return call.kept(result)

        async with contextlib.aclosing(_while_running(call.answered(run), passed)) as events:
            async for event in events:
                yield event

    own = {"call_tool": call_tool, "__del__": _leave}
    if hasattr(base, "call_tool_stream"):
        own["call_tool_stream"] = call_tool_stream
    return _subclass(base, own)


@functools.lru_cache(maxsize=256)
def _tool(base: Any) -> Any:
    async def run_json(self: Any, args: Mapping[str, Any], cancellation_token: Any, call_id: str | None = None) -> Any:
        caller: Caller = getattr(self, _CALLER)
        own = refused = False

        async def run() -> Any:
            nonlocal own
            own = True
            return await base.run_json(self, args, cancellation_token, call_id=call_id)

        def repeated(message: str) -> Any:
            nonlocal refused
            refused = True
            return message

        stateful = self.state_type() is not None
        use = caller.use(self.name, args, _origin(self), stateful=stateful, form="autogen-tool", tool=None)
        value = await caller.session.tool_calls.arun(use, run, repeated=repeated)
        if not own:
            _tell(self, args, value if refused else self.return_value_as_string(value), call_id)
        return value

    return _subclass(base, {"run_json": run_json, "__del__": _leave})


class _Call:
    """One call of a workbench, from the cache's side."""

    def __init__(self, bench: Any, name: str, arguments: Mapping[str, Any] | None, call_id: str | None) -> None:
        self._bench = bench
        self._name = name
        self._arguments = dict(arguments or {})
        self._call_id = call_id
        self._own: ToolResult | None = None
        original = getattr(bench, "_override_name_to_original", {}).get(name, name)
        self._tool = next((tool for tool in getattr(bench, "_tools", ()) if tool.name == original), None)

    def kept(self, result: Any) -> Any:
        """What is kept of a result: its text or texts, or itself where it holds more."""
        self._own = result
        if not isinstance(result, ToolResult) or result.is_error:
            raise _NotKeptError
        texts = [part.content for part in result.result if isinstance(part, TextResultContent)]
        if any(looks_like_error(text) for text in texts):
            raise _NotKeptError
        if len(texts) < len(result.result):
            return result
        return texts[0] if len(texts) == 1 else texts

    async def answered(self, run: Callable[[], Any]) -> Any:
        """The result of ``run``, or the one known already under the name of this call."""
        caller: Caller = getattr(self._bench, _CALLER)
        origin = _origin(self._bench if self._tool is None else self._tool)
        stateful = self._tool is not None and self._tool.state_type() is not None
        refused: list[str] = []
        use = caller.use(self._name, self._arguments, origin, stateful=stateful, form="autogen", tool=self._tool)
        try:
            value = await caller.session.tool_calls.arun(use, run, repeated=refused.append)
        except _NotKeptError:
            return self._own
        if self._own is not None:
            return self._own
        if refused:
            return self._told(ToolResult(name=self._name, result=_texts(refused), is_error=True))
        if isinstance(value, ToolResult):
            return self._told(value.model_copy(update={"name": self._name}))
        return self._told(ToolResult(name=self._name, result=_texts([value] if isinstance(value, str) else value)))

    def _told(self, result: ToolResult) -> ToolResult:
        """AutoGen's own span and log event, as the tool would have left them."""
        if self._tool is not None:
            _tell(self._tool, self._arguments, result.to_text(), self._call_id)
        else:
            with trace_tool_span(tool_name=self._name, tool_call_id=self._call_id):
                pass
        return result


def _function(target: Any) -> Any:
    """What answers a call: the function that a tool was made of, else the tool or workbench with what it holds."""
    kept_by = getattr(target, _CALLER, None)
    target = target if kept_by is None else kept_by.target
    return getattr(target, "_func", target) if isinstance(target, FunctionTool) else target


def _texts(texts: list[str]) -> list[Any]:
    return [TextResultContent(content=text) for text in texts]


def _tell(tool: Any, arguments: Mapping[str, Any], result: str, call_id: str | None) -> None:
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


def _origin(target: Any) -> Origin:
    """Where a tool comes from, told by its class and not by its name."""
    return "mcp" if any(kind.__module__.startswith(_MCP) for kind in type(target).__mro__) else "local"


def _subclass(base: Any, own: dict[str, Any]) -> Any:
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
