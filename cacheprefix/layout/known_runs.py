"""Lays out requests of a run that is known beforehand: every layout is played in the cost model, the cheapest taken.

How long answers will be is nobody's knowledge. A layout is taken only where no length of theirs (``LENGTHS``) makes it
dearer than the application's own, with what was paid so far on both sides; of those, the one that costs least with
answers as long as they were. With each request all is reckoned anew, from what the requests before it left in the
cache, so that what was taken can only be improved on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal, NamedTuple

from cacheprefix.bounded import Bounded
from cacheprefix.layout.cost_model import Asked, CacheModel, CachePrices
from cacheprefix.layout.economics import NAMED, REPLY
from cacheprefix.locks import Lock

LENGTHS = (20, 100, 500, 3_000)
"""Tokens of answers with which no layout that is taken may be dearer, before any is known: from a sentence to pages."""
HEARD = 2
"""Answers from which on others are taken to be half as long as the shortest of them at least, and twice the longest at
most."""
SPARE = 0.995
"""A layout is left for one that comes out at this much of its costs: what counts of tokens, and blocks, may be off."""
HORIZON = 40
"""Calls still to come by which layouts are compared, at most; that one is not dearer is reckoned to the run's end."""
_RUNS = 1_000
_ASKED = 64
"""Requests of a run whose layouts are remembered: a request is asked for more than once, and others beside it."""

Way = Literal["end", "kept", "cheapest"]
"""Where a fork's text stands: behind the conversation; where the role had it first; where the one request costs less,
kept in such a way that it may stay."""
_PLACES: tuple[Way, ...] = ("end", "kept", "cheapest")
Seat = tuple[str, str, str]
"""A head, a conversation and a role."""


@dataclass(frozen=True, slots=True)
class RunCall:
    """One call of a run that is known beforehand."""

    role: str
    text: int = 0
    """Tokens of the role's text."""
    tools: tuple[str, ...] = ()
    """Names of the role's own tools."""
    schema: str = ""
    """A name of the schema that its answer follows; requests with another one, or without one, read nothing of it."""
    beside: bool = False
    """Whether it is sent beside the one before it, whose answer it does not read then."""
    holds: bool | None = None
    """Whether the role's own requests have a shared text that was found in others': one without keeps its own layout.
    None where that is not known yet: then nobody counts on it until its first request says so."""


@dataclass(frozen=True, slots=True)
class RunAhead:
    """The calls of a run that is known beforehand: their number and order are fixed before the first is sent."""

    calls: tuple[RunCall, ...]
    """From the request that is being laid out on, which is the first."""
    joint: bool = True
    """Whether all of them read one history; else each role reads its own."""

    def known(self, role: str, schema: str, holds: Callable[[str], bool]) -> RunAhead:
        """The same with what is known by now: a role's answers follow a schema, and which roles have the shared text.

        ``holds`` is asked for those of which the run does not say that.
        """

        def known(call: RunCall) -> RunCall:
            named = schema if call.role == role else call.schema
            has = holds(call.role) if call.holds is None else call.holds
            return call if (named, has) == (call.schema, call.holds) else replace(call, schema=named, holds=has)

        return replace(self, calls=tuple(map(known, self.calls)))


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of the request that is due, and of the team. Token counts."""

    run: RunAhead
    prices: CachePrices
    talk: str
    opening: int
    """Of the shared system text."""
    tools: Mapping[str, int]
    """Of each tool of the union."""
    text: int
    """Of the role's text as it would be sent in a fork."""
    said: Sequence[int]
    """Of each message so far."""
    alike: bool = False
    """Whether the application's own requests of all roles begin with the shared text."""
    union: bool = True
    """Whether the tools of all may be carried."""
    kits: bool = True
    """Whether a fork may carry the role's own tools alone."""


