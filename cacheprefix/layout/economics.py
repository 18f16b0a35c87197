"""Weighs what sharing costs against what it saves: the formulas, and the constants that they go by.

A cost is in uncached input tokens: r is the price of a token that is read from the cache (an uncached one costs 1).
What nobody can know beforehand (how long a reply will be, how often agents will speak) is a constant, with its source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from cacheprefix.layout.role_position import LONG, RolePosition
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
NAMED = 12
"""Tokens that a fork says more of a role: its name around its text, and a message of its own."""
SURE = 3
"""Of what the others are expected to say in the first round, one part in so many is taken for sure."""
MARGIN = 0.98
"""A fork must come out at this much of the unmodified cost: a guess at what the estimate cannot know, which is how long
answers are. Crews of random sizes on the simulated provider cost no more than before with it (tests/crewai)."""
AHEAD = 32
"""Tasks still to come that a crew's task reckons with, at most: what pays, pays within these."""
ITEMS = 20
"""Further runs of a crew that is given something else to work on in each, as far as its inputs tell: a guess. Nobody
says how often a crew will run; one whose tasks name an item beside a long text is made to run over many."""
RUNS = 3
"""Further runs of a crew reckoned with, at most: a guess, as nobody says how often a crew will run."""

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


def union_starts(*, foreign: int, opening: int, before: int, write: float, whole: bool) -> bool:
    """Whether the first to carry the tools of all loses little by it, should nobody follow.

    With f tokens of others' tools (``foreign``), o tokens of the request as the application made it (``opening``), b
    tokens that the conversation's earlier requests would have paid in full (``before``), and w = ``write``:

        f    <=  FIRST*(o + f)      with its first request, b = 0
        f*w  <=  LATER*(o + b)      later

    ``whole`` says that the provider keeps whole requests only: f is paid ``UNITS`` times, and the second line holds for
    the first request too, as others gain by it from the third one on only.
    """
    paid = foreign * (UNITS if whole else 1)
    first = not before and not whole
    return paid * write <= LATER * (opening + before) or (first and paid <= FIRST * (opening + foreign))


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
    seats: Sequence[Seat], *, read: float, opening: int, least: int = 0, rounds: float | None = None
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


def worth_joining(*, carried: int, opening: int, speakers: int, read: float) -> bool:
    """Whether a team's selector gains by carrying the agents' ``carried`` tokens (system text, tools) in each question.

        carried * r <= (1 - r) * (REPLY + opening / questions)

    Reading them costs the left side. In a lane of its own it pays the newest reply in full with each question, and the
    ``opening`` once in the ``questions`` of ROUNDS rounds of so many ``speakers``.
    """
    questions = ROUNDS * max(1, speakers)
    return carried * read <= (1.0 - read) * (REPLY + opening / questions)


# ---------------------------------------------------------------------------------- a crew that is known beforehand
#
# Costs are in cost units: the price of one uncached token is one, that of a cached one is r. Writing to the cache costs
# the same in both layouts and cancels out.


TaskPosition = RolePosition | Reason
"""A place among the results of earlier tasks, or why a task's requests keep the application's own layout."""


@dataclass(frozen=True, slots=True)
class LaterTask:
    """The token counts of a task still to come, in this run of the crew or in a later one."""

    own: int
    """Xi: its tools and the shared texts that it would carry itself."""
    cached: int = 0
    """Ci: of these, what the provider would find in its cache without us, since an earlier request begins with it."""
    read: int = 0
    """Ki: of the shared part as its fork would carry it, what forks before it sent."""
    fresh: int = 0
    """Fi: the rest of that."""
    times: int = 1
    """How many tasks have these counts."""


@dataclass(frozen=True, slots=True)
class Stake:
    """The token counts that decide whether a task shares, taken when its first request is due."""

    fresh: int
    """F: of the shared part, not yet sent by a fork."""
    known: int
    """K: of the shared part, sent before."""
    own: int
    """X: the tools of the request as the application made it, and the shared texts it would carry itself."""
    later: tuple[LaterTask, ...]
    """The n tasks still to come."""
    overhead: int
    """O: references and limits, which the unmodified request has not."""
    loops: float
    """L: further requests of each task, at most, as far as is known."""
    cached: int = 0
    """C: of these, what it would find in the cache as the application made it."""
    places: float = 0.0
    """P: cost units that the places of the agents' texts add to the forks (``extra``); less than 0 where they save."""


def pays(stake: Stake, read: float) -> bool:
    """Whether the forks of this and the later tasks cost less than the unmodified requests, however long they loop.

    ``read`` is r, the price of a cached token.
    """
    cost, saved = weighed(stake, read)
    return cost < saved * MARGIN


