"""The sums of an audit, and its breaks grouped by cause and place."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

from cacheprefix.audit.log_records import Record
from cacheprefix.profiles import Usage

_KEPT_BROKEN = 100
_INDEX = re.compile(r"\[\d+\]")
_KEPT_GROUPS = 20_000
_KEPT_DAYS = 10_000
_KEPT_AGENTS = 10_000
_OTHERS = "others"
_DAY = 86_400


@dataclass(slots=True)
class Sum:
    """Tokens and cost of some calls. Cost units: one uncached input token is 1."""

    calls: int = 0
    input_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_units: float = 0.0
    usd: float = 0.0
    priced: int = 0
    lost_tokens: int = 0

    def add(self, tokens: tuple[int, int, int], units: float, usd: float | None, lost_tokens: int) -> None:
        """One more call; ``tokens`` are its input, and what of it was read and written."""
        self.calls += 1
        self.input_tokens += tokens[0]
        self.cache_read_tokens += tokens[1]
        self.cache_write_tokens += tokens[2]
        self.cost_units += units
        self.lost_tokens += lost_tokens
        if usd is not None:
            self.usd += usd
            self.priced += 1

    @property
    def cached_share(self) -> float:
        """Read tokens of all input tokens, 0 to 1."""
        return self.cache_read_tokens / self.input_tokens if self.input_tokens else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "calls": self.calls,
            "input_tokens": self.input_tokens,
            "cache_read_tokens": self.cache_read_tokens,
            "cache_write_tokens": self.cache_write_tokens,
            "uncached_tokens": max(0, self.input_tokens - self.cache_read_tokens - self.cache_write_tokens),
            "cached_share": round(self.cached_share, 6),
            "cost_units": round(self.cost_units, 3),
            "usd": self.usd if self.priced else None,
            "lost_tokens": self.lost_tokens,
        }


@dataclass(slots=True)
class BreakGroup:
    """All breaks of one cause at one place."""

    cause: str
    path: str | None
    """Where it is, as long as that is one place; the shape of the places once there are several."""
    fix: str
    place: str
    """File and line of the first of them."""
    agent: str
    offset: int | None
    size: int | None
    excerpt: dict[str, str] | None
    count: int = 0
    lost_tokens: int = 0
    lost_usd: float | None = None
    calls: list[int] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "cause": self.cause,
            "path": self.path,
            "count": self.count,
            "lost_tokens": self.lost_tokens,
            "lost_usd": self.lost_usd,
            "calls": self.calls,
            "fix": self.fix,
        }


def _date(day: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=day)).isoformat()


def shape_of(path: str | None) -> str | None:
    """A place without its numbers: ``messages[*].content`` for ``messages[7].content``."""
    return None if path is None else _INDEX.sub("[*]", path)


@dataclass(slots=True)
class Totals:
    """Everything that is summed up while the log goes by."""

    all: Sum = field(default_factory=Sum)
    agents: dict[str, Sum] = field(default_factory=dict)
    days: dict[tuple[str, int | None], Sum] = field(default_factory=dict)
    """By model and day since the epoch (UTC); None for calls without a time."""
    verdicts: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    groups: dict[tuple[str, str | None], BreakGroup] = field(default_factory=dict)
    ungrouped: int = 0
    """Breaks beyond the groups that are kept."""
    lost_usd: float | None = None
    reported: int = 0
    simulated: int = 0
    without_text: int = 0
    textless: Counter[str] = field(default_factory=Counter)
    """The same by the form of the log."""
    counted: int = 0
    """Those of them that say how many tokens were read from the cache."""
    uncounted: int = 0
    """Those of them that have no counts at all."""
    failed: int = 0
    refused: int = 0
    """Requests that the rules would have answered with an error."""
    presumed_marks: int = 0
    """Calls whose log has lost the cache marks that the counts show."""
    aside: Counter[str] = field(default_factory=Counter)
    """Requests that ask no language model: embeddings, images, speech."""
    usage_problems: Counter[str] = field(default_factory=Counter)
    """What was wrong with counts that were left out."""
    broken: list[str] = field(default_factory=list)
    broken_count: int = 0

    def add(self, record: Record, usage: Usage, units: float, usd: float | None, lost_tokens: int = 0) -> None:
        """Add a call to the sums that it goes into."""
        tokens = (usage.input_tokens or 0, usage.cache_read_tokens or 0, usage.cache_write_tokens or 0)
        for held in self.sums(record.agent, record.model, record.ts):
            held.add(tokens, units, usd, lost_tokens)

    def sums(self, agent: str, model: str, at: float | None) -> tuple[Sum, Sum, Sum]:
        """The sums that a call goes into: of all, of its agent, of its model and day."""
        day = (model, None if at is None else int(at // _DAY))
        if day not in self.days and len(self.days) >= _KEPT_DAYS:
            day = (_OTHERS, None)
        if agent not in self.agents and len(self.agents) >= _KEPT_AGENTS:
            agent = _OTHERS  # Some loggers give every call a name of its own.
        by_agent, by_day = self.agents.get(agent), self.days.get(day)
        if by_agent is None:
            by_agent = self.agents[agent] = Sum()
        if by_day is None:
            by_day = self.days[day] = Sum()
        return self.all, by_agent, by_day

    @property
    def by_day(self) -> list[tuple[str, str, Sum]]:
        """Model, day (``2026-11-22``, empty where it is not known) and sum, by day and then by model."""
        found = sorted(self.days.items(), key=lambda item: (-1 if item[0][1] is None else item[0][1], item[0][0]))
        return [(model, "" if day is None else _date(day), held) for (model, day), held in found]

    @property
    def unpriced(self) -> Counter[str]:
        """Calls of models whose price in dollars nobody knows, by model; empty for those that name none."""
        calls: Counter[str] = Counter()
        priced: Counter[str] = Counter()
        for (model, _), held in self.days.items():
            if held.input_tokens:
                calls[model] += held.calls
                priced[model] += held.priced
        return Counter({model: count for model, count in calls.items() if not priced[model]})

    def lost(self, usd: float | None) -> None:
        """Add up lost money; stays None while no price is known."""
        if usd is not None:
            self.lost_usd = (self.lost_usd or 0.0) + usd

    def damaged(self, problem: str, count: int = 1) -> None:
        """Lines that could not be read; the first hundred problems are kept."""
        self.broken_count += count
        if len(self.broken) < _KEPT_BROKEN:
            self.broken.append(problem)

    def group(self, made: BreakGroup) -> BreakGroup | None:
        """The group of a cause and the shape of its place; ``made`` where it is the first; None for too many."""
        key = (made.cause, shape_of(made.path))
        found = self.groups.get(key)
        if found is not None and found.path != made.path:
            found.path, found.offset, found.size = key[1], None, None
        if found is None:
            if len(self.groups) >= _KEPT_GROUPS:
                self.ungrouped += 1
                return None
            found = self.groups[key] = made
        return found

    @property
    def understood(self) -> bool:
        """Whether the log says anything about the cache: requests that can be judged, or cached counts."""
        return self.all.calls > self.without_text or self.counted > 0

    @property
    def breaks(self) -> list[BreakGroup]:
        """The groups, dearest first."""
        return sorted(
            self.groups.values(),
            key=lambda group: (-(group.lost_usd or 0.0), -group.lost_tokens, group.cause, group.path or ""),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            **self.all.as_dict(),
            "lost_usd": self.lost_usd,
            "breaks": sum(group.count for group in self.groups.values()) + self.ungrouped,
            "verdicts": dict(sorted(self.verdicts.items())),
            "causes": dict(sorted(self.causes.items())),
            "reported_calls": self.reported,
            "simulated_calls": self.simulated,
            "calls_without_text": self.without_text,
            "failed_requests": self.failed,
            "refused_by_rules": self.refused,
            "other_requests": dict(sorted(self.aside.items())),
            "agents": {name: held.as_dict() for name, held in sorted(self.agents.items())},
            "models_by_day": [{"model": model, "day": day, **held.as_dict()} for model, day, held in self.by_day],
            "broken_lines": self.broken_count,
            "broken": self.broken,
        }
