"""Gemini generateContent; an explicit cache is named by ``cachedContent`` and kept as a setting.

What it refuses: ai.google.dev/gemini-api/docs/function-calling and the 400s "function call turn comes immediately after
a user turn or after a function response turn" and "the number of function response parts is equal to the number of
function call parts" (google-gemini/gemini-cli#3814, #26486); a history that ends with the model is refused
(crewAIInc/crewAI#6973), and so are responses beside other parts (envoyproxy/ai-gateway#2686). All read 2026-11-22.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cacheprefix.prompt.canonical_json import loads
from cacheprefix.prompt.sections import Kind, Prompt, Section, Tier
from cacheprefix.wire.body_copy import BodyCopy
from cacheprefix.wire.messages import Found, Takes, as_list, listed, repeated
from cacheprefix.wire.reader import EMPTY, Fields, Reader, envelope, items, mapping, written

FIELDS = Fields(
    path=re.compile(r"/models/(?P<model>[^/]+):(?:stream)?[gG]enerateContent$"),
    content=frozenset({"model", "contents", "systemInstruction", "system_instruction", "tools"}),
    history="contents",
    system="systemInstruction",
    signs=("contents",),
    # "contents is not specified"; a text must not be empty, and may be blank.
    least="blanks",
)

_DECLARED = ("functionDeclarations", "function_declarations")
_KINDS: dict[str, Kind] = {
    "functionCall": "tool_use",
    "functionResponse": "tool_result",
    "inlineData": "image",
    "fileData": "image",
}


def sections(body: Mapping[str, Any], reader: Reader) -> list[Section]:
    """The sections of a generateContent body in cache order."""
    made = reader.units("tools", "tools", body.get("tools"), _split_tool)
    system = body.get("systemInstruction", body.get("system_instruction"))
    if system is not None:
        made += reader.unit("system", "system", system, _split_system)
    given = body.get("contents", [])
    if isinstance(given, str):
        given = [{"role": "user", "parts": [{"text": given}]}]
    return made + reader.history(items(given, "contents"), _split_content)


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
    system = [part for section in prompt.tier("system") for part in _wire(section)]
    if system:
        out["systemInstruction"] = {"parts": system}
    out["contents"] = written(prompt.tier("messages"), "parts", _wire)
    return out


def _wire(section: Section) -> Iterator[dict[str, Any]]:
    yield {"text": section.text} if section.kind == "text" else loads(section.data)


def carries(prompt: Prompt, section: Section) -> bool:  # noqa: ARG001 - as every API is asked
    """Gemini has no markers."""
    return False


def mark(copy: BodyCopy, section: Section, number: int, block: int, ttl: str | None) -> None:
    """Set nothing: Gemini has no markers."""


def errors(body: Mapping[str, Any], takes: Takes) -> Found:
    """What the API would refuse a body for, in the order in which it stands."""
    if body.get("cachedContent"):
        # Their place is in what was cached (ai.google.dev/gemini-api/docs/caching, as of 2026-11-28).
        fields = (one for one in ("systemInstruction", "tools", "toolConfig") if body.get(one))
        yield from ((one, "is refused beside cachedContent") for one in fields)
    contents = body.get("contents")
    if isinstance(contents, str):
        return
    if isinstance(contents, Mapping):
        contents = [contents]
    if not listed(contents) or not contents:
        yield "contents", "expected a list of at least one content"
        return
    awaited = 0
    before = ""
    for at, content in enumerate(contents):
        path = f"contents[{at}]"
        role = str((content.get("role") if isinstance(content, Mapping) else None) or "user")
        if role not in ("user", "model", "function"):
            yield f"{path}.role", f"expected user or model, found {role!r}"
            continue
        parts = as_list(content.get("parts")) if isinstance(content, Mapping) else []
        if not parts:
            yield f"{path}.parts", "expected at least one part"
        for number, part in enumerate(parts):
            if not isinstance(part, Mapping) or not any(part.values()):
                yield f"{path}.parts[{number}]", "a part has data, and a text is not empty"
        calls = sum(_has(part, "functionCall", "function_call") for part in parts)
        results = sum(_has(part, "functionResponse", "function_response") for part in parts)
        if results and results < len(parts):
            yield path, "function responses share a turn with nothing else"
        if results != awaited:
            yield path, f"holds {results} function responses where {awaited} calls of the turn before await one"
        if calls and before == "model":
            yield path, "a function call comes immediately after a user turn or a function response turn"
        if calls and not before:
            yield path, "a function call is not the first turn"
        awaited = calls
        before = role
    if awaited:
        yield f"contents[{len(contents)}]", f"missing: the responses of {awaited} function calls"
    elif before == "model" and not takes.prefill:
        yield f"contents[{len(contents) - 1}]", "a request ends with a user turn or a function response"
    names = [
        str(function.get("name"))
        for tool in as_list(body.get("tools"))
        if isinstance(tool, Mapping)
        for function in as_list(tool.get("functionDeclarations", tool.get("function_declarations")))
        if isinstance(function, Mapping)
    ]
    for name in repeated(names):
        yield "tools", f"duplicate function declaration: {name!r}"


def _has(part: Any, *names: str) -> bool:
    return isinstance(part, Mapping) and any(part.get(name) is not None for name in names)
