"""OpenAI responses: ``instructions`` and a list of input items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cacheprefix.prompt.canonical_json import loads
from cacheprefix.prompt.sections import Kind, Prompt, Section, Tier
from cacheprefix.wire.openai_chat import SYSTEM_ROLES, split_tool, with_marker
from cacheprefix.wire.reader import EMPTY, Reader, Split, envelope, items, mapping, open_envelope, pop_marker, string

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTENT = frozenset({"model", "instructions", "input", "tools"})

_TEXT_TYPES = ("input_text", "output_text", "text")
_ITEM_KINDS: dict[str, Kind] = {
    "function_call": "tool_use",
    "custom_tool_call": "tool_use",
    "function_call_output": "tool_result",
    "custom_tool_call_output": "tool_result",
    "reasoning": "thinking",
}
_INSTRUCTIONS = "instructions"


def sections(body: Mapping[str, Any], reader: Reader) -> list[Section]:
    """The sections of a responses body in cache order."""
    made: list[Section] = []
    for index, tool in enumerate(items(body.get("tools") or [], "tools")):
        made += reader.unit("tools", f"tools[{index}]", tool, split_tool)
    lead = 0
    instructions = body.get("instructions")
    if instructions is not None:
        made += reader.unit("system", "system[0]", instructions, _split_instructions)
        lead = 1
    given = body.get("input", [])
    if isinstance(given, str):
        made += reader.unit("messages", "messages[0]", {"role": "user", "content": given}, _split_item)
        return made
    given = items(given, "input")
    # Instructions count into the paths of the system items behind them.
    row, start = reader.row(given, kind="instructed" if lead else ""), 0
    for item in given:
        if not isinstance(item, Mapping) or item.get("role") not in SYSTEM_ROLES:
            break
        if start >= row.known:
            row.add(reader.unit("system", f"system[{lead + start}]", item, _split_item))
        start += 1
    for index in range(max(start, row.known), len(given)):
        row.add(reader.unit("messages", f"messages[{index}]", given[index], _split_item))
    return made + row.sections


def unit(body: Mapping[str, Any], field: str, number: int) -> tuple[Any, Split]:
    """The tool or item that a path names, and how it is read."""
    if field == "tools":
        return body["tools"][number], split_tool
    instructed = field == "system" and body.get("instructions") is not None
    if instructed and not number:
        return body["instructions"], _split_instructions
    return body["input"][number - instructed], _split_item


def _split_instructions(reader: Reader, tier: Tier, path: str, value: Any) -> list[Section]:
    return [reader.text(tier, path, _INSTRUCTIONS, string(value, "instructions"))]


def _split_item(reader: Reader, tier: Tier, path: str, value: Any) -> list[Section]:
    item, marker = pop_marker(mapping(value, path), path)
    kind = str(item.get("type", "message"))
    if kind != "message" or "role" not in item:
        return [reader.json(tier, path, _ITEM_KINDS.get(kind, "block"), "item", item, marker)]
    role = envelope(string(item.get("role"), f"{path}.role"))
    made: list[Section] = []
    content = item.get("content")
    if isinstance(content, str):
        where = path if tier == "system" else f"{path}.content"
        made.append(reader.text(tier, where, role, content, marker))
    else:
        for index, block in enumerate(items(content or [], f"{path}.content")):
            where = f"{path}.content[{index}]"
            plain, block_marker = pop_marker(mapping(block, where), where)
            head = "+" if made else role
            if plain.get("type") in _TEXT_TYPES and isinstance(plain.get("text"), str):
                made.append(reader.text(tier, where, head, plain["text"], block_marker))
            else:
                image: Kind = "image" if plain.get("type") == "input_image" else "block"
                made.append(reader.json(tier, where, image, head, plain, block_marker))
    return made or [reader.make(tier, path, "block", role, EMPTY)]


def body(prompt: Prompt) -> dict[str, Any]:
    """The canonical responses body of a prompt."""
    out: dict[str, Any] = {}
    tools = [with_marker(loads(tool.data), tool.marker) for tool in prompt.tier("tools")]
    if tools:
        out["tools"] = tools
    given: list[dict[str, Any]] = []
    group: list[Section] = []
    for section in (*prompt.tier("system"), *prompt.tier("messages")):
        if section.head == _INSTRUCTIONS:
            out["instructions"] = section.text
            continue
        if section.head != "+" and group:
            given.append(_item(group))
            group = []
        group.append(section)
    if group:
        given.append(_item(group))
    out["input"] = given
    return out


def _item(group: Sequence[Section]) -> dict[str, Any]:
    first = group[0]
    if first.head == "item":
        return with_marker(loads(first.data), first.marker)
    message = open_envelope(first.head)
    written = "output_text" if message["role"] == "assistant" else "input_text"
    blocks = [
        with_marker(
            {"type": written, "text": section.text} if section.kind == "text" else loads(section.data),
            section.marker,
        )
        for section in group
        if section.kind == "text" or section.data != EMPTY
    ]
    if len(blocks) == 1 and set(blocks[0]) == {"type", "text"}:
        return {**message, "content": blocks[0]["text"]}
    return {**message, "content": blocks}
