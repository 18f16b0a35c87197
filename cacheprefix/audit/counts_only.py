"""Calls whose log has counts and no text: what was read is set against what the session had sent before."""

from __future__ import annotations

from dataclasses import dataclass

from cacheprefix.bounded import Bounded
from cacheprefix.profiles import Profile, Usage

_SESSIONS = 4_096


@dataclass(frozen=True, slots=True)
class Judged:
    """What the counts say. ``expected`` is what the session's previous call left, in whole blocks."""

    kind: str
    cause: str
    expected: int
    ancestor: int | None


class CountsOnly:
    """Judges by counts alone. It never raises an alarm: without the text nobody can say what changed."""

    def __init__(self) -> None:
        self._last: Bounded[str, tuple[int, int]] = Bounded(_SESSIONS)

    def judge(self, index: int, session: str, usage: Usage, profile: Profile) -> Judged:
        """Set one call against its session."""
        before = self._last.pop(session, None)
        if usage.input_tokens is not None and not usage.summed:
            # Where writes are counted, what was neither read nor written was not left in the cache.
            left = (usage.cache_read_tokens or 0) + (usage.cache_write_tokens or 0)
            self._last[session] = (index, left if usage.cache_write_tokens else usage.input_tokens)
        read = usage.cache_read_tokens
        if read is None:
            return Judged("unknown", "unreported", 0, None)
        if before is None:
            return Judged("hit" if read else "miss", "hit" if read else "cold_start", 0, None)
        ancestor, sent = before
        block = profile.block_tokens
        expected = min(sent, usage.input_tokens or sent) // block * block
        # Providers are off by a block now and then; that is no break.
        if read >= expected - block:
            return Judged("hit", "hit", expected, ancestor)
        return Judged("unknown", "unreported", expected, ancestor)
