"""What waiting at the gate is worth, what it cost and what it saved."""

from __future__ import annotations

from dataclasses import dataclass, field

from cacheprefix.calls.report import GateUse
from cacheprefix.layout import FOLLOW, Pace, Pass, ProcessGate, StoreGate, Worth
from cacheprefix.locks import Lock
from cacheprefix.notices import Notices
from cacheprefix.profiles import Profile
from cacheprefix.stores import Store

AnyGate = ProcessGate | StoreGate

LIMIT = 10.0
"""Seconds that nobody waits beyond, whatever it would save: a leader that takes longer hangs, or thinks."""

PRICE = 4_000.0
"""Cost units that a second of waiting is to save. At 3 USD a million input tokens (Claude Sonnet and its like, see
profiles/prices.toml) that is 0.012 USD a second, or 43 USD an hour: about what the time of one who waits costs. A
shared part of 5,000 tokens is then worth 1.6 to 1.9 seconds, about a first token, and one of 30,000 a whole answer."""

_AGENTS = 1_000

WORTH_WAITING = 1024
"""Cold shared tokens below which siblings do not wait for one another: the wait costs more than it saves."""


def gate_of(store: Store | None, limit: float, notices: Notices) -> AnyGate:
    """A gate of this process, or of all that share the store."""
    if store is None:
        return ProcessGate(limit)
    return StoreGate(store, limit, failed=lambda error: notices.failed("gate store", error))


@dataclass(slots=True)
class Gating:
    """What a second of waiting is to save, how long models take, and how the gate was used. Thread-safe."""

    price: float = PRICE
    pace: Pace = field(default_factory=Pace)
    use: GateUse = field(default_factory=GateUse)
    joined: dict[str, bool] = field(default_factory=dict)
    """By agent, whether siblings came behind it when it led the last time."""
    _lock: Lock = field(default_factory=Lock)

    def worth(self, profile: Profile, model: str, *, cold: int, warm: int = 0, streams: bool) -> Worth | None:
        """What a request gains by waiting for a sibling that writes ``cold`` tokens; None where it gains nothing.

        ``streams`` says whether the request is streamed, should it lead. Nothing is gained where the provider lets
        parallel requests share anyway, where it keeps only what was made beforehand, and by a handful of tokens.
        """
        if profile.cold_parallel_shares or profile.readable == "start" or profile.control in ("none", "named"):
            return None
        if cold < max(WORTH_WAITING, profile.min_tokens):
            return None
        saves = profile.default_ttl.write - profile.read
        streams = streams and profile.readable == "first_token"
        usual = self.pace.usual(model, streamed=streams)
        seconds = Worth.of(tokens=cold, per_token=saves, price=self.price)
        return Worth(seconds, usual, streams, cold, saves, warm)

    def passed(self, leave: Pass) -> Pass:
        """Count how a request came through, and give its pass back."""
        if leave is not FOLLOW:
            with self._lock:
                self.use = self.use.and_pass(leave.leader, leave.followed, leave.waited)
        return leave

    def led(self, agent: str, leave: Pass) -> None:
        """Remember whether siblings came behind an agent's request."""
        if leave.leader:
            if len(self.joined) > _AGENTS:
                self.joined.clear()
            self.joined[agent] = leave.joined(0)

    def awaited(self, leave: Pass, agent: str) -> bool:
        """Whether somebody is known to wait for a leader, or was the last time, or may in another process."""
        return leave.far or self.joined.get(agent, False) or leave.joined(0)

    def goes_whole(self, leave: Pass, model: str) -> bool:
        """Have later siblings wait for the end of a leader's answer; False where one waits for its first token."""
        return leave.goes_whole(self.pace.usual(model, streamed=False))

    def answered(self, leave: Pass, read: int | None) -> None:
        """Count what a request that waited saved by it, where it read so many tokens."""
        if leave.followed and read:
            with self._lock:
                self.use = self.use.and_saved(leave.worth.saved(read))
