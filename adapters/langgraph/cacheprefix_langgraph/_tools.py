"""Tools as neutral schemas, and their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.utils.function_calling import convert_to_openai_tool

from cacheprefix import Session
from cacheprefix.errors import SetupError, ToolClashError


def render(tool: Any) -> Mapping[str, Any]:
    """A LangChain tool, function or schema class as ``{"name", "description", "parameters"}``."""
    function: Mapping[str, Any] | None = convert_to_openai_tool(tool).get("function")
    if function is None:
        message = f"tool {name_of(tool)!r} is no function, and cannot be shared; bind it where it is used"
        raise SetupError(message)
    return function


def adopt(session: Session, tools: Sequence[Any]) -> None:
    """Put a role's tools into the union; a binding that has one of the provider's own stays what it is."""
    own = [name_of(tool) for tool in tools if _by_provider(tool)]
    if own:
        session.note(
            f"tools that the provider runs ({', '.join(sorted(own))}) are in no union: roles that bind the very same "
            "tools share, others do not"
        )
        return
    for tool in tools:
        # A bare schema has its name inside; OpenAI's custom tools take free text, and only their role has them.
        shown = convert_to_openai_tool(tool)
        if "function" in shown:
            _adopt(session, shown if isinstance(tool, Mapping) else tool)


def _adopt(session: Session, tool: Any) -> None:
    try:
        session.adopt_tools([tool], render)
    except ToolClashError as error:
        session.note(f"{error}; roles that bind another one keep their own tools")


def _by_provider(tool: Any) -> bool:
    """Whether a tool is only a type, which a role that has not bound it must not get."""
    # A JSON schema is of type object.
    return isinstance(tool, Mapping) and tool.get("type", "object") != "object" and not {"function", "name"} & set(tool)


def name_of(tool: Any) -> str:
    """The name of a tool in any of the forms that reach a model: object, OpenAI's or Anthropic's dict."""
    if isinstance(tool, Mapping):
        inner = tool.get("function")
        found = inner.get("name") if isinstance(inner, Mapping) else tool.get("name")
        return str(found or tool.get("type") or "")
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", ""))
