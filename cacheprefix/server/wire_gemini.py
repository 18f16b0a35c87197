"""Gemini generateContent: what goes out, as the google-genai SDK reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from cacheprefix.profiles import Profile
from cacheprefix.server.outcome import CacheOutcome
from cacheprefix.server.replies import ScriptedTurn, event, identifier, pieces
from cacheprefix.server.script import Asked

CALL_ID = "call_"
EARLY = 0
_FINISH = {"end": "STOP", "tools": "STOP", "length": "MAX_TOKENS"}
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


def asked(body: Mapping[str, Any]) -> Asked:
    """What a generateContent body asks of the answer. Whether it streams stands in the address."""
    tools: dict[str, Mapping[str, Any]] = {}
    for one in body.get("tools") or []:
        declared = one.get("functionDeclarations", one.get("function_declarations")) if isinstance(one, Mapping) else []
        for function in declared or []:
            schema = function.get("parametersJsonSchema") or function.get("parameters") or {}
            tools[str(function.get("name"))] = schema
    calling = _calling(body.get("toolConfig"))
    mode = str(calling.get("mode", "AUTO")).upper()
    choice: Literal["auto", "none", "required"] = "auto"
    if mode == "NONE":
        choice = "none"
    elif mode == "ANY":
        choice = "required"
    names = calling.get("allowedFunctionNames")
    config = body.get("generationConfig")
    config = config if isinstance(config, Mapping) else {}
    schema = config.get("responseJsonSchema") or config.get("responseSchema")
    if schema is None and config.get("responseMimeType") == "application/json":
        schema = {"type": "object"}
    limit = config.get("maxOutputTokens")
    return Asked(
        tools=tools,
        choice=choice,
        allowed=frozenset(map(str, names)) if names else None,
        schema=schema if isinstance(schema, Mapping) else None,
        max_output=limit if isinstance(limit, int) else None,
    )


def _calling(tool_config: Any) -> Mapping[str, Any]:
    found = tool_config.get("functionCallingConfig") if isinstance(tool_config, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def check(body: Mapping[str, Any], profile: Profile) -> None:
    """Nothing is refused but what the codec and the cache refuse."""


def usage(outcome: CacheOutcome, output: int, profile: Profile) -> dict[str, Any]:  # noqa: ARG001
    """``promptTokenCount`` includes ``cachedContentTokenCount``, which is left out when it is 0."""
    made: dict[str, Any] = {
        "promptTokenCount": outcome.input_tokens,
        "candidatesTokenCount": output,
        "totalTokenCount": outcome.input_tokens + output,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": outcome.input_tokens}],
    }
    if outcome.read_tokens:
        made["cachedContentTokenCount"] = outcome.read_tokens
        made["cacheTokensDetails"] = [{"modality": "TEXT", "tokenCount": outcome.read_tokens}]
    return made


def answer(turn: ScriptedTurn) -> dict[str, Any]:
    """A ``GenerateContentResponse``."""
    return _chunk(turn, _parts(turn), last=True)


def events(turn: ScriptedTurn) -> Iterator[bytes]:
    """Parts of the answer one after the other; the last one carries the finish reason and usage."""
    parts = _parts(turn)
    small: list[dict[str, Any]] = []
    for part in parts:
        if "text" in part:
            small += [{**part, "text": piece} for piece in pieces(part["text"])]
        else:
            small.append(part)
    small = small or [{"text": ""}]
    for index, part in enumerate(small):
        yield event(_chunk(turn, [part], last=index == len(small) - 1))


def error(status: int, message: str, path: str | None) -> dict[str, Any]:
    """Google's error object."""
    text = message if path is None or message.startswith(path) else f"{path}: {message}"
    return {"error": {"code": status, "message": text, "status": _STATUS.get(status, "INTERNAL")}}


def _parts(turn: ScriptedTurn) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    if turn.thinking:
        made.append({"text": turn.thinking, "thought": True})
    if turn.text:
        made.append({"text": turn.text})
    calls = ({"id": call.id, "name": call.name, "args": call.parsed} for call in turn.calls)
    return [*made, *({"functionCall": call} for call in calls)]


def _chunk(turn: ScriptedTurn, parts: list[dict[str, Any]], *, last: bool) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if last:
        candidate["finishReason"] = _FINISH[turn.stop]
    made: dict[str, Any] = {"candidates": [candidate]}
    if last and turn.usage is not None:
        made["usageMetadata"] = turn.usage
    return {**made, "modelVersion": turn.model, "responseId": identifier("", turn.seed)}
