"""Messages as tracing formats spell them, written as a chat-completions body has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cacheprefix.errors import BodyError, plain
from cacheprefix.prompt import dumps, loads

_ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "function": "tool"}
_LANGCHAIN = {
    "SystemMessage": "system",
    "HumanMessage": "user",
    "AIMessage": "assistant",
    "ToolMessage": "tool",
    "FunctionMessage": "tool",
}


def role_of(name: str) -> str:
    """The wire's word for a role."""
    return _ROLES.get(name, name)


def as_json(value: Any, path: str) -> Any:
    """The value, parsed where the format stores JSON as text."""
    if not isinstance(value, str):
        return value
    return loads(value, path)


def loaded(text: Any) -> Any:
    """JSON text as its value; None for anything else."""
    try:
        return loads(text) if isinstance(text, str) else None
    except BodyError:
        return None


def mapping(value: Any) -> Mapping[str, Any]:
    """An object as it is; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def first_of(value: Mapping[str, Any], *names: str) -> Any:
    """What stands under the first of the names that has anything."""
    for name in names:
        found = value.get(name)
        if found is not None:
            return found
    return None


def from_parts(message: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    """An OpenTelemetry message (role and parts) as one message, or several where it answers several tools."""
    role = message.get("role")
    if not isinstance(role, str):
        raise BodyError(f"{path}.role", f"expected a string, found {type(role).__name__}")
    parts = message.get("parts")
    if not isinstance(parts, list):
        return [{**message, "role": role_of(role)}]
    content: list[Any] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text":
            content.append({"type": "text", "text": _text(part.get("content"), f"{path}.parts")})
        elif kind == "tool_call":
            calls.append(tool_call(part.get("id"), part.get("name"), part.get("arguments"), path))
        elif kind == "tool_call_response":
            answer = part.get("response", part.get("result"))
            results.append({"role": "tool", "tool_call_id": part.get("id"), "content": _text(answer, f"{path}.parts")})
        else:
            content.append(part)
    made: list[dict[str, Any]] = []
    if content or calls or not results:
        held = content[0]["text"] if len(content) == 1 and _is_text(content[0]) else content or None
        one: dict[str, Any] = {"role": role_of(role), "content": held}
        if isinstance(message.get("name"), str):
            one["name"] = message["name"]
        made.append({**one, "tool_calls": calls} if calls else one)
    return made + results


def from_langchain(message: Any, path: str) -> dict[str, Any]:
    """A LangChain message, serialised or dumped, or one that has the wire's form already."""
    if isinstance(message, (list, tuple)) and len(message) == 2:
        return {"role": role_of(str(message[0])), "content": message[1]}
    if not isinstance(message, Mapping):
        raise BodyError(path, f"expected a message, found {type(message).__name__}")
    fields: Mapping[str, Any] = message
    name = message.get("type")
    if isinstance(message.get("kwargs"), Mapping):
        ids = message.get("id")
        name = ids[-1] if isinstance(ids, list) and ids else name
        fields = message["kwargs"]
    elif isinstance(message.get("data"), Mapping):
        fields = message["data"]
    role = fields.get("role")
    if not isinstance(role, str):
        known = _LANGCHAIN.get(str(name).removesuffix("Chunk"))
        role = known or role_of(str(fields.get("type") or name or ""))
        if role not in {"system", "developer", "user", "assistant", "tool"}:
            raise BodyError(path, f"a message of unknown role {role!r:.40}")
    made: dict[str, Any] = {"role": role_of(role), "content": fields.get("content")}
    if isinstance(fields.get("name"), str):
        made["name"] = fields["name"]
    if fields.get("tool_call_id") is not None:
        made["tool_call_id"] = fields["tool_call_id"]
    calls = fields.get("tool_calls") or mapping(fields.get("additional_kwargs")).get("tool_calls")
    if isinstance(calls, list) and calls:
        made["tool_calls"] = [_langchain_call(call, path) for call in calls]
    return made


def from_tracer(given: Sequence[Any], path: str) -> dict[str, Any]:
    """Messages as a tracer kept them, and the tools among them, as fields of a chat-completions body.

    Langfuse's callback for LangChain writes a tool's definition as the content of a message of the role ``tool``.
    """
    tools = [one["content"] for one in given if _is_definition(one)]
    messages = [from_langchain(one, f"{path}[{at}]") for at, one in enumerate(given) if not _is_definition(one)]
    return {**({"tools": tools} if tools else {}), "messages": messages}


def tool_call(identity: Any, name: Any, arguments: Any, path: str) -> dict[str, Any]:
    """A tool call as chat completions write it."""
    written = arguments if isinstance(arguments, str) else dumps(arguments, path).decode()
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": written}}


def as_tools(value: Any, path: str) -> list[Any]:
    """Tool definitions: given as they are, ``{type, name, description, parameters}`` put into its envelope."""
    if not isinstance(value, list):
        raise BodyError(path, f"expected a list of tools, found {type(value).__name__}")
    return [_as_tool(tool, path) for tool in value]


def first_text(values: Iterable[Any]) -> str:
    """The first non-empty string."""
    return plain(next((value for value in values if isinstance(value, str) and value), ""))


def _as_tool(value: Any, path: str) -> Any:
    tool = as_json(value, path)
    if isinstance(tool, Mapping) and tool.get("type") == "function" and "function" not in tool and "name" in tool:
        return {"type": "function", "function": {key: inner for key, inner in tool.items() if key != "type"}}
    return tool


def _is_definition(message: Any) -> bool:
    held = message.get("content") if isinstance(message, Mapping) and message.get("role") == "tool" else None
    return isinstance(held, Mapping) and "function" in held


def _langchain_call(call: Any, path: str) -> Any:
    if isinstance(call, Mapping) and "args" in call:
        return tool_call(call.get("id"), call.get("name"), call["args"], path)
    return call


def _is_text(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "text"


def _text(value: Any, path: str) -> str:
    return value if isinstance(value, str) else "" if value is None else dumps(value, path).decode()
