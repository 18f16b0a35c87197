"""Whether what a role writes to the cache in the application's own layout is read again: learned from its requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from cacheprefix.bounded import Bounded
from cacheprefix.layout.economics import writes_pay
from cacheprefix.locks import Lock
from cacheprefix.profiles import Profile

_DEEPEST = 8
"""Requests of a conversation that are told apart by how many they go on from, at most."""
_WINDOW = 40
"""Requests after which older ones count half: an application may come to ask otherwise."""
_ROLES = 1_000
_TALKS = 10_000

Whose = tuple[str, str, str]
"""A tenant, a role and a model."""


@dataclass(slots=True)
class _Counts:
    """Of requests that go on from so many: how many were answered, and how many of those another one went on from."""

    asked: float = 0.0
    followed: float = 0.0

    def add(self) -> None:
        """One more that was answered."""
        if self.asked >= _WINDOW:
            self.asked, self.followed = self.asked / 2, self.followed / 2
        self.asked += 1


@dataclass(slots=True)
class _Last:
    """A role's last request of a conversation."""

    depth: int
    """How many it goes on from."""
    ended: float | None = None
    """When it was answered, in seconds; None before that."""


@dataclass(slots=True)
class OwnMarks:
    """What became of the requests of each role in the application's own layout. Thread-safe, bounded; holds no text."""

    _counts: Bounded[Whose, list[_Counts]] = field(default_factory=lambda: Bounded(_ROLES))
    _last: Bounded[tuple[Whose, str], _Last] = field(default_factory=lambda: Bounded(_TALKS))
    _lock: Lock = field(default_factory=Lock)

    def sent(self, whose: Whose, talk: str, *, goes_on: bool, life: float | None, now: float) -> int:
        """Note a request, and how many of its conversation it goes on from; ``goes_on``, whether from the last one.

        It would have read what that one wrote only within its ``life`` of seconds; None for one without an end.
        """
        with self._lock:
            last, depth = self._last.get((whose, talk)), 0
            if last is not None and last.ended is not None and goes_on:
                depth = min(last.depth + 1, _DEEPEST - 1)
                if life is None or now - last.ended <= life:
                    self._of(whose)[last.depth].followed += 1
            self._last[whose, talk] = _Last(depth)
            return depth

    def ended(self, whose: Whose, talk: str, now: float) -> None:
        """The role's request of the conversation was answered."""
        with self._lock:
            last = self._last.get((whose, talk))
            if last is not None and last.ended is None:
                last.ended = now
                self._of(whose)[last.depth].add()

    def pays(self, whose: Whose, depth: int, profile: Profile) -> bool:
        """Whether it pays to write a whole request that goes on from so many, as far as is known."""
        with self._lock:
            found = self._of(whose)[depth]
            return writes_pay(
                asked=found.asked, followed=found.followed, read=profile.read, write=profile.default_ttl.write
            )

    def _of(self, whose: Whose) -> list[_Counts]:
        return self._counts.of(whose, lambda: [_Counts() for _ in range(_DEEPEST)])
