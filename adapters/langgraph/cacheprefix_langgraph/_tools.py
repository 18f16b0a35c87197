"""Tools as neutral schemas, and their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.utils.function_calling import convert_to_openai_tool

from cacheprefix import Session


def render(tool: Any) -> Mapping[str, Any]:
    """A LangChain tool, function or schema class as ``{"name", "description", "parameters"}``."""
    function: Mapping[str, Any] = convert_to_openai_tool(tool)["function"]
    return function


def adopt(session: Session, tools: Sequence[Any]) -> None:
    """Put a role's tools into the union; a binding that has one of the provider's own stays what it is."""
    own = [name_of(tool) for tool in tools if _by_provider(tool)]
    if not own:
        session.adopt_tools(tools, render)
        return
    session.note(
        f"tools that the provider runs ({', '.join(sorted(own))}) are in no union: roles that bind the very same tools "
        "share, others do not"
    )


def _by_provider(tool: Any) -> bool:
    """Whether a tool is only a type, which a role that has not bound it must not get."""
    return isinstance(tool, Mapping) and "type" in tool and not ("function" in tool or "name" in tool)


def name_of(tool: Any) -> str:
    """The name of a tool in any of the forms that reach a model: object, OpenAI's or Anthropic's dict."""
    if isinstance(tool, Mapping):
        inner = tool.get("function")
        found = inner.get("name") if isinstance(inner, Mapping) else tool.get("name")
        return str(found or tool.get("type") or "")
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", ""))
