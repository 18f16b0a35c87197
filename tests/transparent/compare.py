"""Where two trees of plain values differ, by path, and which differences must be."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Literal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Change = Literal["added", "removed", "type", "value"]
FILE = Path(__file__).with_name("differences.toml")
_LONG = 300


@dataclass(frozen=True, slots=True)
class Found:
    """One place where the application sees something else."""

    path: str
    """Such as ``messages[1].response_metadata.token_usage``."""

    change: Change
    """``value``: another one of the same type."""

    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}: {self.change}\n    unmodified: {self.before}\n    now:        {self.after}"


@dataclass(frozen=True, slots=True)
class Allowed:
    """A difference that must be, where agents are forks; observed, nothing may differ."""

    frameworks: tuple[str, ...]
    constructs: str
    """Names of constructs; ``*`` stands for any characters."""

    path: str
    """Paths, ``*`` likewise."""

    changes: tuple[Change, ...]
    what: str
    """What changes, as the adapter's page says it."""

    reason: str
    """Why it must."""

    shows: str = "*"
    """What is seen there now, ``*`` likewise."""

    def concerns(self, construct: str) -> bool:
        """Whether it is about any place of this construct."""
        return _pattern(self.constructs).fullmatch(construct) is not None

    def covers(self, construct: str, found: Found) -> bool:
        """Whether it is about this place of this construct."""
        return (
            found.change in self.changes
            and self.concerns(construct)
            and _pattern(self.path).fullmatch(found.path) is not None
            and _pattern(self.shows).fullmatch(found.after) is not None
        )

    def __str__(self) -> str:
        return f"{self.constructs} {self.path}"


@functools.lru_cache(maxsize=1)
def allowed() -> tuple[Allowed, ...]:
    """All entries of ``differences.toml``."""
    entries = tomllib.loads(FILE.read_text("utf-8")).get("difference", [])
    return tuple(
        Allowed(
            tuple(entry["frameworks"]),
            entry.get("constructs", "*"),
            entry["path"],
            tuple(entry.get("changes", ["value"])),
            entry["what"],
            entry["reason"],
            entry.get("shows", "*"),
        )
        for entry in entries
    )


def allowed_in(framework: str) -> list[Allowed]:
    """The entries of one framework."""
    return [one for one in allowed() if framework in one.frameworks]


def differences(before: Any, after: Any, path: str = "") -> Iterator[Found]:
    """Each place where two trees differ; in lists of different lengths, what was put in or left out."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            where = f"{path}.{key}" if path else key
            if key not in after:
                yield Found(where, "removed", _shown(before[key]), "")
            elif key not in before:
                yield Found(where, "added", "", _shown(after[key]))
            else:
                yield from differences(before[key], after[key], where)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _in_lists(before, after, path)
    elif type(before) is not type(after):
        yield Found(path, "type", _shown(before), _shown(after))
    elif before != after:
        # A class that is another one is no other value of the same type.
        yield Found(path, "type" if path.endswith(".is") else "value", _shown(before), _shown(after))


def _in_lists(before: Sequence[Any], after: Sequence[Any], path: str) -> Iterator[Found]:
    for at, new_at in _paired(before, after):
        if new_at is None:
            assert at is not None
            yield Found(f"{path}[{at}]", "removed", _shown(before[at]), "")
        elif at is None:
            yield Found(f"{path}[{new_at}]", "added", "", _shown(after[new_at]))
        else:
            yield from differences(before[at], after[new_at], f"{path}[{at}]")


def _paired(before: Sequence[Any], after: Sequence[Any]) -> Iterator[tuple[int | None, int | None]]:
    """Which items to compare: those at the same place, where both have as many.

    Else those between equal ones, and among these first what is of the same class: one event more leaves the others
    where they are, though each of them says something else.
    """
    if len(before) == len(after):
        yield from zip(range(len(before)), range(len(after)), strict=True)
        return
    texts = [[json.dumps(one, sort_keys=True) for one in side] for side in (before, after)]
    for what, start, end, new_start, new_end in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        if what == "equal":
            continue
        if end - start == new_end - new_start:
            yield from zip(range(start, end), range(new_start, new_end), strict=True)
            continue
        kinds = [list(map(_kind, side)) for side in (before[start:end], after[new_start:new_end])]
        for _, first, last, new_first, new_last in SequenceMatcher(None, *kinds, autojunk=False).get_opcodes():
            both = min(last - first, new_last - new_first)
            yield from ((start + first + at, new_start + new_first + at) for at in range(both))
            yield from ((start + at, None) for at in range(first + both, last))
            yield from ((None, new_start + at) for at in range(new_first + both, new_last))


def _kind(value: Any) -> str:
    return str(value.get("is", "")) if isinstance(value, dict) else type(value).__name__


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONG else f"{text[:_LONG]} ... ({len(text)} characters)"


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)
