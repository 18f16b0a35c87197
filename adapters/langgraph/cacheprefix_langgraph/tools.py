"""The team's tools as neutral schemas, the shared array of them, and how a role is restricted to its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakSet, ref

from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from cacheprefix.adapter import AdapterSession, Tool, ToolSet, ToolSource, loads, names_in
from cacheprefix.errors import SetupError, ToolClashError
from cacheprefix_langgraph.converse import CONFIG, is_point, system_tool
from cacheprefix_langgraph.fork_context import Frame, running_scope, runs
from cacheprefix_langgraph.request_bodies import base_of, model_name, shows_body
from cacheprefix_langgraph.unwrapped import binds_tools, models_named
from cacheprefix_langgraph.views import CALLS


def render(tool: Any) -> Mapping[str, Any]:
    """A LangChain tool, function or schema class as ``{"name", "description", "parameters"}``."""
    function: Mapping[str, Any] | None = convert_to_openai_tool(tool).get("function")
    if function is None:
        raise SetupError(f"tool {name_of(tool)!r} is no function, and cannot be shared; bind it where it is used")
    return function


def made_with(session: AdapterSession, door: str, role: str, tools: Sequence[Any], text: str = "") -> None:
    """Note what a role is made with at one of our front doors: tools and a text of its own."""
    if not runs():
        session.makes((door, role), text, map(convert_to_openai_tool, tools))


def adopt(session: AdapterSession, tools: Sequence[Any], *, of_code: bool = False) -> None:
    """Put a role's tools into the union; a binding that has one of the provider's own stays what it is.

    ``of_code`` says that they stand in the code of the application: all may be shown them, or all of the tenant whose
    run is under way.
    """
    own = [name_of(tool) for tool in tools if by_provider(tool)]
    if own:
        session.note(
            f"tools that the provider defines ({', '.join(sorted(own))}) are in no union: roles that bind the very "
            "same tools share, others do not"
        )
        return
    for tool in tools:
        if is_point(tool):
            continue  # no tool, but what the application marks with it
        # A bare schema has its name inside; OpenAI's custom tools take free text, and only their role has them.
        shown = convert_to_openai_tool(tool)
        if "function" in shown:
            _adopt(session, shown if isinstance(tool, Mapping) else tool, of_code=of_code)


def _adopt(session: AdapterSession, tool: Any, *, of_code: bool) -> None:
    """Put one tool into the union; one whose name has another schema there stays out, with a note."""
    try:
        # What is bound while a run is under way may be made for its user.
        of_run = runs() and not of_code
        # What a provider is told beside a tool's schema is in no record.
        whole = not getattr(tool, "extras", None)
        source = ToolSource(of_run=of_run, of_code=of_code, recorded=whole, again=of_run)
        # Privacy: what a user's tool holds (a connection, what its function closes over) goes with the application's
        # own object; its schema says all that a provider is told.
        held = ref(tool) if whole and isinstance(tool, (BaseTool, FunctionType)) else tool
        session.adopt_tools([held], lambda _: render(tool), grows=True, scope=running_scope(), source=source)
    except ToolClashError as error:
        session.note(f"{error}; roles that bind another one keep their own tools")


def by_provider(tool: Any) -> bool:
    """Whether a tool is of a provider's own type, which a role that has not bound it must not get."""
    if isinstance(tool, str) or getattr(tool, "type", None) == "system_tool" or system_tool(tool):
        return True  # Amazon's for its Nova models: by name, as an object, and in a request
    if not isinstance(tool, Mapping) or {"function", "input_schema", "parameters", "properties"} & set(tool):
        return False
    # A JSON schema is of type object, or of several; OpenAI's custom tools are the application's.
    kind = tool.get("type", "object")
    return isinstance(kind, str) and kind not in ("function", "custom", "object")


def name_of(tool: Any) -> str:
    """The name of a tool in any of the forms that reach a model: object, OpenAI's or Anthropic's dict."""
    if isinstance(tool, str):
        return tool
    if isinstance(tool, Mapping):
        inner = tool.get("function") or system_tool(tool)
        found = inner.get("name") if isinstance(inner, Mapping) else tool.get("name")
        return str(found or tool.get("type") or "")
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", ""))


