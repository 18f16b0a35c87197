"""Tools as neutral schemas, and their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.utils.function_calling import convert_to_openai_tool


def render(tool: Any) -> Mapping[str, Any]:
    """A LangChain tool, function or schema class as ``{"name", "description", "parameters"}``."""
    function: Mapping[str, Any] = convert_to_openai_tool(tool)["function"]
    return function


def name_of(tool: Any) -> str:
    """The name of a tool in any of the forms that reach a model: object, OpenAI's or Anthropic's dict."""
    if isinstance(tool, Mapping):
        inner = tool.get("function")
        found = inner.get("name") if isinstance(inner, Mapping) else tool.get("name")
        return str(found or tool.get("type") or "")
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", ""))
