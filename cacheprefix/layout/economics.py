"""Weighs what sharing costs against what it saves: the formulas, and the constants that they go by.

A cost is in uncached input tokens: r is the price of a token that is read from the cache (an uncached one costs 1).
What nobody can know beforehand (how long a reply will be, how often agents will speak) is a constant, with its source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

from cacheprefix.prompt.reasons import Reason, reason

REPLY = 200
"""Tokens of what an agent says in its turn, before any is known: a few paragraphs."""
SHORT = 20
"""Tokens of the shortest answer that is reckoned with where a plan must not get dearer: a sentence."""
ROUNDS = 3
"""Rounds over which a team spreads what a lane pays only once, its first request's shared part: a guess on the low side
of how often a team's agents speak."""
OPEN_ROUNDS = 5
"""Turns of a role over which the same is spread where nobody knows who else will ask: a tool set is chosen with the
role's first request and kept for the whole thread, which sees more turns than one run of a team (``ROUNDS``)."""
CALLS = 3
"""Requests that a turn with tools is assumed to take."""
NAMED = 12
"""Tokens that a fork says more of a role: its name around its text, and a message of its own."""
SURE = 3
"""Of what the others are expected to say in the first round, one part in so many is taken for sure."""

SelectorLane = Literal["joined", "apart", "own"]
"""What a selector asks behind. ``joined``: its agents' shared text and tools, and the conversation; ``apart``: the
conversation alone; ``own``: its question is the application's own."""


class SelectorChoice(NamedTuple):
    """What a selector asks behind, and what asking behind the conversation comes to with each question, in tokens."""

    lane: SelectorLane
    cost: int
    """Of what its own prompt has in front of the conversation, which is paid in full then."""
    saved: int
    """Of what was said, which its own prompt pays in full."""


# ---------------------------------------------------------------------------------- which tools a role carries


def union_pays(*, foreign: int, opening: int, reply: float, others: float, read: float, whole: bool) -> bool:
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


def readers(others: int, *, read: float, hears_itself: bool) -> float:
    """How many others' answers a role saves in a round, of n others (``others``), by sharing what is said.

    Where the application's own requests leave out what the role itself said (``hears_itself``), a fork holds one answer
    more than those, and reads one more of the role's own with each round, with r = ``read``:

        n                     where it is in both
        n - (1 + r)/(1 - r)   where it is in the fork alone, taken for two rounds
    """
    return others if hears_itself else others - (1.0 + read) / max(0.01, 1.0 - read)


FIRST = 0.3
"""Part of what is shared that others' tools may be in a conversation's first request: about one write premium (a
written token costs 1.25 at Anthropic, and at OpenAI from GPT-5.6 on), and so much that three roles with a tool each
still share from the first request on behind a handbook of a page (tests/sdk/test_lanes.py)."""
LATER = 0.1
"""The same for a later request, as a part of what the conversation would have paid by then: what a run may cost more
from its fourth call on."""
UNITS = 3
"""How often others' tools are paid for where whole requests are kept: what requests have in common is read from the
third one on (DeepSeek's cache)."""


def union_starts(*, foreign: int, opening: int, before: int, write: float, whole: bool, anew: float = 0.0) -> bool:
    """Whether the first to carry the tools of all loses little by it, should nobody follow.

    With f tokens of others' tools (``foreign``), o tokens of the request as the application made it (``opening``), b
    tokens that the conversation's earlier requests would have paid in full (``before``), and w = ``write``:

        f        <=  FIRST*(o + f)      with its first request, b = 0
        f*w + a  <=  LATER*(o + b)      later

    a (``anew``) is what others pay once more by it (``grown``), and what was paid by this rule before: a part of all
    may be lost, and not each time.

    ``whole`` says that the provider keeps whole requests only: f is paid ``UNITS`` times, and the second line holds for
    the first request too, as others gain by it from the third one on only.
    """
    paid = foreign * (UNITS if whole else 1)
    first = not before and not whole
    return paid * write + anew <= LATER * (opening + before) or (first and paid <= FIRST * (opening + foreign))


NEWCOMERS = 4
"""Of what roles that were not heard yet may save with their first requests, one part in so many is counted on."""


def newcomers_pay(*, foreign: int, shared: int, newcomers: int, read: float, write: float, anew: float = 0.0) -> bool:
    """Whether what the first to carry the tools of all pays is little beside what those save who are yet to come.

    With f tokens of others' tools (``foreign``), c tokens of the shared text and what was said (``shared``), which each
    of n roles that nobody has heard yet (``newcomers``) would read with its first request, w, and a as in
    ``union_starts``:

        f*w + a  <=  n*(w - r)*c / NEWCOMERS

    Roles that were heard already have most of that in their own layouts: they gain by what others say alone.
    """
    return foreign * write + anew <= newcomers * (write - read) * shared / NEWCOMERS


