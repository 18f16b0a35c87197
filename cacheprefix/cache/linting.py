"""What in a prompt will break its cache, found before it is sent.

A warning is about text that stands before something stable: the last message may say what it likes. Times,
identifiers and counters in the system prompt or the tools are warned of at once; where two prompts of one
agent are at hand, only what really changes between them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cacheprefix.errors import BodyError
from cacheprefix.prompt import Prompt, Section, loads

Smell = Literal[
    "timestamp", "uuid", "counter", "memory_address", "unordered_set", "persona", "unstable_json", "random_token"
]

ADVICE: Mapping[Smell, str] = {
    "timestamp": "move the time to the end of the last message, or send the date only once",
    "uuid": "leave identifiers out of the prompt, or put them behind everything that is shared",
    "counter": "leave counters out of the shared part; the model can count",
    "memory_address": "this is an object's repr: write what it means instead",
    "unordered_set": "sort what comes from a set before it goes into the prompt",
    "persona": "move the role to the tail of the request and keep one system prompt for the team, as forks do",
    "unstable_json": "write this JSON with sorted keys, always the same way",
    "random_token": "leave random values out of the shared part",
}

_CLOCK = r"\b\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?"
_PATTERNS: tuple[tuple[Smell, str], ...] = (
    ("timestamp", _CLOCK),
    ("timestamp", r"\b(?:[01]?\d|2[0-3]):[0-5]\d:[0-5]\d\b"),
    (
        "timestamp",
        (
            r"(?i)\b(?:today(?:'s date)?|current (?:date|time)|the (?:date|time)|now)\s*(?:is|:)?\s*"
            r"(?:\w+,? )?(?:\d{4}-\d{2}-\d{2}|\d{1,2} \w+ \d{4}|\w+ \d{1,2},? \d{4}|\d{1,2}:\d{2})"
        ),
    ),
    ("timestamp", r"(?i)\b(?:timestamp|epoch|unix time)\W{1,4}1[0-9]{9}(?:\d{3})?\b"),
    ("uuid", r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\b"),
    ("uuid", r"\b(?:run|trace|session|request|thread|msg|job)[_-]?(?:id)?[=:_-]\s?[0-9A-Za-z]{16,}\b"),
    ("memory_address", r"\bat 0x[0-9a-fA-F]{6,16}\b|<[\w.]+ object at 0x"),
    (
        "counter",
        (
            r"(?i)\b(?:turn|step|iteration|attempt|request|message|call|round)s?(?: number| no\.?| count)?\s*"
            r"(?:#|:|=|is)\s*\d+\b|\b\d+ (?:tokens?|steps?|turns?|calls?) (?:left|remaining|used)\b"
        ),
    ),
    ("random_token", r"(?i)\b(?:seed|nonce|salt)\W{1,3}[0-9a-f]{6,}\b"),
)


@functools.cache
def _patterns() -> tuple[tuple[Smell, re.Pattern[str]], ...]:
    # Not with the module: compiling them is most of what it would take to load, and short prompts have no digit.
    return tuple((smell, re.compile(pattern)) for smell, pattern in _PATTERNS)


_DIGIT = re.compile(r"\d")
_BEFORE_DIGIT = 100
"""Characters, more than any of these has before its first digit."""
_PERSONA = re.compile(
    r"(?im)^\W*(?:you are|your role is|act as|role\s*:)\s+(?:the |a |an )?[\w \-]{0,30}?"
    r"\b(\w*(?:agent|reviewer|planner|coder|critic|researcher|writer|analyst|tester|editor|manager|supervisor|"
    r"orchestrator|engineer|expert|specialist|architect|worker))\b"
)
_ROW = re.compile(r"[\[{(]([^\[\]{}()]{3,400})[\])}]")
_PRINTED = re.compile(r"\{('[^']*'(?:, '[^']*')+)\}")
_AROUND = 20


@dataclass(frozen=True, slots=True)
class LintWarning:
    """One thing in a prompt that will break its cache."""

    smell: Smell
    path: str
    """The section it stands in."""
    offset: int
    """Characters from the section's beginning."""
    excerpt: str
    """What was found, with a few characters around it."""

    @property
    def fix(self) -> str:
        """What to do about it."""
        return ADVICE[self.smell]

    def __repr__(self) -> str:
        return f"<{self.smell} at {self.path}+{self.offset}>"


