"""What may stand in a configuration: every key, what it takes, how it is read, and its line in a file."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from cacheprefix.layout import RoleAs, TailPlacement
from cacheprefix.mode import MODES

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_NAME = rf"{_PART}(?:\s*\.\s*{_PART})*"
_TABLE = re.compile(rf"^\s*\[\[?\s*({_NAME})\s*\]\]?")
_KEY = re.compile(rf"^\s*({_NAME})\s*=")


def line_of(text: str, key: Sequence[str]) -> int | None:
    """The line, from 1, on which ``key`` stands, or the table or inline table around it; None when nowhere."""
    wanted = tuple(key)
    table: tuple[str, ...] = ()
    best: tuple[int, int | None] = (0, None)
    quote = ""
    for number, line in enumerate(text.splitlines(), 1):
        if quote:
            quote = "" if line.count(quote) % 2 else quote
            continue
        header, assigned = _TABLE.match(line), _KEY.match(line)
        if header is not None:
            table = _parts(header.group(1))
            here = table
        elif assigned is not None:
            here = (*table, *_parts(assigned.group(1)))
        else:
            continue
        common = min(len(here), len(wanted))
        if wanted[:common] == here[:common] and common > best[0]:
            best = (common, number)
        quote = next((mark for mark in ('"""', "'''") if line.count(mark) % 2), "")
    return best[1]


def _parts(name: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in re.findall(_PART, name))


Read = Callable[[Any], Any]
"""Takes a TOML value and gives the option's; raises ``ValueError`` with what is expected."""

STRATEGIES = ("head_tail", "head", "tail", "json", "none")


@dataclass(frozen=True, slots=True)
class Field:
    """One key: what it takes, and what it does, in a line for whoever reads the table below."""

    read: Read
    parse: Callable[[str], Any]
    """From a variable's text to the TOML value that would stand in a file."""
    says: str


def integer(least: int = 1, *, off: bool = False) -> Read:
    """A whole number from ``least`` on; with ``off`` also false, which gives None."""

    def read(value: Any) -> Any:
        if off and value is False:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"a whole number from {least:,} on{' or false' if off else ''}")
        return value

    return read


def number(least: float = 0.0, below: float | None = None, *, off: bool = False) -> Read:
    """A number from ``least`` on, and below ``below``."""

    def read(value: Any) -> Any:
        if off and value is False:
            return None
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= least
        if not fits or not math.isfinite(value) or (below is not None and value >= below):
            limit = "" if below is None else f" and below {below:g}"
            raise ValueError(f"a number from {least:g} on{limit}{' or false' if off else ''}")
        return float(value)

    return read


def share(value: Any) -> float:
    """A number from 0 to 1."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ValueError("a number from 0 to 1")
    return float(value)


def keys(value: Any) -> Any:
    """A whole number from 1 on, or auto."""
    if value != "auto" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError("a whole number from 1 on or 'auto'")
    return value


def choice(*names: str) -> Read:
    """One of some words."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError(f"one of {', '.join(map(repr, names))}")
        return value

    return read


def text(value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        raise ValueError("a string")  # noqa: TRY004 - a wrong value in a file is no wrong type in a program
    return value


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("true or false")  # noqa: TRY004 - as above
    return value


def names(value: Any) -> tuple[str, ...]:
    """A list of strings."""
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("a list of strings")
    return tuple(value)


def by_tool(value: Any) -> dict[str, Any]:
    """For each tool a number of tokens, a strategy, both, or false to leave it alone."""
    if not isinstance(value, Mapping):
        raise ValueError("a table of tools")  # noqa: TRY004 - as above
    made: dict[str, Any] = {}
    for tool, given in value.items():
        if isinstance(given, Mapping) and set(given) == {"max_tokens", "strategy"}:
            made[tool] = (integer()(given["max_tokens"]), choice(*STRATEGIES)(given["strategy"]))
        elif isinstance(given, str):
            made[tool] = choice(*STRATEGIES)(given)
        elif isinstance(given, Mapping):
            raise ValueError(f"max_tokens and strategy for {tool!r}, and nothing else")
        else:
            made[tool] = integer(off=True)(given)
    return made


def seconds_by_tool(value: Any) -> dict[str, float | None]:
    """For each tool or pattern the seconds that its results are kept; false for ever."""
    if not isinstance(value, Mapping):
        raise ValueError("a table of tools")  # noqa: TRY004 - as above
    return {tool: number(off=True)(given) for tool, given in value.items()}


_WORDS: Mapping[str, Any] = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}


def plain(said: str) -> str:
    """A variable's text as it is."""
    return said


def word(said: str) -> str:
    """A variable's one word, in whatever case."""
    return said.strip().lower()


