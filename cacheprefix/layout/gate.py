"""Leader first: requests that start together on a cold prefix follow one of them, where that pays.

An entry can be read only once the first answer has begun (Anthropic's documentation says so, and a simulated
fan-out without a gate reads nothing). One request goes ahead; the others follow its first token, or go at once where
they would wait for longer than the saving is worth (``Worth``). A leader that is gone, by whatever way, leads nobody.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from math import inf

from cacheprefix.effects import Flow, MayBlock, Promise, Until, drive
from cacheprefix.locks import RLock, reset_in_child

LIMIT = 10.0
"""Seconds that nobody waits beyond, whatever it would save: a leader that takes longer hangs, or thinks."""

PRICE = 4_000.0
"""Cost units that a second of waiting is to save. At 3 USD a million input tokens (Claude Sonnet and its like, see
profiles/prices.toml) that is 0.012 USD a second, or 43 USD an hour: about what the time of one who waits costs. A
shared part of 5,000 tokens is then worth 1.6 to 1.9 seconds, about a first token, and one of 30,000 a whole answer."""

PREFILL = 0.0001
"""u: seconds that it takes to compute a token, which a follower reads instead: ten thousand a second, the order of
hosted models. Slower ones give back more of what was waited."""

FIRST_TOKEN = 0.5
"""Seconds, beside those for its tokens, after which a model that was never timed is expected to begin its answer: the
order of hosted models."""

LOOK = 0.25
"""Seconds that one waits for a model that was never timed where its answer is expected to take too long: a server that
answers at once (a cache, a small model) has done so by then, and so much is lost once, for then the model is timed."""

LINGER = 0.01
"""Seconds that a leader of whom nobody is known to wait looks for siblings: those that one step of a graph starts
together come within that, and it is lost only where something cold is written."""

UNREAD = 0.05
"""Seconds that a leader's stream may rest unread before nobody waits for it any more: who opens several streams and
then reads them would wait for himself, and one that was dropped tells nobody until the garbage collector comes by."""

_LOOKING = 16
"""Of those who wait, how many look that often for whether it is read; the others do now and then."""
_TIMED = 16
_MODELS = 1_000


@dataclass(frozen=True, slots=True)
class Worth:
    """What a request gains by waiting for a leader, and how long it would be.

    A request waits at most ``W = S * ((w - r) / p + u)`` seconds (``of`` works it out): ``S`` cold tokens are read for
    ``r`` and not written for ``w`` cost units each, a second is to save ``p`` of them, and ``u`` seconds a token come
    back, since what is read need not be computed. It does not wait at all where the leader is expected to take longer:
    ``R = t - e`` more seconds while it is under way for ``e < t``, and ``R = e`` once it is overdue. ``t`` is what
    leaders of its kind took lately (``usual``). Where none was timed, ``t = FIRST_TOKEN + u * S`` for a first token;
    for a whole answer, or where that is too long, it waits ``LOOK`` seconds at most.
    """

    seconds: float = inf
    """W: how long waiting pays."""
    usual: float | None = None
    """t: seconds until a leader like this request lets the others go; None where none was timed."""
    streams: bool = True
    """Whether this request, when it leads, lets the others go at its first token and not at the end of its answer."""
    tokens: int = 0
    """Cold tokens of what is shared: those that a follower reads and does not write."""
    per_token: float = 0.0
    """Cost units that each of them saves: the price of writing less that of reading."""
    warm: int = 0
    """Tokens that are read in any case."""

    @staticmethod
    def of(*, tokens: int, per_token: float, price: float) -> float:
        """W: the seconds for which waiting pays, where a second of it is to save ``price`` cost units."""
        return tokens * (per_token / price + PREFILL) if price > 0 else inf

    def like(self, leader: Worth) -> Worth:
        """The same gain, behind a leader that takes what ``leader`` says."""
        return replace(self, usual=leader.usual, streams=leader.streams)

    def left(self, under_way: float = 0.0) -> float:
        """Seconds to wait for a leader like this request that has been under way for so long; none: it goes at once."""
        if self.seconds == inf:
            return inf
        usual = self.usual
        if usual is None:
            usual = FIRST_TOKEN + PREFILL * self.tokens if self.streams else inf
        expected = under_way if under_way >= usual else usual - under_way
        if expected <= self.seconds:
            return self.seconds
        return min(self.seconds, LOOK - under_way) if self.usual is None else 0.0

    def saved(self, read: int) -> float:
        """Cost units that waiting saved a request that then read so many tokens."""
        return min(max(0, read - self.warm), self.tokens) * self.per_token


ALWAYS = Worth()
"""Waits as long as the gate allows."""


class Pass:
    """Leave to go on. The leader releases the others, by success or by failure; followers have nothing to do.

    A leader's pass that nobody holds any more lets the others go by itself.
    """

    __slots__ = (
        "__weakref__", "_dropped", "_release", "_wider", "ahead", "far", "flight", "followed", "number", "stood",
        "waited", "worth",
    )  # fmt: skip

    def __init__(
        self,
        release: Callable[[bool], None] | None = None,
        *,
        dropped: Callable[[], None] | None = None,
        flight: Flight | None = None,
        worth: Worth = ALWAYS,
        waited: float = 0.0,
        stood: bool = False,
        followed: bool = False,
        far: bool = False,
    ) -> None:
        # A list, since of several threads that pop its one item exactly one gets it.
        self._release = [] if release is None else [release]
        self._dropped = dropped
        self._wider: Pass | None = None
        self.ahead = release is not None
        """Whether it leads all that share something with it, and not only those that share the most."""
        self.flight = flight
        """What others wait for."""
        self.worth = worth
        """What waiting would have brought."""
        self.waited = waited
        """Seconds spent at the gate."""
        self.stood = stood
        """Whether it waited for another request there, for however short."""
        self.followed = followed
        """Whether a leader wrote what this request is to read."""
        self.far = far
        """Whether siblings in other processes may wait for it, whom this one does not see."""
        self.number = 0
        """Of the fan-out that it belongs to, for who counts them."""

    @property
    def leader(self) -> bool:
        """Whether others may be waiting for this request."""
        return bool(self._release)

    def within(self, wider: Pass) -> Pass:
        """This pass of a leader who came through another gate too, where those wait who share less with it.

        Where it leads there, both let go at once; where it followed, it reads what was written for that.
        """
        if wider.leader:
            self._wider, self.far = wider, self.far or wider.far
        else:
            self.followed, self.worth = wider.followed, replace(wider.worth, streams=self.worth.streams)
            self.ahead = False
        self.waited += wider.waited
        self.stood = self.stood or wider.stood
        return self

    @property
    def awaited(self) -> int:
        """How many requests of this process wait for this one at this moment."""
        beyond = 0 if self._wider is None else self._wider.awaited
        return beyond + (0 if self.flight is None or not self._release else self.flight.waiting)

    def joined(self, seconds: float = LINGER) -> bool:
        """Whether somebody came to wait for this request, now or within so many seconds."""
        return drive(self.joining(seconds))

    def joining(self, seconds: float = LINGER) -> Flow[bool]:
        """``joined`` as a flow."""
        flight, wider = self.flight if self._release else None, self._wider
        if flight is None or flight.joined.done():
            return flight is not None
        # Who waits for less comes as early: one look at the end is enough.
        return bool((yield Until(flight.joined, seconds))) or (wider is not None and wider.joined(0))

    def rests(self) -> None:
        """Nobody reads the answer from now on: those who wait for it go on in 50 ms, unless it is read until then."""
        if self._release and self.flight is not None:
            self.flight.unread = time.monotonic()
        if self._wider is not None:
            self._wider.rests()

    def reads(self) -> None:
        """The answer is read again."""
        if self._release and self.flight is not None:
            self.flight.unread = None
        if self._wider is not None:
            self._wider.reads()

    def goes_whole(self, usual: float | None) -> bool:
        """Have those who come from now on wait for the end of its answer, which usually takes so many seconds.

        False, and nothing changes, where somebody came already and waits for its first token.
        """
        if self._wider is not None and not self._wider.goes_whole(usual):
            return False
        return self.flight is None or self.flight.goes_whole(usual)

    def release(self, *, ok: bool) -> None:
        """Let the others go: with ``ok`` all of them, without it the next one leads. Only the first call counts."""
        if self._wider is not None:
            self._wider.release(ok=ok)
        try:
            release = self._release.pop()
        except IndexError:
            return
        try:
            release(ok)
        except BaseException:
            # Ctrl-C in the middle: the pass lets them go when it is dropped, which it can do twice.
            self._release.append(release)
            raise

    def __del__(self) -> None:
        # Any thread may be here, in the middle of anything (of its making, too): nothing may wait.
        if getattr(self, "_release", None):
            self._release.clear()
            if self._dropped is not None:
                self._dropped()


FOLLOW = Pass()
"""A pass of someone nobody waits for."""


@dataclass(eq=False, slots=True)
class Flight:
    """A leader under way."""

    started: float
    worth: Worth
    lock: RLock
    """The gate's."""
    done: Promise[bool] = field(default_factory=Promise)
    joined: Future[None] = field(default_factory=Future)
    """Done when the first one came behind it."""
    waiting: int = 0
    unread: float | None = None
    """Since when its answer, a stream, rests unread; None while it is read or the provider was not heard of."""

    @property
    def left_unread(self) -> bool:
        """Whether its answer is not read any more, or cannot be: its loop stands still, as behind a notebook's cell."""
        if self.done.stands_still:
            return True
        return self.unread is not None and time.monotonic() - self.unread >= UNREAD

    def join(self) -> None:
        """Note that a sibling is there, before or after the leader has decided how it is received."""
        with self.lock:
            if not self.joined.done():
                self.joined.set_result(None)

    def goes_whole(self, usual: float | None) -> bool:
        """As the pass says it, decided once and under the gate's lock."""
        with self.lock:
            if self.joined.done():
                return False
            self.worth = replace(self.worth, usual=usual, streams=False)
            return True

    def land(self, *, ok: bool) -> None:
        """Let those who wait go on: the leader's first token came, or (not ``ok``) it is lost."""
        if not self.done.done():
            self.done.set_result(ok)


