"""Requests in the order they happened, and their answers between them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

from cacheprefix.audit.log_records import Broken, Record
from cacheprefix.profiles import Profile, Usage
from cacheprefix.prompt import Prompt

WINDOW_CALLS = 2_000
"""Requests held back to be put in order of time: logs are often written when the answer ends."""

WINDOW_BYTES = 32_000_000
"""Log bytes held back at most. The prompts of one conversation share their sections, so this is an upper bound."""

UNTIMED_STEP = 1e-3
"""Seconds between requests whose log has no times: no lifetime runs out, and none starts with another."""


class Ready(NamedTuple):
    """A request that was read: what it asked, under whose rules, and when."""

    number: int
    """Position among the requests of the log, from 0, in the order they were read."""
    place: str
    at: float
    record: Record
    """Without its body."""
    prompt: Prompt | None
    profile: Profile
    size: int
    usage: Usage | None = None
    """Its counts as we read them; None where the log has none."""
    reader: str = ""
    """Whose form its entry had."""
    unknown: Mapping[str, str] = MappingProxyType({})
    """Fields of its body that no rule knows."""
    chained: bool = False
    """Whether it goes on from an earlier one's answer by that one's id."""


def in_time(items: Iterable[Ready | Broken]) -> Iterator[Ready | Broken]:
    """The requests by their times, as far as a bounded window can put them in order; broken ones at once."""
    held: list[tuple[float, int, Ready]] = []
    size = 0
    for item in items:
        if isinstance(item, Broken):
            yield item
            continue
        heapq.heappush(held, (item.at, item.number, item))
        size += item.size
        while len(held) > WINDOW_CALLS or (size > WINDOW_BYTES and len(held) > 1):
            ready = heapq.heappop(held)[2]
            size -= ready.size
            yield ready
    while held:
        yield heapq.heappop(held)[2]


class Answers:
    """First tokens and ends of answers that lie ahead, told in order of time."""

    def __init__(self, limit: int = 10_000) -> None:
        self._ahead: list[tuple[float, bool, int, Callable[[float], None]]] = []
        self._limit = limit
        self._numbers = count()

    def at(self, when: float, tell: Callable[[float], None], *, known: bool = True) -> None:
        """Call ``tell(when)`` once the time has come; ``known`` is False where the log does not say when."""
        heapq.heappush(self._ahead, (when, not known, next(self._numbers), tell))

    def until(self, now: float) -> None:
        """Tell everything up to ``now``. An answer of unknown time comes after all requests of its own instant."""
        while self._ahead:
            when, guessed, _, tell = self._ahead[0]
            if (when, guessed) > (now, False) and len(self._ahead) <= self._limit:
                return
            heapq.heappop(self._ahead)
            tell(when)
