"""What one step of a team or a task graph came to, as plain data for a graph's state."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage
from typing_extensions import Self

from cacheprefix import Usage
from cacheprefix.adapter import NO_CALLS, AdapterSession, Waits, cost_units, normalise_usage, usage_from_dict
from cacheprefix_langgraph.request_bodies import model_name

Status = Literal["completed", "failed", "blocked"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A step's result, its calls' usage, and its time."""

    id: str
    status: Status
    text: str = ""
    error: str = ""
    """Why it failed, or which failed task it would have needed."""
    usage: Usage = NO_CALLS
    cost_units: float = 0.0
    """The input's price in uncached input tokens."""
    started: float = 0.0
    """Seconds since the epoch."""
    seconds: float = 0.0
    wave: int = 0
    waited: float = 0.0
    """Seconds of them at the gate, for a sibling that was writing what the step then read."""

    @property
    def cached_share(self) -> float | None:
        """Share of the input that was read from the cache, 0 to 1; None where the provider did not say."""
        return self.usage.cached_share

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types, for a state that any checkpointer takes."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "usage": self.usage.as_dict()}


def outcome_from(data: Mapping[str, Any]) -> Outcome:
    """The outcome that ``as_dict`` wrote."""
    return Outcome(**{**data, "usage": usage_from_dict(data["usage"])})


@dataclass(slots=True)
class Watch:
    """Times a step and adds up its model calls."""

    session: AdapterSession
    model: Any
    started: float = field(default_factory=time.time)
    _began: float = field(default_factory=time.perf_counter)
    _waits: Waits = field(default_factory=Waits)

    def __enter__(self) -> Self:
        """The step begins."""
        self._waits.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """The step is over."""
        self._waits.__exit__()

    def outcome(
        self, id_: str, status: Status, text: str, messages: Sequence[BaseMessage], *, error: str = "", wave: int = 0
    ) -> Outcome:
        """The outcome of what was done since, from the usage that the messages carry."""
        name = model_name(self.model)
        profile = self.session.profile(name)
        usage = NO_CALLS
        for message in messages:
            if isinstance(message, AIMessage):
                usage = usage + normalise_usage(message.usage_metadata, profile=profile)
        seconds = time.perf_counter() - self._began
        units = round(cost_units(usage, profile), 1)
        waited = self._waits.seconds
        return Outcome(id_, status, text, error, usage, units, self.started, round(seconds, 4), wave, waited)


def total(outcomes: Iterable[Outcome]) -> Usage:
    """All calls added up."""
    return sum((outcome.usage for outcome in outcomes), NO_CALLS)


def merged(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> dict[str, Any]:
    """A reducer: entries by id, the later one winning."""
    return {**(old or {}), **(new or {})}
