"""Amazon Bedrock Converse: cache points are blocks of their own behind what they cover."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cacheprefix.prompt.canonical_json import loads
from cacheprefix.prompt.sections import Kind, Marker, Prompt, Section, Tier
from cacheprefix.wire.reader import EMPTY, Reader, envelope, items, mapping, open_envelope, string

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENT = frozenset({"model", "modelId", "system", "messages", "toolConfig"})
TOOL_CHOICE = "toolChoice"

_KINDS: dict[str, Kind] = {
    "toolUse": "tool_use",
    "toolResult": "tool_result",
    "reasoningContent": "thinking",
    "image": "image",
}


def sections(body: Mapping[str, Any], reader: Reader) -> list[Section]:
    """The sections of a Converse body in cache order."""
    config = mapping(body.get("toolConfig") or {}, "toolConfig")
    made = list(_points(reader, "tools", "tools", config.get("tools") or [], "tool"))
    made += _points(reader, "system", "system", body.get("system") or [], "system")
    messages = items(body.get("messages", []), "messages")
    row = reader.row(messages)
    for index in range(row.known, len(messages)):
        row.add(reader.unit("messages", f"messages[{index}]", messages[index], _split_message))
    return made + row.sections


def tool_choice(body: Mapping[str, Any]) -> Any:
    """The tool choice, which Bedrock keeps inside ``toolConfig``."""
    config = body.get("toolConfig")
    return config.get(TOOL_CHOICE) if isinstance(config, Mapping) else None


def _split_message(reader: Reader, tier: Tier, path: str, value: Any) -> list[Section]:
    message = mapping(value, path)
    role = envelope(string(message.get("role"), f"{path}.role"))
    made = list(_points(reader, tier, f"{path}.content", message.get("content") or [], role))
    return made or [reader.make(tier, path, "block", role, EMPTY)]


def _points(reader: Reader, tier: Tier, path: str, value: Any, head: str) -> Iterator[Section]:
    """Blocks as sections; a cache point becomes the marker of the block before it."""
    blocks = items(value, path)
    first = True
    for index, item in enumerate(blocks):
        where = f"{path}[{index}]"
        block = mapping(item, where)
        if "cachePoint" in block:
            continue
        following = blocks[index + 1] if index + 1 < len(blocks) else None
        marker = None
        if isinstance(following, Mapping) and "cachePoint" in following:
            ttl = mapping(following["cachePoint"], f"{path}[{index + 1}].cachePoint").get("ttl")
            marker = Marker(None if ttl is None else string(ttl, f"{path}[{index + 1}].cachePoint.ttl"))
        envelope = head if first or tier != "messages" else "+"
        first = False
        if set(block) == {"text"} and isinstance(block["text"], str):
            yield reader.text(tier, where, envelope, block["text"], marker)
        else:
            name = next(iter(block), "")
            kind: Kind = "tool" if tier == "tools" else _KINDS.get(name, "block")
            yield reader.json(tier, where, kind, envelope, block, marker)


def body(prompt: Prompt) -> dict[str, Any]:
    """The canonical Converse body of a prompt."""
    out: dict[str, Any] = {}
    tools = [block for section in prompt.tier("tools") for block in _wire(section)]
    if tools:
        out["toolConfig"] = {"tools": tools}
    system = [block for section in prompt.tier("system") for block in _wire(section)]
    if system:
        out["system"] = system
    messages: list[dict[str, Any]] = []
    for section in prompt.tier("messages"):
        if section.head != "+":
            messages.append({**open_envelope(section.head), "content": []})
        if section.data != EMPTY or section.kind == "text":
            messages[-1]["content"].extend(_wire(section))
    out["messages"] = messages
    return out


def _wire(section: Section) -> Iterator[dict[str, Any]]:
    yield {"text": section.text} if section.kind == "text" else loads(section.data)
    if section.marker is not None:
        ttl = {} if section.marker.ttl is None else {"ttl": section.marker.ttl}
        yield {"cachePoint": {"type": "default", **ttl}}
