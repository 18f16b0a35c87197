"""Arrivals for sizing: from Mooncake's traces of prefix blocks, and from every log that an audit reads."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cacheprefix.audit.log_records import Broken
from cacheprefix.audit.readers import BUILTIN, Reader
from cacheprefix.audit.reading import Overrides, Reading
from cacheprefix.cache.arrival import Arrival
from cacheprefix.errors import SetupError
from cacheprefix.profiles import Registry, default_registry
from cacheprefix.prompt import chain, lane_key

MOONCAKE_BLOCK = 512
"""Tokens of a block in Mooncake's traces (github.com/kvcache-ai/Mooncake, README of its traces, 2024-06)."""


def arrivals(
    files: Sequence[str],
    *,
    registry: Registry | None = None,
    readers: Iterable[Reader] = (),
    limit: int | None = None,
) -> tuple[list[Arrival], int]:
    """Read requests, oldest first, at most ``limit``; with them the number of lines that could not be read.

    A line with ``timestamp`` (milliseconds), ``input_length`` and ``hash_ids`` is Mooncake's; other files are read
    as ``audit`` reads them, each section of a prompt as a block. Raises ``SetupError`` for a file that cannot be
    opened, or when there is no request in any.
    """
    found: list[Arrival] = []
    skipped = 0
    others = []
    for file in files:
        if not _is_mooncake(file):
            others.append(file)
            continue
        for arrival in _mooncake(file):
            if arrival is None:
                skipped += 1
            else:
                found.append(arrival)
    if others:
        table = registry or default_registry()
        reading = Reading(table, (*readers, *BUILTIN), Overrides())
        for item in reading.requests(others):
            if isinstance(item, Broken) or item.prompt is None:
                skipped += 1
                continue
            lane = lane_key(item.prompt, item.profile.settings, provider=item.profile.provider)
            names = tuple(lane + digest for digest in chain(item.prompt, item.profile.settings))
            found.append(Arrival(item.at, names, tuple(section.tokens for section in item.prompt.sections)))
    if not found:
        raise SetupError(f"no request to play in {', '.join(files) or 'no file'}; give Mooncake traces or request logs")
    found.sort(key=lambda arrival: arrival.at)
    return found[:limit], skipped


def _is_mooncake(file: str) -> bool:
    """Whether a file's first line is one of Mooncake's; standard input never is, since it is read once."""
    if file == "-":
        return False
    for line in _lines(file):
        return _of_line(line) is not None
    return False


def _mooncake(file: str) -> Iterator[Arrival | None]:
    for line in _lines(file):
        if line.strip():
            yield _of_line(line)


def _lines(file: str) -> Iterator[bytes]:
    path = Path(file)
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as stream:
            yield from stream
    except (OSError, EOFError) as error:
        raise SetupError(f"cannot read {file!r}: {getattr(error, 'strerror', None) or error}") from None


def _of_line(line: bytes) -> Arrival | None:
    """The request that a line of a Mooncake trace tells of; None where it is no such line, or its numbers cannot be."""
    try:
        data: Any = json.loads(line)
        if not isinstance(data, Mapping):
            return None
        at, length, names = float(data["timestamp"]) / 1000, int(data["input_length"]), tuple(data["hash_ids"])
        hash(names)
    except (ValueError, TypeError, KeyError):
        return None
    last = length - MOONCAKE_BLOCK * (len(names) - 1)
    if not names or not 0 < last <= MOONCAKE_BLOCK or not math.isfinite(at):
        return None
    return Arrival(at, names, (*(MOONCAKE_BLOCK,) * (len(names) - 1), last))
