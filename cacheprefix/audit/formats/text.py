"""Rendered prompts (LMCache's agent trace) and logs that hold counts only (TraceLab's rounds)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cacheprefix.audit.log_records import Record, seconds, text_or_empty
from cacheprefix.errors import BodyError

# A role at the start, or behind an empty line, and nothing else: "FileSurfer: ..." is text of a message. The pattern
# begins with plain characters, which are looked for fifteen times as fast as an alternative.
_ROLE = re.compile(r"\n\n(system|developer|user|assistant|tool): ")

_LONGEST_ROLE = 16

_COUNTS = frozenset({"input_tokens_total", "prefix_tokens", "session_id"})


def recognises_text(value: Mapping[str, Any]) -> bool:
    """Whether this is a rendered prompt with its session."""
    return isinstance(value.get("input"), str) and {"timestamp", "session_id"} <= value.keys()


def read_text(value: Mapping[str, Any]) -> Iterator[Record]:
    """One record; the text is split where it shows a role, else it is one message."""
    model = text_or_empty(value.get("model"))
    yield Record(
        body={"model": model, "messages": split(value["input"])},
        api="openai-chat",
        model=model,
        # The trace is of engines that LMCache extends.
        provider=text_or_empty(value.get("provider")) or "vllm",
        wire=False,
        ts=seconds(value["timestamp"], "timestamp"),
        session=text_or_empty(value["session_id"]),
        agent=text_or_empty(value.get("agent")),
    )


def split(text: str) -> list[dict[str, str]]:
    """The messages of a rendered prompt, begun by ``_ROLE``; text in front of the first is a user's.

    Nothing behind a message decides where it begins, so that a longer prompt splits alike.
    """
    first = _ROLE.match("\n\n" + text[:_LONGEST_ROLE])
    role, at = ("user", 0) if first is None else (first[1], first.end() - 2)
    made = []
    for mark in _ROLE.finditer(text):
        if mark.start():
            made.append({"role": role, "content": text[at : mark.start()]})
        role, at = mark[1], mark.end()
    made.append({"role": role, "content": text[at:]})
    return made


def recognises_counts(value: Mapping[str, Any]) -> bool:
    """Whether this is a round of a TraceLab session."""
    return value.keys() >= _COUNTS


def read_counts(value: Mapping[str, Any]) -> Iterator[Record]:
    """One record without text, its usage as the provider counted it."""
    total, read = value["input_tokens_total"], value["prefix_tokens"]
    for name, count in (("input_tokens_total", total), ("prefix_tokens", read)):
        if isinstance(count, bool) or not isinstance(count, int):
            raise BodyError(name, f"expected a count, found {type(count).__name__}")
    usage: dict[str, Any]
    if value.get("claude_cache_read_input_tokens") is not None:
        provider = "anthropic"
        usage = {
            "input_tokens": value.get("claude_uncached_input_tokens"),
            "cache_read_input_tokens": value["claude_cache_read_input_tokens"],
            "cache_creation_input_tokens": value.get("claude_cache_creation_input_tokens"),
            "output_tokens": value.get("output_tokens"),
        }
    else:
        provider = "openai"
        usage = {
            "input_tokens": total,
            "input_tokens_details": {"cached_tokens": read},
            "output_tokens": value.get("output_tokens"),
        }
    times = [
        at
        for event in value.get("timing_events") or []
        if isinstance(event, Mapping) and (at := seconds(event.get("timestamp"), "timing_events.timestamp")) is not None
    ]
    yield Record(
        body=None,
        model=text_or_empty(value.get("model")),
        provider=provider,
        ts=min(times, default=None),
        session=text_or_empty(value["session_id"]),
        usage=usage,
    )
