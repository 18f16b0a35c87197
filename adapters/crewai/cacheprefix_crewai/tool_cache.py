"""Tool calls of installed crews, answered from the session's tool cache.

CrewAI asks its own cache between its hooks before and after a tool, with the arguments as all hooks left them,
and tells of hits with its own events. A handler in that place asks the session's cache instead. CrewAI's own never
forgets: it would answer from before a write, so it rests while the session's is in force.
"""

from __future__ import annotations

import functools
import json
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cacheprefix.adapter import ToolUse, origin_of
from cacheprefix_crewai.binding import binding_of
from cacheprefix_crewai.tools import ToolHooks

if TYPE_CHECKING:
    from cacheprefix.adapter import Attempt, Origin
    from cacheprefix_crewai.binding import Binding

_MCP = ("crewai.tools.mcp_", "mcpadapt.", "mcp.")


@dataclass(slots=True)
class _ToolCall:
    """One tool call, from CrewAI's hook before the tool to its hook behind it."""

    binding: Binding
    name: str
    given: Any
    """The arguments, by whose identity the two hooks know that it is the same call."""
    tool: Any
    agent: Any
    task: Any
    crew: Any
    attempt: Attempt | None = None
    """The cache's side of it, while the tool runs."""


_CALLS: ContextVar[tuple[_ToolCall, ...]] = ContextVar("cacheprefix_crewai_calls", default=())
"""Calls under way here, the innermost last: a tool may run an agent that calls tools."""


def new_turn(binding: Binding, crew: Any) -> None:
    """A kickoff is the user's turn: the crew's tasks may ask again what they asked before."""
    calls = binding.session.tool_calls
    if calls.cache is not None:
        for task in crew.tasks:
            calls.new_turn(_conversation(binding, task), scope=binding.options.scope)


def _before(context: Any) -> None:
    """CrewAI is about to call a tool: let its look for an earlier result come to us."""
    binding = binding_of(context.agent)
    if binding is None or not binding.session.tool_calls.active:
        return
    handler = getattr(context.agent, "tools_handler", None)
    if handler is None:
        return
    if not isinstance(handler.cache, _handler_class()):
        # Also for copies of agents, and where a crew has given its agent another handler since.
        _take_place(binding, context.agent, handler)
    call = _ToolCall(
        binding, context.tool_name, context.tool_input, context.tool, context.agent, context.task, context.crew
    )
    _CALLS.set((*_CALLS.get(), call))


def _after(context: Any) -> None:
    """CrewAI has called a tool, or found its result."""
    calls = _CALLS.get()
    found = next((i for i, call in reversed(list(enumerate(calls))) if call.given is context.tool_input), None)
    if found is None:
        return
    # Whatever stands behind it never came to its end.
    for call in calls[found:]:
        _fail(call)
    _CALLS.set(calls[:found])


TOOL_CACHE = ToolHooks(before=_before, after=_after)
"""Answers tool calls of all crews that were installed with a tool cache."""


def _take_place(binding: Binding, agent: Any, handler: Any) -> None:
    """Put our handler in the place of CrewAI's cache, in which it looks for earlier results."""
    before = handler.cache
    handler.cache = _handler_class()(before)
    if any(agent is one for one in binding.agents):
        binding.undo.append(functools.partial(setattr, handler, "cache", before))


