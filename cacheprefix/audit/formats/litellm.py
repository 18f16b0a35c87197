"""LiteLLM request logs: the standard logging payload (callbacks, S3, GCS) and the proxy's spend-log rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cacheprefix.audit.formats.messages import as_json, first_text, mapping
from cacheprefix.audit.log_records import Record, mapping_or_none, seconds, text_or_empty
from cacheprefix.errors import BodyError, plain
from cacheprefix.prompt import Api, dumps

_OWN = frozenset({"call_type", "model_parameters", "custom_llm_provider", "proxy_server_request", "litellm_params"})
SIGNS = _OWN | {"litellm_call_id"}
"""Fields of which every entry has one."""
_CALLS = frozenset({
    "completion", "responses", "text_completion", "anthropic_messages", "generate_content", "generate_content_stream",
})  # fmt: skip
_ASIDE = {"embedding": "embeddings", "image_generation": "images", "transcription": "audio", "speech": "audio"}
_APIS: dict[str, Api] = {
    "responses": "openai-responses",
    "anthropic_messages": "anthropic",
    "generate_content": "gemini",
    "generate_content_stream": "gemini",
}
_CUT = "(litellm_truncated skipped "
_NO_SETTINGS = frozenset({"stream", "stream_options", "user", "metadata", "extra_headers", "litellm_metadata"})
_TEXT = ("messages", "input", "contents")


def recognises(value: Mapping[str, Any]) -> bool:
    """Whether this is a payload or a row of LiteLLM."""
    return len(_OWN.intersection(value)) > 1 or ("litellm_call_id" in value and "messages" in value)


def read(value: Mapping[str, Any]) -> Iterator[Record]:
    """One record; what is no completion (embeddings, images) is counted aside, or named where its kind is unknown."""
    kind = _kind(value)
    if kind in _ASIDE:
        yield Record(body=None, aside=_ASIDE[kind])
        return
    if kind and kind not in _CALLS:
        yield Record(body=None, remark=f"left out: calls of type {plain(kind):.40}", left_out=True)
        return
    metadata = _object(value.get("metadata"), "metadata")
    model = text_or_empty(value.get("model"))
    hidden = _object(value.get("hidden_params"), "hidden_params")
    parameters = _object(value.get("model_parameters"), "model_parameters")
    headers = mapping_or_none(parameters.get("extra_headers"), "model_parameters.extra_headers")
    body = _body(value, model, parameters)
    yield Record(
        body=body,
        # One conversation must not change its form on the way, so it is not guessed from what a body holds.
        api=_APIS.get(kind, "openai-chat"),
        model=model,
        provider=first_text((value.get("custom_llm_provider"), hidden.get("custom_llm_provider"))) or None,
        # The gateway may add its own cache marks after logging (cache_control_injection_points).
        wire=False,
        ts=seconds(value.get("startTime", value.get("start_time")), "startTime"),
        session=first_text((value.get("session_id"), metadata.get("session_id"), value.get("trace_id"))),
        agent=first_text((metadata.get("agent_name"), metadata.get("agent_id"), metadata.get("user_api_key_alias"))),
        scope=first_text((metadata.get("user_api_key_hash"), value.get("api_key"))),
        headers=None if headers is None else {name: text_or_empty(held) for name, held in headers.items()},
        usage=_usage(value, metadata),
        response_id=text_or_empty(value.get("id")) if "call_type" in value else "",
        response_started_ts=seconds(value.get("completionStartTime"), "completionStartTime"),
        response_ended_ts=seconds(value.get("endTime", value.get("end_time")), "endTime"),
        failed=value.get("status") == "failure",
        remark=_cut(value.get("proxy_server_request")) or _cut(value.get("messages")),
    )


def _kind(value: Mapping[str, Any]) -> str:
    """The type of a call, an asynchronous one's too (``acompletion``)."""
    told = text_or_empty(value.get("call_type"))
    bare = told.removeprefix("a")
    return bare if bare in _CALLS or bare in _ASIDE else told


def _cut(stored: Any) -> str:
    """What is said of a row whose long texts the proxy cut when it stored them."""
    text = dumps(stored, "stored").decode() if isinstance(stored, Mapping) else stored
    if not isinstance(text, str) or _CUT not in text:
        return ""
    return "texts that LiteLLM cut: a change in what is gone is not seen; set MAX_STRING_LENGTH_PROMPT_IN_DB higher"


def _body(value: Mapping[str, Any], model: str, parameters: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The body as the proxy received it, else of the row's messages and parameters; None where no text was kept."""
    sent = _object(value.get("proxy_server_request"), "proxy_server_request")
    body = sent.get("body", sent)
    if isinstance(body, Mapping) and any(body.get(name) for name in _TEXT):
        return {"model": model, **{name: held for name, held in body.items() if name not in _NO_SETTINGS}}
    messages = as_json(value.get("messages"), "messages") if value.get("messages") else None
    if isinstance(messages, Mapping):
        # Without stored prompts the rows hold {}; responses calls hold their input here.
        return {"model": model, **messages} if messages else None
    if not messages:
        return None
    if not isinstance(messages, list):
        raise BodyError("messages", f"expected a list, found {type(messages).__name__}")
    settings = {name: held for name, held in parameters.items() if name not in _NO_SETTINGS}
    name = {"openai-responses": "input", "gemini": "contents"}.get(_APIS.get(_kind(value), ""), "messages")
    return {"model": model, name: messages, **settings}


def _usage(value: Mapping[str, Any], metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The usage of a row: the provider's own, else LiteLLM's count of the input; None without either."""
    told = metadata.get("usage_object")
    if isinstance(told, Mapping) and told:
        return told
    response = value.get("response")
    answered = _object(response, "response") if response else {}
    usage = answered.get("usage")
    if isinstance(usage, Mapping) and usage:
        return usage
    # The totals alone say nothing about the cache.
    return {"prompt_tokens": value["prompt_tokens"]} if value.get("prompt_tokens") else None


def _object(value: Any, path: str) -> Mapping[str, Any]:
    """A JSON object that the database may hold as text; empty for anything that is none."""
    if isinstance(value, str):
        if not value.lstrip().startswith("{"):
            return {}
        value = as_json(value, path)
    return mapping(value)
