"""Amazon Bedrock Converse: cache points are blocks of their own behind what they cover.

What it refuses: docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Message.html and the exceptions
"A conversation must start with a user message", "must alternate between user and assistant roles", "The text field in
the ContentBlock object … is blank", "The number of toolResult blocks … exceeds the number of toolUse blocks of previous
turn", "The toolConfig field must be defined when using toolUse and toolResult content blocks", read 2026-11-22.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cacheprefix.prompt.canonical_json import loads
from cacheprefix.prompt.sections import Kind, Marker, Prompt, Section, Tier
from cacheprefix.wire.body_copy import BodyCopy
from cacheprefix.wire.messages import Found, Takes, as_list, listed, repeated
from cacheprefix.wire.reader import (
    EMPTY,
    Fields,
    Reader,
    envelope,
    items,
    mapping,
    string,
    ttl_field,
    written,
)

FIELDS = Fields(
    path=re.compile(r"/model/(?P<model>[^/]+)/converse(?:-stream)?$"),
    content=frozenset({"model", "modelId", "system", "messages", "toolConfig"}),
    history="messages",
    model="modelId",
    system="system",
    signs=("modelId", "toolConfig", "inferenceConfig"),
    inner={"toolChoice": "toolConfig"},
)
AHEAD = "messageStart"
"""The only field of the first event of a stream, which says nothing of the answer."""

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
    return made + reader.history(items(body.get("messages", []), "messages"), _split_message)


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
    out["messages"] = written(prompt.tier("messages"), "content", _wire)
    return out


def _wire(section: Section) -> Iterator[dict[str, Any]]:
    yield {"text": section.text} if section.kind == "text" else loads(section.data)
    if section.marker is not None:
        yield _point(section.marker.ttl)


def _point(ttl: str | None) -> dict[str, Any]:
    return {"cachePoint": {"type": "default", **ttl_field(ttl)}}


def carries(prompt: Prompt, section: Section) -> bool:
    """Amazon's Nova models cache system and messages and no tools (Bedrock's prompt caching page, read 2026-11-21)."""
    return section.tier != "tools" or "nova" not in prompt.model


def mark(copy: BodyCopy, section: Section, number: int, block: int, ttl: str | None) -> None:
    """Set a cache point behind a tool, a system block or a block of a message."""
    if section.tier == "tools":
        config = copy.body["toolConfig"] = dict(copy.body["toolConfig"])
        copy.items("tools", config).insert(number + 1, _point(ttl))
    elif section.tier == "system":
        copy.items("system").insert(number + 1, _point(ttl))
    else:
        message = copy.item(copy.items("messages"), number)
        copy.items("content", message).insert(block + 1, _point(ttl))


def with_last(history: Sequence[Any], text: str, role: str) -> list[Any]:  # noqa: ARG001 - as every API is asked
    """The messages with a text behind them: a block of the user's, who must alternate with the assistant."""
    last, block = history[-1] if history else {}, {"text": text}
    if last.get("role") != "user":
        return [*history, {"role": "user", "content": [block]}]
    return [*history[:-1], {**last, "content": [*(last.get("content") or ()), block]}]


def errors(body: Mapping[str, Any], takes: Takes) -> Found:
    """What the API would refuse a body for, in the order in which it stands."""
    for number, block in enumerate(as_list(body.get("system"))):
        yield from _not_blank(block, f"system[{number}]")
    messages = body.get("messages")
    if not listed(messages) or not messages:
        yield "messages", "expected a list of at least one message"
        return
    awaited: list[str] = []
    before, tools = "", False
    for at, message in enumerate(messages):
        path = f"messages[{at}]"
        role = str(message.get("role") if isinstance(message, Mapping) else None)
        if role not in ("user", "assistant"):
            yield f"{path}.role", f"expected user or assistant, found {role!r}"
            continue
        if not before and role != "user":
            yield path, "a conversation must start with a user message"
        if role == before:
            yield path, "a conversation must alternate between user and assistant roles"
        before = role
        blocks = as_list(message.get("content"))
        if not [block for block in blocks if not (isinstance(block, Mapping) and block.get("cachePoint"))]:
            yield f"{path}.content", "expected at least one content block"
        for number, block in enumerate(blocks):
            yield from _not_blank(block, f"{path}.content[{number}]")
        answered = [str(block["toolResult"].get("toolUseId")) for block in blocks if _object(block, "toolResult")]
        asked = [str(block["toolUse"].get("toolUseId")) for block in blocks if _object(block, "toolUse")]
        tools = tools or bool(answered or asked)
        for name in answered:
            if name in awaited:
                awaited.remove(name)
            else:
                yield path, f"toolResult for {name!r} has no toolUse in the previous turn"
        if awaited:
            yield path, f"expected toolResult blocks for {', '.join(map(repr, awaited))}"
        if len(set(asked)) < len(asked):
            yield path, "two toolUse blocks of one message have one id"
        awaited = asked
    if awaited:
        yield f"messages[{len(messages)}]", f"expected toolResult blocks for {', '.join(map(repr, awaited))}"
    elif before == "assistant" and not takes.prefill:
        yield f"messages[{len(messages) - 1}]", "the conversation must end with a user message"
    config = body.get("toolConfig")
    if tools and not isinstance(config, Mapping):
        yield "toolConfig", "must be defined when using toolUse and toolResult content blocks"
    names = [
        str(tool["toolSpec"].get("name"))
        for tool in as_list(config.get("tools") if isinstance(config, Mapping) else None)
        if _object(tool, "toolSpec")
    ]
    for name in repeated(names):
        yield "toolConfig.tools", f"the tool {name!r} is already defined"


def _not_blank(block: Any, path: str) -> Found:
    if isinstance(block, Mapping) and "text" in block and not str(block["text"] or "").strip():
        yield path, "the text field is blank"


def _object(block: Any, name: str) -> bool:
    return isinstance(block, Mapping) and isinstance(block.get(name), Mapping)