def names_given(tools: Sequence[Any] | None) -> tuple[str, ...] | None:
    """The names of the tools that a role may use, given by name or as they are. Raises ``SetupError`` for all else."""
    if tools is None:
        return None
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        return names_in("tools", tools)
    given = tuple(tools)
    for tool in given:
        if not name_of(tool):
            raise SetupError(f"tools takes tools or their names, found {type(tool).__name__}")
    return tuple(map(name_of, given))


def usable(
    session: AdapterSession, role: str, allowed: tuple[str, ...] | None, bound: Sequence[str]
) -> tuple[str, ...] | None:
    """Those tools that a role may use which there are; None where it may use all of ``bound``, what it binds.

    A name that no tool has is warned about, once a role, and sent to nobody.
    """
    if not allowed:
        return allowed
    known = {*bound, *session.prefix.tool_names}
    strange = [name for name in allowed if name not in known]
    if not strange:
        return allowed
    left = tuple(name for name in allowed if name in known)
    done = "only the others are allowed" if left else "it may use all of them"
    session.warn_once(f"tools {role}", f"{_unnamed(role, strange, bound)}; {done} until the names are right")
    # A restriction that nothing answers to would take all its tools away, which nobody has asked for.
    return left or None


def names_bound(node: Any) -> list[str]:
    """The names of the tools that are bound to the models which a node's code names; none where it binds others too."""
    if binds_tools(node):
        return []
    return [name_of(tool) for _, options in models_named(node, node) for tool in options.get("tools") or ()]


def check_names(role: str, allowed: tuple[str, ...] | None, known: Sequence[str]) -> None:
    """Raise ``SetupError`` for a name that none of the ``known`` tools of an agent has; not where none is known."""
    strange = [name for name in allowed or () if name not in known]
    if known and strange:
        raise SetupError(_unnamed(role, strange, known))


def _unnamed(role: str, strange: Sequence[str], known: Sequence[str]) -> str:
    names = ", ".join(map(repr, strange))
    return f"tools= of the role {role!r} names {names}; " + (
        f"its tools are {', '.join(sorted(known))}" if known else "its request has no tools"
    )


_LIMIT = "parallel_tool_calls"
CHOSEN = ("tools", "tool_choice", _LIMIT)
"""Options of a call that sharing the array of tools may change."""


_KEEPING: WeakSet[type[Any]] = WeakSet()
"""Classes whose ``bind_tools`` was seen to keep the tools to itself, and to give back whatever it likes."""


def learn(kind: type[Any], bound: Any) -> None:
    """Remember of a class whether what its ``bind_tools`` gave to the application shows the tools."""
    kwargs = getattr(bound, "kwargs", None) or {}
    # Beside tools that the provider defines, Bedrock's shows them elsewhere.
    if not isinstance(kwargs.get("tools"), list) and not kwargs.get(CONFIG):
        _KEEPING.add(kind)


def keeps_tools(kind: type[Any]) -> bool:
    """Whether what is bound to models of a class does not show."""
    return kind in _KEEPING


class Union(NamedTuple):
    """The shared tools in a model's own wire form."""

    tools: Sequence[Any] | None
    """None where the class binds no tools."""
    differ: tuple[str, ...] = ()
    """Names of those that the role binds with another schema, so that it keeps its own array."""


def union_of(model: Any, kwargs: Mapping[str, Any], frame: Frame) -> Union:
    """The union for a call of the model.

    A tool that the role bound as ``strict`` stays so: a looser schema would change its answers.
    """
    kind = base_of(model)
    if keeps_tools(kind):
        # Asking once more would show nothing either, and a model of the application's own may count.
        return Union(None)
    own = {name_of(tool): tool for tool in kwargs.get("tools") or []}
    prefix, state = frame.session.prefix, frame.state
    # Those of other conversations would be written anew with each call, thousands in a process of many users.
    shared = () if state is None else frame.session.reachable(state)
    tools = prefix.tools if state is None else prefix.among({*own, *(tool.name for tool in shared)})
    try:
        bound = kind.bind_tools(model, [*map(_native, tools)])
    except NotImplementedError:
        return Union(None)
    except Exception as error:
        # A class of the application's may take objects alone; of a tool that is gone there is but a schema.
        frame.session.note(
            f"{kind.__name__}.bind_tools does not take the team's tools ({type(error).__name__}): roles keep theirs; "
            "give all tools to SharedPrefix(tools=[...]), which keeps them as they are"
        )
        return Union(None)
    found = (getattr(bound, "kwargs", None) or {}).get("tools")
    if not isinstance(found, list):
        return Union(None)
    formatted = list(found)
    strict = {name: tool for name, tool in own.items() if _strict(tool)}
    differ = tuple(name_of(tool) for tool in formatted if _differs(own.get(name_of(tool), tool), tool))
    return Union([strict.get(name_of(tool), tool) for tool in formatted] if strict else formatted, differ)


