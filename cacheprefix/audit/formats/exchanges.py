"""Logs that hold requests and answers as they went over the wire, in whatever wrapping.

HAR files, Helicone exports, Bedrock's invocation logs, OpenAI's batch files, the SDKs' debug logs, and what people
write by hand: ``{timestamp, request, response}``, ``{request: {method, url, body}, response}`` and the like.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from cacheprefix.audit.formats.messages import first_text, loaded
from cacheprefix.audit.log_records import Record, seconds, text_or_empty
from cacheprefix.errors import BodyError
from cacheprefix.prompt import Api

_DEEPEST = 5
_BATCH_LINE = frozenset({"method", "url", "body"})
"""The fields of a batch's request beside its ``custom_id``."""
_TEXT = ("messages", "contents", "input", "instructions", "prompt", "system")
_NAMES_REQUEST = (
    "request_body", "requestBody", "request", "req", "inputBodyJson", "body", "payload", "input", "json", "json_data",
    "postData", "providerRequest", "data", "params", "kwargs", "text", "message", "log", "entry", "event",
)  # fmt: skip
_NAMES_RESPONSE = (
    "response_body", "responseBody", "response", "resp", "providerResponse", "outputBodyJson", "output", "completion",
    "result", "answer",
)  # fmt: skip
_AROUND = ("message", "log", "entry", "event", "data")
"""Where an entry holds another one."""
_HOLD_REQUEST, _HOLD_RESPONSE = frozenset(_NAMES_REQUEST), frozenset({*_NAMES_RESPONSE, *_AROUND})
SIGNS = frozenset({*_TEXT, *_HOLD_REQUEST, *_HOLD_RESPONSE, "custom_id", "usage", "usageMetadata"})
"""Fields of which every entry has one: of a body, of what it may stand in, or of an answer."""
_ANSWERED = frozenset({"usage", "usageMetadata", "choices", "candidates", "stop_reason"})
_HOLD_ANSWER = ("body", "content", "text", "data", "json", "response", "outputBodyJson", "parsed", "message")
_INSIDE = SIGNS | _ANSWERED | frozenset(_HOLD_ANSWER)
"""Fields of which an object has one that a body or an answer may stand in."""
_NAMES_TIME = (
    "timestamp", "ts", "time", "startedDateTime", "request_created_at", "created_at", "createdAt", "start_time",
    "startTime", "requestTimestamp", "request_time", "date", "@timestamp",
)  # fmt: skip
_NAMES_END = ("end_time", "endTime", "response_created_at", "ended_at", "response_time_utc", "completed_at")
_NAMES_SESSION = (
    "session_id", "sessionId", "session", "thread_id", "conversation_id", "conversationId", "Helicone-Session-Id",
)  # fmt: skip
_NAMES_AGENT = ("agent", "agent_name", "agentName", "node")
_NAMES_URL = ("url", "path", "endpoint", "request_path", "requestUrl", "uri")
_PATHS: tuple[tuple[re.Pattern[str], Api | None, str], ...] = (
    (re.compile(r"/chat/completions"), "openai-chat", ""),
    (re.compile(r"/responses"), "openai-responses", ""),
    (re.compile(r"/messages"), "anthropic", ""),
    (re.compile(r":(?:stream)?[gG]enerateContent"), "gemini", ""),
    (re.compile(r"/converse"), "bedrock", ""),
    (re.compile(r"/embeddings|[eE]mbed"), None, "embeddings"),
    (re.compile(r"/images"), None, "images"),
    (re.compile(r"/audio|/speech|/transcri"), None, "audio"),
    (re.compile(r"/moderations"), None, "moderations"),
    (re.compile(r"/models$|count_tokens|countTokens|/files|/batches"), None, "other endpoints"),
)
_MODEL_IN_URL = re.compile(r"/models?/([^/:?]+)[:/]")
_ASIDE = re.compile(r"embed", re.IGNORECASE)
_IMAGES = re.compile(r"dall-e|gpt-image|imagen|stable-diffusion", re.IGNORECASE)


