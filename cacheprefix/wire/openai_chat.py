"""OpenAI chat completions, and the many servers that speak it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cacheprefix.errors import named
from cacheprefix.prompt.canonical_json import loads
from cacheprefix.prompt.sections import Kind, Marker, Prompt, Section, Tier
from cacheprefix.wire.reader import Reader, Split, envelope, items, mapping, open_envelope, pop_marker, string

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CONTENT = frozenset({"model", "messages", "tools", "functions"})
# A tuple: what stands as a role in a body may be anything, also what has no hash.
SYSTEM_ROLES = ("system", "developer")

_ENVELOPE = ("role", "name", "tool_call_id")
_PLAIN = frozenset({*_ENVELOPE, "content"})
_HANDLED = frozenset({*_ENVELOPE, "content", "tool_calls"})
_KINDS: dict[str, Kind] = {"image_url": "image", "input_image": "image"}


def sections(body: Mapping[str, Any], reader: Reader) -> list[Section]:
    """The sections of a chat-completions body in cache order."""
    made: list[Section] = []
    for name in ("tools", "functions"):
        for index, tool in enumerate(items(body.get(name) or [], name)):
            made += reader.unit("tools", f"{name}[{index}]", tool, split_tool)
    messages = items(body.get("messages", []), "messages")
    row = reader.row(messages, _PLAIN)
    lead = 0
    for message in messages:
        if not isinstance(message, Mapping) or message.get("role") not in SYSTEM_ROLES:
            break
        if lead >= row.known:
            row.add(reader.unit("system", f"system[{lead}]", message, split_message))
        lead += 1
    for index in range(max(lead, row.known), len(messages)):
        row.add(reader.unit("messages", f"messages[{index}]", messages[index], split_message))
    return made + row.sections


def unit(body: Mapping[str, Any], field: str, number: int) -> tuple[Any, Split]:
    """The tool or message that a path names, and how it is read."""
    if field in ("tools", "functions"):
        return body[field][number], split_tool
    return body["messages"][number], split_message


def split_tool(reader: Reader, tier: Tier, path: str, tool: Any) -> list[Section]:
    """A tool is one section: its JSON without cache markers, at either nesting level."""
    plain, marker = pop_marker(mapping(tool, path), path)
    function = plain.get("function")
    if isinstance(function, Mapping):
        inner, inner_marker = pop_marker(function, f"{path}.function")
        if inner is not function:
            plain, marker = {**plain, "function": inner}, marker or inner_marker
    return [reader.json(tier, path, "tool", "tool", plain, marker)]


def split_message(reader: Reader, tier: Tier, path: str, message: Any) -> list[Section]:
    """Reasoning and unknown fields, then content blocks, then tool calls, each a section."""
    fields, marker = pop_marker(mapping(message, path), path)
    role = string(fields.get("role"), f"{path}.role")
    head = envelope(role, **{name: fields.get(name) for name in _ENVELOPE[1:]})
    made: list[Section] = []

    def next_head() -> str:
        return "+" if made else head

    for name, value in fields.items():
        if name not in _HANDLED and value is not None:
            made.append(reader.json(tier, f"{path}.{named(name)}", "block", next_head(), {name: value}))
    calls = items(fields.get("tool_calls") or [], f"{path}.tool_calls")
    content = fields.get("content")
    if isinstance(content, str):
        if content or not (calls or made):
            where = path if tier == "system" else f"{path}.content"
            made.append(reader.text(tier, where, next_head(), content))
    elif content is not None:
        for index, block in enumerate(items(content, f"{path}.content")):
            where = f"{path}.content[{index}]"
            made.append(_block(reader, tier, where, next_head(), block))
    for index, call in enumerate(calls):
        plain = mapping(call, f"{path}.tool_calls[{index}]")
        made.append(reader.json(tier, f"{path}.tool_calls[{index}]", "tool_use", next_head(), plain))
    if not made:
        made.append(reader.json(tier, path, "block", head, {}))
    return _keep_marker(made, marker)


def _keep_marker(made: list[Section], marker: Marker | None) -> list[Section]:
    if marker is None or made[-1].marker is not None:
        return made
    last = made[-1]
    marked = Section(last.tier, last.path, last.kind, last.head, last.data, last.digest, last.tokens, marker)
    return [*made[:-1], marked]


def _block(reader: Reader, tier: Tier, path: str, head: str, value: Any) -> Section:
    if isinstance(value, str):
        return reader.text(tier, path, head, value)
    block, marker = pop_marker(mapping(value, path), path)
    if block.get("type") == "text" and len(block) == 2 and isinstance(block.get("text"), str):
        return reader.text(tier, path, head, block["text"], marker)
    return reader.json(tier, path, _KINDS.get(str(block.get("type")), "block"), head, block, marker)


def body(prompt: Prompt) -> dict[str, Any]:
    """The canonical chat-completions body of a prompt."""
    out: dict[str, Any] = {"messages": [message for _, message in messages_of(prompt)]}
    for group in ("tools", "functions"):
        tools = [
            with_marker(loads(section.data), section.marker)
            for section in prompt.tier("tools")
            if section.path.startswith(group)
        ]
        if tools:
            out[group] = tools
    return out


def messages_of(prompt: Prompt) -> Iterator[tuple[Tier, dict[str, Any]]]:
    """The messages that the sections describe, system first."""
    group: list[Section] = []
    for section in (*prompt.tier("system"), *prompt.tier("messages")):
        if section.head != "+" and group:
            yield group[0].tier, _message(group)
            group = []
        group.append(section)
    if group:
        yield group[0].tier, _message(group)


def _message(group: Sequence[Section]) -> dict[str, Any]:
    message = open_envelope(group[0].head)
    blocks: list[dict[str, Any]] = []
    calls: list[Any] = []
    for section in group:
        if section.kind == "tool_use":
            calls.append(loads(section.data))
        elif section.kind == "text":
            blocks.append(with_marker({"type": "text", "text": section.text}, section.marker))
        else:
            value = loads(section.data)
            if ".content[" in section.path:
                blocks.append(with_marker(value, section.marker))
            else:
                message.update(value)
    plain = len(blocks) == 1 and set(blocks[0]) == {"type", "text"} and blocks[0]["type"] == "text"
    # An empty string beside calls or other fields is no section, an empty text block is one.
    if plain and (blocks[0]["text"] or len(group) == 1):
        message["content"] = blocks[0]["text"]
    elif blocks:
        message["content"] = blocks
    elif calls:
        message["content"] = None
    if calls:
        message["tool_calls"] = calls
    last = group[-1]
    return message if last.kind == "text" or ".content[" in last.path else with_marker(message, last.marker)


def with_marker(block: dict[str, Any], marker: Marker | None) -> dict[str, Any]:
    """The block with OpenAI's explicit breakpoint, where one stood."""
    if marker is None:
        return block
    ttl = {} if marker.ttl is None else {"ttl": marker.ttl}
    return {**block, "prompt_cache_breakpoint": {"mode": "explicit", **ttl}}