def grown(*, texts: int, sent: int, read: float, write: float, keeps_own: bool) -> float:
    """What is paid once more where a conversation's requests come to carry more tools, in tokens that are paid in full.

        (w - r)*t + (w - 1)*s

    Others pay their own texts anew, t tokens (``texts``) that they have read where they stood. And where the
    application's own requests are not kept (``keeps_own``) and write nothing, the s tokens of this one (``sent``) are
    written, the second time that a conversation writes on a guess.
    """
    return (write - read) * texts + (write - 1.0) * sent * (not keeps_own)


VAIN = 3
"""Requests of a role that none went on from, after which writing them is not taken to pay any more: each has cost a
quarter of itself, and not to have written one that is read costs almost four times that."""


def writes_pay(*, asked: float, followed: float, read: float, write: float) -> bool:
    """Whether a role's requests in the application's own layout are to be written to the cache for its next ones.

    Of m requests (``asked``) k were gone on from (``followed``), whether they were written or not. With w = ``write``:

        m - k < VAIN   or   (w - 1)*m < (1 - r)*k
    """
    return asked - followed < VAIN or (write - 1.0) * asked < (1.0 - read) * followed


def union_gains(*, foreign: int, missed: int, read: float, text: int = 0, before: int = 0, others: int = 1) -> bool:
    """Whether a role that kept its own tools is to carry those of all from this request on.

    With m tokens that others' requests with them know of, and its own last one did not, this request gains

        g = (1 - r)*m - r*f

    and pays (1 - r)*t once for the ``text`` of the role that it has read in its own layout. That must come back at
    once, or be no more than each of the ``others``'s part of what a guess may cost a conversation (``union_starts``):

        0 < g   and   (1 - r)*t < g   or   n*(1 - r)*t <= 0.1*b
    """
    gain, anew = (1.0 - read) * missed - read * foreign, (1.0 - read) * text
    return gain > 0 and (anew < gain or anew * others <= LATER * before)


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

    @property
    def refused(self) -> Reason | None:
        """Why an agent shares with nobody; None where it does."""
        if len(self.names) > 1:
            return None
        numbers = bool(self.cost or self.saved)
        return reason("little_to_share", cost=self.cost, saved=self.saved) if numbers else reason("alone")


def lanes(
    seats: Sequence[Seat],
    *,
    read: float,
    opening: int,
    least: int = 0,
    rounds: float | None = None,
    speakers: int | None = None,
    whole: bool = False,
) -> list[Lane]:
    """Who shares with whom: agents whose tools or role text would cost more than that saves stay by themselves.

    ``read`` is r, ``opening`` the tokens that the first requests share, ``least`` those below which the provider caches
    nothing: then nothing of a text is kept, and it would have to be written once more. Costs are those of a round, in
    which each of n agents speaks once. The two lanes that gain most by it are joined, again and again, until no two
    gain:

        saving > added(a, b) + added(b, a)
        saving      = (1 - r) * (n * REPLY + opening / ROUNDS)        where nobody knows how often agents will speak
        saving      = (1 - r) * (n * SHORT + opening / rounds)        where each will speak ``rounds`` times
        added(a, b) = |a| * r * tools + (1 - r) * tail

    A message is paid in full once in each lane and read by the lane's others, so a lane less saves what is said in a
    round and, once in a run, the opening. Against that stands what the agents of a get into each request: ``tools``,
    the tokens of the tools that only b has, read from the cache; and ``tail``, the text of a role that was alone until
    now, which moves behind the transcript, where it is not read from the cache. A text that keeps its place once it is
    written counts as nothing.

    Where a run has fewer ``speakers`` than there are seats, the tools of those who do not speak are written for nobody.
    Then f tokens of others' tools are to be little beside the o tokens of an agent's own request, as where nobody knows
    who comes (``union_starts``, with ``whole``):

        f  <=  FIRST * (o + f)
    """
    found: list[tuple[Seat, ...]] = [(seat,) for seat in seats]
    # Of a plan that is known beforehand nothing is taken for granted but what surely comes.
    reply, spread = (REPLY, float(ROUNDS)) if rounds is None else (SHORT, max(1.0, rounds))
    saving = (1.0 - read) * (len(seats) * reply + opening / spread)
    while True:
        # Another model reads nothing of what this one wrote.
        pairs = [(a, b) for a, b in combinations(found, 2) if a[0].model == b[0].model]
        kept = opening >= least
        costs = [_added(a, b, read, cached=kept) + _added(b, a, read, cached=kept) for a, b in pairs]
        gains = [saving - cost for cost in costs]
        if speakers is not None and speakers < len(seats):
            # Money: nobody may ever read what the first one writes of others' tools.
            starts = [_starts(a, b, opening, whole=whole) and _starts(b, a, opening, whole=whole) for a, b in pairs]
            gains = [gain if start else 0.0 for gain, start in zip(gains, starts, strict=True)]
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


