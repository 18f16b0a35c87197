"""Token counts of one call or of many, the same for every provider."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_SUMMED = ("input_tokens", "cache_read_tokens", "output_tokens", "reasoning_tokens")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider reported them. ``None`` means not reported, which is not zero.

    ``input_tokens`` is the whole input: uncached, read and written together, whatever the provider's own
    count includes. ``usage_a + usage_b`` adds calls up; a field that only some calls reported is the sum of
    those, a lower bound, and its name stands in ``partial``.
    """

    input_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write: Mapping[str, int] | None = field(default=None, hash=False)
    """Written tokens by lifetime (``5m``, ``1h``, ``30m``, ``12h``); ``""`` where none was stated."""

    output_tokens: int | None = None
    """All generated tokens, reasoning included."""

    reasoning_tokens: int | None = None
    calls: int = 1
    partial: frozenset[str] = frozenset()
    """Fields to which some of the calls contributed nothing because it was not reported."""

    summed: bool = False
    """Whether the provider added up passes of its own (server-side tools): no single prompt's count."""

    problems: tuple[str, ...] = ()
    """What was wrong with the report; the fields concerned are left unreported."""

    @property
    def total_input(self) -> int | None:
        """The whole input, cached tokens included."""
        return self.input_tokens

    @property
    def cache_write_tokens(self) -> int | None:
        """Written tokens of all lifetimes; ``None`` if not reported."""
        return None if self.cache_write is None else sum(self.cache_write.values())

    @property
    def uncached_tokens(self) -> int | None:
        """Input that was neither read nor, as far as reported, written; ``None`` if the input is unknown."""
        if self.input_tokens is None:
            return None
        return max(0, self.input_tokens - (self.cache_read_tokens or 0) - (self.cache_write_tokens or 0))

    @property
    def uncached(self) -> int | None:
        """Short for ``uncached_tokens``."""
        return self.uncached_tokens

    @property
    def reported(self) -> bool:
        """Whether the provider said what it read from its cache."""
        return self.cache_read_tokens is not None

    @property
    def read_share(self) -> float | None:
        """Read tokens as a share of the input, 0 to 1; ``None`` if either is unknown."""
        if self.cache_read_tokens is None or not self.input_tokens:
            return None
        return self.cache_read_tokens / self.input_tokens

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        if not self.calls or not other.calls:
            return other if not self.calls else self
        partial = set(self.partial | other.partial)
        values: dict[str, Any] = {}
        for name in _SUMMED:
            mine, theirs = getattr(self, name), getattr(other, name)
            values[name] = None if mine is theirs is None else (mine or 0) + (theirs or 0)
            if (mine is None) is not (theirs is None):
                partial.add(name)
        if (self.cache_write is None) is not (other.cache_write is None):
            partial.add("cache_write")
        return Usage(
            **values,
            cache_write=_added(self.cache_write, other.cache_write),
            calls=self.calls + other.calls,
            partial=frozenset(partial),
            summed=self.summed or other.summed,
            # A long process adds up without end; a few distinct reports say what is wrong.
            problems=tuple(dict.fromkeys(self.problems + other.problems))[:8],
        )

    def __radd__(self, other: object) -> Usage:
        # sum() starts with 0.
        return self if other == 0 else NotImplemented

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; ``usage_from_dict`` reads them back."""
        plain = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        plain["cache_write"] = None if self.cache_write is None else dict(self.cache_write)
        plain["partial"], plain["problems"] = sorted(self.partial), list(self.problems)
        return plain


def usage_from_dict(plain: Mapping[str, Any]) -> Usage:
    """The usage that ``Usage.as_dict`` wrote. Raises TypeError for anything else."""
    values = dict(plain)
    values["partial"] = frozenset(values.get("partial", ()))
    values["problems"] = tuple(values.get("problems", ()))
    write = values.get("cache_write")
    values["cache_write"] = None if write is None else dict(write)
    return Usage(**values)


NO_CALLS = Usage(calls=0)
"""The usage of no call at all: adding to it gives the other summand."""


def _added(mine: Mapping[str, int] | None, theirs: Mapping[str, int] | None) -> Mapping[str, int] | None:
    if mine is None and theirs is None:
        return None
    mine, theirs = mine or {}, theirs or {}
    return {name: mine.get(name, 0) + theirs.get(name, 0) for name in {**mine, **theirs}}
