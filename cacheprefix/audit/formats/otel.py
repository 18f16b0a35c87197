"""Spans of model requests: OTLP JSON, spans or logs, the exports of Tempo, Jaeger, Phoenix and MLflow, or printed.

Attribute names: OpenTelemetry semantic conventions for GenAI 1.37 (2025-09) and later, with the older
spellings (``gen_ai.system``, ``gen_ai.prompt``, one event a message), OpenLLMetry's numbered attributes,
OpenInference's (``llm.input_messages``), those of the Vercel AI SDK (``ai.prompt.messages``), of Langfuse and MLflow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from cacheprefix.audit.formats.messages import (
    as_json,
    as_tools,
    first_of,
    first_text,
    from_parts,
    from_tracer,
    loaded,
    tool_call,
)
from cacheprefix.audit.log_records import Record, seconds, text_or_empty
from cacheprefix.errors import BodyError
from cacheprefix.prompt import Api, dumps

_MODEL_OPERATIONS = frozenset({"chat", "text_completion", "generate_content"})
_MESSAGE_EVENT = re.compile(r"gen_ai\.(system|user|assistant|tool|developer)\.message")
_MODEL_KINDS = frozenset({"LLM", "CHAT_MODEL", "GENERATION"})
_MODELS = (
    "gen_ai.request.model", "gen_ai.response.model", "llm.model_name", "ai.model.id", "langfuse.observation.model.name",
    "mlflow.llm.model",
)  # fmt: skip
_PROVIDERS = (
    "gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system", "ai.model.provider", "mlflow.llm.provider",
)  # fmt: skip
_SESSIONS = (
    "gen_ai.conversation.id", "session.id", "langfuse.session.id", "ai.telemetry.metadata.sessionId", "thread.id",
)  # fmt: skip
_TEXTS = ("messages", "input", "contents")
_NOT_SENT = frozenset({"stream", "stream_options", "extra_headers", "extra_body", "timeout"})
_TOOL_SCHEMA = re.compile(r"llm\.tools\.(\d+)\.tool\.json_schema")
_EXPORTS = frozenset({"resourceSpans", "resource_spans", "resourceLogs", "resource_logs"})
SIGNS = _EXPORTS | frozenset({"batches", "spans", "data", "trace", "result", "logRecords", "attributes"})
"""Fields of which every export, and every span, has one."""
_ENDS = ("endTimeUnixNano", "end_time", "end_time_unix_nano")
_SCOPES = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans", "instrumentation_library_spans")
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
    if not _EXPORTS.isdisjoint(value):
        return True
    if isinstance(value.get("batches"), list) or isinstance(value.get("spans"), list):
        return True
    if _is_traces(value.get("data")) or _trace(value) is not None or "logRecords" in value:
        return True
    return "attributes" in value and ("context" in value or "traceId" in value or "trace_id" in value)


def read(value: Mapping[str, Any]) -> Iterator[Record]:
    """A record for every span that asked a model; other spans only lend their agent's name."""
    spans = [_Span(span) for span in _spans(value)]
    by_id: dict[str, _Span] = {}
    for span in spans:
        if span.asks_a_model():
            # Of a web server's spans none asks one, and of those no more than the attributes is looked at.
            by_id = by_id or {one.identity: one for one in spans if one.identity}
            yield span.record(by_id)


