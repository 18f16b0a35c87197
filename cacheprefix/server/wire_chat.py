"""OpenAI chat completions: what goes out, as the openai SDK reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from cacheprefix.profiles import Profile
from cacheprefix.server.outcome import CacheOutcome, RefusedError
from cacheprefix.server.replies import ScriptedTurn, event, identifier, pieces, report
from cacheprefix.server.script import Asked

CALL_ID = "call_"
EARLY = 0
_FINISH = {"end": "stop", "tools": "tool_calls", "length": "length"}


def asked(body: Mapping[str, Any]) -> Asked:
    """What a chat body asks of the answer."""
    tools = {
        str(one.get("function", one).get("name", "")): one.get("function", one).get("parameters") or {}
        for one in [*(body.get("tools") or []), *(body.get("functions") or [])]
        if isinstance(one, Mapping) and isinstance(one.get("function", one), Mapping)
    }
    choice, allowed = choose(body.get("tool_choice", body.get("function_call")))
    form = body.get("response_format")
    schema: Any = None
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        schema = (form.get("json_schema") or {}).get("schema")
    elif isinstance(form, Mapping) and form.get("type") == "json_object":
        schema = {"type": "object"}
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    wanted = body.get("stream_options") or {}
    return Asked(
        stream=body.get("stream") is True,
        tools=tools,
        choice=choice,
        allowed=allowed,
        parallel=body.get("parallel_tool_calls") is not False,
        schema=schema if isinstance(schema, Mapping) else None,
        max_output=limit if isinstance(limit, int) else None,
        include_usage=isinstance(wanted, Mapping) and wanted.get("include_usage") is True,
    )


def choose(choice: Any) -> tuple[Literal["auto", "none", "required"], frozenset[str] | None]:
    """Whether OpenAI's ``tool_choice`` asks for a call, and of which tools; None for any of them."""
    if isinstance(choice, str):
        return (choice, None) if choice in ("none", "required") else ("auto", None)  # type: ignore[return-value]
    if not isinstance(choice, Mapping):
        return "auto", None
    if choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools", choice)
        names = frozenset(str(one.get("function", one).get("name")) for one in inner.get("tools", []))
        return ("required" if inner.get("mode") == "required" else "auto"), names
    name = choice.get("name") or (choice.get("function") or {}).get("name")
    return ("required", frozenset({str(name)})) if name else ("auto", None)


def check(body: Mapping[str, Any], profile: Profile) -> None:
    """OpenAI's own 400: breakpoints and their options are unknown parameters before gpt-5.6."""
    if profile.markers is None and profile.routing_key == "prompt_cache_key":
        if "prompt_cache_options" in body:
            raise RefusedError("Unknown parameter: 'prompt_cache_options'.")
        if _marked(body.get("messages")) or _marked(body.get("input")):
            raise RefusedError("Unknown parameter: 'prompt_cache_breakpoint'.")


def _marked(messages: Any) -> bool:
    for message in messages if isinstance(messages, list) else []:
        fields = (message.get("content"), message.get("output")) if isinstance(message, Mapping) else ()
        for block in (one for blocks in fields if isinstance(blocks, list) for one in blocks):
            if isinstance(block, Mapping) and "prompt_cache_breakpoint" in block:
                return True
    return False


def usage(outcome: CacheOutcome, output: int, profile: Profile) -> dict[str, Any]:
    """``prompt_tokens`` includes what was read and written (openai SDK, ``CompletionUsage``)."""
    made: dict[str, Any] = {
        "prompt_tokens": outcome.input_tokens,
        "completion_tokens": output,
        "total_tokens": outcome.input_tokens + output,
        "prompt_tokens_details": {"audio_tokens": 0},
        "completion_tokens_details": {
            "accepted_prediction_tokens": 0,
            "audio_tokens": 0,
            "reasoning_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
    if "read" in profile.usage_fields or not profile.input_includes_cached:
        made["prompt_tokens_details"]["cached_tokens"] = outcome.read_tokens
    if outcome.write_tokens:
        made["prompt_tokens_details"]["cache_write_tokens"] = outcome.written_tokens
    return report(made, profile, outcome)


def answer(turn: ScriptedTurn) -> dict[str, Any]:
    """A ``chat.completion``."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": turn.text or (None if turn.calls else ""),
        "refusal": None,
        "annotations": [],
    }
    if turn.thinking:
        message["reasoning_content"] = turn.thinking
    if turn.calls:
        message["tool_calls"] = [_call(turn, index) for index in range(len(turn.calls))]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _FINISH[turn.stop]}
    made = {**_frame(turn, "chat.completion"), "choices": [choice]}
    return made if turn.usage is None else {**made, "usage": turn.usage}


def events(turn: ScriptedTurn) -> Iterator[bytes]:
    """``chat.completion.chunk`` events; usage comes last, and only where ``include_usage`` asks for it."""
    frame = _frame(turn, "chat.completion.chunk")
    if turn.asked.include_usage:
        frame["usage"] = None

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event({**frame, "choices": [choice]})

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    for piece in pieces(turn.thinking):
        yield chunk({"reasoning_content": piece})
    for piece in pieces(turn.text):
        yield chunk({"content": piece})
    for index, call in enumerate(turn.calls):
        head = _call(turn, index)
        yield chunk({"tool_calls": [{"index": index, **head, "function": {"name": call.name, "arguments": ""}}]})
        for piece in pieces(call.arguments):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, _FINISH[turn.stop])
    if turn.asked.include_usage and turn.usage is not None:
        yield event({**frame, "choices": [], "usage": turn.usage})
    yield b"data: [DONE]\n\n"


def error(status: int, message: str, path: str | None) -> dict[str, Any]:
    """OpenAI's error object."""
    kinds = {401: "authentication_error", 429: "rate_limit_error"}
    kind = "server_error" if status >= 500 else kinds.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": path, "code": None}}


def _frame(turn: ScriptedTurn, kind: str) -> dict[str, Any]:
    return {
        "id": identifier("chatcmpl-", turn.seed),
        "object": kind,
        "created": turn.created,
        "model": turn.model,
        "service_tier": "default",
        "system_fingerprint": "fp_simulated",
    }


def _call(turn: ScriptedTurn, index: int) -> dict[str, Any]:
    call = turn.calls[index]
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
