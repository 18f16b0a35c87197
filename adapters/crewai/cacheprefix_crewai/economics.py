"""What sharing, and the place of a long text, cost over the tasks still to come: formulas in cost units.

A cost unit is the price of one uncached input token; ``r`` is what a cached one costs. Writing to the cache costs the
same in both layouts and cancels out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from cacheprefix.adapter import LONG_ROLE as LONG

MARGIN = 0.98
"""A fork must come out at this much of the unmodified cost; the estimate knows neither loops nor answers."""
_RUNS = 3
"""Further runs of a crew reckoned with, at most."""


@dataclass(frozen=True, slots=True)
class Stake:
    """The token counts that decide whether a task shares, taken when its first request is due."""

    fresh: int
    """F: of the shared part, not yet sent by a fork."""
    known: int
    """K: of the shared part, sent before."""
    own_tools: int
    """T: tools of the request as the application made it."""
    tools_known: bool
    """Whether an unmodified request would find them in the cache."""
    own_texts: int
    """X: the shared texts this request would carry itself."""
    later: tuple[int, ...]
    """X1 ... Xn: the shared texts that each of the n later tasks would carry itself."""
    overhead: int
    """O: references and limits, which the unmodified request has not."""
    loops: float
    """L: further requests of each task, at most, as far as is known."""
    places: float = 0.0
    """P: cost units that the places of the agents' texts add to the forks (``extra``); less than 0 where they save."""


def pays(stake: Stake, read: float) -> bool:
    """Whether the forks of this and the later tasks cost less than the unmodified requests, however long they loop.

    ``read`` is r, the price of a cached token. Both costs grow evenly with the requests of a task, so that what holds
    for none and for the most holds in between.
    """
    return all(_fork(stake, read, loops) < _plain(stake, read, loops) * MARGIN for loops in (0.0, stake.loops))


def _fork(stake: Stake, read: float, loops: float) -> float:
    """What the forks cost: ``F + r*K + r*(F + K)*(L + n*(1 + L)) + O*(1 + r*L)*(1 + n) + P``.

    The first request reads what is known and pays for the rest of the shared part; every other one, of this task and
    of the n later ones, reads all of it. References are paid for once a task, then read.
    """
    later = len(stake.later)
    first = stake.fresh + read * stake.known
    others = read * (stake.fresh + stake.known) * (loops + (1 + loops) * later)
    return first + others + stake.overhead * (1 + read * loops) * (1 + later) + stake.places


def _plain(stake: Stake, read: float, loops: float) -> float:
    """What the unmodified requests cost: ``t*T + X + sum(r*T + Xi) + r*L*(T*(1 + n) + X + sum(Xi))``.

    ``t`` is r where the tools are in the cache already, else 1. Each task pays for the texts itself, once, and finds
    the tools in the cache; its loop reads both.
    """
    first = (read if stake.tools_known else 1.0) * stake.own_tools + stake.own_texts
    rest = sum(read * stake.own_tools + texts for texts in stake.later)
    each = stake.own_tools * (1 + len(stake.later)) + stake.own_texts + sum(stake.later)
    return first + rest + read * loops * each


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
    log: int = 0
    """Results of earlier tasks."""
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
        for run in range(1 + min(self.left, _RUNS)):
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
