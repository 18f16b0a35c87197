"""Who gains by sharing: agents whose own tools or role text would cost more than it saves keep their own layout.

All costs are those of a round, in which each of n agents speaks once, in uncached input tokens. r is the price of a
token that is read from the cache (an uncached one costs 1). Two lanes, groups of agents of one model whose requests
begin alike, are joined where

    saving > added(a, b) + added(b, a)
    saving      = (1 - r) * (n * REPLY + opening / ROUNDS)
    added(a, b) = |a| * r * tools + (1 - r) * tail

A message is paid in full once in each lane and read by the lane's others, so a lane less saves what is said in a round
and, once in a run, the opening. Against that stands what the agents of a get into each request: ``tools``, the tokens
of the tools that only b has, read from the cache; and ``tail``, the text of a role that was alone until now, which
moves behind the transcript, where it is not read from the cache. A text that keeps its place once it is written counts
as nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

REPLY = 200
"""Tokens of a reply, before any is known: a few paragraphs."""
ROUNDS = 3
"""Rounds over which what a lane pays only once, its first request's shared part, is spread: a guess on the low side of
how often a team's agents speak."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One agent: tokens of its tools by name, and of the text that would move on behind the transcript."""

    name: str
    model: str
    tools: Mapping[str, int]
    tail: int


def lanes(seats: Sequence[Seat], *, read: float, opening: int) -> list[tuple[str, ...]]:
    """The agents by lane, in the order given; a lane of one keeps its own layout.

    ``read`` is the price of a token read from the cache, ``opening`` the tokens that the first requests share. The two
    lanes that gain most by it are joined, again and again, until no two gain.
    """
    found: list[tuple[Seat, ...]] = [(seat,) for seat in seats]
    saving = (1.0 - read) * (len(seats) * REPLY + opening / ROUNDS)
    while True:
        # Another model reads nothing of what this one wrote.
        pairs = [(a, b) for a, b in combinations(found, 2) if a[0].model == b[0].model]
        gains = [saving - _added(a, b, read) - _added(b, a, read) for a, b in pairs]
        best = max(gains, default=0.0)
        if best <= 0:
            return [tuple(seat.name for seat in lane) for lane in found]
        a, b = pairs[gains.index(best)]
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

        carried * r <= (1 - r) * (REPLY + opening / questions)

    Reading them costs the left side. In a lane of its own it pays the newest reply in full with each question, and the
    ``opening`` once in the ``questions`` of ROUNDS rounds of so many ``speakers``.
    """
    questions = ROUNDS * max(1, speakers)
    return carried * read <= (1.0 - read) * (REPLY + opening / questions)
