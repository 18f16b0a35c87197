"""Gemini generateContent; an explicit cache is named by ``cachedContent`` and kept as a setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cacheprefix.prompt.canonical_json import loads
from cacheprefix.prompt.sections import Kind, Prompt, Section, Tier
from cacheprefix.wire.reader import EMPTY, Reader, envelope, items, mapping, open_envelope

CONTENT = frozenset({"model", "contents", "systemInstruction", "system_instruction", "tools"})

_DECLARED = ("functionDeclarations", "function_declarations")

_KINDS: dict[str, Kind] = {
    "functionCall": "tool_use",
    "functionResponse": "tool_result",
    "inlineData": "image",
    "fileData": "image",
}


def sections(body: Mapping[str, Any], reader: Reader) -> list[Section]:
    """The sections of a generateContent body in cache order."""
    made: list[Section] = []
    for index, tool in enumerate(items(body.get("tools") or [], "tools")):
        made += reader.unit("tools", f"tools[{index}]", tool, _split_tool)
    system = body.get("systemInstruction", body.get("system_instruction"))
    if system is not None:
        made += reader.unit("system", "system", system, _split_system)
    given = body.get("contents", [])
    if isinstance(given, str):
        given = [{"role": "user", "parts": [{"text": given}]}]
    given = items(given, "contents")
    row = reader.row(given)
    for index in range(row.known, len(given)):
        row.add(reader.unit("messages", f"messages[{index}]", given[index], _split_content))
    return made + row.sections


def _split_tool(reader: Reader, tier: Tier, path: str, value: Any) -> list[Section]:
    """One section a function: Gemini declares all of them inside one tool."""
    tool = mapping(value, path)
    name = next(iter(tool), "")
    declared = tool.get(name) if name in _DECLARED and len(tool) == 1 else None
    if isinstance(declared, list) and declared and all(isinstance(one, Mapping) for one in declared):
        return [
            reader.json(tier, f"{path}.{name}[{index}]", "tool", "+" if index else name, one)
            for index, one in enumerate(declared)
        ]
    return [reader.json(tier, path, "tool", "tool", tool)]


def _split_system(reader: Reader, tier: Tier, path: str, value: Any) -> list[Section]:
    parts = [{"text": value}] if isinstance(value, str) else mapping(value, path).get("parts") or []
    return [_part(reader, tier, f"{path}[{index}]", "system", part) for index, part in enumerate(items(parts, path))]


def _split_content(reader: Reader, tier: Tier, path: str, value: Any) -> list[Section]:
    content = mapping(value, path)
    role = envelope(str(content.get("role") or "user"))
    made: list[Section] = []
    for index, part in enumerate(items(content.get("parts") or [], f"{path}.parts")):
        made.append(_part(reader, tier, f"{path}.content[{index}]", "+" if made else role, part))
    return made or [reader.make(tier, path, "block", role, EMPTY)]


def _part(reader: Reader, tier: Tier, path: str, head: str, value: Any) -> Section:
    part = mapping(value, path)
    if set(part) == {"text"} and isinstance(part["text"], str):
        return reader.text(tier, path, head, part["text"])
    if part.get("thought") is True:
        return reader.json(tier, path, "thinking", head, part)
    kind: Kind = next((known for name, known in _KINDS.items() if name in part), "block")
    return reader.json(tier, path, kind, head, part)


def body(prompt: Prompt) -> dict[str, Any]:
    """The canonical generateContent body of a prompt."""
    out: dict[str, Any] = {}
    tools: list[dict[str, Any]] = []
    for section in prompt.tier("tools"):
        tool = loads(section.data)
        if section.head == "+":
            next(iter(tools[-1].values())).append(tool)
        else:
            tools.append({section.head: [tool]} if section.head in _DECLARED else tool)
    if tools:
        out["tools"] = tools
    system = [_wire(section) for section in prompt.tier("system")]
    if system:
        out["systemInstruction"] = {"parts": system}
    contents: list[dict[str, Any]] = []
    for section in prompt.tier("messages"):
        if section.head != "+":
            contents.append({**open_envelope(section.head), "parts": []})
        if section.data != EMPTY or section.kind == "text":
            contents[-1]["parts"].append(_wire(section))
    out["contents"] = contents
    return out


def _wire(section: Section) -> dict[str, Any]:
    if section.kind == "text":
        return {"text": section.text}
    part: dict[str, Any] = loads(section.data)
    return part
