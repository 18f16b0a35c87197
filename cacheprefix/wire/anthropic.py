"""Anthropic messages, direct and through Vertex or Bedrock's InvokeModel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cacheprefix.prompt.canonical_json import loads
from cacheprefix.prompt.sections import Kind, Marker, Prompt, Section, Tier
from cacheprefix.wire.reader import (
    EMPTY,
    MARKER_FIELDS,
    Reader,
    Split,
    envelope,
    items,
    mapping,
    open_envelope,
    pop_marker,
    string,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTENT = frozenset({"model", "system", "messages", "tools", "cache_control"})

_HANDLED = frozenset({"role", "content", *MARKER_FIELDS})

_KINDS: dict[str, Kind] = {
    "tool_use": "tool_use",
    "server_tool_use": "tool_use",
    "tool_result": "tool_result",
    "thinking": "thinking",
    "redacted_thinking": "thinking",
    "image": "image",
}


def sections(body: Mapping[str, Any], reader: Reader) -> list[Section]:
    """The sections of a messages body in cache order."""
    made: list[Section] = []
    for index, tool in enumerate(items(body.get("tools") or [], "tools")):
        made += reader.unit("tools", f"tools[{index}]", tool, _split_tool)
    system = body.get("system")
    if isinstance(system, str):
        made += reader.unit("system", "system[0]", system, _split_system)
    else:
        for index, block in enumerate(items(system or [], "system")):
            made += reader.unit("system", f"system[{index}]", block, _split_system)
    messages = items(body.get("messages", []), "messages")
    row = reader.row(messages)
    for index in range(row.known, len(messages)):
        row.add(reader.unit("messages", f"messages[{index}]", messages[index], _split_message))
    return made + row.sections


def unit(body: Mapping[str, Any], field: str, number: int) -> tuple[Any, Split]:
    """The tool, system block or message that a path names, and how it is read."""
    if isinstance(body[field], str):
        return body[field], _split_system
    return body[field][number], {"tools": _split_tool, "system": _split_system, "messages": _split_message}[field]


def top_marker(body: Mapping[str, Any]) -> Marker | None:
    """The automatic breakpoint asked for at the top level."""
    _, marker = pop_marker({"cache_control": body.get("cache_control")}, "body")
    return marker


def _split_tool(reader: Reader, tier: Tier, path: str, value: Any) -> list[Section]:
    tool, marker = pop_marker(mapping(value, path), path)
    return [reader.json(tier, path, "tool", "tool", tool, marker)]


def _split_system(reader: Reader, tier: Tier, path: str, value: Any) -> list[Section]:
    return [_block(reader, tier, path, "system", value)]


def _split_message(reader: Reader, tier: Tier, path: str, value: Any) -> list[Section]:
    message = mapping(value, path)
    role = string(message.get("role"), f"{path}.role")
    head = envelope(role, **{name: value for name, value in message.items() if name not in _HANDLED})
    content = message.get("content")
    if isinstance(content, str):
        return [reader.text(tier, f"{path}.content", head, content)]
    made: list[Section] = []
    for index, block in enumerate(items(content, f"{path}.content")):
        made.append(_block(reader, tier, f"{path}.content[{index}]", "+" if made else head, block))
    return made or [reader.make(tier, path, "block", head, EMPTY)]


def _block(reader: Reader, tier: Tier, path: str, head: str, value: Any) -> Section:
    if isinstance(value, str):
        return reader.text(tier, path, head, value)
    block, marker = pop_marker(mapping(value, path), path)
    kind = str(block.get("type"))
    if kind == "text" and len(block) == 2 and isinstance(block.get("text"), str):
        return reader.text(tier, path, head, block["text"], marker)
    if kind == "tool_result":
        block, marker = _without_inner_markers(block, path, marker)
    return reader.json(tier, path, _KINDS.get(kind, "block"), head, block, marker)


def _without_inner_markers(
    block: Mapping[str, Any], path: str, marker: Marker | None
) -> tuple[Mapping[str, Any], Marker | None]:
    """A marker inside a tool result marks that result; the shape of its content stays as sent."""
    content = block.get("content")
    if isinstance(content, str) or not isinstance(content, list):
        return block, marker
    plain: list[Any] = []
    for index, inner in enumerate(content):
        if isinstance(inner, Mapping):
            stripped, found = pop_marker(inner, f"{path}.content[{index}]")
            plain.append(stripped)
            marker = marker or found
        else:
            plain.append(inner)
    return ({**block, "content": plain}, marker)


def body(prompt: Prompt) -> dict[str, Any]:
    """The canonical messages body of a prompt."""
    out: dict[str, Any] = {}
    tools = [with_marker(loads(tool.data), tool.marker) for tool in prompt.tier("tools")]
    if tools:
        out["tools"] = tools
    system = [_wire(block) for block in prompt.tier("system")]
    if system:
        out["system"] = system
    messages: list[dict[str, Any]] = []
    for section in prompt.tier("messages"):
        if section.head != "+":
            messages.append({**open_envelope(section.head), "content": []})
        if section.data != EMPTY or section.kind == "text":
            messages[-1]["content"].append(_wire(section))
    out["messages"] = [_short(message) for message in messages]
    if prompt.top_marker is not None:
        out = with_marker(out, prompt.top_marker)
    return out


def _wire(section: Section) -> dict[str, Any]:
    block = {"type": "text", "text": section.text} if section.kind == "text" else loads(section.data)
    return with_marker(block, section.marker)


def _short(message: dict[str, Any]) -> dict[str, Any]:
    blocks: Sequence[Mapping[str, Any]] = message["content"]
    if len(blocks) == 1 and set(blocks[0]) == {"type", "text"} and blocks[0]["type"] == "text":
        return {**message, "content": blocks[0]["text"]}
    return message


def with_marker(block: dict[str, Any], marker: Marker | None) -> dict[str, Any]:
    """The block with ``cache_control``, where a marker stood."""
    if marker is None:
        return block
    ttl = {} if marker.ttl is None else {"ttl": marker.ttl}
    return {**block, "cache_control": {"type": "ephemeral", **ttl}}