def lint(prompt: Prompt, earlier: Sequence[Prompt] = ()) -> tuple[LintWarning, ...]:
    """What will break the cache of prompts that begin like this one, in cache order.

    Looked at are tools and system. ``earlier`` are prompts of the same agent or team: with them a value that is the
    same in all is no longer warned of, and orders that change and roles that differ are found as well.
    """
    stable = prompt.sections[: prompt.head]
    before = [one.sections for one in earlier if one is not prompt]
    found: list[LintWarning] = []
    for section in stable:
        twins = [twin for sections in before if (twin := _twin(section, sections)) is not None]
        if twins and all(twin.digest == section.digest for twin in twins):
            continue
        found += _volatile(section, twins)
        found += _orders(section, twins)
    found += _personas(stable, before)
    found += _tools(stable, before)
    places = {section.path: index for index, section in enumerate(prompt.sections)}
    return tuple(sorted(found, key=lambda one: (places.get(one.path, 0), one.offset)))


def _twin(section: Section, sections: Sequence[Section]) -> Section | None:
    """The section in the same place of another prompt."""
    return next((one for one in sections if one.tier == section.tier and one.path == section.path), None)


def _volatile(section: Section, twins: Sequence[Section]) -> Iterator[LintWarning]:
    """What in a section will be another text next time, but for what its ``twins`` of earlier requests hold too."""
    text = section.text
    taken: list[tuple[int, int]] = []
    # Each of them holds a digit, and the patterns are slow on texts that hold none.
    first = _DIGIT.search(text)
    if first is None:
        return
    begun = max(0, first.start() - _BEFORE_DIGIT)
    for smell, pattern in _patterns():
        for match in pattern.finditer(text, begun):
            start, stop = match.span()
            if any(start < other_stop and other_start < stop for other_start, other_stop in taken):
                continue
            if twins and all(match.group() in twin.text for twin in twins):
                continue  # it was there before: old, but the same
            taken.append((start, stop))
            yield _at(smell, section, start, stop)


def _orders(section: Section, twins: Sequence[Section]) -> Iterator[LintWarning]:
    """Rows of the same items in another order, and sets as Python prints them."""
    text = section.text
    seen: set[int] = set()
    rows = [(match, items) for match in _ROW.finditer(text) if len(items := _items(match.group(1))) > 1]
    for twin in twins:
        theirs = {
            tuple(sorted(items)): items
            for match in (_ROW.finditer(twin.text) if rows else ())
            if (items := _items(match.group(1)))
        }
        for match, items in rows:
            other = theirs.get(tuple(sorted(items)))
            if other is not None and other != items and match.start() not in seen:
                seen.add(match.start())
                keyed = match.group().startswith("{") and ":" in match.group()
                yield _at("unstable_json" if keyed else "unordered_set", section, match.start(), match.end())
        if section.kind != "text" and twin.digest != section.digest and not seen and _same_json(section, twin):
            seen.add(0)
            yield _at("unstable_json", section, 0, min(len(text), _AROUND))
    if not twins:
        for match in _PRINTED.finditer(text):
            yield _at("unordered_set", section, match.start(), match.end())


def _items(row: str) -> list[str]:
    return [item.strip() for item in row.split(",")]


def _same_json(a: Section, b: Section) -> bool:
    """Whether two sections are one JSON value but for the order of keys and of string lists."""
    try:
        return bool(_sorted(loads(a.data)) == _sorted(loads(b.data)))
    except BodyError:
        return False


def _sorted(value: Any) -> Any:
    if type(value) is dict:
        return {key: _sorted(inner) for key, inner in value.items()}
    if type(value) is list:
        inner = [_sorted(item) for item in value]
        return sorted(inner) if all(isinstance(item, str) for item in inner) else inner
    return value


def _personas(stable: Sequence[Section], before: Sequence[Sequence[Section]]) -> Iterator[LintWarning]:
    """A role in the system slot: other agents' prompts part there. Certain only when another role was seen."""
    for section in stable:
        match = _PERSONA.search(section.text) if section.tier == "system" else None
        if match is None:
            continue
        twins = [twin for sections in before if (twin := _twin(section, sections)) is not None]
        others = {found.group(1) for twin in twins if (found := _PERSONA.search(twin.text))}
        if (not twins and match.start() < 200) or others - {match.group(1)}:
            yield _at("persona", section, match.start(), match.end())


def _tools(stable: Sequence[Section], before: Sequence[Sequence[Section]]) -> Iterator[LintWarning]:
    """The same tools in another order."""
    mine = [section for section in stable if section.tier == "tools"]
    for sections in before:
        theirs = [section for section in sections if section.tier == "tools"]
        left, right = [one.digest for one in mine], [one.digest for one in theirs]
        if left != right and sorted(left) == sorted(right):
            first = next(one for one, other in zip(mine, theirs, strict=True) if one.digest != other.digest)
            yield _at("unordered_set", first, 0, min(len(first.text), _AROUND))
            return


def _at(smell: Smell, section: Section, start: int, stop: int) -> LintWarning:
    text = section.text
    return LintWarning(smell, section.path, start, text[max(0, start - _AROUND) : stop + _AROUND])
