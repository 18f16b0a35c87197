"""What a detector that looks at the previous request would have said, to show how often it is wrong."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from cacheprefix.cache import equal_digests
from cacheprefix.prompt import CountTokens, Prompt, shared_tokens

SHARE = 0.05
TOKENS = 2_000
"""The usual thresholds: more than 5 % and more than 2,000 tokens of the previous request are missing."""

_SESSIONS = 4_096


@dataclass(slots=True)
class PreviousRequestRule:
    """Compares every request with the one before it in its session."""

    count: CountTokens
    alarms: int = 0
    false: int = 0
    """Alarms at calls for which the best earlier prompt explains everything."""
    missed: int = 0
    """Breaks of ours that the rule does not see."""
    _last: OrderedDict[str, Prompt] | None = None

    def looks(self, prompt: Prompt, session: str) -> bool:
        """Whether the rule raises an alarm for this request."""
        last = self._last = self._last if self._last is not None else OrderedDict()
        before = last.pop(session, None)
        last[session] = prompt
        if len(last) > _SESSIONS:
            last.popitem(last=False)
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
        """No request comes any more: the prompts go."""
        self._last = None

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
