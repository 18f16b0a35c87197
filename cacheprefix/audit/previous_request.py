"""What a detector that looks at the previous request would have said, to show how often it is wrong."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from cacheprefix.cache import equal_digests
from cacheprefix.prompt import CountTokens, Prompt, estimate_tokens, shared_tokens

SHARE = 0.05
TOKENS = 2_000
"""The usual thresholds: more than 5 % and more than 2,000 tokens of the previous request are missing."""

_SESSIONS = 4_096
MOST_BYTES = 32_000_000
"""Bytes of the prompts that are held, the latest of each session."""


@dataclass(slots=True)
class PreviousRequestRule:
    """Compares every request with the one before it in its session."""

    count: CountTokens
    alarms: int = 0
    false: int = 0
    """Alarms at calls for which the best earlier prompt explains everything."""
    missed: int = 0
    """Breaks of ours that the rule does not see."""
    _last: OrderedDict[str, tuple[Prompt, int]] = field(default_factory=OrderedDict)
    """The latest prompt of each session, and its bytes."""
    _held: int = 0
    """Bytes of all of them."""

    def looks(self, prompt: Prompt, session: str, size: int) -> bool:
        """Whether the rule raises an alarm for this request, whose prompt takes about ``size`` bytes."""
        last = self._last
        before, gone = last.pop(session, (None, 0))
        last[session] = (prompt, size)
        self._held += size - gone
        while len(last) > _SESSIONS or (self._held > MOST_BYTES and len(last) > 1):
            self._held -= last.popitem(last=False)[1][1]
        if before is None:
            return False
        shared = equal_digests(before.digests, prompt.digests)
        tokens = before.tokens - (before.totals[shared - 1] if shared else 0)
        most = max(TOKENS, SHARE * before.tokens)
        if tokens <= most:
            return False
        if shared < len(before.sections) and shared < len(prompt.sections):
            old, new = before.sections[shared], prompt.sections[shared]
            if tokens - min(old.tokens, new.tokens) > most:
                return True  # However much the two have in common.
            tokens -= shared_tokens(old, new, self.count, prompt.model)
        return tokens > most

    def ended(self) -> None:
        """No request comes any more: the prompts go, and all that was read with the counter."""
        self._last.clear()
        self.count = estimate_tokens

    def judged(self, *, alarm: bool, real: bool) -> None:
        """What the rule said of a call, and what was so."""
        self.alarms += alarm
        self.false += alarm and not real
        self.missed += real and not alarm

    def as_dict(self) -> dict[str, float | int]:
        """Plain data for JSON."""
        return {
            "share": SHARE,
            "tokens": TOKENS,
            "alarms": self.alarms,
            "false_alarms": self.false,
            "missed_breaks": self.missed,
        }
