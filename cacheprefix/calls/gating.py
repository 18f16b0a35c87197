"""What waiting at the gate is worth, what it cost and what it saved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import itemgetter

from typing_extensions import Self

from cacheprefix.bounded import Bounded
from cacheprefix.calls.report import FanOut, GateUse
from cacheprefix.contexts import BlockVar
from cacheprefix.layout import FOLLOW, Pace, Pass, ProcessGate, StoreGate, Worth
from cacheprefix.layout.gate import PRICE
from cacheprefix.locks import Lock
from cacheprefix.notices import Notices
from cacheprefix.profiles import Profile
from cacheprefix.stores import Store

AnyGate = ProcessGate | StoreGate

_AGENTS = 1_000
_FAN_OUTS = 200
"""Fan-outs that are remembered one by one."""

WORTH_WAITING = 1024
"""Cold shared tokens below which siblings do not wait for one another: the wait costs more than it saves."""


def gate_of(store: Store | None, limit: float, notices: Notices) -> AnyGate:
    """A gate of this process, or of all that share the store."""
    if store is None:
        return ProcessGate(limit)
    return StoreGate(store, limit, failed=lambda error: notices.failed("gate store", error))


class Waits:
    """Adds up the seconds that requests of a block, and of what is started there, spend at gates.

    A context manager for one block; blocks may stand in one another.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._seconds = 0.0
        self._around: Waits | None = None

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._seconds

    def add(self, seconds: float) -> None:
        """A request came through."""
        with self._lock:
            self._seconds += seconds
        if self._around is not None:
            self._around.add(seconds)

    def __enter__(self) -> Self:
        """Begin to add up."""
        self._around = _WAITS.get()
        self._token = _WAITS.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        """What is sent from now on is another's."""
        _WAITS.reset(self._token)


_WAITS: BlockVar[Waits] = BlockVar("cacheprefix_waits")


@dataclass(slots=True)
class Gating:
    """What a second of waiting is to save, how long models take, and how the gate was used. Thread-safe."""

    price: float = PRICE
    pace: Pace = field(default_factory=Pace)
    use: GateUse = field(default_factory=GateUse)
    joined: Bounded[str, bool] = field(default_factory=lambda: Bounded(_AGENTS))
    """By agent, whether siblings came behind it when it led the last time."""
    _newest: Bounded[bytes, int] = field(default_factory=lambda: Bounded(_FAN_OUTS))
    """By what is shared, the number of the fan-out that began last."""
    _fan_outs: Bounded[int, FanOut] = field(default_factory=lambda: Bounded(_FAN_OUTS))
    _numbers: int = 0
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

    def came_through(self, leave: Pass, *keys: bytes) -> Pass:
        """Count how a request came through, also for its fan-out, and give its pass back.

        ``keys`` name what it shares with others, the widest last: what it leads, and behind which it followed.
        """
        if leave is not FOLLOW:
            with self._lock:
                before, now = self.use, self.use.and_pass(leave)
                self.use = now
                leave.number = self._fan_out_of(leave, keys)
                known = self._fan_outs.of(leave.number, FanOut)
                self._fan_outs[leave.number] = replace(
                    known,
                    followed=known.followed + now.followed - before.followed,
                    gave_up=known.gave_up + now.gave_up - before.gave_up,
                    at_once=known.at_once + now.at_once - before.at_once,
                    seconds=known.seconds + leave.waited,
                )
            waits = _WAITS.get()
            if waits is not None:
                waits.add(leave.waited)
        return leave

    def _fan_out_of(self, leave: Pass, keys: tuple[bytes, ...]) -> int:
        """The number of the fan-out, a leader and those that follow it, that a request belongs to; else a new one's."""
        behind = self._newest.get(keys[-1]) if keys and not leave.ahead else None
        if behind is None:
            self._numbers += 1
        number = self._numbers if behind is None else behind
        # Those that come with the same keys from now on are behind this request.
        for key in keys if leave.leader or behind is None else ():
            self._newest[key] = number
        return number

    @property
    def told(self) -> GateUse:
        """How the gate was used, in all and fan-out by fan-out."""
        with self._lock:
            begun = (one for _, one in sorted(self._fan_outs.items(), key=itemgetter(0)))
            shared = (one for one in begun if one.followed or one.gave_up or one.at_once)
            return replace(self.use, fan_outs=tuple(shared))

    def leads(self, agent: str, leave: Pass) -> None:
        """Name who leads a fan-out, as it begins: those behind it are told as its, however it ends."""
        if leave.ahead:
            with self._lock:
                known = self._fan_outs.get(leave.number)
                if known is not None:
                    self._fan_outs[leave.number] = replace(known, leader=agent)

    def led(self, agent: str, leave: Pass) -> None:
        """Remember whether siblings came behind who led."""
        if leave.leader:
            joined = leave.joined(0)
            with self._lock:
                self.joined[agent] = joined

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
                saved = leave.worth.saved(read)
                self.use = self.use.and_saved(saved)
                known = self._fan_outs.get(leave.number)
                if known is not None:
                    self._fan_outs[leave.number] = replace(known, saved_units=known.saved_units + saved)