class RunLayout(NamedTuple):
    """How one request of a run is laid out."""

    forks: bool
    union: bool = False
    """Whether it carries the tools of all; else the role's own."""
    at: int = 0
    """Messages in front of the role's text."""
    continues: bool = False
    """Whether a later request of the role begins with it."""
    cost: int = 0
    """What the rest of the run costs as a fork at best, and in the application's own layout. In cost units."""
    own: int = 0


class RunWay(NamedTuple):
    """A layout for the rest of a run."""

    union: bool
    """Whether forks carry the tools of all."""
    place: Way
    apart: frozenset[str] = frozenset()
    """Roles that keep the application's own layout."""


class Due(NamedTuple):
    """A call, the conversation that it reads, the tokens of that so far, and those of the role's text in a fork."""

    call: RunCall
    talk: str
    end: int
    text: int


@dataclass(slots=True)
class RunState:
    """What is known of a run under way."""

    left: int
    """Calls still to come, where they are known."""
    cache: CacheModel
    """As our requests left it."""
    unmodified: CacheModel
    """As those of the application would have."""
    paid: float = 0.0
    own: float = 0.0
    way: RunWay | None = None
    """The layout that was taken last; None for the application's own."""
    seats: dict[Seat, tuple[int, int]] = field(default_factory=dict)
    """By head, talk and role: the messages in front of its text when it first stood there, and their tokens."""
    ends: dict[str, int] = field(default_factory=dict)
    talks: dict[str, str] = field(default_factory=dict)
    """Which conversation each role reads."""
    opening: int = 0
    """Tokens with which a conversation begins."""
    unread: dict[str, int] = field(default_factory=dict)
    """Calls of a conversation whose answers are not in it yet."""
    answers: list[float] = field(default_factory=list)
    """Tokens of those that are."""
    laid: Bounded[tuple[str, ...], RunLayout] = field(default_factory=lambda: Bounded(_ASKED))
    """By what tells requests apart: how those of late were laid out."""


class KnownRuns:
    """The runs under way, by conversation. Thread-safe, bounded."""

    def __init__(self) -> None:
        self._runs: Bounded[tuple[str, ...], RunState] = Bounded(_RUNS)
        # By team, role and text: whether it was a fork. By team and role: the conversation and the text of its last
        # run, and whether it had been a fork in others before.
        self._forked: Bounded[tuple[str, ...], bool] = Bounded(_RUNS)
        self._begun: Bounded[tuple[str, ...], tuple[str, str, bool]] = Bounded(_RUNS)
        self._lock = Lock()

    def again(self, key: tuple[str, ...], role: str, conversation: str, text: str) -> bool:
        """Whether a role was a fork in another conversation with this very text; that it runs in this one is noted."""
        entry = (*key, role)
        with self._lock:
            talk, told, again = self._begun.get(entry, (conversation, text, False))
            again = text == told and (again or (talk != conversation and (*entry, text) in self._forked))
            self._begun[entry] = conversation, text, again
            return again

    def layout(self, key: tuple[str, ...], facts: RunFacts) -> RunLayout:
        """How the request that is due is laid out; the same answer when it is asked again."""
        left = len(facts.run.calls)
        asked = (facts.run.calls[0].role, facts.talk, str(left), str(sum(facts.said)))
        with self._lock:
            run = self._runs.get(key)
            if run is not None:
                latest = next(reversed(run.laid))
                # One that is asked again at once is the same, whatever became of its history.
                same = latest if latest[:3] == asked[:3] else asked
                if same in run.laid:
                    return run.laid[same]
            ended = run is None or run.left != left + 1 or sum(facts.said) < run.ends.get(facts.talk, 0)
            if run is None or ended:
                # Another run, or a conversation that was cut: of what the cache holds of it nothing is counted on.
                run = RunState(left, CacheModel(facts.prices), CacheModel(facts.prices), opening=sum(facts.said))
                self._runs[key] = run
            run.left = left
            run.laid[asked] = found = _chosen(run, facts)
            role = (key[0], *key[2:], facts.run.calls[0].role)
            if found.forks and role in self._begun:
                forked = *role, self._begun[role][1]
                self._forked[forked] = True
            return found


