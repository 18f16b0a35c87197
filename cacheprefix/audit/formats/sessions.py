"""Session files of coding agents: Claude Code's and Codex's. They hold counts; the requests themselves are not kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cacheprefix.audit.log_records import Record, seconds, text_or_empty

_ROLLOUT = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_BOOKKEEPING = frozenset({"summary", "file-history-snapshot"})
"""Lines of a session file that name no session."""
_OTHERS = frozenset({"request", "response", "input", "body", "messages", "traceId"})


def recognises_claude_code(value: Mapping[str, Any]) -> bool:
    """Whether this is a line of ``~/.claude/projects/*/*.jsonl``."""
    if not isinstance(value.get("type"), str) or _OTHERS & value.keys():
        return False
    return "sessionId" in value or value["type"] in _BOOKKEEPING


def read_claude_code(value: Mapping[str, Any]) -> Iterator[Record]:
    """A record for each answer. An answer of several blocks stands on as many lines, with the same id and counts."""
    message = value.get("message")
    if value.get("type") != "assistant" or not isinstance(message, Mapping):
        return
    if message.get("model") == "<synthetic>":
        return  # An error that the program shows as an answer.
    if not isinstance(message.get("usage"), Mapping):
        yield Record(body=None, remark="left out: answers without counts of tokens", left_out=True)
        return
    yield Record(
        body=None,
        model=text_or_empty(message.get("model")),
        provider="anthropic",
        ts=seconds(value.get("timestamp"), "timestamp"),
        session=text_or_empty(value.get("sessionId")) + (" side" if value.get("isSidechain") else ""),
        agent="subagent" if value.get("isSidechain") else "",
        usage=message["usage"],
        response_id=text_or_empty(message.get("id")),
    )


def recognises_codex(value: Mapping[str, Any]) -> bool:
    """Whether this is a line of ``~/.codex/sessions/**/rollout-*.jsonl``."""
    if not isinstance(value.get("payload"), Mapping):
        return False
    return value.get("type") in _ROLLOUT or {"ordinal", "timestamp", "type"} <= value.keys()


def model_of_codex(value: Mapping[str, Any]) -> str:
    """The model that the following requests of a rollout ask, where this line says it."""
    return text_or_empty(value["payload"].get("model")) if value.get("type") == "turn_context" else ""


def read_codex(value: Mapping[str, Any]) -> Iterator[Record]:
    """A record for each count of tokens that says something of the last request."""
    payload = value["payload"]
    info = payload.get("info")
    if payload.get("type") != "token_count" or info is None:
        return  # The first event of a rollout tells limits and no counts yet.
    told = info if isinstance(info, Mapping) else {}
    last, total = told.get("last_token_usage"), told.get("total_token_usage")
    if not isinstance(last, Mapping):
        yield Record(body=None, remark="left out: counts that do not tell the last request's", left_out=True)
        return
    yield Record(
        body=None,
        provider="openai",
        ts=seconds(value.get("timestamp"), "timestamp"),
        session="rollout",
        usage={
            "input_tokens": last.get("input_tokens"),
            "input_tokens_details": {"cached_tokens": last.get("cached_input_tokens")},
            "output_tokens": last.get("output_tokens"),
        },
        # The same count is told again with every event that follows it.
        response_id=str(total.get("total_tokens")) if isinstance(total, Mapping) else "",
    )
