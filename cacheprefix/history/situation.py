"""What a compaction policy gets: the history as it will be sent, and which messages it may change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cacheprefix.history.groups import Group
from cacheprefix.prompt.decisions import Decision
from cacheprefix.prompt.views import Count, MessageView

_BREAKS = str.maketrans(dict.fromkeys("\"'`(){}[]<>,;=|\\*", " "))
_EDGES = ".:!?-_/#"
_SHORTEST = 4
_LONGEST = 80
_NEWEST = 40
"""Messages whose names are looked for in earlier ones."""
_EARLIER_CHARS = 100_000
"""Characters of those earlier ones, counted back from the newest."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A history under compaction. Indexes count the messages of ``views``; a dropped one is None."""

    views: Sequence[MessageView | None]
    alive: Sequence[int]
    """Indexes of the messages that are still there, in order."""
    results_at: Sequence[int]
    thinking_at: Sequence[int]
    groups: Sequence[Group]
    """Tool calls with their results, by index into ``views``."""
    units: Mapping[int, Sequence[int]]
    """For the index of a message those that must be removed with it: calls, results, reasoning."""
    free: Sequence[bool]
    """For each message whether it may be changed now; never system text, durable context and pins."""
    tokens: int
    """All tokens of the request as it stands."""
    target: int
    window: int
    """The trigger: the tokens of a request above which it is compacted again."""
    count: Count
    referenced: frozenset[int]
    """Indexes of messages whose names and numbers later messages use again: they are changed last."""
    readable: bool = False
    """Whether a cleared result can be read again, so that its placeholder says how."""
    step: int = 0
    """How many protections were given up; 0 for none."""
    failed: frozenset[int] = frozenset()
    """Indexes of messages with a failed tool result: removed last, like ``referenced``."""

    @property
    def need(self) -> int:
        """Tokens that are still to be removed."""
        return self.tokens - self.target


Policy = Callable[[Situation], Iterable[Decision]]
"""Decisions on ``situation.views`` that bring its tokens towards the target; none is fine."""


def names_in(text: str) -> set[str]:
    """Names, numbers and paths in a text: words that hold a digit, a mark inside, or inner capitals."""
    names: set[str] = set()
    for word in set(text.translate(_BREAKS).split()):
        # Fast path: nearly all words are plain prose or too short.
        if len(word) < _SHORTEST or (word.isalpha() and (word.islower() or word[1:].islower())):
            continue
        bare = word.strip(_EDGES)
        prose = bare.isalpha() and (bare.islower() or bare[1:].islower() or bare.isupper())
        if _SHORTEST <= len(bare) <= _LONGEST and not prose:
            names.add(bare)
    return names


def referenced_by_later(views: Sequence[MessageView | None]) -> frozenset[int]:
    """Indexes of messages that introduced a name which one of the newest messages uses again.

    Of the messages before those only the latest are looked at, so that the cost of one compaction stays bounded.
    """
    used: set[str] = set()
    first = max(0, len(views) - _NEWEST)
    for view in views[first:]:
        if view is not None:
            for text in own_texts(view):
                used |= names_in(text[:20_000])
    if not used:
        return frozenset()
    start, room = first, _EARLIER_CHARS
    while start > 0 and room > 0:
        start -= 1
        view = views[start]
        room -= 4 * view.tokens if view is not None else 0
    introduced: dict[str, int] = {}
    found: set[int] = set()
    for index in range(start, first):
        view = views[index]
        if view is None:
            continue
        for text in own_texts(view):
            for name in names_in(text[:20_000]) & used:
                if introduced.setdefault(name, index) == index:
                    found.add(index)
    return frozenset(found)


def own_texts(view: MessageView) -> Iterator[str]:
    """Every text that a message holds, results included."""
    yield from view.texts
    for result in view.results:
        if result.text:
            yield result.text