def heard(run: RunState, facts: RunFacts) -> int:
    """Note what was said since, and give the length that answers are likely to have."""
    # Its minimum in our tokens is known once the provider has counted a request.
    run.cache.prices = run.unmodified.prices = facts.prices
    end = sum(facts.said)
    before, calls = run.ends.get(facts.talk), run.unread.get(facts.talk, 0)
    if before is not None and calls and end > before:
        run.answers += [(end - before) / calls] * calls
        run.unread[facts.talk] = 0
    run.ends[facts.talk], run.talks[facts.run.calls[0].role] = end, facts.talk
    return round(sum(run.answers) / len(run.answers)) if run.answers else REPLY


def _chosen(run: RunState, facts: RunFacts) -> RunLayout:
    """The layout of the request that is due, which is noted as sent."""
    likely = heard(run, facts)
    future = Future(run, facts)
    own = future.units(None, likely)
    lengths = LENGTHS if len(run.answers) < HEARD else _lengths(run.answers)
    spare = SPARE if run.way is None else 1.0
    unmodified: dict[tuple[int, int], float] = {}

    def dearer(way: RunWay, reply: int, calls: int) -> bool:
        if (reply, calls) not in unmodified:
            unmodified[reply, calls] = future.units(None, reply, run.unmodified, calls=calls)
        return run.paid + future.units(way, reply, calls=calls) > run.own + spare * unmodified[reply, calls]

    def safe(way: RunWay) -> bool:
        """Whether a way is not dearer in the end, however long answers are."""
        calls = len(facts.run.calls)
        # Most that are dearer are so within a few calls already.
        horizons = (HORIZON, calls) if calls > HORIZON else (calls,)
        return not any(dearer(way, reply, some) for some in horizons for reply in lengths)

    ways = sorted(((future.units(way, likely), way) for way in ways_for(run, facts)), key=lambda one: one[0])
    taken = next(((units, way) for units, way in ways if units <= own * spare and safe(way)), None)
    if taken is None and run.way is not None and ways[0][0] < own:
        # What was written is there to be read: going back would cost more, whatever the first step did.
        taken = ways[0]
    elif taken is not None and run.way is None:
        # Who shares is found once: a role that leaves a layout pays for it anew.
        taken = _apart(future, *taken, likely, safe)
    return sent(run, facts, taken[1] if taken is not None else None, ways[0][0] if ways else own, own)


def sent(run: RunState, facts: RunFacts, way: RunWay | None, best: float, own: float) -> RunLayout:
    """Note the request that is due as sent in one way, and give its layout."""
    future, here, end = Future(run, facts), facts.run.calls[0], sum(facts.said)
    run.way = way
    seats: dict[Seat, int] = {seat: tokens for seat, (_, tokens) in run.seats.items()}
    asked = future.asked(Due(here, facts.talk, end, facts.text), way, run.cache, seats)
    run.unread[facts.talk] = run.unread.get(facts.talk, 0) + 1
    run.paid += run.cache.send(asked)
    run.own += run.unmodified.send(future.own(here, facts.talk, end))
    if asked.own:
        return RunLayout(forks=False, cost=round(best), own=round(own))
    index, tokens = run.seats.setdefault((asked.head, facts.talk, here.role), (len(facts.said), asked.at))
    at = index if tokens == asked.at else len(facts.said)
    return RunLayout(
        forks=True,
        union=asked.head == _head(tuple(facts.tools), here.schema),
        at=at,
        continues=asked.continues,
        cost=round(best),
        own=round(own),
    )


def _head(tools: Sequence[str], schema: str) -> str:
    return f"{schema} tools {' '.join(sorted(tools))}"


def _lengths(answers: Sequence[float]) -> tuple[int, ...]:
    return (round(min(answers) / 2), round(sum(answers) / len(answers)), round(max(answers) * 2))