def _spans(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The spans in an export of any of the tools that write OpenTelemetry."""
    data = value.get("data")
    trace = _trace(value)
    if trace is not None:
        yield from _spans(trace)
    elif _is_traces(data):  # Jaeger's lists of traces, MLflow's single ones
        for trace in [data] if isinstance(data, dict) else _list(data):
            yield from _list(trace.get("spans"))
    elif isinstance(value.get("spans"), list):
        yield from _list(value["spans"])
    elif "resourceLogs" in value or "resource_logs" in value:
        yield from _of_logs(value.get("resourceLogs", value.get("resource_logs")))
    else:
        exports = value.get("resourceSpans", value.get("resource_spans", value.get("batches")))
        if exports is None:
            yield value
            return
        for resource in _list(exports):
            scopes = next((resource[name] for name in _SCOPES if name in resource), None)
            for scope in _list(scopes):
                yield from _list(scope.get("spans"))


def _trace(value: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What Tempo's second and Jaeger's third API wrap their spans in."""
    trace, result = value.get("trace"), value.get("result")
    if isinstance(trace, dict):
        return trace
    return result if isinstance(result, dict) and "resourceSpans" in result else None


def _is_traces(data: Any) -> bool:
    first = data[0] if isinstance(data, list) and data else data
    return isinstance(first, dict) and isinstance(first.get("spans"), list)


def _of_logs(exports: Any) -> Iterator[Mapping[str, Any]]:
    """Records of OTLP logs as spans: those that name the same span belong to one request."""
    held: dict[str, dict[str, Any]] = {}
    for number, record in enumerate(_log_records(exports)):
        attributes = dict(_attributes(record.get("attributes")))
        name = _event(record)
        identity = _span_of(record) or f"record {number}"
        time = first_of(record, "timeUnixNano", "observedTimeUnixNano", "timestamp", "observed_timestamp")
        span = held.setdefault(identity, {"startTimeUnixNano": time, "attributes": {}})
        if _span_of(record):
            span |= {"spanId": identity, "traceId": first_of(record, "traceId", "trace_id")}
        body = _any_value(record.get("body"))
        if _MESSAGE_EVENT.fullmatch(name):
            told = {**attributes, **body} if isinstance(body, dict) else {**attributes, "content": body}
            span.setdefault("events", []).append({"name": name, "attributes": told})
        elif name.startswith("gen_ai"):
            more = body if isinstance(body, dict) else {}
            span["attributes"] = {**more, **attributes, **span["attributes"]}
        for told_by in ("gen_ai.request.model", "gen_ai.system", "gen_ai.provider.name"):
            span["attributes"].setdefault(told_by, attributes.get(told_by))
    for span in held.values():
        if span.get("events") or any(name.startswith("gen_ai.input") for name in span["attributes"]):
            operation = {"gen_ai.operation.name": "chat"} if span.get("events") else {}
            told = {key: one for key, one in span["attributes"].items() if one is not None}
            yield {**span, "attributes": {**operation, **told}}


def _log_records(exports: Any) -> Iterator[Mapping[str, Any]]:
    for resource in _list(exports):
        for scope in _list(resource.get("scopeLogs", resource.get("scope_logs"))):
            yield from _list(scope.get("logRecords", scope.get("log_records")))


def _event(record: Mapping[str, Any]) -> str:
    named = first_of(record, "eventName", "event_name")
    return text_or_empty(named or dict(_attributes(record.get("attributes"))).get("event.name"))


def _span_of(record: Mapping[str, Any]) -> str:
    told = text_or_empty(first_of(record, "spanId", "span_id")).removeprefix("0x")
    return told if told.strip("0") else ""


def log_records(value: Any) -> list[Mapping[str, Any]]:
    """The log records of an entry: an OTLP export of logs, or one record that the console exporter printed.

    A request's messages are records of their own, in exports of their own; the reader wants them side by side.
    """
    if not isinstance(value, dict):
        return []
    exports = value.get("resourceLogs")
    if exports is None:
        exports = value.get("resource_logs")
    if exports is not None:
        return list(_log_records(exports))
    printed = "event_name" in value and "body" in value and "severity_number" in value
    return [value] if printed and _event(value).startswith("gen_ai") else []


def of_one_span(records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Log records as one export."""
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": list(records)}]}]}


def span_named(record: Mapping[str, Any]) -> tuple[str, bool]:
    """The span that a log record belongs to, and whether it is the answer, behind which no message follows."""
    return _span_of(record), not _MESSAGE_EVENT.fullmatch(_event(record))


def is_part(record: Mapping[str, Any]) -> bool:
    """Whether a log record holds one message, or one answer, of a request that others hold the rest of."""
    return _MESSAGE_EVENT.fullmatch(_event(record)) is not None or _event(record) == "gen_ai.choice"


class _Span:
    """One span with its attributes, those of its events that carry content put in."""

    def __init__(self, span: Mapping[str, Any]) -> None:
        self._span = span
        self.attributes = _plain(_attributes(first_of(span, "attributes", "tags")))
        if isinstance(span.get("span_kind"), str):
            # Phoenix's API tells it beside the attributes.
            self.attributes.setdefault("openinference.span.kind", span["span_kind"])
        if "mlflow.spanType" in self.attributes:
            # MLflow writes every value as JSON, a name too.
            self.attributes = {name: _named(held) for name, held in self.attributes.items()}
        tagged = "error" in self.attributes and "tags" in span
        self._failed = self.attributes["error"] in (True, "true") if tagged else None
        self.messages: list[dict[str, Any]] = []
        for event in _list(span.get("events")):
            self._take(text_or_empty(event.get("name")), _attributes(event.get("attributes")))

    @property
    def _ids(self) -> Mapping[str, Any]:
        context = self._span.get("context")
        return context if isinstance(context, dict) else self._span

    @property
    def identity(self) -> str:
        """What others call it."""
        return text_or_empty(first_of(self._ids, "spanId", "span_id", "spanID")).removeprefix("0x")

    @property
    def trace(self) -> str:
        """The trace that it belongs to."""
        return text_or_empty(first_of(self._ids, "traceId", "trace_id", "traceID"))

    @property
    def parent(self) -> str:
        """The identity of the span it stands in."""
        told = text_or_empty(first_of(self._span, "parentSpanId", "parent_span_id", "parent_id")).removeprefix("0x")
        return told or _referred(self._span)

    @property
    def start(self) -> Any:
        """When it began, as written."""
        return first_of(self._span, "startTimeUnixNano", "start_time", "start_time_unix_nano", "startTime")

    @property
    def end(self) -> Any:
        """When it ended, as written."""
        found, start, took = first_of(self._span, *_ENDS), self.start, self._span.get("duration")
        if found is None and isinstance(took, (int, float)) and isinstance(start, int):
            return start + int(took)  # Jaeger: microseconds
        return found

    @property
    def failed(self) -> bool:
        """Whether its request was refused or broke off."""
        if self._failed is not None:
            return self._failed
        status = self._span.get("status")
        code = first_of(status, "code", "status_code") if isinstance(status, dict) else self._span.get("status_code")
        return code in (2, "STATUS_CODE_ERROR", "ERROR")

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
        found = self.attributes
        kinds = ("openinference.span.kind", "mlflow.spanType", "langfuse.observation.type")
        kind = first_of(found, *kinds)
        if isinstance(kind, str):
            return kind.upper() in _MODEL_KINDS or bool(self.aside())
        named = found.get("ai.operationId")
        if isinstance(named, str):
            # The outer span of a call repeats what its inner ones say, one for each request.
            return named.endswith((".doGenerate", ".doStream", ".doEmbed"))
        operation = found.get("gen_ai.operation.name", found.get("llm.request.type"))
        if operation is not None:
            return operation in _MODEL_OPERATIONS or bool(self.aside())
        return "gen_ai.request.model" in self.attributes or "gen_ai.input.messages" in self.attributes

    def aside(self) -> str:
        """What is asked for where that is no answer of a language model."""
        found = self.attributes
        kind = text_or_empty(found.get("openinference.span.kind", found.get("mlflow.spanType"))).upper()
        names = (found.get("gen_ai.operation.name"), found.get("ai.operationId"), found.get("llm.request.type"))
        told = kind == "EMBEDDING" or any(isinstance(name, str) and "embed" in name.lower() for name in names)
        return "embeddings" if told else ""

    def record(self, by_id: Mapping[str, _Span]) -> Record:
        """What the span says of its request."""
        found = self.attributes
        if self.aside():
            return Record(body=None, aside=self.aside())
        start = _nanoseconds(self.start, "startTimeUnixNano")
        wait = found.get("gen_ai.response.time_to_first_chunk")
        first = start + float(wait) if start is not None and isinstance(wait, (int, float)) else None
        model = first_text(found.get(name) for name in _MODELS)
        body, api, wire = self._sent(), None, True
        if body is not None:
            model = first_text((body.get("model"), model))
            body = {"model": model, **body}
        else:
            messages, api, wire = self._messages(), "openai-chat", False
            body = {"model": model, **self._tools(), "messages": messages, **self._settings()} if messages else None
        return Record(
            body=body,
            api=cast("Api | None", api),
            model=model,
            provider=first_text(_provider(found.get(name)) for name in _PROVIDERS) or None,
            wire=wire,
            ts=start,
            session=first_text((*(found.get(name) for name in _SESSIONS), self.trace)),
            agent=self._agent(by_id),
            usage=_usage(found),
            response_id=first_text((found.get("gen_ai.response.id"), found.get("ai.response.id"), _answer_id(found))),
            response_started_ts=first,
            response_ended_ts=_nanoseconds(self.end, "endTimeUnixNano"),
            span=self.identity,
            failed=self.failed,
        )

    def _sent(self) -> Mapping[str, Any] | None:
        """The request as it was sent; None where the instrumentation does not keep it whole."""
        found = self.attributes
        for name in ("input.value", "langfuse.observation.input", "mlflow.spanInputs"):
            text = found.get(name)
            given = loaded(text) if isinstance(text, str) else text
            if isinstance(given, dict) and any(isinstance(given.get(field), list) for field in _TEXTS):
                # Frameworks put their own objects there; those are read from the numbered attributes.
                held = next(given[field] for field in _TEXTS if isinstance(given.get(field), list))
                if all(isinstance(one, dict) and ("role" in one or "type" in one or "parts" in one) for one in held):
                    sent = {key: one for key, one in given.items() if key not in _NOT_SENT and one is not None}
                    tools = loaded(found.get("mlflow.chat.tools")) if name == "mlflow.spanInputs" else None
                    return {"tools": tools, **sent} if tools else sent
            if isinstance(given, list) and name != "input.value" and given:
                return from_tracer(given, name)
        return None

    def _messages(self) -> list[dict[str, Any]]:
        """The span's messages, in whichever convention it spells them."""
        found = self.attributes
        spelled = _openinference(found) or _vercel(found)
        if spelled:
            return spelled
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
            if not isinstance(message, dict):
                raise BodyError(f"gen_ai.input.messages[{index}]", "expected an object")
            made += from_parts(message, f"gen_ai.input.messages[{index}]")
        return made

    def _tools(self) -> dict[str, Any]:
        """The body's ``tools``, in whichever convention the span spells them; an empty dict where it has none."""
        given = self.attributes.get("gen_ai.tool.definitions", self.attributes.get("ai.prompt.tools"))
        if isinstance(given, list):
            made = [as_json(tool, "ai.prompt.tools") for tool in given]
            return {"tools": as_tools([_vercel_tool(tool) for tool in made], "ai.prompt.tools")} if made else {}
        schemas = {
            int(told[1]): as_json(value, name)
            for name, value in self.attributes.items()
            if (told := _TOOL_SCHEMA.fullmatch(name)) is not None
        }
        if schemas:
            return {"tools": as_tools([schemas[at] for at in sorted(schemas)], "llm.tools")}
        if given is not None:
            tools = as_json(given, "gen_ai.tool.definitions")
            return {"tools": as_tools(tools, "gen_ai.tool.definitions")} if tools else {}
        functions = _rows(self.attributes, _NUMBERED_TOOL)
        for at, function in functions.items():
            if "parameters" in function:
                function["parameters"] = as_json(function["parameters"], f"llm.request.functions.{at}.parameters")
        tools = [{"type": "function", "function": functions[at]} for at in sorted(functions)]
        return {"tools": tools} if tools else {}

    def _settings(self) -> dict[str, Any]:
        given = loaded(self.attributes.get("llm.invocation_parameters"))
        if isinstance(given, dict):
            elsewhere = {"messages", "model", "tools", *_NOT_SENT}
            return {name: held for name, held in given.items() if name not in elsewhere}
        return {field: self.attributes[name] for name, field in _SETTINGS.items() if name in self.attributes}

    def _agent(self, by_id: Mapping[str, _Span]) -> str:
        """The name of the nearest agent's span, its own or one that it stands in; an empty text without one."""
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
    made = []
    for _, fields in sorted(_rows(found, _NUMBERED).items()):
        row = {field: value for field, value in fields.items() if field in {"role", "content", "tool_call_id"}}
        calls = [
            {
                "id": one.get("id"),
                "type": "function",
                "function": {"name": one.get("name"), "arguments": one.get("arguments")},
            }
            for _, one in sorted(_rows(fields, _NUMBERED_CALL).items())
        ]
        if calls:
            row["tool_calls"] = calls
        if row:
            made.append({"role": "assistant", "content": None, **row})
    return made


def _rows(found: Mapping[str, Any], pattern: re.Pattern[str]) -> dict[int, dict[str, Any]]:
    """Values by the number in their name and what stands behind it, of the names that fit a pattern of these two."""
    rows: dict[int, dict[str, Any]] = {}
    for name, value in found.items():
        told = pattern.fullmatch(name)
        if told is not None:
            rows.setdefault(int(told[1]), {})[told[2]] = value
    return rows


_CONTENT = re.compile(r"message\.contents\.(\d+)\.message_content\.(.+)")
_OF_MESSAGE = frozenset({"message.role", "message.content", "message.name", "message.tool_call_id"})
_INPUT = re.compile(r"llm\.input_messages\.(\d+)\.(.+)")
_CALL = re.compile(r"message\.tool_calls\.(\d+)\.tool_call\.(id|function\.name|function\.arguments)")


def _openinference(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """OpenInference's ``llm.input_messages.0.message.content`` and its like."""
    made = []
    for _, fields in sorted(_rows(found, _INPUT).items()):
        row = {name.partition(".")[2]: value for name, value in fields.items() if name in _OF_MESSAGE}
        parts = [_part(one) for _, one in sorted(_rows(fields, _CONTENT).items())]
        if parts:
            row.setdefault("content", parts)
        calls = [
            tool_call(one.get("id"), one.get("function.name"), one.get("function.arguments"), "llm.input_messages")
            for _, one in sorted(_rows(fields, _CALL).items())
        ]
        if calls:
            row["tool_calls"] = calls
        made.append({"role": "user", "content": None, **row})
    return made


def _part(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": fields.get("type", "text"), **{name: held for name, held in fields.items() if name != "type"}}


def _vercel(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The Vercel AI SDK's ``ai.prompt.messages``: parts of type text, tool-call and tool-result."""
    given = loaded(found.get("ai.prompt.messages"))
    made: list[dict[str, Any]] = []
    for message in _list(given):
        role, content = text_or_empty(message.get("role")), message.get("content")
        if isinstance(content, str):
            made.append({"role": role, "content": content})
            continue
        texts: list[Any] = []
        calls: list[dict[str, Any]] = []
        results: list[dict[str, Any]] = []
        for part in _list(content):
            kind = part.get("type")
            if kind == "tool-call":
                given_with = part.get("input", part.get("args"))
                calls.append(tool_call(part.get("toolCallId"), part.get("toolName"), given_with, "ai"))
            elif kind == "tool-result":
                answer = part.get("output", part.get("result"))
                text = answer if isinstance(answer, str) else dumps(answer, "ai").decode()
                results.append({"role": "tool", "tool_call_id": part.get("toolCallId"), "content": text})
            else:
                texts.append({"type": "text", "text": part["text"]} if kind == "text" and "text" in part else part)
        if texts or calls:
            made.append({"role": role, "content": texts or None, **({"tool_calls": calls} if calls else {})})
        made += results
    return made


def _vercel_tool(tool: Any) -> Any:
    if isinstance(tool, dict) and tool.get("type") == "function" and "inputSchema" in tool:
        return {**{name: one for name, one in tool.items() if name != "inputSchema"}, "parameters": tool["inputSchema"]}
    return tool


def _usage(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The counts of a span, by the first convention that it follows; None without any."""
    counts = {
        "input": ("llm.token_count.prompt", "ai.usage.inputTokens", "ai.usage.promptTokens"),
        "read": (
            "llm.token_count.prompt_details.cache_read", "llm.token_count.prompt_details.cache_input",
            "ai.usage.inputTokenDetails.cacheReadTokens", "ai.usage.cachedInputTokens",
        ),
        "written": ("llm.token_count.prompt_details.cache_write", "ai.usage.inputTokenDetails.cacheWriteTokens"),
        "output": ("llm.token_count.completion", "ai.usage.outputTokens", "ai.usage.completionTokens"),
    }  # fmt: skip
    told = {key: next((found[name] for name in names if name in found), None) for key, names in counts.items()}
    if told["input"] is not None:
        details = {"cached_tokens": told["read"], "cache_write_tokens": told["written"]}
        given = {name: count for name, count in details.items() if count is not None}
        return {"prompt_tokens": told["input"], "completion_tokens": told["output"], "prompt_tokens_details": given}
    for name in ("langfuse.observation.usage_details", "mlflow.chat.tokenUsage"):
        held = loaded(found.get(name)) if isinstance(found.get(name), str) else found.get(name)
        answer = _answer(found)
        inner = answer.get("usage") if isinstance(answer, dict) else None
        if isinstance(inner, dict):
            return inner
        if isinstance(held, dict) and held:
            return held
    return {name: count for name, count in found.items() if name.startswith("gen_ai.usage.")} or None


def _answer(found: Mapping[str, Any]) -> Any:
    for name in ("output.value", "mlflow.spanOutputs"):
        answer = loaded(found.get(name)) if isinstance(found.get(name), str) else found.get(name)
        if isinstance(answer, dict):
            return answer
    return None


def _answer_id(found: Mapping[str, Any]) -> str:
    answer = _answer(found)
    return text_or_empty(answer.get("id")) if isinstance(answer, dict) else ""


def _provider(name: Any) -> Any:
    """``openai.chat`` and ``anthropic.messages`` are an SDK's words for the provider's API."""
    return name.partition(".")[0] if isinstance(name, str) and not name.startswith(("aws.", "az.", "gcp.")) else name


def _named(value: Any) -> Any:
    """A name that was written as JSON; everything else as it is."""
    told = loaded(value) if isinstance(value, str) and value.startswith('"') else value
    return told if isinstance(told, str) else value


def _referred(span: Mapping[str, Any]) -> str:
    """Jaeger's reference to the parent."""
    refs = (ref.get("spanID") for ref in _list(span.get("references")) if ref.get("refType") == "CHILD_OF")
    return first_text(refs)


def _plain(attributes: Mapping[str, Any], name: str = "", depth: int = 0) -> dict[str, Any]:
    """Attributes by their dotted names; Phoenix nests them."""
    if depth == 0 and not any(isinstance(one, dict) for one in attributes.values()):
        return dict(attributes)
    made: dict[str, Any] = {}
    for key, value in attributes.items():
        title = f"{name}.{key}" if name else key
        if isinstance(value, dict) and depth < 8 and not key.startswith("mlflow."):
            made |= _plain(value, title, depth + 1)
        elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value) and depth < 8:
            for at, one in enumerate(value):
                made |= _plain(one, f"{title}.{at}", depth + 1)
        else:
            made[title] = value
    return made


def _nanoseconds(value: Any, path: str) -> float | None:
    """OTLP writes nanoseconds, as a number or as text; the console exporter writes ISO 8601."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value / 1e9
    return seconds(value, path)


def _attributes(given: Any) -> Mapping[str, Any]:
    if isinstance(given, dict):
        return given
    return {str(pair.get("key")): _any_value(pair.get("value", pair.get("vStr"))) for pair in _list(given)}


_CAMEL = {"int_value": "intValue", "array_value": "arrayValue", "kvlist_value": "kvlistValue"}


def _any_value(value: Any) -> Any:
    """An OTLP AnyValue as a plain one; 64-bit integers are text in JSON."""
    if not isinstance(value, dict):
        return value
    # Phoenix's API writes all the other types as null, under names with underscores.
    value = {_CAMEL.get(name, name): held for name, held in value.items() if held is not None}
    if "intValue" in value:
        return int(value["intValue"])
    if "arrayValue" in value:
        inner = value["arrayValue"]
        return [_any_value(item) for item in (inner.get("values") or [] if isinstance(inner, dict) else [])]
    if "kvlistValue" in value:
        inner = value["kvlistValue"]
        return dict(_attributes(inner.get("values") if isinstance(inner, dict) else None))
    return next(iter(value.values()), None)


def _list(value: Any) -> Sequence[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else ()
