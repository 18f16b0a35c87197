"""Langfuse's exports of observations: JSON, JSON lines and CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cacheprefix.audit.formats.messages import as_json, first_of, first_text, from_tracer, mapping
from cacheprefix.audit.log_records import Record, seconds, text_or_empty
from cacheprefix.errors import BodyError

_COUNTS = {
    "input": ("input", "input_tokens", "prompt_tokens", "promptTokens"),
    "cached": ("input_cached_tokens", "cache_read_input_tokens", "input_cache_read", "cached_tokens"),
    "written": ("input_cache_creation", "cache_creation_input_tokens", "input_cache_write"),
    "output": ("output", "output_tokens", "completion_tokens", "completionTokens"),
}
"""Names of the counts in ``usageDetails``; ``input`` is what was neither read nor written."""
_UNKNOWN_INPUT = "inputs that hold no messages: of these calls only the counts are read"


def recognises(value: Mapping[str, Any]) -> bool:
    """Whether this is an observation, or a trace with its observations."""
    if isinstance(value.get("observations"), list) and value["observations"]:
        return isinstance(value["observations"][0], Mapping)
    named = "traceId" in value or "trace_id" in value
    return named and "input" in value and ("type" in value or "model" in value or "usageDetails" in value)


def read(value: Mapping[str, Any]) -> Iterator[Record]:
    """A record for every generation; spans and events are none."""
    if isinstance(value.get("observations"), list):
        for one in value["observations"]:
            if isinstance(one, Mapping):
                yield from read({"sessionId": value.get("sessionId"), **one})
        return
    kind = text_or_empty(value.get("type")).upper()
    if kind == "EMBEDDING":
        yield Record(body=None, aside="embeddings")
        return
    if kind and kind != "GENERATION":
        return
    model = first_text((value.get("model"), value.get("providedModelName"), value.get("provided_model_name")))
    end = _time(value, "endTime", "end_time")
    body = _body(value, model)
    yield Record(
        body=body,
        api="openai-chat" if not _is_anthropic(value, model) else None,
        model=model,
        provider="anthropic" if _is_anthropic(value, model) else None,
        wire=False,
        ts=_time(value, "startTime", "start_time", "timestamp"),
        session=first_text(value.get(name) for name in ("sessionId", "session_id", "traceId", "trace_id")),
        agent=first_text(mapping(value.get("metadata")).get(name) for name in ("agent_name", "agent")),
        usage=_usage(value),
        response_started_ts=_time(value, "completionStartTime", "completion_start_time"),
        response_ended_ts=end,
        failed=value.get("level") == "ERROR",
        remark=_UNKNOWN_INPUT if body is None and value.get("input") else "",
    )


def _is_anthropic(value: Mapping[str, Any], model: str) -> bool:
    """Anthropic's own form: a system prompt beside the messages."""
    given = _opened(value.get("input"))
    return isinstance(given, Mapping) and "claude" in model and "system" in given


def _body(value: Mapping[str, Any], model: str) -> Mapping[str, Any] | None:
    """The request's body, of an observation's input and parameters; None where the input is none that is understood."""
    given = _opened(value.get("input"))
    parameters = mapping(_opened(value.get("modelParameters", value.get("model_parameters"))))
    settings = {name: held for name, held in parameters.items() if name in ("response_format", "reasoning_effort")}
    if isinstance(given, str) and given:
        given = [{"role": "user", "content": given}]
    if isinstance(given, list) and given:
        return {"model": model, **from_tracer(given, "input"), **settings}
    texts = ("messages", "input", "contents")
    if isinstance(given, Mapping) and any(isinstance(given.get(name), list) for name in texts):
        return {"model": model, **given, **settings}
    return None


def _usage(value: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The counts, spelled as by a provider whose input leaves cached tokens out, as Langfuse's does; or None."""
    details = mapping(_opened(value.get("usageDetails", value.get("usage_details"))))
    found = details or mapping(_opened(value.get("usage")))
    if not found:
        return None
    counts = {name: first_of(found, *names) for name, names in _COUNTS.items()}
    fresh, read, written = counts["input"], counts["cached"], counts["written"]
    if fresh is None:
        return found
    if read is None and not details:
        return {"prompt_tokens": fresh, "completion_tokens": counts["output"]}
    return {
        # Langfuse's SDK takes the cached tokens out of the input.
        "input_tokens": fresh,
        "cache_read_input_tokens": read or 0,
        "cache_creation_input_tokens": written or 0,
        "output_tokens": counts["output"],
    }


def _time(value: Mapping[str, Any], *names: str) -> float | None:
    return seconds(first_of(value, *names), names[0])


def _opened(value: Any) -> Any:
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return as_json(value, "input")
    except BodyError:
        return value
