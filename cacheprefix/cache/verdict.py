"""What the cache did on one call, as a value, and the closed list of causes with what to do about each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from cacheprefix.profiles import Amount

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
        "unreported": "Where answers should say it, see whether a proxy or a gateway between leaves it out.",
    }
)
"""One line for each cause, for who makes the request bodies; ``fix_for`` finds what is said of a session's requests."""

Way = Literal["by hand", "fork", "observe"]
"""Who lays a request out: the application; a session that forks; the application, watched by a session that could."""

_IN_SESSIONS: Mapping[tuple[Way, Cause], str] = MappingProxyType(
    {
        ("fork", "system_changed"): "Keep the system prompt fixed and give what changes as `volatile`, behind all "
        "that is cached.",
        ("fork", "breakpoint_missing"): "If the marks are yours, mark the end of what is shared; if your framework's, "
        "there is nothing to do.",
        ("fork", "breakpoint_after_change"): "Give what changes as `volatile`; if the marks are yours, not your "
        "framework's, set one before it.",
        ("fork", "lookback_exceeded"): "If the marks are yours, set one every 15 positions; if your framework's, "
        "there is nothing to do.",
        ("fork", "concurrent_cold_start"): "Leave the session its gate, at which siblings wait for the first one where "
        "that pays.",
        ("observe", "breakpoint_missing"): "Mark the end of the shared part, and a loop's last message; mode='fork' "
        "sets marks by itself.",
        ("observe", "breakpoint_after_change"): "Set a breakpoint before the part that differs; mode='fork' sets marks "
        "by itself.",
        ("observe", "lookback_exceeded"): "Set a further breakpoint 15 positions behind the last; mode='fork' sets "
        "marks by itself.",
    }
)
"""What is said in place of ``FIXES``, where who asks by a framework's agents could not follow that."""

ASKED_FOR = (
    "Ask for it in streams of chat completions: stream_options={'include_usage': True} (LangChain: stream_usage=True)."
)
"""What to do about ``unreported`` where a provider says in a stream what was read only if it is asked."""


def fix_for(cause: Cause, api: str, way: Way = "by hand") -> str:
    """What to do about a cause in an API's requests."""
    # A provider's rule: of all APIs, streams of chat completions alone bring their usage only where it is asked for.
    if (cause, api) == ("unreported", "openai-chat"):
        return ASKED_FOR
    return _IN_SESSIONS.get((way, cause), FIXES[cause])


MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "hit": "All that could be read was read.",
        "cold_start": "Nothing earlier begins like this call.",
        "scope_changed": "The same prompt was sent with another key, workspace or user.",
        "model_changed": "The same prompt was sent to another model.",
        "settings_changed": "A setting that the cache goes by is another than before.",
        "tools_changed": "A tool's definition is another than before, or a tool came or went.",
        "tools_reordered": "The same tools stand in another order.",
        "system_changed": "The system prompt is another than before.",
        "history_edited": "An earlier message was changed, or something was put between earlier ones.",
        "history_reordered": "Earlier messages changed places.",
        "history_truncated": "Earlier messages were taken out.",
        "compacted": "The history was shortened on purpose, as the log says.",
        "breakpoint_missing": "No cache mark stands where an earlier call's text ends.",
        "breakpoint_after_change": "All cache marks stand behind the part that differs.",
        "lookback_exceeded": "The last entry stands further back than the provider looks.",
        "breakpoints_over_limit": "There are more cache marks than the provider takes.",
        "below_minimum": "The prompt is shorter than what this provider caches.",
        "ttl_expired": "The entry was too old to be read.",
        "concurrent_cold_start": "The call that writes the entry had not been answered yet.",
        "provider_miss": "The provider read less, and nothing in the requests explains it.",
        "unreported": "The provider did not say how much it read.",
    }
)
"""What each cause means, for people who read it for the first time."""

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


