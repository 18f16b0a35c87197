"""What the same calls would have cost: each change is played through a cache that follows the provider's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cacheprefix.audit.order import Answers
from cacheprefix.audit.what_if_layouts import (
    Laid,
    Team,
    Teams,
    VolatileText,
    fork_points,
    roles_to_tail,
    tools_unified,
)
from cacheprefix.cache import plan_breakpoints
from cacheprefix.cache.played import PlayedCache
from cacheprefix.profiles import Profile
from cacheprefix.prompt import CountTokens, Prompt, Section
from cacheprefix.prompt.sections import with_markers

SECTIONS = 25_000
"""Sections of the calls that are played again; beyond that the answer is for the first part of the log."""
_MOST_BYTES = 64_000_000
"""Bytes of those sections, each counted once: some hold images."""

CHANGES = {
    "ideal_breakpoints": "cache marks set where they pay most",
    "roles_to_tail": "each agent's own instructions last, behind the conversation that all share",
    "tools_unified": "one list of tools, the same for all agents of a team",
    "volatile_to_tail": "times, ids and counters moved to the end of the last message",
    "all": "all of these together",
}
"""The changes and what they mean; each but the first is played with ideal breakpoints as well."""

HOW = {
    "ideal_breakpoints": "mark the end of what calls share and the last message (cache_control, cachePoint)",
    "roles_to_tail": "give all agents one system prompt and say each one's role in its last message",
    "tools_unified": "declare all tools in every call, in one order, and say in words which an agent may use",
    "volatile_to_tail": "write times, ids and counters into the last message",
    "all": "one system prompt and one list of tools for all agents, with roles, times and ids in the last message",
}
"""What to do for each of them. The adapters for agent frameworks lay requests out so (times and ids aside)."""

_BEGINNING = 64

WORTH = 0.02
"""Share of the cost from which on a saving is advised."""


@dataclass(frozen=True, slots=True)
class Saving:
    """One change, and the cost of the calls as they are and as they would have been (both simulated)."""

    change: str
    cost_units_now: float
    cost_units_then: float

    def as_dict(self) -> dict[str, str | float]:
        """Plain data for JSON."""
        return {
            "change": self.change,
            "cost_units_now": round(self.cost_units_now, 3),
            "cost_units_then": round(self.cost_units_then, 3),
        }


class PlayedCall(NamedTuple):
    """One call as the provider saw it. Times are seconds."""

    prompt: Prompt
    profile: Profile
    scope: str
    session: str
    agent: str
    at: float
    started: float
    ended: float
    known: bool
    """Whether the log says when the answer came."""
    units: float
    """What a cache that follows the rules would have made it cost as it was, in cost units."""
    lane: tuple[int, str, str]
    """Rules, model and scope: what calls that can share at all have in common."""


class WhatIf:
    """Collects the calls of a log (the first ``SECTIONS`` sections of them) and plays them again."""

    def __init__(self, count: CountTokens) -> None:
        self._count = count
        self._calls: list[PlayedCall] = []
        self._sections = self._bytes = 0
        self._held: set[bytes] = set()
        """Digests of the sections of all calls."""

    @property
    def calls(self) -> int:
        """Calls that are played again."""
        return len(self._calls)

    @property
    def full(self) -> bool:
        """Whether it takes no more calls."""
        return self._sections >= SECTIONS or self._bytes >= _MOST_BYTES

    def add(self, call: PlayedCall) -> None:
        """One more call."""
        self._sections += len(call.prompt.sections)
        if not self._held.issuperset(call.prompt.digests):
            for one in call.prompt.sections:
                if one.digest not in self._held:
                    self._held.add(one.digest)
                    self._bytes += len(one.data)
        self._calls.append(call)

    def savings(self, paid: float | None = None) -> tuple[Saving, ...]:
        """The cost under every change, made for those teams of agents that it helps.

        A change that alters no request costs what ideal breakpoints cost. ``paid`` is what the calls did cost, in
        cost units: the changes are told in proportion to it, so that there is one figure for what is.
        """
        if not self._calls:
            return ()
        calls = self._calls
        as_is = [call.units for call in calls]
        same = [Laid(_plain(call.prompt) if call.profile.markers else call.prompt) for call in calls]
        ideal = self._cost(same) if any(call.profile.markers for call in calls) else as_is
        teams = self._teams(same)
        volatile = self._volatile(teams)
        moved = [volatile.lay(one.prompt) for one in same] if volatile else same
        keys = [teams.key(call.lane, call.session) for call in calls]
        base = _at_most(as_is, ideal, keys)

        def cost(changed: bool, laid: Callable[[], list[Laid]]) -> list[float]:  # noqa: FBT001 - local
            return _at_most(base, self._changed_cost(same, laid(), base), keys) if changed else base

        def both() -> list[Laid]:
            other = self._teams(moved) if volatile else teams
            return self._laid(moved, other, lambda team, laid: tools_unified(team, roles_to_tail(team, laid)))

        roles, tools = teams.with_roles(), teams.with_tools()
        costs = {
            "ideal_breakpoints": base,
            "roles_to_tail": cost(roles, lambda: self._laid(same, teams, roles_to_tail)),
            "tools_unified": cost(tools, lambda: self._laid(same, teams, tools_unified)),
            "volatile_to_tail": cost(bool(volatile), lambda: moved),
        }
        together = cost((roles + tools + bool(volatile)) > 1, both)
        for single in costs.values():
            together = _at_most(together, single, keys)
        costs["all"] = together
        now = sum(as_is)
        scale = paid / now if paid is not None and now else 1.0
        return tuple(Saving(change, now * scale, sum(costs[change]) * scale) for change in CHANGES)

    def _volatile(self, teams: Teams) -> VolatileText:
        """What changes from one request of an agent to its next, between its conversations, and between roles."""
        found = VolatileText()
        for team in teams:
            found.compare_fronts(team.systems.values())
        last: dict[tuple[object, ...], Prompt] = {}
        opened: dict[tuple[object, ...], dict[tuple[bytes, ...], tuple[Section, ...]]] = {}
        """Of each agent the different fronts that its conversations began with: an id in it makes each of them new."""
        for call in self._calls:
            key, prompt = (call.lane, call.session, call.agent), call.prompt
            before = last.get(key)
            if before is not None:
                found.compare(before, prompt)
            else:
                fronts = opened.setdefault((call.lane, call.agent), {})
                fronts.setdefault(tuple(prompt.digests[: prompt.head]), prompt.sections[: prompt.head])
            last[key] = prompt
        for fronts in opened.values():
            found.compare_fronts(fronts.values())
        return found

    def _teams(self, laid: Sequence[Laid]) -> Teams:
        teams = Teams()
        for call, one in zip(self._calls, laid, strict=True):
            teams.learn(one.prompt, call.lane, call.session)
        return teams

    def _laid(self, base: Sequence[Laid], teams: Teams, change: Callable[[Team, Laid], Laid]) -> list[Laid]:
        return [change(teams.of(call.lane, call.session), one) for call, one in zip(self._calls, base, strict=True)]

    def _changed_cost(self, same: Sequence[Laid], laid: Sequence[Laid], base: Sequence[float]) -> list[float]:
        """The cost of these prompts, of which those play again that a change can reach; the others cost what they did.

        Requests that part within the first ``_BEGINNING`` bytes read next to nothing of each other.
        """
        touched: set[object] = set()
        for call, one, other in zip(self._calls, same, laid, strict=True):
            if one.prompt is not other.prompt:
                touched.update((_beginning(call, one), _beginning(call, other)))
        playing = [
            at
            for at, (call, one, other) in enumerate(zip(self._calls, same, laid, strict=True))
            if _beginning(call, other) in touched or _beginning(call, one) in touched
        ]
        costs = list(base)
        for at, units in zip(playing, self._cost(laid, playing), strict=True):
            costs[at] = units
        return costs

    def _cost(self, laid: Sequence[Laid], playing: Iterable[int] | None = None) -> list[float]:
        """Cost units of each of these prompts, at the times of the calls, ideally marked; of all calls by default."""
        cache, answers = PlayedCache(self._count), Answers()
        marked = any(call.profile.markers for call in self._calls)
        forks = fork_points([one.prompt for one in laid]) if marked else ()
        costs: list[float] = []
        for at in range(len(laid)) if playing is None else playing:
            call, (prompt, tail) = self._calls[at], laid[at]
            answers.until(call.at)
            planned: dict[int, str | None] = {}
            if call.profile.markers is not None:
                shared = len(prompt.sections) - tail if tail else forks[at]
                points = plan_breakpoints(prompt, call.profile, boundary=shared)
                planned = {point.section: point.ttl for point in points}
            line = (call.session, call.agent)
            played = cache.begin(prompt, call.profile, call.at, scope=call.scope, line=line, planned=planned)
            costs.append(played.units)
            if call.started < call.ended:
                answers.at(call.started, played.first_token, known=call.known)
            answers.at(call.ended, played.ended, known=call.known)
        cache.clear()
        return costs


def _plain(prompt: Prompt) -> Prompt:
    """The prompt without any marks."""
    bare = with_markers(prompt, dict.fromkeys(prompt.marked))
    return bare if bare.top_marker is None else replace(bare, top_marker=None)


def _beginning(call: PlayedCall, laid: Laid) -> object:
    """What requests that can read much of each other have in common."""
    sections = laid.prompt.sections
    return (*call.lane, sections[0].data[:_BEGINNING] if sections else b"")


def _at_most(before: Sequence[float], after: Sequence[float], keys: Sequence[object]) -> list[float]:
    """Costs call by call, for each team those of the cheaper of two layouts."""
    if before is after:
        return list(before)
    gain: dict[object, float] = {}
    for key, old, new in zip(keys, before, after, strict=True):
        gain[key] = gain.get(key, 0.0) + old - new
    return [new if gain[key] > 0 else old for key, old, new in zip(keys, before, after, strict=True)]
