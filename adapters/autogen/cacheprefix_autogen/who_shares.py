"""Who gains by sharing: agents whose own tools or role text would cost more than it saves keep their layout.

The cost of a round, in which everyone speaks once, in uncached input tokens. Within a lane every message is
paid in full once and read from the cache by the others; every lane beyond the first pays all of them again.
Against that stands what sharing adds to each request: tools of the others, at the read price, and the role's
text behind the transcript, which is not read from the cache there. A text that keeps its place once it is
written counts as nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

REPLY = 200
"""Tokens of a reply, before any is known: a few paragraphs."""
ROUNDS = 3
"""Rounds over which what a lane pays only once, its first request's shared part, is spread."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One agent: tokens of its tools by name, and of the text that would move on behind the transcript."""

    name: str
    model: str
    tools: Mapping[str, int]
    tail: int


def lanes(seats: Sequence[Seat], *, read: float, opening: int) -> list[tuple[str, ...]]:
    """The agents by lane, in the order given; a lane of one keeps its own layout.

    ``read`` is the price of a token read from the cache, ``opening`` the tokens that the first requests share.
    """
    found: list[tuple[Seat, ...]] = [(seat,) for seat in seats]
    full = 1.0 - read
    saving = full * (len(seats) * REPLY + opening / ROUNDS)
    while True:
        best: tuple[float, tuple[Seat, ...], tuple[Seat, ...]] | None = None
        for a, b in combinations(found, 2):
            if a[0].model != b[0].model:
                continue
            gain = saving - _added(a, b, read) - _added(b, a, read)
            if gain > 0 and (best is None or gain > best[0]):
                best = (gain, a, b)
        if best is None:
            return [tuple(seat.name for seat in lane) for lane in found]
        _, a, b = best
        found[found.index(a)] = (*a, *b)
        found.remove(b)


def _added(lane: Sequence[Seat], other: Sequence[Seat], read: float) -> float:
    """What a round of ``lane`` costs more when it is joined with ``other``."""
    own = {name for seat in lane for name in seat.tools}
    more = sum({n: t for seat in other for n, t in seat.tools.items() if n not in own}.values())
    tail = lane[0].tail if len(lane) == 1 else 0
    return len(lane) * more * read + tail * (1.0 - read)


def worth_joining(*, carried: int, opening: int, speakers: int, read: float) -> bool:
    """Whether a selector gains by carrying the agents' ``carried`` tokens (system text, tools) in each question.

    In a lane of its own it pays every message once more, and the opening once.
    """
    questions = ROUNDS * max(1, speakers)
    return carried * read <= (1.0 - read) * (REPLY + opening / questions)
