"""The closed list of what can have happened to a prompt's cache, and what to do about each."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping

Cause = Literal[
    "hit",
    "cold_start",
    "scope_changed",
    "model_changed",
    "settings_changed",
    "tools_changed",
    "tools_reordered",
    "system_changed",
    "history_edited",
    "history_reordered",
    "history_truncated",
    "compacted",
    "breakpoint_missing",
    "breakpoint_after_change",
    "lookback_exceeded",
    "breakpoints_over_limit",
    "below_minimum",
    "ttl_expired",
    "concurrent_cold_start",
    "provider_miss",
    "unreported",
]
"""One of these explains every call; ``FIXES`` says what to do about it."""

CAUSES: tuple[Cause, ...] = get_args(Cause)

FIXES: Mapping[Cause, str] = MappingProxyType(
    {
        "hit": "Nothing to do.",
        "cold_start": "Nothing to do: no earlier prompt began like this one.",
        "scope_changed": "Send requests that share a prompt with one key, workspace or user scope.",
        "model_changed": "Keep one model for a conversation; another model starts with an empty cache.",
        "settings_changed": "Keep this setting the same in every call of the conversation.",
        "tools_changed": "Declare all tools from the first call on, unchanged; restrict them by instruction.",
        "tools_reordered": "Sort the tools once, by name, before the first call.",
        "system_changed": "Keep the system prompt fixed and move what changes to the end of the messages.",
        "history_edited": "Append to the history and leave earlier messages as they were sent.",
        "history_reordered": "Keep messages and parallel tool results in the order of their first sending.",
        "history_truncated": "Drop old messages rarely and many at a time, or compact on the cached prefix.",
        "compacted": "Nothing to do: a recorded compaction rewrote the history.",
        "breakpoint_missing": "Mark the end of the shared part, and the last message of a loop.",
        "breakpoint_after_change": "Set a breakpoint before the part that differs, at the end of what is shared.",
        "lookback_exceeded": "Set a further breakpoint at most 15 positions behind the last one.",
        "breakpoints_over_limit": "Set no more breakpoints than the provider takes, its automatic one included.",
        "below_minimum": "Nothing to gain: the prompt is shorter than what this provider caches.",
        "ttl_expired": "Call again sooner, use a longer lifetime, or compact now while the cache is cold anyway.",
        "concurrent_cold_start": "Send one call first and the others when its answer has begun.",
        "provider_miss": "Nothing on this side explains it; use one routing key and watch whether it stays.",
        "unreported": "Have the usage reported (stream_options.include_usage, or the provider's usage fields).",
    }
)
"""One line for each cause."""

STRUCTURAL: frozenset[Cause] = frozenset(
    {
        "scope_changed",
        "model_changed",
        "settings_changed",
        "tools_changed",
        "tools_reordered",
        "system_changed",
        "history_edited",
        "history_reordered",
        "history_truncated",
        "compacted",
    }
)
"""Causes that are differences between two prompts; the others are about marks, sizes and time."""

QUIET: frozenset[Cause] = frozenset({"hit", "cold_start", "compacted", "below_minimum", "unreported"})
"""Causes that never raise an alarm: nothing is lost, it was meant, or it cannot be known."""
