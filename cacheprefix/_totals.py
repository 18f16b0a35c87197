"""The calls of a session and its children, with bounded memory, and the report made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from cacheprefix._calls import Break, Call, Line, Report, breaks_of, tally
from cacheprefix.locks import Lock

KEEP = 20_000
"""Calls kept one by one; beyond that the older half is summed up."""


class Totals:
    """What was called so far. Thread-safe."""

    def __init__(self, keep: int = KEEP) -> None:
        self._keep = keep
        self._calls: list[Call] = []
        self._folded: dict[str, Line] = {}
        self._breaks: list[Break] = []
        self._agents: set[str] = set()
        self._lock = Lock()
        self.last: Call | None = None

    def first_of(self, agent: str) -> bool:
        """Whether this is the first call of an agent; asking makes it so."""
        with self._lock:
            new = agent not in self._agents
            self._agents.add(agent)
        return new

    def remember(self, call: Call) -> None:
        """Take in a finished call."""
        with self._lock:
            self.last = call
            self._calls.append(call)
            if len(self._calls) > self._keep:
                self._fold()

    @property
    def calls(self) -> tuple[Call, ...]:
        """The recent calls."""
        with self._lock:
            return tuple(self._calls)

    def report(self, counter: str, notes: tuple[str, ...], failures: Mapping[str, int]) -> Report:
        """Lines by agent and in all, and the breaks, dearest first."""
        with self._lock:
            calls, folded, old = list(self._calls), dict(self._folded), list(self._breaks)
        by_agent: dict[str, list[Call]] = {}
        for call in calls:
            by_agent.setdefault(call.agent, []).append(call)
        lines = []
        for agent in sorted(folded.keys() | by_agent.keys()):
            line = tally(agent, by_agent.get(agent, ()))
            lines.append(_sum(agent, (folded[agent], line)) if agent in folded else line)
        breaks = _merged([*old, *breaks_of(calls)])
        return Report(tuple(lines), _sum("all", lines), breaks, counter, notes, dict(failures))

    def _fold(self) -> None:
        half = self._keep // 2
        old, self._calls = self._calls[:half], self._calls[half:]
        for agent in {call.agent for call in old}:
            line = tally(agent, (call for call in old if call.agent == agent))
            known = self._folded.get(agent)
            self._folded[agent] = line if known is None else _sum(agent, (known, line))
        self._breaks = list(_merged([*self._breaks, *breaks_of(old)]))


def _sum(agent: str, lines: Iterable[Line]) -> Line:
    rows = tuple(lines)
    known = [row.unmodified_units for row in rows if row.unmodified_units is not None]
    usd = [row.money for row in rows if row.money is not None]
    return Line(
        agent,
        sum(row.calls for row in rows),
        sum(row.input_tokens for row in rows),
        sum(row.cache_read_tokens for row in rows),
        sum(row.cache_write_tokens for row in rows),
        sum(row.uncached_tokens for row in rows),
        sum(row.cost_units for row in rows),
        sum(known) if known else None,
        sum(usd) if usd else None,
        sum(row.unreported for row in rows),
    )


def _merged(breaks: Iterable[Break]) -> tuple[Break, ...]:
    merged: dict[tuple[str, str | None], Break] = {}
    for item in breaks:
        known = merged.get((item.cause, item.path))
        merged[item.cause, item.path] = item if known is None else _joined(known, item)
    return tuple(sorted(merged.values(), key=lambda found: -found.lost_tokens))


def _joined(a: Break, b: Break) -> Break:
    usd = [value for value in (a.lost_usd, b.lost_usd) if value is not None]
    return replace(
        a,
        count=a.count + b.count,
        lost_tokens=a.lost_tokens + b.lost_tokens,
        lost_usd=sum(usd) if usd else None,
        agents=tuple(sorted({*a.agents, *b.agents})),
    )