def aside_of(body: Mapping[str, Any]) -> str:
    """What a body asks for where that is no answer of a language model; empty for one that does."""
    model = text_or_empty(body.get("model"))
    if _ASIDE.search(model) or ("input" in body and "encoding_format" in body):
        return "embeddings"
    if _IMAGES.search(model) or ("prompt" in body and "size" in body):
        return "images"
    return ""


def recognises(value: Mapping[str, Any]) -> bool:
    """Whether a request body stands anywhere in the entry, or the answer of one with its counts."""
    if isinstance(value.get("log"), dict) and isinstance(value["log"].get("entries"), list):
        return True
    if not any(_opens(value[name]) for name in (_HOLD_REQUEST | _HOLD_RESPONSE).intersection(value)):
        # An application's line of a few words: nothing stands in it but itself.
        return _is_body(value) or "custom_id" in value or _is_answer(value)
    return _find_body(value) is not None or "custom_id" in value or _is_answered(value)


def read(value: Mapping[str, Any]) -> Iterator[Record]:
    """The requests of an entry: one, or all of a HAR file."""
    log = value.get("log")
    entries = log.get("entries") if isinstance(log, dict) else None
    if not isinstance(entries, list):
        yield from _exchange(value)
        return
    asked = [entry for entry in entries if isinstance(entry, dict) and _told_by(_url(entry))[0] is not None]
    if asked and not any(_find_body(entry) for entry in asked):
        problem = f"{len(asked)} requests of a model without their bodies; record them inside (content: embed)"
        raise BodyError("log.entries", problem)
    for entry in entries:
        if isinstance(entry, dict):
            yield from _exchange(entry)


def _exchange(value: Mapping[str, Any]) -> Iterator[Record]:
    """The request of one HTTP exchange, with its answer, times and session; nothing where it asked no model."""
    body = _find_body(value)
    url = _url(value)
    api, aside = _told_by(url)
    if body is not None and not aside and api is None:
        aside = aside_of(body)
    if aside:
        yield Record(body=None, aside=aside)
        return
    answer = _answer(value)
    if body is None and answer is None:
        if "custom_id" in value:
            # A batch's request that was refused, expired or cancelled.
            yield Record(body=None, response_id=text_or_empty(value["custom_id"]), failed=True)
        return
    status = _status(value)
    said = body or {}
    model = first_text((
        said.get("model"), said.get("modelId"), value.get("modelId"), value.get("model"), _model_of(url),
        answer.get("model") if isinstance(answer, dict) else None,
    ))  # fmt: skip
    start, end = _time(value, _NAMES_TIME), _time(value, _NAMES_END)
    if start is None and isinstance(value.get("timing"), dict):
        start, end = (_parted(value["timing"].get(name)) for name in ("startTime", "endTime"))
    took = value.get("time") if "startedDateTime" in value else None
    if end is None and start is not None and isinstance(took, (int, float)):
        end = start + took / 1e3  # A HAR file says how many milliseconds it took.
    batch = text_or_empty(value.get("custom_id"))
    yield Record(
        body=None if body is None else _plain(body),
        api=_api_of(api, body, value),
        model=model,
        provider=first_text((value.get("provider"), _provider_of(value, url))) or None,
        ts=start,
        session=_named(value, _NAMES_SESSION),
        agent=_named(value, _NAMES_AGENT),
        headers=_headers(value),
        usage=_usage(answer, value),
        response_id=batch or (text_or_empty(answer.get("id")) if isinstance(answer, dict) else ""),
        response_ended_ts=end,
        failed=status is not None and status >= 400,
        remark="" if batch else _unjoined(value),
    )


def _unjoined(value: Mapping[str, Any]) -> str:
    """What is said of a batch's line that nothing joins with the other half of its call."""
    if text_or_empty(value.get("id")).startswith("batch_req_"):
        return "answers of a batch without custom_id: each counts as a call of its own, without its request's text"
    if value.keys() == _BATCH_LINE and text_or_empty(value["url"]).startswith("/v1/"):
        return "requests of a batch without custom_id: nothing says which answer is whose"
    return ""


