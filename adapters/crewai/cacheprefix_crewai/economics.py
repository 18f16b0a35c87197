"""What sharing and the place of a long text cost over the tasks still to come, in cost units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cacheprefix.bodies import LONG_ROLE as LONG

MARGIN = 0.98
"""A fork must come out at this much of the unmodified cost; the estimate knows neither loops nor answers."""


@dataclass(frozen=True, slots=True)
class Stake:
    """What is known when a task's first request is due. Token counts."""

    fresh: int
    """Of the shared part, not yet sent by a fork."""
    known: int
    """Of the shared part, sent before."""
    own_tools: int
    """Tools of the request as the application made it."""
    tools_known: bool
    """Whether an unmodified request would find them in the cache."""
    own_texts: int
    """The shared texts this request would carry itself."""
    later: tuple[int, ...]
    """Tokens of the shared texts that each later task would carry itself."""
    overhead: int
    """Tokens of references and limits, which the unmodified request has not."""
    loops: float
    """Further requests of each task, at most, as far as is known."""
    places: float = 0.0
    """Cost units that the places of the agents' texts add to the forks; less than 0 where they save."""


def pays(stake: Stake, read: float) -> bool:
    """Whether the forks of this and the later tasks cost less than the unmodified requests, however long they loop.

    ``read`` is the price of a cached token. Writing costs the same in both layouts and cancels out.
    """
    return all(_fork(stake, read, loops) < _plain(stake, read, loops) * MARGIN for loops in (0.0, stake.loops))


def _fork(stake: Stake, read: float, loops: float) -> float:
    shared = stake.fresh + stake.known
    beside = stake.overhead * (1 + read * loops) * (1 + len(stake.later))
    first = stake.fresh + read * stake.known
    return first + read * shared * (loops + (1 + loops) * len(stake.later)) + beside + stake.places


def _plain(stake: Stake, read: float, loops: float) -> float:
    first = (read if stake.tools_known else 1.0) * stake.own_tools + stake.own_texts
    rest = sum(read * stake.own_tools + texts for texts in stake.later)
    each = stake.own_tools * (1 + len(stake.later)) + stake.own_texts + sum(stake.later)
    return first + rest + read * loops * each


_RUNS = 3
"""Further runs reckoned with, at most."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A task: whose it is, the tokens of that agent's text, and whether earlier results stand in it."""

    agent: str
    size: int
    logs: bool = True


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known when a task's first request is due. Token counts."""

    turns: tuple[Turn, ...]
    """This task and those still to come."""
    read: float
    """Price of a cached token."""
    blocks: bool
    """Whether the provider caches by itself whatever requests begin with, also what no mark stands behind."""
    short: bool = False
    """Whether what stands in front of the results and the agents' texts is too short to be cached by itself."""
    runs: tuple[Turn, ...] = ()
    """The tasks of each later run."""
    left: int = 0
    """Later runs, as far as is known."""
    log: int = 0
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


def keeping(standing: Standing) -> frozenset[str]:
    """The agents whose texts are to stand in front of the results: reckoned as if the crew ran once more at least.

    Whether it will is not known, and an agent whose text could then not be read would cost more than it did.
    """
    if standing.short:
        return frozenset()  # nobody else could read anything of such a request
    once = standing.blocks and not standing.log and len(standing.turns) == 1 and not standing.left
    if once and standing.turns[0].agent not in standing.front:
        return frozenset()
    standing = replace(standing, left=max(1, standing.left))
    sizes: dict[str, int] = {}
    for turn in standing.turns + standing.runs:
        sizes[turn.agent] = max(turn.size, sizes.get(turn.agent, 0))
    able = sorted((one for one, size in sizes.items() if size >= LONG), key=lambda one: (sizes[one], one))
    ways = [frozenset(able[at:]) for at in range(len(able) + 1)]
    return min(ways, key=lambda way: sum(costs(standing, way).values()))


def extra(standing: Standing, kept: frozenset[str]) -> float:
    """What the agents' texts, and results still to come, cost more in forks than in the crew's own layout.

    The forks that this is added to have all results so far in front of the agents' tasks. What other agents gain they
    gain without this task. 0 without a long text.
    """
    if all(turn.size < LONG for turn in standing.turns):
        return 0.0
    bare = replace(
        standing,
        turns=tuple(replace(turn, size=0) for turn in standing.turns),
        runs=tuple(replace(turn, size=0) for turn in standing.runs),
        grows=0,
    )
    forks, without, own = costs(standing, kept), costs(bare, frozenset()), _own_costs(standing)
    more = {agent: forks[agent] - without[agent] - own[agent] for agent in forks}
    return sum(units if agent == standing.turns[0].agent else max(0.0, units) for agent, units in more.items())


def costs(standing: Standing, kept: frozenset[str]) -> dict[str, float]:
    """What each agent's text and the results in its tasks cost from now on, in cost units, without loops."""
    read, total = standing.read, dict.fromkeys((turn.agent for turn in standing.turns), 0.0)
    log, known = standing.log, standing.known
    front, behind = dict(standing.front), dict(standing.behind)
    for run in range(1 + min(standing.left, _RUNS)):
        if run:
            log = known = 0
            front = dict.fromkeys(front, 0)
        for turn in standing.runs if run else standing.turns:
            size = turn.size if turn.size >= LONG else 0
            here = log if turn.logs else 0
            if turn.agent in kept:
                had = front.get(turn.agent)
                met = min(had or 0, here)
                units = (size if had is None else read * size) + read * met + here - met
                front[turn.agent] = max(had or 0, here)
            else:
                again = standing.blocks and behind.get(turn.agent) == here
                met = min(known, here)
                units = (read * size if again else size) + read * met + here - met
                known = max(known, here)
                behind[turn.agent] = here
            total[turn.agent] = total.get(turn.agent, 0.0) + units
            log += standing.grows
    return total


def _own_costs(standing: Standing) -> dict[str, float]:
    total: dict[str, float] = {}
    seen = set(standing.own)
    for run in range(1 + min(standing.left, _RUNS)):
        for index, turn in enumerate(standing.runs if run else standing.turns):
            size = turn.size if turn.size >= LONG else 0
            units = standing.read * size if turn.agent in seen else size
            total[turn.agent] = total.get(turn.agent, 0.0) + units + index * standing.grows * turn.logs
            if turn.agent not in standing.uncached:
                seen.add(turn.agent)
    return total
