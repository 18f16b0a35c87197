"""Tools of the shared union: their frozen declarations, and stand-ins that refuse calls of other roles' tools."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Collection, Mapping, Sequence
from types import FunctionType
from typing import Any

from agent_framework import Agent, FunctionTool

from cacheprefix.adapter import AdapterSession, ByObject, RequestPlan, Tool, ToolSource, loads, names_known_to
from cacheprefix.errors import ToolClashError
from cacheprefix_maf.member import Member


class Refusing(FunctionTool):
    """Stands for another role's tool in a role's tool loop: it answers a call with the tools that the role may use."""

    said: str = ""

    def refuse(self, **_: Any) -> str:
        """Give the refusal, where ``PrefixFunctionMiddleware`` has not given it already."""
        return self.said


def plain(tool: Any) -> bool:
    """Whether a tool is a function of the application's, and not one that the provider defines."""
    return isinstance(tool, FunctionTool) and not tool.kind


def own_of(tools: Any) -> list[Any]:
    """The agent's own tools: all but our stand-ins."""
    return [tool for tool in tools or () if not isinstance(tool, Refusing)]


def runner_of(tool: Any) -> Any:
    """The agent behind a tool that the framework's ``as_tool`` made; None for any other tool."""
    function = getattr(tool, "func", None)
    if not isinstance(function, FunctionType) or function.__module__ != Agent.as_tool.__module__:
        return None
    found = names_known_to(function).get("self")
    return found if isinstance(found, Agent) else None


def made(member: Member, tools: Sequence[Any], text: str) -> None:
    """Note what an agent is made of: its tools, and what its instructions say."""
    member.session.makes(("agent", member.role), text, [_schema(tool) for tool in tools if plain(tool)])


_TOLD = "maf.tools"
"""In a session's ``beside``: by name, the tools of the union, held weakly, and how they were described."""


def adopt(member: Member, tools: Sequence[Any], *, of_run: bool = False) -> None:
    """Put an agent's tools into the union; where one clashes the agent keeps all its own tools, with a note.

    ``of_run`` says that a request brings them: the agent may be made for one user.
    """
    session = member.session
    try:
        if tools or session.prefix.tools:
            schemas = [_schema(tool) for tool in tools if plain(tool)]
            source = ToolSource(of_run=of_run)
            session.adopt_tools(schemas, lambda schema: schema, grows=True, scope=member.scope, source=source)
            told = session.beside.setdefault(_TOLD, {})
            told |= {tool.name: (weakref.ref(tool), tool.description) for tool in tools if plain(tool)}
    except ToolClashError as error:
        member.differing = (error.name,)
        session.note(f"agent {member.role!r} keeps its own tools, which others share no cache with: {error}")


def differing(session: AdapterSession, tools: Sequence[Any]) -> tuple[str, ...]:
    """Names of the tools that are not what the union has of their names: of this run, or told anew since."""
    own = {tool.name: tool for tool in tools if plain(tool)}
    return tuple(tool.name for tool in session.prefix.among(own) if loads(tool.schema) != _schema(own[tool.name]))


_SCHEMAS: ByObject[FunctionTool, dict[str, Any]] = ByObject()


def _schema(tool: FunctionTool) -> dict[str, Any]:
    """A copy of a tool's schema from when it was first seen so: OpenAI's responses client changes the tool's own."""
    known = _SCHEMAS.get(tool)
    # Privacy: the application may tell it anew for each user.
    if known is None or (known["name"], known["description"]) != (tool.name, tool.description):
        parameters = copy.deepcopy(tool.parameters())
        _SCHEMAS[tool] = known = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return known


def part_told_anew(session: AdapterSession) -> None:
    """Keep the union's tools in their own conversations, where the application has told one of them anew.

    Privacy: it may tell it for each user, and others' requests carry what the last one was told.
    """
    told = session.beside.get(_TOLD, {})
    for name, (held, said) in list(told.items()):
        tool = held()
        if tool is None or tool.description != said:
            told.pop(name, None)
        if tool is not None and tool.description != said:
            session.makes(("tool", name), None)


def declared(name: str, schema: bytes) -> FunctionTool:
    """A tool as it was frozen, without its function; a new one each time, since clients write into it."""
    known: Mapping[str, Any] = loads(schema)
    return FunctionTool(name=name, description=str(known["description"]), input_model=dict(known["parameters"]))


def carried(session: AdapterSession, own: Sequence[Any], plan: RequestPlan[Any], *, free: bool) -> dict[str, Any]:
    """The options that give a request the tools which its plan has it carry.

    ``free`` says that the application leaves the choice of a tool to the model.
    """
    if plan.tools is None or plan.tools.name:
        return {"tools": list(own)} if own else {}
    names = set(plan.tools.tools)
    union = [tool for tool in session.prefix.tools if isinstance(tool, Tool) and tool.name in names]
    listed = [*(declared(tool.name, tool.schema) for tool in union), *(tool for tool in own if tool.name not in names)]
    if not listed:
        return {}
    # Provider's rule: another ``tool_choice`` than the other roles' would invalidate their cached messages, so a
    # role without tools of its own says the same.
    said = plan.restriction.said is not None and free and not own
    return {"tools": listed, **({"tool_choice": "auto"} if said else {})}


def refuse_called(member: Member, options: Any, names: Collection[str], called: Collection[str]) -> None:
    """Put stand-ins for others' tools that an answer calls into the run's own list: they are answered and not lost.

    ``names`` are those of the shared tools that the request carried. For tools that are not called nothing is put in:
    the application's middlewares see that list.
    """
    if not isinstance(options, dict):
        return
    given = list(options.get("tools") or ())
    bound = {getattr(tool, "name", "") for tool in own_of(given)}
    listed = ", ".join(sorted(bound)) or "none"
    others = []
    for tool in member.session.prefix.among(set(called).intersection(names).difference(bound)):
        known = declared(tool.name, tool.schema)
        stand_in = Refusing(name=known.name, description=known.description, input_model=known.parameters())
        stand_in.said = f"{tool.name!r} was not run: tools available to the role {member.role!r} are: {listed}."
        stand_in.func = stand_in.refuse
        others.append(stand_in)
    if others:
        options["tools"] = [*given, *others]
