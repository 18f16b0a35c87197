"""OpenTelemetry GenAI spans, as OTLP JSON or as the console exporter prints them.

Attribute names: OpenTelemetry semantic conventions for GenAI 1.37 (2025-09) and later, with the older
spellings (``gen_ai.system``, ``gen_ai.prompt``, one event a message) and OpenLLMetry's numbered attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cacheprefix.audit._messages import as_json, as_tools, first_text, from_parts
from cacheprefix.audit._records import Record, seconds, text_or_empty
from cacheprefix.errors import BodyError

_MODEL_OPERATIONS = frozenset({"chat", "text_completion", "generate_content"})
_MESSAGE_EVENT = re.compile(r"gen_ai\.(system|user|assistant|tool|developer)\.message")
_NUMBERED = re.compile(r"gen_ai\.prompt\.(\d+)\.(.+)")
_NUMBERED_CALL = re.compile(r"tool_calls\.(\d+)\.(id|name|arguments)")
_NUMBERED_TOOL = re.compile(r"llm\.request\.functions\.(\d+)\.(name|description|parameters)")
_SETTINGS = {
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.max_tokens": "max_tokens",
    "gen_ai.openai.request.service_tier": "service_tier",
    "gen_ai.openai.request.response_format": "response_format",
    "gen_ai.output.type": "output_type",
}


def recognises(value: Mapping[str, Any]) -> bool:
    """Whether this is an OTLP export, or one span."""
    if "resourceSpans" in value or "resource_spans" in value:
        return True
    return "attributes" in value and ("context" in value or "traceId" in value or "trace_id" in value)


def read(value: Mapping[str, Any]) -> Iterator[Record]:
    """A record for every span that asked a model; other spans only lend their agent's name."""
    spans = [_Span(span) for span in _spans(value)]
    by_id = {span.identity: span for span in spans if span.identity}
    for span in spans:
        if span.asks_a_model():
            yield span.record(by_id)