def ways_for(run: RunState, facts: RunFacts) -> Iterator[RunWay]:
    """The layouts that come into question for the rest of a run."""
    kits = {frozenset(call.tools) for call in facts.run.calls}
    apart = run.way.apart if run.way is not None else frozenset[str]()
    # With the same tools all the way, those of each are those of all.
    own = facts.kits and (not facts.union or kits != {frozenset(facts.tools)})
    for union, place in product([True] * facts.union + [False] * own, _PLACES):
        yield RunWay(union, place)
        if apart:
            yield RunWay(union, place, apart)


def _apart(
    future: Future, units: float, way: RunWay, likely: int, safe: Callable[[RunWay], bool]
) -> tuple[float, RunWay]:
    """The same way with those roles apart that make it dearer."""
    roles = dict.fromkeys(call.role for call in future.facts.run.calls)
    for role in roles if len(roles) > 1 else ():
        other = way._replace(apart=way.apart ^ {role})
        found = future.units(other, likely)
        if found < units and safe(other):
            units, way = found, other
    return units, way


@dataclass(frozen=True, slots=True)
class Future:
    """The rest of a run, to be played."""

    run: RunState
    facts: RunFacts

    def units(self, way: RunWay | None, reply: int, cache: CacheModel | None = None, *, calls: int = HORIZON) -> float:
        """What its next ``calls`` cost in one way with answers of one length; in the own layout for None."""
        facts, run = self.facts, self.run
        cache = (run.cache if cache is None else cache).copy()
        seats: dict[Seat, int] = {seat: tokens for seat, (_, tokens) in run.seats.items()}
        ends, total = dict(run.ends), 0.0
        answered = {talk: calls * reply for talk, calls in run.unread.items()}
        for number, call in enumerate(facts.run.calls[:calls]):
            talk = facts.talk if facts.run.joint else run.talks.get(call.role, f"{call.role} alone")
            # What is due reads what it holds already.
            if number and not call.beside:
                for one, more in answered.items():
                    ends[one] += more
                answered.clear()
            end = ends.setdefault(talk, run.opening)
            text = call.text + NAMED if number else facts.text
            total += cache.send(self.asked(Due(call, talk, end, text), way, cache, seats))
            answered[talk] = answered.get(talk, 0) + reply
        return total

    def asked(self, due: Due, way: RunWay | None, cache: CacheModel, seats: dict[Seat, int]) -> Asked:
        """A call's request in one way; ``seats`` are where texts first stood, to which it adds."""
        call, talk, end, text = due
        # Privacy: a role without the shared text is not shown it, whatever that would save.
        if way is None or call.role in way.apart or call.holds is False:
            return self.own(call, talk, end)
        tools = self.facts.tools
        names = tuple(tools) if way.union else call.tools
        # The same tools are the same head, as whose ever they go.
        head, size = _head(names, call.schema), self.facts.opening + sum(tools.get(name, 0) for name in names)
        behind = Asked(head, size, talk, end, end, call.role, text, continues=way.place != "end")
        at = seats.setdefault((head, talk, call.role), end)
        kept = behind._replace(at=at, continues=True)
        if at == end or way.place == "end":
            return behind
        if way.place == "kept" or cache.cost(kept) < cache.cost(behind):
            return kept
        return behind

    def own(self, call: RunCall, talk: str, end: int) -> Asked:
        """A call's request in the application's own layout."""
        facts = self.facts
        opening = 0 if call.holds is False else facts.opening
        size = opening + call.text + sum(facts.tools.get(one, 0) for one in call.tools)
        # Those with the same tools begin alike, and those whose text begins with the shared one go on so. Where only
        # what is marked is kept, that is whole requests, and none of them begins another role's.
        begins = facts.prices.match != "breakpoint"
        kin = f"{call.schema} of {' '.join(sorted(call.tools))}" if begins and (call.tools or facts.alike) else ""
        alike = size - call.text - opening * (not facts.alike) if kin else 0
        return Asked(f"{call.schema} of {call.role}", size, talk, end, end, call.role, kin=kin, alike=alike, own=True)