def scalar(said: str) -> Any:
    """A number, or a word for true or false; the text itself where it is neither."""
    plainly = word(said)
    if plainly in _WORDS:
        return _WORDS[plainly]
    if re.fullmatch(r"[+-]?\d[\d_]*", plainly):
        return int(plainly)
    return float(plainly) if re.fullmatch(r"[+-]?\d+\.?\d*(?:e[+-]?\d+)?", plainly) else said


def listed(said: str) -> list[str]:
    """Parts between commas."""
    return [part.strip() for part in said.split(",") if part.strip()]


FIELDS: Mapping[str, Field] = {
    "mode": Field(
        choice(*MODES),
        word,
        "off does nothing at all; observe changes nothing that is sent; fork shares prefixes; strict raises where a "
        "role does not",
    ),
    "fork_share": Field(share, scalar, "share of the conversations that are forked, 0 to 1; others stay as they are"),
    "lifetime": Field(text, plain, "how long what is written lives (5m, 1h, 24h ...), or auto; else the provider's"),
    "routing_keys": Field(keys, scalar, "routing keys that conversations are spread over: a number, or auto"),
    "tail": Field(choice(*get_args(TailPlacement)), plain, "where role texts stand"),
    "role_as": Field(
        choice(*get_args(RoleAs)), plain, "as whom role texts are said: user, or developer where models take it"
    ),
    "gate": Field(number(off=True), scalar, "seconds siblings wait at most for who writes their prefix; false: none"),
    "gate_price": Field(number(), scalar, "cost units that a second of waiting is to save; 0: always wait"),
    "provider": Field(text, plain, "profile or provider, where a model's name does not tell"),
    "scope": Field(text, plain, "tenant, user or key whose cache entries these are"),
    "profiles": Field(names, listed, "TOML files with cache rules of your own"),
    "events": Field(text, plain, "file to which calls are written for watch, status and explain"),
    "budget.max_tokens": Field(integer(), scalar, "tokens of one tool result"),
    "budget.per_turn": Field(integer(off=True), scalar, "tokens of all results of a turn; false: no limit"),
    "budget.strategy": Field(choice(*STRATEGIES), plain, "how a result is shortened"),
    "budget.by_tool": Field(by_tool, plain, "for single tools: tokens, a strategy, both, or false"),
    "compaction.trigger": Field(integer(off=True), scalar, "tokens of a request that start it; false: the window"),
    "compaction.target": Field(integer(off=True), scalar, "tokens to come down to; false: half of the trigger"),
    "compaction.keep_turns": Field(integer(), scalar, "last turns that stay"),
    "compaction.keep_users": Field(flag, scalar, "whether the user's words stay"),
    "compaction.keep_head": Field(number(0, 1), scalar, "share of the target that stays at the start"),
    "compaction.batch": Field(number(0, 1), scalar, "share of the trigger that a removal takes at least"),
    "compaction.slack": Field(number(0, 1), scalar, "where protections fall, from target 0 to trigger 1"),
    "compaction.summarise": Field(choice("extract", "fork", "none"), plain, "who writes the summary"),
    "compaction.summaries": Field(integer(off=True), scalar, "numbered summaries that stand; none: one, unnumbered"),
    "compaction.summary_tokens": Field(integer(off=True), scalar, "tokens of a summary"),
    "compaction.horizon": Field(number(off=True), scalar, "turns within which a compaction must pay"),
    "request_budget.window": Field(integer(), scalar, "tokens of the model's window"),
    "request_budget.reserve": Field(integer(0), scalar, "tokens kept free for the answer"),
    "request_budget.allowance": Field(integer(off=True), scalar, "tokens of a task-wide allowance"),
    "tool_cache.enabled": Field(flag, scalar, "whether repeated tool calls are answered from the cache"),
    "tool_cache.ttl_secs": Field(number(), scalar, "seconds that a result is kept; 0 for ever"),
    "tool_cache.ttls": Field(seconds_by_tool, plain, "the same for single tools or patterns"),
    "tool_cache.allow": Field(names, listed, "names or patterns of tools whose results are kept"),
    "tool_cache.deny": Field(names, listed, "patterns of tools whose results are never kept"),
    "tool_cache.scope": Field(text, plain, "whose results these are"),
    "tool_cache.max_entries": Field(integer(off=True), scalar, "results kept at most"),
    "tool_cache.max_bytes": Field(integer(off=True), scalar, "bytes kept at most"),
    "tool_cache.repeats": Field(integer(0), scalar, "identical calls after which a model is told; 0: never"),
    "tool_cache.one_world": Field(flag, scalar, "whether a write in one scope outdates all scopes' results"),
    "tool_cache.assume_writes": Field(flag, scalar, "whether a tool nobody declared counts as a write"),
}
"""Every key by its dotted name. What is not named here is a mistake."""

SHORT: Mapping[str, str] = {
    "budget": "budget.max_tokens",
    "compaction": "compaction.trigger",
    "request_budget": "request_budget.window",
    "tool_cache": "tool_cache.enabled",
}
"""Tables that may be one value instead: that of this key; false switches the whole table off."""
