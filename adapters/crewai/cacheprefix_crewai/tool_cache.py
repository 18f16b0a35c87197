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
class _Held:
    """One call between CrewAI's two hooks."""

    binding: Binding
    name: str
    given: Any
    tool: Any
    agent: Any
    task: Any
    crew: Any
    attempt: Attempt | None = None


_CALLS: ContextVar[tuple[_Held, ...]] = ContextVar("cacheprefix_crewai_calls", default=())
"""Calls under way here, the innermost last: a tool may run an agent that calls tools."""


def new_turn(binding: Binding, crew: Any) -> None:
    """A kickoff is the user's turn: the crew's tasks may ask again what they asked before."""
    calls = binding.session.tool_calls
    if calls.cache is not None:
        for task in crew.tasks:
            calls.new_turn(_conversation(binding, task), scope=binding.options.scope)


def _before(context: Any) -> None:
    binding = binding_of(context.agent)
    if binding is None or not binding.session.tool_calls.active:
        return
    handler = getattr(context.agent, "tools_handler", None)
    if handler is None:
        return
    if not isinstance(handler.cache, _handler_class()):
        # Also for copies of agents, and where a crew has given its agent another handler since.
        _take_place(binding, context.agent, handler)
    held = _Held(
        binding, context.tool_name, context.tool_input, context.tool, context.agent, context.task, context.crew
    )
    _CALLS.set((*_CALLS.get(), held))


def _after(context: Any) -> None:
    calls = _CALLS.get()
    found = next((i for i, held in reversed(list(enumerate(calls))) if held.given is context.tool_input), None)
    if found is None:
        return
    # Whatever stands behind it never came to its end.
    for held in calls[found:]:
        _fail(held)
    _CALLS.set(calls[:found])


TOOL_CACHE = ToolHooks(before=_before, after=_after)
"""Answers tool calls of all crews that were installed with a tool cache."""


def _take_place(binding: Binding, agent: Any, handler: Any) -> None:
    before = handler.cache
    handler.cache = _handler_class()(before)
    if any(agent is one for one in binding.agents):
        binding.undo.append(functools.partial(setattr, handler, "cache", before))


@functools.cache
def _handler_class() -> Any:
    from crewai.agents.cache.cache_handler import CacheHandler  # noqa: PLC0415 - CrewAI loads slowly
    from crewai.tools.tool_failure import ToolFailure  # noqa: PLC0415 - as above
    from crewai.utilities.string_utils import sanitize_tool_name  # noqa: PLC0415 - as above

    def current(tool: str) -> _Held | None:
        calls = _CALLS.get()
        return calls[-1] if calls and sanitize_tool_name(calls[-1].name) == sanitize_tool_name(tool) else None

    class ToolResults(CacheHandler):  # type: ignore[misc, unused-ignore]
        """Stands where CrewAI looks for an earlier result; outside of an installed crew's calls, ``inner`` answers."""

        def __init__(self, inner: Any) -> None:
            super().__init__()
            object.__setattr__(self, "_cacheprefix_inner", inner)

        def read(self, tool: str, input: str) -> Any:  # noqa: A002 - CrewAI's own name
            held = current(tool)
            if held is None:
                inner = getattr(self, "_cacheprefix_inner", None)
                return None if inner is None else inner.read(tool, input)
            return held.binding.session.attempt("tool cache", lambda: _begun(held, input), None)

        def add(self, tool: str, input: str, output: Any) -> None:  # noqa: A002 - CrewAI's own name
            held = current(tool)
            inner = getattr(self, "_cacheprefix_inner", None)
            if held is None:
                if inner is not None:
                    inner.add(tool, input, output)
            elif isinstance(output, ToolFailure):
                _fail(held)
            else:
                held.binding.session.attempt("tool cache", lambda: _finish(held, output), None)

    return ToolResults


def _begun(held: _Held, given: str) -> Any:
    """What is known of a call; None where the tool has to run."""
    _fail(held)  # CrewAI tries a call that raised again
    arguments = json.loads(given) if given else {}
    if not isinstance(arguments, dict):
        return None
    use = ToolUse(
        held.name,
        arguments,
        _origin(held.tool),
        # Privacy: without a crew nobody tells when the user speaks, and so where a conversation ends.
        None if held.task is None or held.crew is None else _conversation(held.binding, held.task),
        str(getattr(held.agent, "role", "")),
        # A task that failed its guardrail begins again with an empty context.
        str(getattr(held.task, "retry_count", "")),
        scope=held.binding.options.scope,
        form="crewai",
        tool=_runs(held.tool),
    )
    attempt = held.binding.session.tool_calls.begin(use)
    if attempt is None or attempt.answered:
        return None if attempt is None else attempt.result
    held.attempt = attempt
    return None


def _finish(held: _Held, output: Any) -> None:
    attempt, held.attempt = held.attempt, None
    if attempt is not None:
        attempt.finish(output)


def _fail(held: _Held) -> None:
    attempt, held.attempt = held.attempt, None
    if attempt is not None:
        held.binding.session.attempt("tool cache", attempt.fail, None)


def _conversation(binding: Binding, task: Any) -> str:
    return f"{binding.conversation}/{task.id}"


def _runs(tool: Any) -> Any:
    """What answers a call: the function that a tool was made of, else the tool with what it holds."""
    made = getattr(tool, "_original_tool", None) or tool
    function = getattr(made, "func", None)
    owner = getattr(function, "__self__", None)
    # A tool's own method stands for the tool; CrewAI makes a new one around it at each look.
    return made if function is None or owner is made else function


def _origin(tool: Any) -> Origin:
    return origin_of(type(getattr(tool, "_original_tool", None) or tool), mcp=_MCP)


def forget(binding: Binding) -> None:
    """Forget the kept tool results, as ``Crew.reset_memories`` does CrewAI's own."""
    binding.session.tool_calls.reset(binding.conversation, binding.options.scope)
