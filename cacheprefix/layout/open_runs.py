"""Lays out the requests of a run that nobody knows the end of: an online decision, by what was lost so far.

A run is expected to go on as long as it has so far, by the same calls, and by roles that nobody has heard yet. That is
ski rental: a layout is left for another one when what that would have saved so far, and so would save by then, is what
changing to it costs. It is taken only where it stays within ``RISK`` of what the application's own would have cost,
whatever comes (``_endings``). docs/never-dearer.md states the bound, with its proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cacheprefix.bounded import Bounded
from cacheprefix.layout.cost_model import CacheModel
from cacheprefix.layout.known_runs import (
    HEARD,
    LENGTHS,
    Future,
    RunAhead,
    RunCall,
    RunFacts,
    RunLayout,
    RunState,
    RunWay,
    heard,
    sent,
    ways_for,
)
from cacheprefix.locks import Lock

RISK = 0.08
"""What a conversation may cost more than in the application's own layout, as a part of that, should it end badly."""
EARLY = 0.05
"""The same for a team's first calls (``FIRST``), where little is known yet."""
FIRST = 3
EXPECTED = 24
"""Calls that are expected at most."""
AGAIN = (2, 12)
"""How often the same role may come again, with nobody else."""
LATELY = 8
"""Of the last calls, how many may come once more."""
_RUNS = 10_000
_TALKS = 100
"""Conversations of a team by which it is judged whether roles share them."""


@dataclass(slots=True)
class _Team:
    """What the conversations of a team with one model have in common."""

    cache: CacheModel
    unmodified: CacheModel
    talks: Bounded[str, set[str]] = field(default_factory=lambda: Bounded(_TALKS))
    """The roles of each conversation."""
    calls: Bounded[str, RunCall] = field(default_factory=lambda: Bounded(_TALKS))
    """The last call of each role."""

    count: int = 0
    """Calls so far."""

    def private(self, talk: str) -> bool:
        """Whether each role seems to have conversations of its own."""
        others = [roles for name, roles in self.talks.items() if name != talk]
        return len(self.talks.get(talk, ())) < 2 and bool(others) and all(len(roles) < 2 for roles in others)


class OpenRuns:
    """The conversations under way whose end nobody knows. Thread-safe, bounded."""

    def __init__(self) -> None:
        self._runs: Bounded[tuple[str, ...], tuple[RunState, list[RunCall]]] = Bounded(_RUNS)
        self._teams: Bounded[tuple[str, ...], _Team] = Bounded(_RUNS)
        self._lock = Lock()

    def layout(self, key: tuple[str, ...], facts: RunFacts, joined: int) -> RunLayout:
        """How the request that is due is laid out; the same answer when it is asked again.

        ``key`` names the team and its model, ``joined`` is how many roles it has. Of ``facts.run`` the first counts.
        """
        here, end, talk = facts.run.calls[0], sum(facts.said), (*key, facts.talk)
        asked = (here.role, str(len(facts.said)), str(end))
        with self._lock:
            team = self._teams.of(key, lambda: _Team(CacheModel(facts.prices), CacheModel(facts.prices)))
            known = self._runs.get(talk)
            if known is not None and asked in known[0].laid:
                return known[0].laid[asked]
            if known is None or end < known[0].ends.get(facts.talk, 0):
                # Of a conversation that was cut, as of a new one, the cache holds what stands in front of it.
                known = RunState(0, team.cache.copy(), team.unmodified.copy(), opening=end), []
                self._runs[talk] = known
            run, past = known
            team.talks.of(facts.talk, set).add(here.role)
            team.calls[here.role] = here
            team.count += 1
            past.append(here)
            del past[: -4 * EXPECTED]
            expected = _expected(past, team, facts, joined)
            run.laid[asked] = found = _chosen(run, replace(facts, run=expected), past, first=team.count <= FIRST)
            team.cache.meet(run.cache)
            team.unmodified.meet(run.unmodified)
            return found


def _expected(past: Sequence[RunCall], team: _Team, facts: RunFacts, joined: int) -> RunAhead:
    """The calls that are expected, from the one that is due on."""
    here = past[-1]
    if team.private(facts.talk):
        return RunAhead((here, *[here] * min(len(past), EXPECTED)), joint=False)
    heard_here = {call.role for call in past}
    unheard = [call for role, call in team.calls.items() if role not in heard_here]
    # Of roles that asked nowhere yet, the tools are known that nobody else has, and nothing of their texts.
    strangers = max(0, joined - len(heard_here) - len(unheard))
    theirs = [name for name in facts.tools if all(name not in call.tools for call in team.calls.values())]
    unheard += [RunCall(f"{at}", here.text, tuple(theirs[at::strangers])) for at in range(strangers)]
    later = unheard if len(past) <= joined else []
    return RunAhead((here, *later, *past[-EXPECTED:])[: EXPECTED + 1])


def _endings(past: Sequence[RunCall], facts: RunFacts) -> list[RunAhead]:
    """What may come instead, from the call that is due on: nothing, the same role alone, or all as lately."""
    here, joint = past[-1], facts.run.joint
    found = [RunAhead((here, *[here] * times), joint) for times in (0, *AGAIN)]
    if any(call.role != here.role for call in past[-LATELY:]):
        found.append(RunAhead((here, *past[-LATELY:]), joint))
    return found


def _chosen(run: RunState, facts: RunFacts, past: Sequence[RunCall], *, first: bool) -> RunLayout:
    """The layout of the request that is due, which is noted as sent."""
    likely = heard(run, facts)
    short = round(min(run.answers) / 2) if len(run.answers) >= HEARD else LENGTHS[0]
    risk = EARLY if first else RISK
    if first and not facts.prices.keeps_own:
        # One write premium on what is shared, where the application's own layout writes nothing.
        risk = max(risk, facts.prices.write - 1.0)
    future = Future(run, facts)
    endings = [Future(run, replace(facts, run=ending)) for ending in _endings(past, facts)]
    cases = [(endings[0], likely), *((one, reply) for one in endings[1:] for reply in {short, likely})]
    allowed = [(1.0 + risk) * (run.own + one.units(None, reply, run.unmodified)) for one, reply in cases]

    def fits(way: RunWay | None) -> bool:
        return all(run.paid + one.units(way, reply) <= most for (one, reply), most in zip(cases, allowed, strict=True))

    own = future.units(None, likely)
    ways: list[tuple[float, RunWay | None]] = [(own, None)]
    ways += [(future.units(way, likely), way) for way in ways_for(run, facts)]
    ways.sort(key=lambda one: one[0])
    taken = next((one for one in ways if fits(one[1])), None)
    if taken is None:
        # With nothing within the risk: what makes this one request cheapest (the bound's second part).
        taken = min(ways, key=lambda one: future.units(one[1], likely, calls=1))
    return sent(run, facts, taken[1], ways[0][0], own)