class Pace:
    """How long models took lately until others could read what a request of theirs wrote. Safe to share, bounded."""

    def __init__(self) -> None:
        self._took: dict[tuple[str, bool], deque[float]] = {}

    def took(self, model: str, seconds: float, *, streamed: bool) -> None:
        """A request let others go after so many seconds: with its first token, or with the end of its answer."""
        if len(self._took) > _MODELS:
            self._took.clear()
        self._took.setdefault((model, streamed), deque(maxlen=_TIMED)).append(seconds)

    def usual(self, model: str, *, streamed: bool) -> float | None:
        """The median of the latest; None where none was timed."""
        took = sorted(self._took.get((model, streamed), ()))
        half = len(took) // 2
        return (took[half] + took[-1 - half]) / 2 if took else None


class ProcessGate:
    """One leader a key at a time. For threads and tasks alike; nobody waits longer than ``limit`` seconds.

    A leader of whom nothing was heard for ``limit`` seconds is given up: the next request leads.
    """

    def __init__(self, limit: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._flights: dict[bytes, Flight] = {}
        # Entered again by a pass that the garbage collector drops in the middle of ``_lead``.
        self._lock = RLock()
        reset_in_child(self)

    def after_fork(self) -> None:
        """In a forked child: the parent's leaders lead nobody there."""
        self._flights = {}

    def entering(self, key: bytes, worth: Worth = ALWAYS) -> Flow[Pass]:
        """Become the leader of ``key``, or wait for the one there is, while that pays.

        A thread that runs an event loop waits for nobody: the leader may be a task of that loop.
        """
        began, stood = self._clock(), False
        while True:
            flight = self._lead(key, worth, began, stood=stood)
            if isinstance(flight, Pass):
                return flight
            left = self._left(flight, worth, began)
            # In a thread that runs an event loop the leader may be a task of that loop, which would stand still.
            if left > 0 and not (yield MayBlock()):
                left = 0.0
            ok = False
            if left > 0:
                stood = True
                look, ends = self._wait(flight, 1), time.monotonic() + left
                try:
                    while left > 0 and not self._given_up(key, flight):
                        if (yield Until(flight.done, min(left, look))):
                            ok = flight.done.result()
                            break
                        left = ends - time.monotonic()
                finally:
                    self._wait(flight, -1)
            if ok or left <= 0:
                waited = self._clock() - began if stood else 0.0
                return Pass(worth=worth, waited=waited, stood=stood, followed=ok)

    def _left(self, flight: Flight, worth: Worth, began: float) -> float:
        """Seconds that one who came at ``began`` still waits for a leader; behind several it is no more in all."""
        now = self._clock()
        return min(worth.like(flight.worth).left(now - flight.started), min(worth.seconds, self.limit) - (now - began))

    def _wait(self, flight: Flight, number: int) -> float:
        """One more or less waits; how often it is to look for whether the leader's answer is read."""
        with self._lock:
            flight.waiting += number
            return UNREAD if flight.waiting <= _LOOKING else _LOOKING * UNREAD

    def _given_up(self, key: bytes, flight: Flight) -> bool:
        """Let all go on behind a leader whose answer nobody reads: the first of them leads."""
        if not flight.left_unread:
            return False
        with self._lock:
            if self._flights.get(key) is flight:
                del self._flights[key]
        flight.land(ok=False)
        return True

    def _lead(self, key: bytes, worth: Worth, began: float, *, stood: bool) -> Pass | Flight:
        """Let a request lead those of its key; the flight of another one where that leads already."""
        now = self._clock()
        mine = Flight(now, worth, self._lock)

        def release(ok: bool) -> None:  # noqa: FBT001 - called by Pass only
            with self._lock:
                if self._flights.get(key) is mine:
                    del self._flights[key]
            mine.land(ok=ok)

        # Before anybody can wait for it: Ctrl-C in between would leave a leader that nobody can release.
        waited = now - began if stood else 0.0
        leave = Pass(release, dropped=lambda: release(False), flight=mine, worth=worth, waited=waited, stood=stood)  # noqa: FBT003
        with self._lock:
            flight = self._flights.get(key)
            if flight is None or now - flight.started >= self.limit:
                self._flights[key] = mine
                return leave
            flight.join()
        # Nobody waits for what never led.
        leave.release(ok=False)
        return flight