def _spans(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    exports = value.get("resourceSpans", value.get("resource_spans"))
    if exports is None:
        yield value
        return
    for resource in _list(exports):
        for scope in _list(resource.get("scopeSpans", resource.get("scope_spans"))):
            yield from _list(scope.get("spans"))


class _Span:
    """One span with its attributes, those of its events that carry content put in."""

    def __init__(self, span: Mapping[str, Any]) -> None:
        context = span.get("context")
        ids = context if isinstance(context, Mapping) else span
        self.identity = text_or_empty(ids.get("spanId", ids.get("span_id")))
        self.trace = text_or_empty(ids.get("traceId", ids.get("trace_id")))
        self.parent = text_or_empty(span.get("parentSpanId", span.get("parent_span_id", span.get("parent_id"))))
        self.start = span.get("startTimeUnixNano", span.get("start_time"))
        self.end = span.get("endTimeUnixNano", span.get("end_time"))
        status = span.get("status")
        code = status.get("code", status.get("status_code")) if isinstance(status, Mapping) else None
        self.failed = code in (2, "STATUS_CODE_ERROR", "ERROR")
        self.attributes = _attributes(span.get("attributes"))
        self.messages: list[dict[str, Any]] = []
        for event in _list(span.get("events")):
            self._take(text_or_empty(event.get("name")), _attributes(event.get("attributes")))

    def _take(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Content that instrumentations put into events: all of it in one, or one event a message."""
        told = _MESSAGE_EVENT.fullmatch(name)
        if told is None:
            self.attributes = {**attributes, **self.attributes}
            return
        message: dict[str, Any] = {"role": told[1], "content": attributes.get("content", "")}
        if attributes.get("tool_calls"):
            message["tool_calls"] = as_json(attributes["tool_calls"], f"{name}.tool_calls")
        if attributes.get("id") is not None:
            message["tool_call_id"] = attributes["id"]
        self.messages.append(message)

    def asks_a_model(self) -> bool:
        """Whether the span is one model request, and not an agent's or a tool's."""
        operation = self.attributes.get("gen_ai.operation.name")
        if operation is not None:
            return operation in _MODEL_OPERATIONS
        return "gen_ai.request.model" in self.attributes or "gen_ai.input.messages" in self.attributes

    def record(self, by_id: Mapping[str, _Span]) -> Record:
        """What the span says of its request."""
        found = self.attributes
        start = _nanoseconds(self.start, "startTimeUnixNano")
        wait = found.get("gen_ai.response.time_to_first_chunk")
        first = start + float(wait) if start is not None and isinstance(wait, (int, float)) else None
        names = ("gen_ai.request.model", "gen_ai.response.model")
        messages = self._messages()
        model = first_text(found.get(name) for name in names)
        body = {"model": model, **self._tools(), "messages": messages, **self._settings()} if messages else None
        return Record(
            body=body,
            api="openai-chat",
            model=model,
            provider=first_text((found.get("gen_ai.provider.name"), found.get("gen_ai.system"))) or None,
            wire=False,
            ts=start,
            session=first_text((found.get("gen_ai.conversation.id"), self.trace)),
            agent=self._agent(by_id),
            usage={name: count for name, count in found.items() if name.startswith("gen_ai.usage.")} or None,
            response_started_ts=first,
            response_ended_ts=_nanoseconds(self.end, "endTimeUnixNano"),
            failed=self.failed,
        )

    def _messages(self) -> list[dict[str, Any]]:
        found = self.attributes
        system = as_json(found.get("gen_ai.system_instructions", []), "gen_ai.system_instructions")
        given = found.get("gen_ai.input.messages", found.get("gen_ai.prompt"))
        told = as_json(given, "gen_ai.input.messages")
        if told is None:
            told = self.messages or _numbered(found)
        if not isinstance(told, list) or not isinstance(system, list):
            raise BodyError("gen_ai.input.messages", f"expected a list, found {type(told).__name__}")
        made: list[dict[str, Any]] = []
        if system:
            made += from_parts({"role": "system", "parts": system}, "gen_ai.system_instructions")
        for index, message in enumerate(told):
            if not isinstance(message, Mapping):
                raise BodyError(f"gen_ai.input.messages[{index}]", "expected an object")
            made += from_parts(message, f"gen_ai.input.messages[{index}]")
        return made

    def _tools(self) -> dict[str, Any]:
        given = self.attributes.get("gen_ai.tool.definitions")
        if given is not None:
            tools = as_json(given, "gen_ai.tool.definitions")
            return {"tools": as_tools(tools, "gen_ai.tool.definitions")} if tools else {}
        rows: dict[int, dict[str, Any]] = {}
        for name, value in self.attributes.items():
            told = _NUMBERED_TOOL.fullmatch(name)
            if told is not None:
                parsed = as_json(value, name) if told[2] == "parameters" else value
                rows.setdefault(int(told[1]), {})[told[2]] = parsed
        return {"tools": [{"type": "function", "function": rows[at]} for at in sorted(rows)]} if rows else {}

    def _settings(self) -> dict[str, Any]:
        return {field: self.attributes[name] for name, field in _SETTINGS.items() if name in self.attributes}

    def _agent(self, by_id: Mapping[str, _Span]) -> str:
        span: _Span | None = self
        for _ in range(len(by_id) + 1):
            if span is None:
                break
            name = span.attributes.get("gen_ai.agent.name")
            if isinstance(name, str) and name:
                return name
            span = by_id.get(span.parent)
        return ""


def _numbered(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """OpenLLMetry's ``gen_ai.prompt.0.role``, ``gen_ai.prompt.0.content``, ``gen_ai.prompt.0.tool_calls.0.name``."""
    rows: dict[int, dict[str, Any]] = {}
    calls: dict[int, dict[int, dict[str, Any]]] = {}
    for name, value in found.items():
        told = _NUMBERED.fullmatch(name)
        if told is None:
            continue
        at, field = int(told[1]), told[2]
        call = _NUMBERED_CALL.fullmatch(field)
        if call is not None:
            calls.setdefault(at, {}).setdefault(int(call[1]), {})[call[2]] = value
        elif field in {"role", "content", "tool_call_id"}:
            rows.setdefault(at, {})[field] = value
    for at, told_calls in calls.items():
        rows.setdefault(at, {})["tool_calls"] = [
            {
                "id": one.get("id"),
                "type": "function",
                "function": {"name": one.get("name"), "arguments": one.get("arguments")},
            }
            for _, one in sorted(told_calls.items())
        ]
    return [{"role": "assistant", "content": None, **rows[at]} for at in sorted(rows)]


def _nanoseconds(value: Any, path: str) -> float | None:
    """OTLP writes nanoseconds, as a number or as text; the console exporter writes ISO 8601."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value / 1e9
    return seconds(value, path)


def _attributes(given: Any) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    return {str(pair.get("key")): _any_value(pair.get("value")) for pair in _list(given)}


def _any_value(value: Any) -> Any:
    """An OTLP AnyValue as a plain one; 64-bit integers are text in JSON."""
    if not isinstance(value, Mapping):
        return value
    if "intValue" in value:
        return int(value["intValue"])
    if "arrayValue" in value:
        inner = value["arrayValue"]
        return [_any_value(item) for item in (inner.get("values") or [] if isinstance(inner, Mapping) else [])]
    if "kvlistValue" in value:
        inner = value["kvlistValue"]
        return dict(_attributes(inner.get("values") if isinstance(inner, Mapping) else None))
    return next(iter(value.values()), None)


def _list(value: Any) -> Sequence[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else ()
