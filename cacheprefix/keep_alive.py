"""Keeping a conversation's cached prompt alive while it waits for a person, as far as that is worth its money.

With S tokens in the cache, r the price of a token that is read and w that of one that is written: a read before the
entry expires costs about r * S, and writing the prompt anew costs w * S where it is read for r * S otherwise. So n
reads are worth their price where the person comes back within n lifetimes and n * r < w - r; that many are made at
most, and fewer where the user's own bound is lower.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from cacheprefix.errors import SetupError
from cacheprefix.layout import ForkPolicy
from cacheprefix.locks import reset_in_child
from cacheprefix.profiles import Usage, cost_units, money

if TYPE_CHECKING:
    from cacheprefix.forks import ForkResult
    from cacheprefix.notices import Notices
    from cacheprefix.profiles import Profile, Ttl

QUESTION = "Nothing is asked yet. Answer with one word."
KEPT = ForkPolicy(
    isolated=True, skip_transcript=True, skip_cache_write=True, max_turns=1, max_output_tokens=16, purpose="keep_alive"
)
"""One short answer that leaves no trace. Sixteen tokens are the least that OpenAI's Responses API takes."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """How much may be spent on keeping one pause's prompt in the cache."""

    max_units: float | None = None
    """Cost units of input; None for what writing the prompt anew would cost more than reading it."""
    max_usd: float | None = None
    """US dollars of input; None for no bound beside the units. Where nobody knows the model's price, units count."""
    before: float = 30.0
    """Seconds before an entry expires that it is read."""

    def __post_init__(self) -> None:
        for name, value in (("max_units", self.max_units), ("max_usd", self.max_usd), ("before", self.before)):
            if value is not None and not value >= 0:
                raise SetupError(f"KeepAlive({name}={value!r}): use a number from 0 on")


class _Ended:
    """Whether a pause is over. A forked child, where its thread is not, waits for no lock of the parent's."""

    __slots__ = ("__weakref__", "event")

    def __init__(self) -> None:
        self.after_fork()
        reset_in_child(self)

    def after_fork(self) -> None:
        """Made anew."""
        self.event = threading.Event()


@dataclass(slots=True)
class Keeper:
    """One pause of one conversation. ``with`` keeps it in a thread, ``async with`` in a task, until the block ends.

    A loop with a clock of its own asks ``due`` and calls ``keep`` (or awaits ``akeep``).
    """

    # It holds the request, which no representation is to show.
    ask: Callable[[], Any] = field(repr=False)
    """Sends one read; gives a ``ForkResult``, or an awaitable of one."""
    profile: Profile
    model: str
    ttl: Ttl
    tokens: int
    """Of the prompt that is kept."""
    allowed: KeepAlive
    clock: Callable[[], float]
    notices: Notices
    last: float = field(init=False)
    """When the entry was written or read last."""
    reads: int = 0
    """Reads that were made."""
    units: float = 0.0
    """What they cost, in cost units."""
    usd: float = 0.0
    stopped: str = ""
    """Why nothing is sent any more; empty while it is."""
    _ended: _Ended = field(default_factory=_Ended)
    _thread: threading.Thread | None = None
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.last = self.clock()
        seconds, kept = self.ttl.seconds, self.tokens >= max(1, self.profile.min_tokens)
        if seconds is None or seconds == inf:
            self.stopped = f"{self.profile.name} promises no lifetime that a read could prolong"
        elif not self.ttl.refreshed_by_read:
            self.stopped = f"a read does not prolong a lifetime of {self.ttl.name}"
        elif not kept:
            self.stopped = f"{self.tokens} tokens are fewer than {self.profile.name} keeps"

    @property
    def bound(self) -> float:
        """Cost units that may be spent."""
        gain = max(0.0, self.ttl.write - self.profile.read) * self.tokens
        return gain if self.allowed.max_units is None else self.allowed.max_units

    def due(self) -> float | None:
        """Seconds until the next read, 0 where it is due; None where none is made any more."""
        if self.stopped:
            return None
        once = self.profile.read * self.tokens
        if self.units + once > self.bound:
            self.stopped = f"another read would cost more than the {self.bound:,.0f} cost units that are allowed"
        elif self.allowed.max_usd is not None and self.usd + self._price(once) > self.allowed.max_usd:
            self.stopped = f"another read would cost more than the {self.allowed.max_usd} USD that are allowed"
        if self.stopped:
            return None
        assert self.ttl.seconds is not None
        ends = self.last + max(self.ttl.seconds - self.allowed.before, self.ttl.seconds / 2)
        return max(0.0, ends - self.clock())

    def _price(self, units: float) -> float:
        """So many cost units of input in USD; 0 where nobody knows the model's price."""
        return money(Usage(round(units), 0, None, 0), self.model, self.profile) or 0.0

    def keep(self) -> bool:
        """Read the entry where that is due; whether it was read. A failure ends it, and is counted."""
        if self.due() != 0.0:
            return False
        nothing: ForkResult | None = None
        return self._took(self.notices.attempt("keep-alive", self.ask, nothing))

    async def akeep(self) -> bool:
        """``keep`` where sending is awaited."""
        if self.due() != 0.0:
            return False
        try:
            found: ForkResult | None = await self.ask()
        except Exception as error:
            self.notices.failed("keep-alive", error)
            found = None
        return self._took(found)

    def _took(self, found: ForkResult | None) -> bool:
        if found is None:
            self.stopped = "the read failed"
            return False
        self.reads, self.last = self.reads + 1, self.clock()
        self.units += cost_units(found.usage, self.profile)
        self.usd += money(found.usage, self.model, self.profile) or 0.0
        return True

    def __enter__(self) -> Self:
        """Keep it from now on, in a thread."""
        self._thread = threading.Thread(target=self._run, name="cacheprefix-keep-alive", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """The person is back, or will not come."""
        self._ended.event.set()
        self.stopped = self.stopped or "the pause is over"

    async def __aenter__(self) -> Self:
        """Keep it from now on, in a task of this loop."""
        self._task = asyncio.ensure_future(self._arun())
        return self

    async def __aexit__(self, *_: object) -> None:
        """The person is back, or will not come."""
        self.stopped = self.stopped or "the pause is over"
        if self._task is not None:
            self._task.cancel()
            # Not awaited itself: that would take a cancellation of the application's for its own.
            await asyncio.wait([self._task])

    def _run(self) -> None:
        try:
            while (left := self.due()) is not None and not self._ended.event.wait(left):
                self.keep()
        except Exception as error:
            self._broke(error)

    async def _arun(self) -> None:
        try:
            while (left := self.due()) is not None:
                await asyncio.sleep(left)
                await self.akeep()
        except Exception as error:
            self._broke(error)

    def _broke(self, error: Exception) -> None:
        """What is around the reads failed, as a clock or a price: the application goes on without them."""
        self.notices.failed("keep-alive", error)
        self.stopped = "it failed"
