"""Lays out the tasks of a crew, whose order is known beforehand: both layouts of all that are left are played.

To *play* tasks is to go through them in their order, in one layout, and to add up what their requests cost: what an
earlier one began with, sent already or played before it, is read from the cache. ``_Play`` does that, for the layout of
the application's own and for forks, and ``KnownCrews.position`` takes the forks where they cost less.

Beside its own words, a task's first request holds tools, its agent's text, texts that other tasks hold too, and results
of earlier tasks. In the application's own layout, and as a fork with the agent's text behind the results or in front:

    its tools | agent's text | shared texts that its words begin with | other shared texts, and results
    tools of all | shared texts | results | agent's text
    tools of all | shared texts | agent's text | results

Of the task's own words there is only what a later run has too, where a provider keeps what no mark stands behind.
Of size tokens, the known ones are read that an earlier request begins with too, where they are as many as the provider
keeps at least. With r the price of a read token, and L further requests of the task, which read all of it:

    size - (1 - r)*known + r*L*size        in cost units: one uncached token is one

Writing to the cache costs the same in both layouts and cancels out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cacheprefix.bounded import Bounded
from cacheprefix.layout.cost_model import SURE
from cacheprefix.layout.role_position import LONG, RolePosition, TaskPosition
from cacheprefix.locks import once
from cacheprefix.prompt.reasons import Reason, reason

AHEAD = 32
"""Tasks still to come that are reckoned with, at most: what pays, pays within these."""
ITEMS = 20
"""Further runs of a crew that is given something else to work on in each, as far as its inputs tell: a guess. Nobody
says how often a crew will run; one whose tasks name an item beside a long text is made to run over many."""
MARGIN = 0.98
"""Forks must come out at this much of the unmodified cost: a guess at what the estimate cannot know, which is how long
answers are. Crews of random sizes on the simulated provider cost no more than before with it (tests/crewai)."""
_KEPT = 50_000


class Part(NamedTuple):
    """One text of a request."""

    key: bytes | str
    """The same for the same text."""
    size: int
    """Tokens."""


@dataclass(frozen=True, slots=True)
class CrewTask:
    """A task's first request, in both layouts. Sizes in tokens."""

    agent: str
    text: Part
    """The agent's own."""
    tools: Part
    """Its own."""
    beside: int
    """Of the shared texts that stand in the agent's own text."""
    begins: tuple[Part, ...]
    """The shared texts that its words begin with; each key stands for these words up to the end of that text. And the
    beginning of its own words, where a later run has the same (``words``)."""
    rest: int
    """Of all else that it shares, the results of earlier tasks among it."""
    shared: tuple[Part, ...]
    """What a fork begins with: the tools of all, and the shared texts."""
    results: tuple[Part, ...] = ()
    """Of earlier tasks."""
    words: tuple[Part, ...] = ()
    """The beginning of its own words that a later run has too, if any. They stand in both layouts: no more than what is
    read of them is reckoned."""
    logs: bool = True
    """Whether it is given the results of the tasks before it."""


@dataclass(frozen=True, slots=True)
class CrewAhead:
    """A task whose first request is due, and what is known of those that come behind it."""

    due: CrewTask
    later: Callable[[], Sequence[CrewTask]]
    """Gives the other tasks of this run."""
    again: Callable[[], Sequence[CrewTask]]
    """Gives those of a later run."""
    model: str
    read: float
    """r: the price of a cached token."""
    least: int
    """Tokens of the shortest beginning that the provider keeps."""
    blocks: bool
    """Whether it keeps by itself whatever requests begin with, also what no mark stands behind."""
    units: bool = False
    """Whether it keeps what requests have in common only from the second of them on (DeepSeek)."""
    long: bool = True
    """Whether an agent's text is long enough for its place to count (``LONG``)."""
    left: int = 0
    """Later runs that are known to come."""
    likely: int = 0
    """Others that may come: forks must pay with them and without."""
    repeats: int = 0
    """How often it ran before, and so is likely to run once more: who rents as long as it has so far, buys in time."""
    loops: float = 0.0
    """L: further requests of each task, at most, as far as is known."""
    overhead: int = 0
    """Of references and limits, which the unmodified request has not."""
    peers: bool = False
    """Whether other agents asked before it that are in none of the tasks to come."""
    grows: int = 0
    """What each task is expected to add to the results, at least."""


class _Costs(NamedTuple):
    """Of some tasks in one layout: first requests, and the tokens that each further one reads."""

    first: float = 0.0
    size: int = 0


