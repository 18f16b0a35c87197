"""Bedrock Converse: what goes out, as botocore reads it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Literal
from zlib import crc32

from cacheprefix.profiles import Profile
from cacheprefix.prompt import dumps
from cacheprefix.server.outcome import CacheOutcome
from cacheprefix.server.replies import ScriptedTurn, identifier, pieces
from cacheprefix.server.script import Asked

CALL_ID = "tooluse_"
EARLY = 0
_STOP = {"end": "end_turn", "tools": "tool_use", "length": "max_tokens"}


def asked(body: Mapping[str, Any]) -> Asked:
    """What a Converse body asks of the answer. Whether it streams stands in the address."""
    config = body.get("toolConfig")
    config = config if isinstance(config, Mapping) else {}
    tools: dict[str, Mapping[str, Any]] = {}
    for one in config.get("tools") or []:
        spec = one.get("toolSpec") if isinstance(one, Mapping) else None
        if isinstance(spec, Mapping):
            tools[str(spec.get("name"))] = (spec.get("inputSchema") or {}).get("json") or {}
    given = config.get("toolChoice")
    choice: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    word: Literal["auto", "required"] = "required" if "any" in choice or "tool" in choice else "auto"
    limits = body.get("inferenceConfig")
    limit = limits.get("maxTokens") if isinstance(limits, Mapping) else None
    return Asked(
        tools=tools,
        choice=word,
        allowed=frozenset({str(choice["tool"].get("name"))}) if "tool" in choice else None,
        max_output=limit if isinstance(limit, int) else None,
    )


def check(body: Mapping[str, Any], profile: Profile) -> None:
    """Nothing is refused but what the codec and the cache refuse."""


def usage(outcome: CacheOutcome, output: int, profile: Profile) -> dict[str, Any]:  # noqa: ARG001
    """``inputTokens`` leaves out what was read or written; details name the longest lifetime first."""
    made: dict[str, Any] = {
        "inputTokens": outcome.uncached_tokens,
        "outputTokens": output,
        "totalTokens": outcome.input_tokens + output,
        "cacheReadInputTokens": outcome.read_tokens,
        "cacheWriteInputTokens": outcome.written_tokens,
    }
    if outcome.write_tokens:
        made["cacheDetails"] = [
            {"ttl": name, "inputTokens": outcome.write_tokens[name]}
            for name in ("1h", "5m")
            if name in outcome.write_tokens
        ]
    return made


def answer(turn: ScriptedTurn) -> dict[str, Any]:
    """A ``ConverseResponse``."""
    made: dict[str, Any] = {
        "output": {"message": {"role": "assistant", "content": _content(turn)}},
        "stopReason": _STOP[turn.stop],
        "metrics": {"latencyMs": 1},
    }
    return made if turn.usage is None else {**made, "usage": turn.usage}


def events(turn: ScriptedTurn) -> Iterator[bytes]:
    """The frames of a ``ConverseStream`` in Amazon's binary event-stream form."""
    yield _frame("messageStart", {"role": "assistant"})
    for index, block in enumerate(_content(turn)):
        where = {"contentBlockIndex": index}
        deltas: list[dict[str, Any]]
        if "toolUse" in block:
            use = block["toolUse"]
            start = {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}
            yield _frame("contentBlockStart", {"start": start, **where})
            written = dumps(use["input"], "input").decode()
            deltas = [{"toolUse": {"input": piece}} for piece in pieces(written)]
        elif "text" in block:
            deltas = [{"text": piece} for piece in pieces(block["text"])]
        else:
            thought = block["reasoningContent"]["reasoningText"]
            deltas = [{"reasoningContent": {"text": piece}} for piece in pieces(thought["text"])]
            deltas.append({"reasoningContent": {"signature": thought["signature"]}})
        for delta in deltas:
            yield _frame("contentBlockDelta", {"delta": delta, **where})
        yield _frame("contentBlockStop", where)
    yield _frame("messageStop", {"stopReason": _STOP[turn.stop]})
    if turn.usage is not None:
        yield _frame("metadata", {"usage": turn.usage, "metrics": {"latencyMs": 1}})


def error(status: int, message: str, path: str | None) -> dict[str, Any]:  # noqa: ARG001 - Amazon's has no code
    """Amazon's error object; its type stands in a header."""
    return {"message": message if path is None or message.startswith(path) else f"{path}: {message}"}


def _content(turn: ScriptedTurn) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    if turn.thinking:
        thought = {"text": turn.thinking, "signature": identifier("sig", turn.seed)}
        made.append({"reasoningContent": {"reasoningText": thought}})
    if turn.text:
        made.append({"text": turn.text})
    uses = ({"toolUseId": call.id, "name": call.name, "input": call.parsed} for call in turn.calls)
    return [*made, *({"toolUse": use} for use in uses)]


def _frame(kind: str, payload: Mapping[str, Any]) -> bytes:
    """One event-stream message: lengths, header block, payload, each guarded by a CRC-32."""
    headers = b""
    for name, value in ((":event-type", kind), (":content-type", "application/json"), (":message-type", "event")):
        headers += struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
    data = dumps(payload, kind)
    prelude = struct.pack("!II", 16 + len(headers) + len(data), len(headers))
    prelude += struct.pack("!I", crc32(prelude))
    message = prelude + headers + data
    return message + struct.pack("!I", crc32(message))
