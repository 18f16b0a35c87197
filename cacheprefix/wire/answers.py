"""Reading a provider's answer and appending to a conversation, on wire bodies of the three APIs that chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cacheprefix.errors import BodyError, SetupError
from cacheprefix.prompt import Api, loads

_HISTORY = {"openai-chat": "messages", "openai-responses": "input", "anthropic": "messages"}
_LIMIT = {"openai-chat": "max_completion_tokens", "openai-responses": "max_output_tokens", "anthropic": "max_tokens"}


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A tool call in an answer; ``arguments`` as parsed, None where they are no JSON."""

    id: str
    name: str
    arguments: Any
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A provider's answer: its text, its tool calls, and the messages that put it into the history."""

    text: str
    calls: tuple[ToolRequest, ...]
    messages: tuple[Mapping[str, Any], ...]
    usage: Any


def history_field(api: Api) -> str:
    """The body field that holds the messages. Raises ``SetupError`` for APIs without a fork loop."""
    field = _HISTORY.get(api)
    if field is None:
        message = f"forks run on {', '.join(_HISTORY)}; for {api} send the fork's body yourself"
        raise SetupError(message)
    return field


def limited(body: Mapping[str, Any], api: Api, tokens: int | None) -> dict[str, Any]:
    """The body with an upper bound of output tokens, in the field it already uses or the API's own."""
    if tokens is None:
        return dict(body)
    name = next((known for known in ("max_tokens", "max_completion_tokens") if known in body), _LIMIT[api])
    name = _LIMIT[api] if api != "openai-chat" else name
    return {**body, name: tokens}


def read_answer(response: Any, api: Api) -> Answer:
    """Read a response given as a dict or as an SDK's object. Raises ``BodyError`` when it is no answer."""
    data = response if isinstance(response, Mapping) else _dumped(response)
    if api == "anthropic":
        return _anthropic(data)
    if api == "openai-responses":
        return _responses(data)
    return _chat(data)


def user_message(text: str) -> dict[str, Any]:
    """A user message, in the form all three APIs read."""
    return {"role": "user", "content": text}


_AHEAD = ("response.created", "response.queued", "response.in_progress", "message_start", "ping", "error")
"""Events of a stream that say that the request was taken, or refused, and nothing of the answer."""


def begins(event: Any) -> bool:
    """Whether an event of a stream holds something of the answer, so that others may read what its request wrote.

    OpenAI's Responses API tells of a response, and Azure of its filters, before the prompt is read; an answer's first
    chunk may name its role alone. Takes a dict or an SDK's object of any API; what it does not know, counts.
    """
    kind = _of(event, "type")
    if isinstance(kind, str):
        return kind not in _AHEAD
    choices = _of(event, "choices")
    if not isinstance(choices, list):
        return not (isinstance(event, Mapping) and "messageStart" in event)
    deltas = (dict(_of(choice, "delta") or {}) for choice in choices)
    said = any(value for delta in deltas for name, value in delta.items() if name != "role")
    return said or any(_of(choice, "finish_reason") or _of(choice, "text") for choice in choices)


def _of(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def result_messages(results: Sequence[tuple[ToolRequest, str, bool]], api: Api) -> list[dict[str, Any]]:
    """Messages that answer tool calls: request, text, and whether it is an error."""
    if api == "anthropic":
        blocks = [
            {"type": "tool_result", "tool_use_id": call.id, "content": text, **({"is_error": True} if failed else {})}
            for call, text, failed in results
        ]
        return [{"role": "user", "content": blocks}]
    if api == "openai-responses":
        return [{"type": "function_call_output", "call_id": call.id, "output": text} for call, text, _ in results]
    return [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text, _ in results]


def _dumped(response: Any) -> Mapping[str, Any]:
    dump = getattr(response, "model_dump", None)
    data = dump(exclude_none=True) if callable(dump) else None
    if not isinstance(data, Mapping):
        raise BodyError("response", f"expected a dict or an SDK's response, found {type(response).__name__}")
    return {name: _as_answered(value) if name in _SPOKEN else value for name, value in data.items()}


_SPOKEN = ("choices", "output", "content")
_PARSED = ("parsed", "parsed_arguments", "parsed_output")
"""What the SDKs' ``parse`` puts beside what was answered; sent back, the provider answers 400."""


def _as_answered(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_answered(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    # The arguments of a call may have any names.
    return {
        name: item if name == "input" else _as_answered(item) for name, item in value.items() if name not in _PARSED
    }


def _chat(data: Mapping[str, Any]) -> Answer:
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0].get("message"), Mapping):
        raise BodyError("response.choices", "no message in it")
    message = {name: value for name, value in choices[0]["message"].items() if value is not None}
    calls = []
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        calls.append(_requested(str(call.get("id")), str(function.get("name")), function.get("arguments")))
    kept = {name: message[name] for name in ("role", "content", "tool_calls", "reasoning_content") if name in message}
    kept.setdefault("role", "assistant")
    kept.setdefault("content", None if calls else "")
    return Answer(str(message.get("content") or ""), tuple(calls), (kept,), data.get("usage"))


def _anthropic(data: Mapping[str, Any]) -> Answer:
    blocks = data.get("content")
    if not isinstance(blocks, list):
        raise BodyError("response.content", "no list of blocks")
    text = "".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
    calls = tuple(
        ToolRequest(str(block.get("id")), str(block.get("name")), block.get("input"))
        for block in blocks
        if block.get("type") == "tool_use"
    )
    messages: tuple[Mapping[str, Any], ...] = ({"role": "assistant", "content": blocks},) if blocks else ()
    return Answer(text, calls, messages, data.get("usage"))


def _responses(data: Mapping[str, Any]) -> Answer:
    output = data.get("output")
    if not isinstance(output, list):
        raise BodyError("response.output", "no list of items")
    text = "".join(
        str(block.get("text", ""))
        for item in output
        if item.get("type") == "message"
        for block in item.get("content") or []
        if block.get("type") == "output_text"
    )
    calls = tuple(
        _requested(str(item.get("call_id")), str(item.get("name")), item.get("arguments"))
        for item in output
        if item.get("type") == "function_call"
    )
    return Answer(text, calls, tuple(output), data.get("usage"))


def _requested(id: str, name: str, arguments: Any) -> ToolRequest:  # noqa: A002 - the API's own word
    try:
        return ToolRequest(id, name, loads(arguments or "{}", f"arguments of {name}"))
    except BodyError as error:
        return ToolRequest(id, name, None, str(error))