def _plain(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: held for name, held in body.items() if not (name == "stream_options" and held is None)}


def _is_body(value: Any) -> bool:
    """Whether a mapping is a request body: its texts, and not an answer's."""
    if not isinstance(value, dict) or "choices" in value or "candidates" in value:
        return False
    if isinstance(value.get("messages"), list) or isinstance(value.get("contents"), list):
        return True
    if not isinstance(value.get("model"), str):
        return False
    return any(isinstance(value.get(name), (list, str)) and value.get(name) for name in _TEXT) and "output" not in value


def _find_body(value: Any, depth: int = 0) -> Mapping[str, Any] | None:
    """The request body in an entry, nested or as JSON text; None where there is none."""
    value = _opened(value)
    if not isinstance(value, dict):
        return None
    if _is_body(value):
        return cast("Mapping[str, Any]", value)
    if depth == _DEEPEST or _HOLD_REQUEST.isdisjoint(value):
        return None
    for name in _NAMES_REQUEST:
        if name in value:
            found = _find_body(value[name], depth + 1)
            if found is not None:
                return found
    return None


def _answer(value: Any, depth: int = 0) -> Any:
    """The answer in an entry: its JSON, or the events of a stream."""
    if not isinstance(value, dict) or depth == _DEEPEST:
        return None
    # Only names that stand there are looked at: it is asked of every line of an application's log.
    for name in () if _HOLD_RESPONSE.isdisjoint(value) else _NAMES_RESPONSE:
        held = _opened(value[name]) if name in value else None
        found = None if held is None else _inner_answer(held)
        if found is not None:
            return found
    for name in _AROUND:
        found = _answer(_opened(value[name]), depth + 1) if name in value else None
        if found is not None:
            return found
    return value if depth == 0 and _is_answer(value) else None


def _is_answer(value: Mapping[str, Any]) -> bool:
    """Whether an entry is an answer itself, with its counts."""
    if isinstance(value.get("usage"), dict):
        return "choices" in value or value.get("type") == "message" or value.get("object") == "response"
    return isinstance(value.get("usageMetadata"), dict) and "candidates" in value


def _inner_answer(value: Any, depth: int = 0) -> Any:
    """The answer that an exchange holds, in up to ``_DEEPEST`` things that wrap it; None without one."""
    value = _opened(value)
    if isinstance(value, list):
        return value if value and all(isinstance(one, dict) for one in value) else None
    if not isinstance(value, dict) or depth == _DEEPEST:
        return None
    if not _ANSWERED.isdisjoint(value):
        return value
    for name in _HOLD_ANSWER:
        held = value.get(name)
        if name == "text" and value.get("encoding") == "base64" and isinstance(held, str):
            held = _decoded(held)
        found = _inner_answer(held, depth + 1)
        if found is not None:
            return found
    return None


def _is_answered(value: Mapping[str, Any]) -> bool:
    answer = _answer(value)
    return isinstance(answer, dict) and ("usage" in answer or "usageMetadata" in answer)


def _opens(value: Any) -> bool:
    """Whether a body or an answer may stand in a value: in an object, or a text that begins like JSON or events."""
    if isinstance(value, str):
        return value.lstrip().startswith(("{", "[", "data:", "event:"))
    return isinstance(value, list) or (isinstance(value, dict) and not _INSIDE.isdisjoint(value))


def _opened(value: Any) -> Any:
    """JSON text, and the events of a stream, as values; everything else as it is."""
    if not isinstance(value, str):
        return value
    text = value.lstrip()
    if text.startswith(("data:", "event:")):
        events = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
        return [event for event in map(loaded, events) if isinstance(event, dict)]
    # The parsers are asked of what ends as it begins alone: to let both fail costs more than all the rest of a line.
    ends = {"{": "}", "[": "]"}.get(text[:1])
    return loaded(text) if ends is not None and text.rstrip().endswith(ends) else None


def _decoded(text: str) -> str | None:
    try:
        return base64.b64decode(text, validate=True).decode("utf-8", "replace")
    except (ValueError, binascii.Error):
        return None