@functools.cache
def _handler_class() -> Any:
    """The class of our handler, made when CrewAI is loaded."""
    from crewai.agents.cache.cache_handler import CacheHandler  # noqa: PLC0415 - CrewAI loads slowly
    from crewai.tools.tool_failure import ToolFailure  # noqa: PLC0415 - as above
    from crewai.utilities.string_utils import sanitize_tool_name  # noqa: PLC0415 - as above

    def current(tool: str) -> _ToolCall | None:
        calls = _CALLS.get()
        return calls[-1] if calls and sanitize_tool_name(calls[-1].name) == sanitize_tool_name(tool) else None

    class ToolResults(CacheHandler):  # type: ignore[misc, unused-ignore]
        """Stands where CrewAI looks for an earlier result; outside of an installed crew's calls, ``inner`` answers."""

        def __init__(self, inner: Any) -> None:
            super().__init__()
            object.__setattr__(self, "_cacheprefix_inner", inner)

        def read(self, tool: str, input: str) -> Any:  # noqa: A002 - CrewAI's own name
            call = current(tool)
            if call is None:
                inner = getattr(self, "_cacheprefix_inner", None)
                return None if inner is None else inner.read(tool, input)
            return call.binding.session.attempt("tool cache", lambda: _known_result(call, input), None)

        def add(self, tool: str, input: str, output: Any) -> None:  # noqa: A002 - CrewAI's own name
            call = current(tool)
            inner = getattr(self, "_cacheprefix_inner", None)
            if call is None:
                if inner is not None:
                    inner.add(tool, input, output)
            elif isinstance(output, ToolFailure):
                _fail(call)
            else:
                call.binding.session.attempt("tool cache", lambda: _finish(call, output), None)

    return ToolResults


def _known_result(call: _ToolCall, given: str) -> Any:
    """What the cache answers to a call with these arguments (JSON); None where the tool has to run."""
    _fail(call)  # CrewAI tries a call that raised again
    arguments = json.loads(given) if given else {}
    if not isinstance(arguments, dict):
        return None
    use = ToolUse(
        call.name,
        arguments,
        _origin(call.tool),
        # Privacy: without a crew nobody tells when the user speaks, and so where a conversation ends.
        None if call.task is None or call.crew is None else _conversation(call.binding, call.task),
        str(getattr(call.agent, "role", "")),
        # A task that failed its guardrail begins again with an empty context.
        str(getattr(call.task, "retry_count", "")),
        scope=call.binding.options.scope,
        form="crewai",
        tool=_answered_by(call.tool),
    )
    attempt = call.binding.session.tool_calls.begin(use)
    if attempt is None or attempt.answered:
        return None if attempt is None else attempt.result
    call.attempt = attempt
    return None


def _finish(call: _ToolCall, output: Any) -> None:
    """Keep what the tool answered."""
    attempt, call.attempt = call.attempt, None
    if attempt is not None:
        attempt.finish(output)


def _fail(call: _ToolCall) -> None:
    """Say that a call that was begun came to nothing, so that nobody waits for it."""
    attempt, call.attempt = call.attempt, None
    if attempt is not None:
        call.binding.session.attempt("tool cache", attempt.fail, None)


def _conversation(binding: Binding, task: Any) -> str:
    """The id under which a task's repeated calls are counted."""
    return f"{binding.conversation}/{task.id}"


def _answered_by(tool: Any) -> Any:
    """What answers a call: the function that a tool was made of, else the tool with what it holds."""
    made = getattr(tool, "_original_tool", None) or tool
    function = getattr(made, "func", None)
    owner = getattr(function, "__self__", None)
    # A tool's own method stands for the tool; CrewAI makes a new one around it at each look. One of a class of the
    # application's may do more than ask the function.
    if function is None or owner is made or not type(made).__module__.startswith("crewai."):
        return made
    schema = getattr(made, "args_schema", None)
    # Privacy: a schema of the application's own has defaults and validators, which may be one user's; one that CrewAI
    # or LangChain makes of a function has that function's.
    own = isinstance(schema, type) and not schema.__module__.startswith(("crewai.", "langchain_core."))
    return (function, schema) if own else function


def _origin(tool: Any) -> Origin:
    """Where a tool comes from, told by what made it and not by its name."""
    return origin_of(type(getattr(tool, "_original_tool", None) or tool), mcp=_MCP)


def forget(binding: Binding) -> None:
    """Forget the kept tool results, as ``Crew.reset_memories`` does CrewAI's own."""
    binding.session.tool_calls.reset(binding.conversation, binding.options.scope)
