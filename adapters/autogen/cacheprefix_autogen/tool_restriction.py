"""Keeps a role to its own tools although its requests carry the union: by text, ``tool_choice``, and refusals."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autogen_core.models import (
    AssistantMessage,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
)
from autogen_core.tools import FunctionTool, Tool, ToolSchema

from cacheprefix.adapter import AdapterSession, Carried, OwnTools, Reason, RequestPlan, loads, reason
from cacheprefix.adapter import Tool as SharedTool
from cacheprefix.errors import SetupError
from cacheprefix_autogen.messages import ANSWER, NOT_RUN
from cacheprefix_autogen.provider_clients import Request, name_of, schema_of

HELD = 200
"""Characters of a stream that are held back while it may still turn out to call a tool that is refused.

About what a model says before such a call ("Let me look that up."); a longer text is an answer.
"""


@dataclass(frozen=True, slots=True)
class Restriction:
    """The tools that a request carries, and which of them the role may call."""

    tools: Sequence[Any]
    tool_choice: Any
    permitted: tuple[str, ...] | None = None
    """Tools the role may call; None leaves that to the application."""
    allowed: tuple[str, ...] | None = None
    """Tools to restrict the model to by ``tool_choice``; None for no such list."""
    closing: str = ""
    """Text behind the turn's own messages; empty for none."""

    def refusal(self, result: CreateResult, role: str) -> list[LLMMessage] | None:
        """If an answer calls tools that the role may not use, the calls with error results to send back; else None."""
        calls = [] if isinstance(result.content, str) else result.content
        called = {call.name for call in calls}
        # What no tool is called, AutoGen answers as without us, but where no tool is to be called at all.
        others = set(map(name_of, self.tools)) - set(self.permitted) if self.permitted else called
        if self.permitted is None or not called & others:
            return None
        listed = ", ".join(self.permitted) or "none"
        errors = [
            FunctionExecutionResult(
                content=NOT_RUN.format(call.name, role, listed),
                name=call.name,
                call_id=call.id,
                is_error=True,
            )
            for call in calls
        ]
        return [
            AssistantMessage(content=calls, source=role or "assistant"),
            FunctionExecutionResultMessage(content=errors),
        ]

    def without_refused(self, result: CreateResult, said: str) -> CreateResult:
        """An answer whose text ``said`` is out already, without the calls that the role may not make."""
        kept = [call for call in result.content if not isinstance(call, str) and call.name in (self.permitted or ())]
        if kept:
            return result.model_copy(update={"content": kept})
        return result.model_copy(update={"content": result.thought or said, "thought": None, "finish_reason": "stop"})


class Held:
    """The beginning of an answer's pieces, held back where a call of the answer may be refused and asked again."""

    def __init__(self, restriction: Restriction | None) -> None:
        self.passed = (
            restriction is None
            or restriction.permitted is None
            or restriction.allowed is not None
            or restriction.tool_choice == "none"
        )
        """Whether pieces go out as they come: at once where the provider keeps the role to its tools."""
        self._pieces: list[str] = []

    @property
    def said(self) -> str:
        """All pieces so far."""
        return "".join(self._pieces)

    def taken(self, piece: str) -> list[str]:
        """The pieces that go out with this one."""
        self._pieces.append(piece)
        if self.passed:
            return [piece]
        self.passed = len(self.said) > HELD
        return list(self._pieces) if self.passed else []

    def rest(self) -> list[str]:
        """The pieces that are still held back when the answer has turned out to be one."""
        return [] if self.passed else list(self._pieces)


def frozen_schema(tool: Tool | ToolSchema) -> dict[str, Any]:
    """A copy of a tool's schema that later changes to the tool do not reach."""
    return copy.deepcopy(dict(schema_of(tool)))


def rendered(tool: Any) -> Mapping[str, Any]:
    """The schema of what may be given to the session as a tool: AutoGen's own, a schema, or a plain function."""
    if isinstance(tool, Mapping):
        return tool
    if isinstance(tool, Tool):
        return frozen_schema(tool)
    if not callable(tool):
        raise SetupError(
            f"SharedPrefix(tools=...) holds a {type(tool).__name__}: on AutoGen give tool dicts, AutoGen's own tools "
            "or functions"
        )
    return FunctionTool(tool, description=inspect.getdoc(tool) or "").schema


def shared_schema(tool: SharedTool) -> Any:
    """A tool of the union in AutoGen's form, whatever form it was given in."""
    native = tool.native
    if isinstance(native, Tool):
        return schema_of(native)
    inner = native.get("function", native) if isinstance(native, Mapping) else None
    # AutoGen reads no other name for the parameters, and would leave them out.
    return inner if isinstance(inner, Mapping) and "input_schema" not in inner else loads(tool.schema)


def put_back(given: Request, own: Sequence[Tool | ToolSchema]) -> Sequence[Tool | ToolSchema]:
    """Those of a role's tools that may stand in a request which the application makes without any."""
    # A provider's rule (OpenAI's SDK): an answer that follows a class is parsed, which takes strict tools alone.
    parsed = isinstance(given.json_output, type) and not all(schema_of(tool).get("strict") for tool in own)
    return () if parsed and not given.tools else own


def own_tools(given: Request, own: Sequence[Tool | ToolSchema], carried: Carried) -> OwnTools:
    """A role's tools, as the planner takes them.

    ``own`` are the role's tools where the request leaves them out, as AutoGen's reflection does; ``carried`` are those
    of the union that the role's lane carries.
    """
    names = tuple(name_of(tool) for tool in own)
    calls = given.tool_choice != "none" and bool(given.tools or not own)
    # Provider's rule: under a response schema or a forced tool nothing that others wrote is read, so own tools do.
    return OwnTools(names, carried=names if set_apart(given) else carried, calls=calls)


def set_apart(given: Request) -> tuple[Reason, ...]:
    """Why this request can read no cache of the other roles': a response schema or a forced tool; empty otherwise."""
    if isinstance(given.json_output, type):
        return (reason("response_schema"),)
    return (reason("forced_tool"),) if _forced(given) else ()


def _forced(given: Request) -> bool:
    """Whether the application forces the model to call a tool."""
    return given.tool_choice not in ("auto", "none")


def restricted(
    session: AdapterSession, plan: RequestPlan[Any], given: Request, own: Sequence[Tool | ToolSchema], role: str
) -> Restriction:
    """The tools of the plan in AutoGen's form, and how the role is kept from calling other roles' tools."""
    names = set() if plan.tools is None or set_apart(given) else set(plan.tools.tools)
    if not names and (given.tools or not own or _forced(given)):
        return Restriction(given.tools, given.tool_choice)
    if names:
        shared = [tool for tool in session.prefix.tools if tool.name in names]
        tools: list[Any] = [shared_schema(tool) for tool in shared]
        extra = [tool for tool in given.tools if name_of(tool) not in names]
        if extra:
            listed = ", ".join(sorted(name_of(tool) for tool in extra))
            session.note(f"tools outside the shared union were appended for role {role!r}: {listed}")
        tools += extra
    else:
        tools = [frozen_schema(tool) for tool in own]
    planned = plan.restriction
    if planned.permitted == ():
        # Provider's rule: where a change of ``tool_choice`` would invalidate the cached messages, it stays "auto" and
        # the text ``ANSWER`` asks for an answer without tools.
        keeps = planned.allowed is None
        return Restriction(tools, "auto" if keeps else "none", (), closing=ANSWER if keeps and own else "")
    return Restriction(tools, "auto", planned.permitted, planned.allowed)