def _starts(lane: Sequence[Seat], other: Sequence[Seat], opening: int, *, whole: bool) -> bool:
    """Whether each of a lane loses little by the tools of another one, should none of that speak."""

    def loses_little(seat: Seat) -> bool:
        foreign = sum({n: t for one in (*lane, *other) for n, t in one.tools.items() if n not in seat.tools}.values())
        own = opening + seat.tail + sum(seat.tools.values())
        return union_starts(foreign=foreign, opening=own, before=0, write=1.0, whole=whole)

    return all(map(loses_little, lane))


def _added(lane: Sequence[Seat], other: Sequence[Seat], read: float, *, cached: bool) -> float:
    """What a round of ``lane`` costs more when it is joined with ``other``; ``cached``: whether what is shared is."""
    own = {name for seat in lane for name in seat.tools}
    more = sum({n: t for seat in other for n, t in seat.tools.items() if n not in own}.values())
    tail = lane[0].tail if len(lane) == 1 and not (lane[0].keeps and cached) else 0
    return len(lane) * more * read + tail * (1.0 - read)


def billed(size: int, known: int, *, read: float, least: int, block: int = 1) -> float:
    """What a request of ``size`` tokens costs that begins with ``known`` ones of an earlier one.

    size - (1 - r) * known      of which whole blocks count, and none below ``least``, the provider's minimum
    """
    whole = known - known % max(1, block)
    return size - (1.0 - read) * (whole if whole >= least else 0)


@dataclass(frozen=True, slots=True)
class Reflection:
    """The token counts of a request from which the application leaves out the agent's tools this once."""

    size: int
    """With the tools, as our layout sends it."""
    known: int
    """Of that, sent by the agent's request before."""
    bare: int
    """Without them, as the application sends it."""
    before: int
    """Of that, what the application's own requests without them would have sent before."""
    sent: int
    """Of that, what was sent so before, in place of ours."""
    lost: float = 0.0
    """What sending the tools has cost more than the application's own requests, since one was last sent without."""


def reflected(one: Reflection, *, read: float, least: int, block: int) -> tuple[float, float, bool]:
    """What a request costs with its tools and in the application's own layout, and whether it is sent with them.

    With ours, theirs and now the costs (``billed``) of the request with its tools, of the application's own without
    them, and of that one sent now, where less of it was sent before:

        ours <= now                             it does not cost more than without by itself, and
        lost + ours - theirs <= now - theirs    what sending the tools has lost is not what sending it without costs
    """
    ours = billed(one.size, one.known, read=read, least=least, block=block)
    theirs = billed(one.bare, one.before, read=read, least=least, block=block)
    now = billed(one.bare, one.sent, read=read, least=least, block=block)
    return ours, theirs, ours <= now and one.lost + ours - theirs <= now - theirs


def selector_lane(
    *, carried: int | None, opening: int, speakers: int, read: float, before: int = 0, heads: int = 0
) -> SelectorChoice:
    """What the questions of a team's selector begin with: what its agents carry, the conversation, or what they do now.

        joined, not apart:  carried * r  <=  (1 - r) * said
        own, not apart:     (heads - 1) * said  <  before
        joined, not own:    carried * r + (1 - r) * (before - (heads - 1) * said)  <=  (1 - r) * said

    ``said`` is what is new in each question: REPLY, and the ``opening`` spread over ROUNDS rounds of so many
    ``speakers``. Joined, a question reads the ``carried`` tokens (system text, tools; None where it must not join), and
    the agents have read what is new. Apart, and joined, it pays in full, behind the conversation, the ``before`` tokens
    that its own prompt has in front. As the application makes it, it reads those, and pays in full what was said since
    a question began so: that comes in so many forms (``heads``) in turn; 0 where nothing is read in that way.
    """
    said = REPLY + opening / (ROUNDS * max(1, speakers))
    saved = (heads - 1) * said if heads else before
    joins = carried is not None and carried * read <= (1.0 - read) * (said - max(0.0, before - saved))
    lane: SelectorLane = "joined" if joins else "own" if before > saved else "apart"
    return SelectorChoice(lane, before, round(saved))


def joined_question(*, carried: int, said: int, read: float) -> float:
    """What a selector's question costs behind what its agents carry, in place of the ``said`` tokens of its own prompt.

        r * (carried + said)

    It reads the ``carried`` tokens and the conversation; as the application makes it, it pays the conversation alone,
    in full where the prompt is short. Until one is joined, no question goes by an earlier one: each is weighed anew.
    """
    return read * (carried + said)
