"""Anthropic messages: what goes out, as the anthropic SDK reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from cacheprefix.profiles import Profile
from cacheprefix.prompt import dumps
from cacheprefix.server.outcome import CacheOutcome, RefusedError
from cacheprefix.server.replies import ScriptedTurn, event, identifier, pieces
from cacheprefix.server.script import Asked

CALL_ID = "toolu_01"
EARLY = 0
_STOP = {"end": "end_turn", "tools": "tool_use", "length": "max_tokens"}


def asked(body: Mapping[str, Any]) -> Asked:
    """What a messages body asks of the answer."""
    tools = {
        str(one["name"]): one.get("input_schema") or {}
        for one in body.get("tools") or []
        if isinstance(one, Mapping) and "name" in one
    }
    given = body.get("tool_choice")
    choice: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    kind = choice.get("type", "auto")
    word: Literal["auto", "none", "required"] = "auto"
    if kind == "none":
        word = "none"
    elif kind in ("any", "tool"):
        word = "required"
    limit = body.get("max_tokens")
    return Asked(
        stream=body.get("stream") is True,
        tools=tools,
        choice=word,
        allowed=frozenset({str(choice.get("name"))}) if kind == "tool" else None,
        parallel=choice.get("disable_parallel_tool_use") is not True,
        schema=_schema(body),
        max_output=limit if isinstance(limit, int) else None,
    )


def _schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    config = body.get("output_config")
    form = config.get("format") if isinstance(config, Mapping) else None
    form = form or body.get("output_format")
    schema = form.get("schema") if isinstance(form, Mapping) else None
    return schema if isinstance(schema, Mapping) else None


def check(body: Mapping[str, Any], profile: Profile) -> None:  # noqa: ARG001 - one signature for all wire forms
    """Anthropic's 400s about ``max_tokens``; 0 pre-warms the cache and allows no output of any kind.

    And about ``betas``, which the SDK sends as a header (``anthropic-beta``): its API knows no field of that name.

    Source: Anthropic's prompt caching page, "Pre-warming the cache", "Limitations".
    """
    if "betas" in body:
        raise RefusedError("betas: Extra inputs are not permitted")
    limit = body.get("max_tokens")
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise RefusedError("max_tokens: Field required")
    if limit < 0:
        raise RefusedError("max_tokens: Input should be greater than or equal to 0")
    if limit:
        return
    thinking, choice = body.get("thinking"), body.get("tool_choice")
    reasons = {
        "stream": body.get("stream") is True,
        "thinking": isinstance(thinking, Mapping) and thinking.get("type") == "enabled",
        "output_config.format": _schema(body) is not None,
        "tool_choice": isinstance(choice, Mapping) and choice.get("type") in ("tool", "any"),
    }
    for name, against in reasons.items():
        if against:
            raise RefusedError(f"{name}: is not allowed with max_tokens 0")


def usage(outcome: CacheOutcome, output: int, profile: Profile) -> dict[str, Any]:  # noqa: ARG001
    """``input_tokens`` leaves out what was read or written (anthropic SDK, ``Usage``)."""
    hour = outcome.write_tokens.get("1h", 0)
    return {
        "input_tokens": outcome.uncached_tokens,
        "cache_creation_input_tokens": outcome.written_tokens,
        "cache_read_input_tokens": outcome.read_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": outcome.written_tokens - hour,
            "ephemeral_1h_input_tokens": hour,
        },
        "output_tokens": output,
        "service_tier": "standard",
    }


def answer_id(seed: str) -> str:
    """The id of the answer to a prompt."""
    return identifier("msg_01", seed)


def answer(turn: ScriptedTurn) -> dict[str, Any]:
    """A ``message``."""
    made: dict[str, Any] = {
        "id": answer_id(turn.seed),
        "type": "message",
        "role": "assistant",
        "model": turn.model,
        "content": _content(turn),
        "stop_reason": _STOP[turn.stop],
        "stop_sequence": None,
    }
    if "diagnostics" in turn.body:
        made["diagnostics"] = turn.diagnostics
    return made if turn.usage is None else {**made, "usage": turn.usage}


def events(turn: ScriptedTurn) -> Iterator[bytes]:
    """The events of a streamed message: input usage at the start, output usage in ``message_delta``."""
    begun = {**answer(turn), "content": [], "stop_reason": None}
    if turn.usage is not None:
        begun["usage"] = {**turn.usage, "output_tokens": min(1, turn.output_tokens)}
    yield event({"type": "message_start", "message": begun}, "message_start")
    yield event({"type": "ping"}, "ping")
    for index, block in enumerate(_content(turn)):
        yield from _block(index, block)
    delta: dict[str, Any] = {
        "type": "message_delta",
        "delta": {"stop_reason": _STOP[turn.stop], "stop_sequence": None},
    }
    if turn.usage is not None:
        hidden = ("cache_creation", "service_tier")
        delta["usage"] = {name: value for name, value in turn.usage.items() if name not in hidden}
    yield event(delta, "message_delta")
    yield event({"type": "message_stop"}, "message_stop")


def _block(index: int, block: Mapping[str, Any]) -> Iterator[bytes]:
    """The stream's events of one block: its start without content, the content in pieces, and its end."""
    kind = block["type"]
    shell: dict[str, Any] = {**block}
    deltas: list[dict[str, Any]] = []
    if kind == "text":
        shell["text"] = ""
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
    elif kind == "thinking":
        shell.update(thinking="", signature="")
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    else:
        shell["input"] = {}
        written = dumps(block["input"], "input").decode()
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(written)]
    yield event({"type": "content_block_start", "index": index, "content_block": shell}, "content_block_start")
    for delta in deltas:
        yield event({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
    yield event({"type": "content_block_stop", "index": index}, "content_block_stop")


def error(status: int, message: str, path: str | None) -> dict[str, Any]:
    """Anthropic's error object; the path stands in the message."""
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        529: "overloaded_error",
    }
    kind = kinds.get(status, "api_error" if status >= 500 else "invalid_request_error")
    text = message if path is None or message.startswith(path) else f"{path}: {message}"
    return {"type": "error", "error": {"type": kind, "message": text}, "request_id": None}


def _content(turn: ScriptedTurn) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    if turn.thinking:
        signature = identifier("sig", turn.seed)
        made.append({"type": "thinking", "thinking": turn.thinking, "signature": signature})
    if turn.text:
        made.append({"type": "text", "text": turn.text})
    calls = ({"type": "tool_use", "id": call.id, "name": call.name, "input": call.parsed} for call in turn.calls)
    return [*made, *calls]