VerdictKind = Literal["hit", "partial", "miss", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the cache did on one call, expected and reported, and why.

    Counts are tokens as the provider counts them, where its report allowed to tell. ``repr`` shows no
    prompt text; ``before`` and ``after`` hold a few characters of it.
    """

    kind: VerdictKind
    """``hit``: all that could be read was read. ``partial``: some of it. ``miss``: nothing was read.
    ``unknown``: the provider did not say."""

    cause: Cause
    """Always filled; ``hit`` and ``cold_start`` when nothing went wrong."""

    alarm: bool
    """Whether someone should look: more than noise was lost, by something that can be helped, and this line
    of requests was stable before."""

    path: str | None = None
    """The section or setting that made the difference; None for causes of time and size."""

    offset: int = 0
    """First differing character within what ``path`` names."""

    before: str = ""
    after: str = ""
    size: int = 0
    """Signed change in characters of the changed section; 0 where a section came, went or moved."""

    expected_tokens: int = 0
    """Read tokens expected for the request as it was sent."""

    reusable_tokens: int = 0
    """Read tokens had nothing gone wrong: ``lost_tokens`` is how far the read stays below."""

    reported_tokens: int | None = None
    lost_tokens: int = 0
    lost_units: float = 0.0
    """Cost units: what was paid for the lost tokens less what reading them would have cost."""

    loss: Amount = field(default_factory=Amount)
    """``lost_units`` in USD, as ``lost_usd`` tells them."""

    ancestor_index: int | None = None
    """Index of the call this one was compared with."""

    agent: str = ""
    session: str = ""
    model: str = ""
    fix: str = FIXES["hit"]
    previous_read: int | None = None
    """Read tokens of the agent's call before; None when there was none or it did not say."""

    provider_reason: str | None = None
    """What the provider itself gave as the reason of a miss, in its own words."""

    index: int = 0
    """Number of the call in this model, from 0."""

    at: float = 0.0

    @property
    def broken(self) -> bool:
        """Whether something that can be helped cost tokens, alarmed or not (a break that goes on alarms once)."""
        return self.lost_tokens > 0 and self.cause not in QUIET

    @property
    def lost_usd(self) -> float | None:
        """What the lost tokens cost, in USD; None where nobody knows the model's price."""
        return self.loss.usd

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, with the few characters of prompt text that ``redacted`` leaves out."""
        known = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "loss"}
        return {**known, "lost_usd": self.lost_usd}

    def redacted(self) -> Verdict:
        """The same without prompt text."""
        return replace(self, before="", after="")

    def __repr__(self) -> str:
        where = f" at {self.path}" if self.path else ""
        what = self.kind if self.kind == self.cause else f"{self.kind} {self.cause}"
        return f"<Verdict #{self.index} {what}{where}, lost {self.lost_tokens} tokens>"


_PROVIDER_CAUSES: Mapping[str, Cause] = {
    "model_changed": "model_changed",
    "system_changed": "system_changed",
    "instructions_changed": "system_changed",
    "tools_changed": "tools_changed",
    "messages_changed": "history_edited",
    "input_changed": "history_edited",
    "settings_changed": "settings_changed",
    "parameters_changed": "settings_changed",
}
_PLACES: Mapping[Cause, str] = {
    "model_changed": "model",
    "system_changed": "system",
    "tools_changed": "tools",
    "history_edited": "messages",
    "settings_changed": "settings",
}


class Diagnosis(NamedTuple):
    """What a provider said of a miss."""

    reason: str | None = None
    missed_tokens: int | None = None
    hit: bool = False

    @property
    def cause(self) -> Cause | None:
        """The cause it stands for; None when it names none of ours."""
        return _PROVIDER_CAUSES.get(self.reason or "")

    @property
    def path(self) -> str | None:
        """The part of the prompt it names."""
        return _PLACES.get(self.cause) if self.cause else None


_NOTHING_SAID = Diagnosis()


def read_diagnostics(raw: Any) -> Diagnosis:
    """Anthropic's ``diagnostics`` and OpenAI's ``prompt_cache_diagnostics``; whatever else is passed over.

    Anthropic: ``{"cache_miss_reason": {"type", "cache_missed_input_tokens"}}`` (SDK 2.11.0). OpenAI: ``{"type":
    "cache_hit"}`` or ``{"type": "cache_miss", "reason", "cache_missed_tokens"}`` (diagnostics guide, 2026-11-21).
    """
    if raw is None:
        return _NOTHING_SAID
    found = raw.model_dump() if hasattr(raw, "model_dump") else raw
    for name in ("diagnostics", "prompt_cache_diagnostics"):
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    if not isinstance(found, Mapping):
        return Diagnosis()
    reason = found.get("cache_miss_reason")
    if isinstance(reason, Mapping):
        return Diagnosis(_text(reason.get("type")), _whole(reason.get("cache_missed_input_tokens")))
    if isinstance(reason, str):
        return Diagnosis(reason)
    kind = found.get("type")
    if kind == "cache_hit":
        return Diagnosis(hit=True)
    if kind == "cache_miss":
        return Diagnosis(_text(found.get("reason")) or "cache_miss", _whole(found.get("cache_missed_tokens")))
    return Diagnosis(_text(kind))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
