"""Reading a provider's answer and appending to a conversation, on wire bodies of the three APIs that chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cacheprefix.errors import BodyError
from cacheprefix.prompt import Api
from cacheprefix.wire import anthropic, bedrock, openai_responses
from cacheprefix.wire.apis import chat_of
from cacheprefix.wire.messages import Answer, ToolRequest

__all__ = [
    "Answer",
    "ToolRequest",
    "begins",
    "field_of",
    "history_field",
    "limited",
    "read_answer",
    "result_messages",
    "user_message",
]


def history_field(api: Api) -> str:
    """The body field that holds the messages. Raises ``SetupError`` for APIs without a fork loop."""
    return chat_of(api).FIELDS.history


def limited(body: Mapping[str, Any], api: Api, tokens: int | None) -> dict[str, Any]:
    """The body with an upper bound of output tokens, in the field it already uses or the API's own."""
    if tokens is None:
        return dict(body)
    limits = chat_of(api).FIELDS.limits
    return {**body, next((name for name in limits if name in body), limits[-1]): tokens}


def read_answer(response: Any, api: Api) -> Answer:
    """Read a response given as a dict or as an SDK's object. Raises ``BodyError`` when it is no answer."""
    shape = chat_of(api)
    return shape.answer(response if isinstance(response, Mapping) else _dumped(response, shape.FIELDS.answer))


def result_messages(results: Sequence[tuple[ToolRequest, str, bool]], api: Api) -> list[dict[str, Any]]:
    """Messages that answer tool calls: request, text, and whether it is an error."""
    return chat_of(api).results(results)


def user_message(text: str) -> dict[str, Any]:
    """A user message, in the form all three APIs read."""
    return {"role": "user", "content": text}


_AHEAD = (*openai_responses.AHEAD, *anthropic.AHEAD, "error")
"""Events of a stream that say that the request was taken, or refused, and nothing of the answer."""


def begins(event: Any) -> bool:
    """Whether an event of a stream holds something of the answer, so that others may read what its request wrote.

    OpenAI's Responses API tells of a response, and Azure of its filters, before the prompt is read; an answer's first
    chunk may name its role alone. Takes a dict or an SDK's object of any API; what it does not know, counts.
    """
    kind = field_of(event, "type")
    if isinstance(kind, str):
        return kind not in _AHEAD
    choices = field_of(event, "choices")
    if not isinstance(choices, list):
        return not (isinstance(event, Mapping) and bedrock.AHEAD in event)
    deltas = (dict(field_of(choice, "delta") or {}) for choice in choices)
    said = any(value for delta in deltas for name, value in delta.items() if name != "role")
    return said or any(field_of(choice, "finish_reason") or field_of(choice, "text") for choice in choices)


def field_of(value: Any, name: str) -> Any:
    """A field of a dict or an SDK's object; None where it has none."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _dumped(response: Any, spoken: str) -> Mapping[str, Any]:
    dump = getattr(response, "model_dump", None)
    # Of a parsed answer pydantic warns that its fields hold more than they declare; the application would see that.
    data = dump(exclude_none=True, warnings=False) if callable(dump) else None
    if not isinstance(data, Mapping):
        raise BodyError("response", f"expected a dict or an SDK's response, found {type(response).__name__}")
    return {name: _as_answered(value) if name == spoken else value for name, value in data.items()}


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
