"""What the cache did, by tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeAlias

from cacheprefix.errors import StateError
from cacheprefix.locks import RLock

Outcome: TypeAlias = Literal["hit", "miss", "joined", "bypassed", "written", "refused"]

# A model may invent any number of tool names; beyond this many they share one row.
_MAX_TOOLS = 1_000
OTHER = "(other)"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that went through the cache, for telemetry. Holds no arguments and no result.

    ``outcome``: answered from the store (``hit``) or by an identical call in flight
    (``joined``), run and looked up before (``miss``), run because it is not cacheable
    (``bypassed``) or changes something (``written``), or ``refused`` as a repeat. ``seconds`` is
    what the caller waited; ``saved`` the tool seconds that did not have to run again. ``failed``: the tool raised, or
    what it gave reports an error (``ToolCacheOptions.is_error``).
    """

    tool: str
    outcome: Outcome
    seconds: float
    saved: float = 0.0
    failed: bool = False


@dataclass(frozen=True, slots=True)
class ToolStats:
    """Counts since the start or the last ``clear()``, of this process; ``bytes`` is what is kept now.

    - ``misses`` include lookups that found an expired or outdated entry.
    - ``expired`` and ``evicted`` count entries that the store dropped, as far as this process
      sees it: a Redis server drops unseen.
    - ``outdated``: entries found that a write had invalidated.
    - ``refused``: repeated calls that were answered with a message.
    - ``saved_seconds``: run time of the calls that did not have to run again.
    """

    hits: int = 0
    misses: int = 0
    joined: int = 0
    expired: int = 0
    outdated: int = 0
    evicted: int = 0
    refused: int = 0
    entries: int = 0
    bytes: int = 0
    saved_seconds: float = 0.0

    @property
    def hit_rate(self) -> float | None:
        """Share of lookups answered without running the tool; None without any lookup."""
        answered = self.hits + self.joined
        return answered / (answered + self.misses) if answered + self.misses else None


@dataclass(frozen=True, slots=True)
class CacheStats:
    """The whole cache: its settings, the total, and each tool's part. ``str()`` tells it in three lines.

    ``store_errors`` counts calls that went on without the store because it failed.
    """

    enabled: bool
    ttl: float | None
    total: ToolStats
    tools: Mapping[str, ToolStats]
    store_errors: int = 0

    def __str__(self) -> str:
        rate = self.total.hit_rate
        return (
            f"Tool result cache: {'enabled' if self.enabled else 'disabled'}\n"
            f"Entries: {self.total.entries}, Hits: {self.total.hits + self.total.joined}, "
            f"Misses: {self.total.misses}, Hit rate: {'n/a' if rate is None else f'{rate:.1%}'}\n"
            f"TTL: {duration(self.ttl)}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON. Holds tool names, no arguments and no results."""
        return {
            "enabled": self.enabled,
            "ttl": self.ttl,
            "total": _plain(self.total),
            "tools": {name: _plain(row) for name, row in self.tools.items()},
            "store_errors": self.store_errors,
        }

    @classmethod
    def from_dict(cls, data: Any) -> CacheStats:
        """Read what ``as_dict`` gave.

        Raises:
            StateError: it has another shape.
        """
        try:
            tools = {str(name): _read(row) for name, row in data["tools"].items()}
            ttl = data["ttl"]
            return cls(bool(data["enabled"]), ttl if ttl is None else float(ttl), _read(data["total"]), tools,
                       int(data["store_errors"]))  # fmt: skip
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"these are no statistics of a tool cache ({type(error).__name__}: {error})") from error


def _plain(row: ToolStats) -> dict[str, Any]:
    rate = row.hit_rate
    return {**asdict(row), "hit_rate": None if rate is None else round(rate, 4)}


def _read(data: Mapping[str, Any]) -> ToolStats:
    counts = {f.name: (float if f.name == "saved_seconds" else int)(data[f.name]) for f in fields(ToolStats)}
    return ToolStats(**counts)  # type: ignore[arg-type]


def duration(seconds: float | None) -> str:
    """Return a time to live in words: ``never``, ``300s``, ``500ms``."""
    if seconds is None:
        return "never"
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    return f"{seconds:.15g}s"


_ZERO: Mapping[str, float] = {
    f.name: getattr(ToolStats(), f.name) for f in fields(ToolStats) if f.name not in ("entries", "bytes")
}
"""What is counted of a tool; its entries and their bytes the store knows."""
_FIELD: Mapping[Outcome, str] = {"hit": "hits", "miss": "misses", "joined": "joined", "refused": "refused"}


@dataclass(slots=True)
class Counters:
    """The running counts, safe for threads."""

    _rows: dict[str, dict[str, float]] = field(default_factory=dict)
    _lock: RLock = field(default_factory=RLock)
    store_errors: int = 0

    def hit(self, tool: str, saved: float) -> None:
        """Count a hit; apart from the rest because it is on the fast path."""
        with self._lock:
            row = self._rows.get(tool) or self._row(tool)
            row["hits"] += 1
            row["saved_seconds"] += saved

    def outcome(self, tool: str, outcome: Outcome, saved: float = 0.0) -> None:
        """Count how a call ended."""
        name = _FIELD.get(outcome)
        if name is not None:
            self.add(tool, name)
        if saved:
            with self._lock:
                self._row(tool)["saved_seconds"] += saved

    def add(self, tool: str, name: str) -> None:
        """Add one to a count."""
        with self._lock:
            self._row(tool)[name] += 1

    def error(self) -> bool:
        """Count a failure of the store; True for the first."""
        with self._lock:
            self.store_errors += 1
            return self.store_errors == 1

    def clear(self) -> None:
        """Start again at zero."""
        with self._lock:
            self._rows.clear()
            self.store_errors = 0

    def after_fork(self) -> None:
        """A forked child counts for itself."""
        self.clear()

    def stats(self, enabled: bool, ttl: float | None, held: Mapping[str, tuple[int, int]]) -> CacheStats:  # noqa: FBT001 - mirrors the value's fields
        """Return a snapshot; ``held`` gives entries and bytes by tool."""
        with self._lock:
            rows = {tool: dict(row) for tool, row in self._rows.items()}
            errors = self.store_errors
        for tool in held:
            rows.setdefault(tool, {})
        tools: dict[str, ToolStats] = {}
        for tool, counts in sorted(rows.items()):
            entries, size = held.get(tool, (0, 0))
            tools[tool] = ToolStats(**counts, entries=entries, bytes=size)  # type: ignore[arg-type]
        sums = {f.name: sum(getattr(t, f.name) for t in tools.values()) for f in fields(ToolStats)}
        return CacheStats(enabled, ttl, ToolStats(**sums), tools, errors)

    def _row(self, tool: str) -> dict[str, float]:
        row = self._rows.get(tool)
        if row is None:
            name = tool if len(self._rows) < _MAX_TOOLS else OTHER
            row = self._rows.setdefault(name, dict(_ZERO))
        return row
