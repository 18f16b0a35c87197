"""What the cache did on one call, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from cacheprefix.cache._causes import FIXES, QUIET, Cause

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
    """Signed change in characters of the changed section."""

    expected_tokens: int = 0
    """Read tokens expected for the request as it was sent."""

    reusable_tokens: int = 0
    """Read tokens had nothing gone wrong: ``lost_tokens`` is how far the read stays below."""

    reported_tokens: int | None = None
    lost_tokens: int = 0
    lost_units: float = 0.0
    """Cost units: what was paid for the lost tokens less what reading them would have cost."""

    lost_usd: float | None = None
    ancestor_index: int | None = None
    """Index of the call this one was compared with."""

    agent: str = ""
    session: str = ""
    model: str = ""
    fix: str = FIXES["hit"]
    previous_read: int | None = None
    """Read tokens of the agent's call before; None when there was none or it did not say."""

    current_read: int | None = None
    provider_reason: str | None = None
    """What the provider itself gave as the reason of a miss, in its own words."""

    index: int = 0
    """Number of the call in this model, from 0."""

    at: float = 0.0

    @property
    def broken(self) -> bool:
        """Whether something that can be helped cost tokens, alarmed or not (a break that goes on alarms once)."""
        return self.lost_tokens > 0 and self.cause not in QUIET

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


@dataclass(frozen=True, slots=True)
class Diagnosis:
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


def read_diagnostics(raw: Mapping[str, Any] | None) -> Diagnosis:
    """Anthropic's ``diagnostics`` and OpenAI's ``prompt_cache_diagnostics``; whatever else is passed over.

    Anthropic: ``{"cache_miss_reason": {"type", "cache_missed_input_tokens"}}`` (SDK 2.11.0). OpenAI: ``{"type":
    "cache_hit"}`` or ``{"type": "cache_miss", "reason", "cache_missed_tokens"}`` (diagnostics guide, 2026-11-21).
    """
    found: Any = raw
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