def weighed(stake: Stake, read: float) -> tuple[float, float]:
    """What sharing costs and what it saves: where that is worst, with no further requests of a task or with the most.

    Both costs grow evenly with the requests of a task, so that what holds for none and for the most holds in between.
    """
    ways = [(_fork(stake, read, loops), _plain(stake, read, loops)) for loops in (0.0, stake.loops)]
    return max(ways, key=lambda way: way[0] - way[1] * MARGIN)


def _fork(stake: Stake, read: float, loops: float) -> float:
    """What the forks cost: ``F + r*K + sum(Fi + r*Ki) + r*L*(F + K + sum(Fi + Ki)) + O*(1 + r*L)*(1 + n) + P``.

    A task's first request reads what is known and pays for the rest of its shared part; every other one reads all of
    it. References are paid for once a task, then read.
    """
    later, count = stake.later, sum(task.times for task in stake.later)
    first = stake.fresh + read * stake.known + sum(task.times * (task.fresh + read * task.read) for task in later)
    size = stake.fresh + stake.known + sum(task.times * (task.fresh + task.read) for task in later)
    return first + read * loops * size + stake.overhead * (1 + read * loops) * (1 + count) + stake.places


def _plain(stake: Stake, read: float, loops: float) -> float:
    """What the unmodified requests cost: ``X - (1-r)*C + sum(Xi - (1-r)*Ci) + r*L*(X + sum(Xi))``.

    Each task pays for its tools and texts itself, once, but for what an earlier request left in the cache; its loop
    reads them.
    """
    cut = 1.0 - read
    first = stake.own - cut * stake.cached + sum(task.times * (task.own - cut * task.cached) for task in stake.later)
    return first + read * loops * (stake.own + sum(task.times * task.own for task in stake.later))


@dataclass(frozen=True, slots=True)
class RoleText:
    """The text of the agent that a task is given to."""

    agent: str
    size: int
    """Tokens."""
    logs: bool = True
    """Whether results of earlier tasks stand in the task."""

    @property
    def counted(self) -> int:
        """The tokens that its place decides on: none of a short text, which stays behind the results."""
        return self.size if self.size >= LONG else 0


@dataclass(frozen=True, slots=True)
class Standing:
    """What decides where the agents' texts stand, in front of the results or behind them. Token counts."""

    texts: tuple[RoleText, ...]
    """Of this task and those still to come."""
    read: float
    """r: price of a cached token."""
    blocks: bool
    """Whether the provider caches by itself whatever requests begin with, also what no mark stands behind."""
    short: bool = False
    """Whether what stands in front of the results and the agents' texts is too short to be cached by itself."""
    runs: tuple[RoleText, ...] = ()
    """Of the tasks of each later run."""
    left: int = 0
    """Later runs, as far as is known."""
    results: int = 0
    """How many results of earlier tasks stand in this one."""
    log: int = 0
    """Their tokens."""
    known: int = 0
    """Of the results, sent in front of the agents' texts before."""
    grows: int = 0
    """What each task is expected to add to them, at least."""
    front: Mapping[str, int] = field(default_factory=dict)
    """Agents whose text was sent in front, with the results that stood behind it."""
    behind: Mapping[str, int] = field(default_factory=dict)
    """Agents whose text was sent behind results, with those."""
    own: frozenset[str] = frozenset()
    """Agents whose text the provider has in the crew's own layout."""
    uncached: frozenset[str] = frozenset()
    """Agents whose text is too short for the provider's cache in the crew's own layout."""

    def each(self) -> Iterator[tuple[bool, int, RoleText]]:
        """The texts of this run and the later ones: whether it starts a later run, its place in it, the text."""
        for run in range(1 + min(self.left, RUNS)):
            for at, text in enumerate(self.runs if run else self.texts):
                yield run > 0 and at == 0, at, text


def keeping(standing: Standing) -> frozenset[str]:
    """The agents whose texts are to stand in front of the results: reckoned as if the crew ran once more at least.

    Whether it will is not known, and an agent whose text could then not be read would cost more than it did. Of the
    agents with long texts the largest ones are taken, none, one, two ... of them: whichever costs least.
    """
    if standing.short:
        return frozenset()  # nobody else could read anything of such a request
    # One task is all that is to come, behind no results: whatever is in front, nobody reads it again.
    once = standing.blocks and not standing.log and len(standing.texts) == 1 and not standing.left
    if once and standing.texts[0].agent not in standing.front:
        return frozenset()
    standing = replace(standing, left=max(1, standing.left))
    sizes: dict[str, int] = {}
    for text in standing.texts + standing.runs:
        sizes[text.agent] = max(text.size, sizes.get(text.agent, 0))
    able = sorted((one for one, size in sizes.items() if size >= LONG), key=lambda one: (sizes[one], one))
    ways = [frozenset(able[at:]) for at in range(len(able) + 1)]
    return min(ways, key=lambda way: sum(costs(standing, way).values()))