def _native(tool: Tool) -> Any:
    """A tool of the union for LangChain: as the application made it, or its schema where that is gone."""
    made = tool.native() if isinstance(tool.native, ref) else tool.native
    return {"type": "function", "function": loads(tool.schema)} if made is None else made


def with_union(kwargs: dict[str, Any], union: Union, frame: Frame, tools: ToolSet | None = None) -> dict[str, Any]:
    """The tools of a role's tool set (without one, the whole union) in place of its own; what is in no union stays."""
    kept = [tool for tool in union.tools or () if tools is None or name_of(tool) in tools.tools]
    if union.differ or not kept:
        return kwargs
    known = set(frame.session.prefix.tool_names)
    extra = [tool for tool in kwargs.get("tools") or [] if name_of(tool) not in known]
    return {**kwargs, "tools": [*kept, *extra]}


def _differs(own: Any, shared: Any) -> bool:
    """Whether a role's tool is another one than the union's of its name, in the model's own wire form."""
    if not (isinstance(own, Mapping) and isinstance(shared, Mapping)):
        return False
    # Strict schemas word their parameters otherwise.
    return _description(own) != _description(shared) if _strict(own) else bool(_bare(own) != _bare(shared))


def _description(tool: Mapping[str, Any]) -> Any:
    """What a tool is said to do, in any of the forms that reach a model."""
    inner = tool.get("function")
    return (inner if isinstance(inner, Mapping) else tool).get("description")


def _bare(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool without what does not change its meaning."""
    return {name: value for name, value in tool.items() if name not in ("cache_control", "strict")}


def _strict(tool: Any) -> bool:
    """Whether a tool was bound as ``strict``."""
    if not isinstance(tool, Mapping):
        return False
    inner = tool.get("function")
    return bool(tool.get("strict") or (isinstance(inner, Mapping) and inner.get("strict")))


def one_call(model: Any, kwargs: Mapping[str, Any], frame: Frame) -> bool:
    """Whether the role's limit of one tool call would part it from the others, and can be kept without the provider.

    Supervisors bind ``parallel_tool_calls=False`` and their workers do not: on OpenAI that is another lane, on
    Anthropic it becomes a tool_choice that invalidates the messages. Then the answer is cut to its first call.
    """
    session = frame.session
    if session.alone or not session.prefix.tools or not shows_body(base_of(model)):
        return False
    settings = session.profile(model_name(model)).settings
    if kwargs.get(_LIMIT) is False:
        return settings.get(_LIMIT, "none") != "none"
    choice = kwargs.get("tool_choice")
    limited = isinstance(choice, Mapping) and choice.get("disable_parallel_tool_use") and choice.get("type") == "auto"
    return bool(limited) and settings.get("tool_choice", "none") != "none"


def without_limit(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without the limit of one tool call."""
    left = {name: value for name, value in kwargs.items() if name != _LIMIT}
    choice = left.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("disable_parallel_tool_use"):
        del left["tool_choice"]
    return left


def first_call_only(message: Any) -> Any:
    """The answer with its first tool call; the very same object where there is no second one."""
    if not isinstance(message, AIMessage) or len(message.tool_calls) < 2:
        return message
    seen = False
    content: Any = message.content
    if isinstance(content, list):
        kept = []
        for block in content:
            calls = isinstance(block, Mapping) and block.get("type") in CALLS
            if not (calls and seen):
                kept.append(block)
            seen = seen or calls
        content = kept
    more = dict(message.additional_kwargs)
    if isinstance(more.get("tool_calls"), list):
        more["tool_calls"] = more["tool_calls"][:1]
    return message.model_copy(
        update={"content": content, "tool_calls": message.tool_calls[:1], "additional_kwargs": more}
    )