@dataclass(slots=True)
class KnownCrews:
    """What requests of an installation's crews began with, and where the next one's agent's text stands."""

    sent: Bounded[int, None] = field(default_factory=lambda: Bounded(_KEPT))
    """What stands for the beginnings of requests, up to the end of each part."""

    def position(self, ahead: CrewAhead, *, declared: bool = False, wanted: bool = False) -> TaskPosition:
        """Where the text of a task's agent stands among the results of earlier tasks, or why the task is no fork.

        In front of the results (``continues``: the agent's next task may begin with it) or behind all of them. Forks
        must pay in this run and, where more are likely, with those too: a provider that keeps the application's own
        requests from run to run would make up for what the first one saves.

        Args:
            ahead: The task, and those that come behind it.
            declared: Whether the user gave a text that all agents share. It is said in the crew's own layout too, so
                that an agent whose long text is cached there stays in that layout as long as it costs less; any other
                agent's task is a fork, whatever that costs.
            wanted: Whether a text is to be shared in any case: all tasks are forks then.
        """
        play = _Play(ahead, self.sent)
        in_front = play.keeping()
        forks_whatever_it_costs = wanted or (declared and not play.stays())
        if not forks_whatever_it_costs:
            likely = max(ahead.likely, 0 if ahead.left else ahead.repeats)
            # Money: forks must pay both in the runs that are known to come and with those that may come.
            for runs in dict.fromkeys((ahead.left, ahead.left + likely)):
                loses = play.loses(in_front, runs)
                if loses is not None:
                    return loses
        if ahead.due.agent in in_front:
            return RolePosition(0, continues=True)
        return RolePosition(len(ahead.due.results))

    def cost(self, ahead: CrewAhead, place: RolePosition | None) -> float:
        """What a task's first request costs, in cost units; ``place`` is None for the application's own layout."""
        return _Play(ahead, self.sent).costs([_Step(1, ahead.due, 0)], _kept(ahead.due, place)).first

    def send(self, ahead: CrewAhead, place: RolePosition | None) -> None:
        """Note a task's first request as it is sent."""
        play, kept = _Play(ahead, self.sent), _kept(ahead.due, place)
        for key in play.keys(play.own(ahead.due) if kept is None else play.fork(ahead.due, kept)):
            if ahead.units and key in self.sent:
                self.sent[_again(key)] = None
            self.sent[key] = None


def _kept(task: CrewTask, place: RolePosition | None) -> frozenset[str] | None:
    """The agents with their texts in front of the results, where a task's stands in its place; None without a fork."""
    return None if place is None else frozenset([task.agent] if place.continues else ())


def _again(key: int) -> int:
    """What stands for a beginning that two requests had."""
    return hash((key, "again"))


class _Step(NamedTuple):
    """One task among those that are played."""

    times: int
    """How often it comes."""
    task: CrewTask
    at: int
    """How many stand before it in its run."""


