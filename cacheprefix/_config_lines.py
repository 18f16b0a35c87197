"""Where in a TOML file a key stands: the parser gives values without their lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