def _usage(answer: Any, value: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The usage that an answer reports, or the entry beside it; None where neither does."""
    if isinstance(answer, list):
        from cacheprefix.profiles import merge_usage  # noqa: PLC0415 - only for logged streams

        # Bedrock's ConverseStream says its counts in an event of its own.
        return merge_usage(*(one.get("metadata", one) for one in answer)) or None
    if isinstance(answer, dict):
        for name in ("usage", "usageMetadata", "usage_metadata"):
            if isinstance(answer.get(name), dict):
                return cast("Mapping[str, Any]", answer[name])
    held = value.get("usage")
    return held if isinstance(held, dict) else None


def _url(value: Mapping[str, Any]) -> str:
    for held in (value.get("request"), value):
        if isinstance(held, dict):
            found = first_text(held.get(name) for name in _NAMES_URL)
            if found:
                return found
    return ""


def _told_by(url: str) -> tuple[Api | None, str]:
    return next(((api, aside) for pattern, api, aside in _PATHS if pattern.search(url)), (None, ""))


def _model_of(url: str) -> str:
    told = _MODEL_IN_URL.search(url)
    return told[1] if told is not None else ""


def _api_of(api: Api | None, body: Mapping[str, Any] | None, value: Mapping[str, Any]) -> Api | None:
    if api is not None or body is None:
        return api
    operation = text_or_empty(value.get("operation"))
    if operation.startswith("Converse"):
        return "bedrock"
    return "anthropic" if operation.startswith("InvokeModel") and "anthropic_version" in body else None


def _provider_of(value: Mapping[str, Any], url: str) -> str:
    if "modelId" in value and ("schemaType" in value or "inputBodyJson" in str(value.get("input", ""))[:200]):
        return "bedrock"
    hosts = {"api.openai.com": "openai", "api.anthropic.com": "anthropic", "generativelanguage": "google"}
    return next((name for host, name in hosts.items() if host in url), "")


def _status(value: Mapping[str, Any]) -> int | None:
    for held in (value.get("response"), value):
        if isinstance(held, dict):
            for name in ("status", "status_code", "statusCode", "response_status"):
                found = held.get(name)
                if isinstance(found, int) and not isinstance(found, bool):
                    return found
    return None


def _time(value: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """Seconds since 1970 by the first of ``names`` that holds a time, in the entry or in its request."""
    request = value.get("request")
    for held in (value, request if isinstance(request, dict) else {}):
        for name in names:
            if name == "time" and "startedDateTime" in held:
                continue  # In a HAR file the milliseconds that it took.
            if isinstance(held.get(name), (str, int, float)) and not isinstance(held.get(name), bool):
                try:
                    return seconds(held[name], name)
                except BodyError:
                    continue
    return None


def _parted(value: Any) -> float | None:
    """A time as Helicone's loggers write it: seconds, and milliseconds beside them."""
    if not isinstance(value, dict):
        return None
    whole, rest = value.get("seconds"), value.get("milliseconds", 0)
    return whole + rest / 1e3 if isinstance(whole, (int, float)) and isinstance(rest, (int, float)) else None


def _named(value: Mapping[str, Any], names: tuple[str, ...]) -> str:
    answered = value.get("providerResponse")
    headers = answered.get("headers") if isinstance(answered, dict) else None
    for held in (value, value.get("metadata"), value.get("properties"), value.get("request_properties"), headers):
        if isinstance(held, dict):
            found = first_text(held.get(name) for name in names)
            if found:
                return found
    return ""


def _headers(value: Mapping[str, Any]) -> Mapping[str, str] | None:
    request = value.get("request")
    given = request.get("headers") if isinstance(request, dict) else value.get("headers")
    if isinstance(given, dict):
        return {str(name): text_or_empty(held) for name, held in given.items() if isinstance(held, (str, int))}
    if isinstance(given, list):
        pairs = [one for one in given if isinstance(one, dict) and isinstance(one.get("name"), str)]
        return {one["name"]: text_or_empty(one.get("value")) for one in pairs} or None
    return None
