"""What every reader makes of a log: one record a model request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from cacheprefix.errors import BodyError, plain
from cacheprefix.prompt import Api


@dataclass(slots=True, kw_only=True)
class Record:
    """One model request as a log tells it. Times are seconds since the epoch.

    Not frozen: its body is let go once it was read, and a frozen one of as many fields takes six times as long
    """

    body: Mapping[str, Any] | None
    """The request in the form that ``api`` names; None where the log has counts and no text."""

    api: Api | None = None
    """None: guess it from the body."""

    model: str = ""
    """The model where the body itself does not name it."""

    provider: str | None = None
    wire: bool = True
    """Whether ``body`` is what went over the wire, cache marks included. Tracing formats keep the messages
    and lose the marks."""

    ts: float | None = None
    session: str = ""
    agent: str = ""
    scope: str = ""
    headers: Mapping[str, str] | None = None
    usage: Mapping[str, Any] | None = None
    """As the provider or the framework wrote it."""

    diagnostics: Mapping[str, Any] | None = None
    """What the provider itself says about a miss."""

    events: Sequence[Mapping[str, Any]] = ()
    """What the application recorded before this call, such as ``{"type": "compaction"}``."""

    response_started_ts: float | None = None
    response_ended_ts: float | None = None
    aside: str = ""
    """What was asked for where that is no answer of a language model (``embeddings``, ``images``): counted, no more."""

    response_id: str = ""
    """What the provider calls its answer; two logs of one call have the same."""

    span: str = ""
    """The span it belongs to, where a tracer writes a request's text into one log and its counts into another."""

    failed: bool = False
    """The request was refused or broke off: it is paid for by nobody and leaves nothing in the cache."""

    remark: str = ""
    """What an entry lacks, or why it is no call: the report says it once, with how many such entries there are."""
    left_out: bool = False
    """Whether the remark is all that is made of the entry."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A line or item that could not be read; it was skipped and nothing else."""

    file: str
    line: int | None
    """1-based; None when ``file`` is one JSON document and ``item`` says which part of it."""
    problem: str
    item: int | None = None
    count: int = 1
    """Entries that the problem stands for: those of one unknown form are named once."""

    def __str__(self) -> str:
        return plain(f"{place(self.file, self.line, self.item)}: {self.problem}")


class Remarks:
    """What was left out of a log, or taken for granted: each said once, with how often it came and where first."""

    def __init__(self) -> None:
        self._met: dict[str, tuple[int, str, set[str]]] = {}

    def add(self, what: str, file: str, where: str) -> None:
        """Count one more; ``where`` is told of the first."""
        count, first, files = self._met.get(what, (0, where, set()))
        files.add(file)
        self._met[what] = count + 1, first, files

    def __iter__(self) -> Iterator[str]:
        for what, (count, first, files) in self._met.items():
            among = f" in {len(files):,} files" if len(files) > 1 else ""
            yield plain(f"{what} ({count:,}{among}, first in {first})")


def place(file: str, line: int | None, item: int | None = None) -> str:
    """``log.jsonl:17``, or ``run.json[3]`` for the items of one document."""
    return f"{file}:{line}" if line is not None else f"{file}[{item}]" if item is not None else file


_MILLISECONDS = 1e11
"""From here on a time is no longer in seconds: those would be of the year 5138."""
_FIRST, _LAST = -62_135_596_801, 1e20
"""Bounds of all times, whatever their unit: what lies before the year 1, or behind 5138, is no day that can be told."""


def seconds(value: Any, path: str) -> float | None:
    """A time as seconds since the epoch; None for None.

    Reads numbers in seconds, milliseconds, microseconds or nanoseconds (told apart by their size), the same
    as text, and ISO 8601 (UTC where no zone is given). Raises BodyError naming ``path``.
    """
    if value is None or (type(value) is float and 0 <= value < _MILLISECONDS):
        return value
    number: Any = value
    if isinstance(value, str):
        text = value.strip()
        try:
            number = float(text)
        except ValueError:
            return _iso(text, path)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not _FIRST < number < _LAST:
        raise BodyError(path, f"expected a time, found {value!r:.60}")
    for limit, unit in ((1e17, 1e9), (1e14, 1e6), (_MILLISECONDS, 1e3)):
        if abs(number) >= limit:
            return number / unit
    return float(number)


def _iso(text: str, path: str) -> float:
    """Seconds since 1970 of an ISO 8601 time, in UTC where it names no zone; raises ``BodyError`` for anything else."""
    iso = text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text
    head, dot, rest = iso.partition(".")
    if dot:
        digits = len(rest) - len(rest.lstrip("0123456789"))
        # Python 3.10 reads exactly three or six digits of a fraction.
        iso = f"{head}.{rest[:digits][:6]:0<6}{rest[digits:]}"
    try:
        read = datetime.fromisoformat(iso)
        found = (read if read.tzinfo else read.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        found = _LAST
    if not _FIRST < found < _MILLISECONDS:
        raise BodyError(path, f"expected a time, found {text[:60]!r}")
    return found


def text_or_empty(value: Any) -> str:
    """Names and ids as text; empty for None."""
    return "" if value is None else plain(value if isinstance(value, str) else str(value))


def mapping_or_none(value: Any, path: str) -> Mapping[str, Any] | None:
    """A JSON object or nothing. Raises BodyError for anything else."""
    if value is None or type(value) is dict or isinstance(value, Mapping):
        return value
    raise BodyError(path, f"expected an object, found {type(value).__name__}")