def extra(standing: Standing, kept: frozenset[str]) -> float:
    """What the agents' texts, and results still to come, cost more in forks than in the crew's own layout.

    With ``c(a)`` the cost of agent a's tasks: ``d(a) = c_forks(a) - c_forks_without_texts(a) - c_own_layout(a)``, and
    the answer is ``d(this task's agent) + sum(max(0, d(a)))`` over the others: what they gain they gain without this
    task.
    The forks that this is added to have all results so far in front of the agents' tasks. 0 without a long text.
    """
    if all(text.size < LONG for text in standing.texts):
        return 0.0
    bare = replace(
        standing,
        texts=tuple(replace(text, size=0) for text in standing.texts),
        runs=tuple(replace(text, size=0) for text in standing.runs),
        grows=0,
    )
    forks, without, own = costs(standing, kept), costs(bare, frozenset()), _own_costs(standing)
    more = {agent: forks[agent] - without[agent] - own[agent] for agent in forks}
    return sum(units if agent == standing.texts[0].agent else max(0.0, units) for agent, units in more.items())


def crew_position(
    stake: Stake,
    standing: Standing,
    *,
    further: tuple[LaterTask, ...] = (),
    declared: bool = False,
    wanted: bool = False,
) -> TaskPosition:
    """Where the text of a task's agent stands among the results of earlier tasks, or why the task is no fork.

    In front of the results (``continues``: the agent's next task may begin with it) or behind all of them. Forks must
    pay (``pays``), in this run and, where more are likely, with those too (``further``, what tasks of other runs add):
    a provider that keeps the application's own requests from run to run would make up for what the first one saves. A
    shared text that the user gave is another thing: one that is ``declared`` for all agents is said in the
    crew's own layout too, so that an agent whose long text is cached there stays as long as that costs less; one that
    is ``wanted`` in any case makes forks in any case.
    """
    kept, this = keeping(standing), standing.texts[0]
    stays = this.size >= LONG and (standing.short or this.agent in standing.own)
    if not (wanted or (declared and not stays)):
        placed = replace(stake, places=extra(standing, kept))
        for weighed_up in (placed, replace(placed, later=placed.later + further)):
            if not pays(weighed_up, standing.read):
                return _refused(weighed_up, standing)
    if this.agent in kept:
        return RolePosition(0, continues=True)
    return RolePosition(standing.results)


def _refused(stake: Stake, standing: Standing) -> Reason:
    """Why a task's requests are no forks: nobody shares, the agents' texts cost it, or there is too little."""
    if not stake.later and len({text.agent for text in standing.texts + standing.runs}) == 1:
        return reason("alone")
    # Without what the places of the agents' texts cost, it would have paid.
    if stake.places > 0 and pays(replace(stake, places=0.0), standing.read):
        return reason("role_costs_more", size=standing.texts[0].size)
    cost, saved = weighed(stake, standing.read)
    return reason("little_to_share", cost=round(cost), saved=round(saved))


def costs(standing: Standing, kept: frozenset[str]) -> dict[str, float]:
    """What each agent's text and the results in its tasks cost in forks from now on, in cost units, without loops.

    A task with a text of s tokens and results of h, of which m can be read, costs ``s' + r*m + (h - m)``, where s' is
    ``r*s`` for a text that can be read and s for one that cannot. ``kept`` are the agents with their text in front:
    theirs are read from the second time on, and of the results what stood behind the text before. Behind the results,
    a text is read only by a provider that caches by itself, and where the same results stand before it.
    """
    read, total = standing.read, dict.fromkeys((text.agent for text in standing.texts), 0.0)
    log, known = standing.log, standing.known
    front, behind = dict(standing.front), dict(standing.behind)
    for anew, _, text in standing.each():
        if anew:
            # A new run has other results, and finds only the texts in front of them.
            log = known = 0
            front = dict.fromkeys(front, 0)
        size, here = text.counted, log if text.logs else 0
        if text.agent in kept:
            had = front.get(text.agent)
            met = min(had or 0, here)
            units = (size if had is None else read * size) + read * met + here - met
            front[text.agent] = max(had or 0, here)
        else:
            again = standing.blocks and behind.get(text.agent) == here
            met = min(known, here)
            units = (read * size if again else size) + read * met + here - met
            known = max(known, here)
            behind[text.agent] = here
        total[text.agent] = total.get(text.agent, 0.0) + units
        log += standing.grows
    return total


def _own_costs(standing: Standing) -> dict[str, float]:
    """What the same costs in the crew's own layout: ``s' + i*grows``, for the i-th task of a run.

    The agent's text stands in front, and is read from the second time on where it is long enough for the cache. The
    results of the i tasks before it in the run stand in its task, behind, and are read by nobody.
    """
    total: dict[str, float] = {}
    seen = set(standing.own)
    for _, at, text in standing.each():
        units = standing.read * text.counted if text.agent in seen else text.counted
        total[text.agent] = total.get(text.agent, 0.0) + units + at * standing.grows * text.logs
        if text.agent not in standing.uncached:
            seen.add(text.agent)
    return total