class _Play:
    """The tasks of a crew from one on, played in one layout or the other.

    In all of it ``kept`` are the agents whose texts stand in front of the results; None for the application's layout.
    """

    def __init__(self, ahead: CrewAhead, sent: Bounded[int, None]) -> None:
        self.ahead, self.sent = ahead, sent

    @once
    def later(self) -> Sequence[CrewTask]:
        """The other tasks of this run."""
        return self.ahead.later()

    @once
    def again(self) -> Sequence[CrewTask]:
        """The tasks of a later run."""
        return self.ahead.again()

    # ------------------------------------------------------------------ requests

    def fork(self, task: CrewTask, kept: frozenset[str], new: Sequence[Part] = ()) -> list[Part]:
        """The parts of a task's request as a fork, with ``new`` results of tasks that are still to come."""
        if task.agent in kept:
            return [*task.shared, task.text, *task.results, *new, *task.words]
        # A mark stands in front of the text, so that only who keeps all by itself has it.
        text = task.text if self.ahead.blocks else Part("", task.text.size)
        return [*task.shared, *task.results, *new, text, *task.words]

    def own(self, task: CrewTask, new: Sequence[Part] = ()) -> list[Part]:
        """Those of the application's own."""
        agent, size = f"the agent {task.agent}", task.text.size + task.beside
        rest = Part("", task.rest + sum([part.size for part in new]))
        if self.ahead.blocks:
            return [task.tools, Part(agent, size), *task.begins, rest]
        return [Part(agent, size + task.tools.size), *task.begins, rest]

    def keys(self, parts: Sequence[Part]) -> list[int]:
        """What stands for a request up to the end of each part, but for what nobody reads again."""
        found, key = [], hash(self.ahead.model)
        for name, _ in parts:
            if not name:
                break
            key = hash((key, name))
            found.append(key)
        return found

    def kept(self, key: int) -> bool:
        """Whether the next request reads a beginning that ``key`` stands for."""
        return (_again(key) if self.ahead.units else key) in self.sent

    # ------------------------------------------------------------------ costs

    def costs(self, steps: Sequence[_Step], kept: frozenset[str] | None) -> _Costs:
        """What these tasks come to, played one after the other."""
        ahead, sent, warm = self.ahead, self.sent, set[int]()
        # About the minimum a few tokens decide: for the unmodified request, whose costs forks must not exceed.
        least = ahead.least * (1.0 - SURE) if kept is None else ahead.least
        first, size = 0.0, 0
        new: list[Part] = []
        for number, (times, task, at) in enumerate(steps):
            if not at:
                new = []
            logged = new if task.logs else ()
            parts = self.own(task, logged) if kept is None else self.fork(task, kept, logged)
            # In one loop with what ``keys`` does: a crew of many tasks has as many results.
            whole, known, going, key = ahead.overhead if kept is not None else 0, 0, True, hash(ahead.model)
            whole -= sum([part.size for part in task.words])
            for name, tokens in parts:
                whole += tokens
                key = hash((key, name))
                kept_as = _again(key) if ahead.units else key
                going = going and bool(name) and (kept_as in sent or kept_as in warm)
                if going:
                    known += tokens
                elif name:
                    if ahead.units and (key in sent or key in warm):
                        warm.add(kept_as)
                    warm.add(key)
            first += times * (whole - (1.0 - ahead.read) * (known if known >= least else 0))
            size += times * whole
            if ahead.grows:
                new = [*new, Part(f"result {number}", ahead.grows)]
        return _Costs(first, size)

    def steps(self, runs: int) -> list[_Step]:
        """The tasks of this run and of so many later ones, which cost the same among each other."""
        found = [_Step(1, task, at) for at, task in enumerate((self.ahead.due, *self.later))]
        return found + [_Step(runs, task, at) for at, task in enumerate(self.again)] if runs else found

    # ------------------------------------------------------------------ decisions

    def keeping(self) -> frozenset[str]:
        """The agents whose texts are to stand in front of the results: reckoned as if the crew ran once more at least.

        Whether it will is not known, and an agent whose text could then not be read would cost more than it did. Of the
        agents with long texts the largest ones are taken, none, one, two ... of them: whichever costs least.
        """
        due = self.ahead.due
        if not self.ahead.long:
            return frozenset()
        only_one = not self.ahead.left and not self.ahead.repeats and not self.later
        if only_one and self.ahead.blocks and not due.results:
            return frozenset()  # whatever is in front, nobody reads it again
        sizes: dict[str, int] = {}
        for task in (due, *self.later, *self.again):
            sizes[task.agent] = max(task.text.size, sizes.get(task.agent, 0))
        able = sorted((one for one, size in sizes.items() if size >= LONG), key=lambda one: (sizes[one], one))
        if not able:
            return frozenset()
        steps = self.steps(max(1, self.ahead.left))
        ways = [frozenset(able[at:]) for at in range(len(able) + 1)]
        return min(ways, key=lambda way: self.costs(steps, way).first)

    def stays(self) -> bool:
        """Whether an agent's long text is cached in the crew's own layout, or nothing in front of it in a fork."""
        due, ahead = self.ahead.due, self.ahead
        if due.text.size < LONG:
            return False
        # A provider's rule: what is shorter than its minimum is not kept, so that a fork would have nothing to read.
        short = sum(part.size for part in due.shared) < ahead.least
        known = [self.kept(key) for key in self.keys(self.own(due))]
        return short or all(known[: 1 + ahead.blocks])

    def loses(self, kept: frozenset[str], runs: int) -> Reason | None:
        """Why forks do not pay, with so many later runs; None where they do, however long tasks loop."""
        due = self.ahead.due
        text = (due.text,) if due.agent in kept else ()
        # Money: a first fork may be paid for what others read of it, so that all are weighed together. Once all that
        # they may read of it is written, each task that reads it gains or loses for itself.
        written = all(self.kept(key) for key in self.keys((*due.shared, *text, *due.results)))
        steps = [_Step(1, due, 0)] if written else self.steps(runs)
        cost, saved = self._weighed(steps, kept)
        if cost < saved * MARGIN:
            return None
        # From here on it is settled that there is no fork, and only the reason is looked for.
        agents = {step.task.agent for step in steps} | {task.agent for task in self.again}
        if len(steps) == 1 and len(agents) == 1 and not self.ahead.peers:
            return reason("alone")
        without_texts = [step._replace(task=replace(step.task, text=Part(step.task.text.key, 0))) for step in steps]
        bare_cost, bare_saved = self._weighed(without_texts, kept)
        if due.text.size >= LONG and bare_cost < bare_saved * MARGIN:
            return reason("role_costs_more", size=due.text.size)
        return reason("little_to_share", cost=round(cost), saved=round(saved))

    def _weighed(self, steps: Sequence[_Step], kept: frozenset[str]) -> tuple[float, float]:
        """What forks cost and what the application's own requests would: where that is worst for forks.

        That is with no further requests of a task or with the most: both costs grow evenly with these, so that what
        holds for none and for the most holds between.
        """
        forks, own = self.costs(steps, kept), self.costs(steps, None)
        ahead = self.ahead
        ways = [
            (forks.first + ahead.read * loops * forks.size, own.first + ahead.read * loops * own.size)
            for loops in dict.fromkeys((0.0, ahead.loops))
        ]
        return max(ways, key=lambda way: way[0] - way[1] * MARGIN)
