"""Weighs what sharing costs against what it saves: the formulas, and the constants that they go by.

A cost is in uncached input tokens: r is the price of a token that is read from the cache (an uncached one costs 1).
What nobody can know beforehand (how long a reply will be, how often agents will speak) is a constant, with its source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

REPLY = 200
"""Tokens of what an agent says in its turn, before any is known: a few paragraphs."""
ROUNDS = 3
"""Rounds over which a team spreads what a lane pays only once, its first request's shared part: a guess on the low side
of how often a team's agents speak."""
OPEN_ROUNDS = 5
"""Turns of a role over which the same is spread where nobody knows who else will ask: a tool set is chosen with the
role's first request and kept for the whole thread, which sees more turns than one run of a team (``ROUNDS``)."""
SURE = 3
"""Of what the others are expected to say in the first round, one part in so many is taken for sure."""

# ---------------------------------------------------------------------------------- which tools a role carries


def union_pays(*, foreign: int, opening: int, reply: float, others: int, read: float, whole: bool) -> bool:
    """Whether carrying others' tools costs less than sharing saves, both for one request of a role.

    With r = ``read``, f tokens of others' tools (``foreign``), o tokens of the opening (system text and what was said),
    a tokens of an answer (``reply``), and n other roles (``others``):

        cost  f*r/(1-r)  <=  a*n + o/OPEN_ROUNDS   in the long run: what reading them costs, in tokens saved
        first f*r/(1-r)  <=  o + a*n/SURE          in the first round, should there be no other

    ``whole`` says that the provider keeps whole requests only (``match="unit"``): the first round pays f in full.
    """
    beside = foreign * read / max(0.01, 1.0 - read)
    # In whole units nobody reads the tools before two have paid for them.
    first = foreign if whole else beside
    return beside <= reply * others + opening / OPEN_ROUNDS and first <= opening + reply * others / SURE


# ---------------------------------------------------------------------------------- a team that is known beforehand


@dataclass(frozen=True, slots=True)
class Seat:
    """One agent of a team: what it would bring into the requests of those with whom it shares."""

    name: str
    model: str
    tools: Mapping[str, int]
    """Tokens of its tools, by name."""
    tail: int
    """Tokens of the text that would move on behind the transcript."""
    keeps: bool = False
    """Whether that text can keep its place once it is written, so that moving it costs nothing."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Agents of one model whose requests begin alike, and how near the next best join came."""

    names: tuple[str, ...]
    """In the order given; one alone keeps the application's own layout."""
    cost: int = 0
    """Tokens a round that joining with the lane that suits best would cost."""
    saved: int = 0
    """Tokens a round that it would save; not more than ``cost``. Both are 0 where no lane has the same model."""


def lanes(seats: Sequence[Seat], *, read: float, opening: int, least: int = 0) -> list[Lane]:
    """Who shares with whom: agents whose tools or role text would cost more than that saves stay by themselves.

    ``read`` is r, ``opening`` the tokens that the first requests share, ``least`` those below which the provider caches
    nothing: then nothing of a text is kept, and it would have to be written once more. Costs are those of a round, in
    which each of n agents speaks once. The two lanes that gain most by it are joined, again and again, until no two
    gain:

        saving > added(a, b) + added(b, a)
        saving      = (1 - r) * (n * REPLY + opening / ROUNDS)
        added(a, b) = |a| * r * tools + (1 - r) * tail

    A message is paid in full once in each lane and read by the lane's others, so a lane less saves what is said in a
    round and, once in a run, the opening. Against that stands what the agents of a get into each request: ``tools``,
    the tokens of the tools that only b has, read from the cache; and ``tail``, the text of a role that was alone until
    now, which moves behind the transcript, where it is not read from the cache. A text that keeps its place once it is
    written counts as nothing.
    """
    found: list[tuple[Seat, ...]] = [(seat,) for seat in seats]
    saving = (1.0 - read) * (len(seats) * REPLY + opening / ROUNDS)
    while True:
        # Another model reads nothing of what this one wrote.
        pairs = [(a, b) for a, b in combinations(found, 2) if a[0].model == b[0].model]
        kept = opening >= least
        costs = [_added(a, b, read, cached=kept) + _added(b, a, read, cached=kept) for a, b in pairs]
        gains = [saving - cost for cost in costs]
        best = max(gains, default=0.0)
        if best <= 0:
            return [_lane(lane, pairs, costs, saving) for lane in found]
        a, b = pairs[gains.index(best)]
        found[found.index(a)] = (*a, *b)
        found.remove(b)


def _lane(
    lane: tuple[Seat, ...], pairs: Sequence[tuple[tuple[Seat, ...], ...]], costs: Sequence[float], saving: float
) -> Lane:
    names = tuple(seat.name for seat in lane)
    least = min((cost for pair, cost in zip(pairs, costs, strict=True) if lane in pair), default=None)
    return Lane(names) if least is None else Lane(names, round(least), round(saving))


def _added(lane: Sequence[Seat], other: Sequence[Seat], read: float, *, cached: bool) -> float:
    """What a round of ``lane`` costs more when it is joined with ``other``; ``cached``: whether what is shared is."""
    own = {name for seat in lane for name in seat.tools}
    more = sum({n: t for seat in other for n, t in seat.tools.items() if n not in own}.values())
    tail = lane[0].tail if len(lane) == 1 and not (lane[0].keeps and cached) else 0
    return len(lane) * more * read + tail * (1.0 - read)


def worth_joining(*, carried: int, opening: int, speakers: int, read: float) -> bool:
    """Whether a team's selector gains by carrying the agents' ``carried`` tokens (system text, tools) in each question.

        carried * r <= (1 - r) * (REPLY + opening / questions)

    Reading them costs the left side. In a lane of its own it pays the newest reply in full with each question, and the
    ``opening`` once in the ``questions`` of ROUNDS rounds of so many ``speakers``.
    """
    questions = ROUNDS * max(1, speakers)
    return carried * read <= (1.0 - read) * (REPLY + opening / questions)
