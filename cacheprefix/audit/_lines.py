"""JSON values out of log files: line by line, gzip or not, a broken line named and skipped."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cacheprefix.audit._records import Broken
from cacheprefix.errors import BodyError, SetupError
from cacheprefix.prompt import loads

STDIN = "-"
DOCUMENT_BYTES = 256_000_000
"""The largest single JSON document (an array, a pretty-printed export) that is read; lines have no such limit."""

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """One JSON value and where it stood."""

    file: str
    line: int | None
    item: int | None
    value: Any
    size: int
    """Bytes of the line, decompressed; 0 for the items of a document."""


def values(file: str, on_bytes: Callable[[int], None] | None = None) -> Iterator[Found | Broken]:
    """The JSON values of a log file, or of standard input for ``-``.

    ``on_bytes`` is told how many bytes of the file (compressed, if it is) were read since the last call.
    Raises SetupError for a file that cannot be opened.
    """
    if file == STDIN:
        yield from _parsed(file, _lines(file, sys.stdin.buffer, on_bytes))
        return
    try:
        raw = Path(file).open("rb", buffering=_BUFFER)  # noqa: SIM115 - closed below, where reading ends
    except OSError as error:
        raise SetupError(f"cannot read the log {file!r}: {error.strerror or error}") from None
    with raw:
        yield from _parsed(file, _lines(file, raw, on_bytes))


def _lines(file: str, raw: IO[bytes], on_bytes: Callable[[int], None] | None) -> Iterator[bytes | Broken]:
    peek = getattr(raw, "peek", None)
    packed = peek is not None and peek(2)[:2] == _GZIP
    stream: Iterable[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw
    seekable = on_bytes is not None and raw.seekable()
    done = number = 0
    try:
        for number, line in enumerate(stream, 1):
            if on_bytes is not None and number % 64 == 0:
                at = raw.tell() if seekable else done + len(line)
                on_bytes(at - done)
                done = at
            yield line
    except (EOFError, OSError, zlib.error) as error:
        yield Broken(file, number + 1, f"the file ends here, damaged: {error}")
    if on_bytes is not None and seekable:
        on_bytes(raw.tell() - done)


def _parsed(file: str, lines: Iterator[bytes | Broken]) -> Iterator[Found | Broken]:
    number = 0
    first = True
    for line in lines:
        number += 1
        if isinstance(line, Broken):
            yield line
            continue
        if first:
            line = line.removeprefix(_BOM)  # noqa: PLW2901 - the same line without its byte order mark
        if line.isspace() or not line:
            continue
        try:
            value = loads(line)
        except BodyError as error:
            if first and line.lstrip()[:1] in (b"[", b"{"):
                yield from _document(file, line, number, lines)
                return
            yield Broken(file, number, error.problem)
            continue
        finally:
            first = False
        if isinstance(value, list):
            for item, inner in enumerate(value):
                yield Found(file, None, item, inner, 0)
        else:
            yield Found(file, number, None, value, len(line))


def _document(file: str, first: bytes, number: int, lines: Iterator[bytes | Broken]) -> Iterator[Found | Broken]:
    """A file whose first line is no JSON by itself: one document over many lines, or a broken first line."""
    held = [first]
    size = len(first)
    ended: Broken | None = None
    for line in lines:
        if isinstance(line, Broken):
            ended = line
            break
        held.append(line)
        size += len(line)
        if (len(held) <= 3 and _is_object(line)) or size > DOCUMENT_BYTES:
            break
    else:
        try:
            value = loads(b"".join(held))
        except BodyError:
            pass  # Not one document: its lines are judged one by one below.
        else:
            many = value if isinstance(value, list) else [value]
            for item, inner in enumerate(many):
                yield Found(file, None, item, inner, 0)
            return
    for at, line in enumerate(held, number):
        yield from _one(file, at, line)
    at = number + len(held) - 1
    if ended is not None:
        yield ended
    for line in lines:
        at += 1
        yield from [line] if isinstance(line, Broken) else _one(file, at, line)


def _one(file: str, number: int, line: bytes) -> Iterator[Found | Broken]:
    if line.isspace() or not line:
        return
    try:
        yield Found(file, number, None, loads(line), len(line))
    except BodyError as error:
        yield Broken(file, number, error.problem)


def _is_object(line: bytes) -> bool:
    """Whether a line is a whole JSON object, and so the file one of JSON lines."""
    try:
        return isinstance(loads(line), dict)
    except BodyError:
        return False
