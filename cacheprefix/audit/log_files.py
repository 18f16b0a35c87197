"""JSON values out of log files: line by line, gzip or not, a broken line named and skipped. Memory is bounded."""

from __future__ import annotations

import ast
import codecs
import csv
import gzip
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

from cacheprefix.audit.log_records import Broken
from cacheprefix.errors import BodyError, SetupError
from cacheprefix.prompt import loads

STDIN = "-"
DOCUMENT_BYTES = 48_000_000
"""The largest JSON value that is read as a whole: a line, an item of an array, a document that is no array. An array
may be of any size; its items are read one by one."""

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""How a text begins that PowerShell's ``>`` wrote."""
_BUFFER = 1 << 20
_SPACE = re.compile(r"\s*")
_ITEM = json.JSONDecoder()
_OPTIONS = re.compile(r"Request options: \{.*?'url': '([^']*)'.*?'json_data': (?=\{)")
"""What the OpenAI and Anthropic SDKs log at level DEBUG before each request: a Python literal but for the functions
and files in it, so only the body is read as one."""
_TEXT = "text, no JSON"
_TOO_DEEP = "lists or objects nested a thousand deep"
_BINARY = {
    b"SQLite format 3": "a SQLite database",
    b"PAR1": "a Parquet file",
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "a file packed with zstd",
    b"BZh": "a file packed with bzip2",
    b"\xfd7zXZ": "a file packed with xz",
}
"""How files begin that are no text, and what they are."""
_PACKED = tuple(_BINARY)
_CLIENTS = (b"_base_client", b"httpcore", b"httpx")
_DEBUG = re.compile(rb"\bDEBUG\b")
_LITERAL = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[{}]""")
_ARRAY = re.compile(rb"\[\s*(?:[{\[\]]|\Z)")
"""How a file begins that is one array of entries; ``[2026-11-22 …`` and ``[INFO]`` begin lines of text."""
_VALUE = re.compile(rb"\s*(?:\{|\[\s*[{\[\]])")
_NO_JSON = re.compile(rb"[ \t\r]*\[?[ \t\r]*(?:[0-9]+[-:/]|(?!Inf|NaN|tru|fal|nul)[A-Za-z<(#=*][^\0])")
"""How a line begins that is certainly no JSON, be it in UTF-16: to let two parsers fail costs ten times as much."""
_SDK = b"Request options: "
_TIME = re.compile(rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?")
_COLUMNS = frozenset({"input", "traceId", "trace_id", "request_body", "prompt", "messages", "request", "body"})
"""Column titles, one of which a CSV file has that holds requests."""

csv.field_size_limit(DOCUMENT_BYTES)


class Found(NamedTuple):
    """One JSON value and where it stood."""

    file: str
    line: int | None
    item: int | None
    value: Any
    size: int
    """Bytes it was read from, decompressed."""


class _Line(NamedTuple):
    number: int
    data: bytes


def values(file: str, on_bytes: Callable[[int], None] | None = None) -> Iterator[Found | Broken]:
    """The JSON values of a log file, or of standard input for ``-``.

    ``on_bytes`` is told how many bytes of the file (compressed, if it is) were read since the last call.
    Raises SetupError for a file that cannot be opened.
    """
    if file == STDIN:
        yield from _parsed(file, _Blocks(file, sys.stdin.buffer, on_bytes))
        return
    try:
        raw = Path(file).open("rb", buffering=_BUFFER)  # noqa: SIM115 - closed below, where reading ends
    except OSError as error:
        raise SetupError(f"cannot read the log {file!r}: {error.strerror or error}") from None
    with raw:
        yield from _parsed(file, _Blocks(file, raw, on_bytes))


class _Blocks:
    """A file in blocks, decompressed; ``broken`` once it ended in damage."""

    def __init__(self, file: str, raw: IO[bytes], on_bytes: Callable[[int], None] | None) -> None:
        self.broken: str | None = None
        self._file, self._raw, self._on_bytes = file, raw, on_bytes
        peek = getattr(raw, "peek", None)
        packed = peek is not None and peek(2)[:2] == _GZIP
        self._stream: IO[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
        self._seekable = on_bytes is not None and raw.seekable()
        self._done = 0
        self._wide: codecs.IncrementalDecoder | None = None

    def read(self) -> bytes:
        """The next block, as UTF-8; empty at the end."""
        read = getattr(self._stream, "read1", self._stream.read)
        try:
            block: bytes = read(_BUFFER)
        except (EOFError, OSError, zlib.error) as error:
            self.broken = f"the file ends here, damaged: {error}"
            block = b""
        at = self._raw.tell() if self._seekable else self._done + len(block)
        if self._on_bytes is not None and at > self._done:
            self._on_bytes(at - self._done)
        if not self._done and block.startswith(_UTF16):
            self._wide = codecs.getincrementaldecoder("utf-16")("replace")
        self._done = at
        return block if self._wide is None else self._wide.decode(block).encode("utf-8", "surrogatepass")


def _lines(file: str, blocks: _Blocks) -> Iterator[_Line | Broken]:
    """The lines that hold anything. Runs of blank ones are counted a block at a time, and cost no memory."""
    number, size, skipping = 1, 0, False
    parts: list[bytes] = []
    while block := blocks.read():
        if not parts and not skipping and block.isspace():
            number += block.count(b"\n")
            continue
        start = 0
        while (end := block.find(b"\n", start)) >= 0:
            if skipping:
                skipping = False
            else:
                data = block[start:end] if not parts else b"".join((*parts, block[start:end]))
                if data and not data.isspace():
                    yield _Line(number, data)
            parts, size, start = [], 0, end + 1
            number += 1
        if start < len(block) and not skipping:
            parts.append(block[start:])
            size += len(block) - start
            if size > DOCUMENT_BYTES:
                yield Broken(file, number, _too_large("a line"))
                parts, size, skipping = [], 0, True
    last = b"".join(parts)
    if last and not last.isspace():
        yield _Line(number, last)
        number += 1
    if blocks.broken is not None:
        yield Broken(file, number, blocks.broken)


def _too_large(what: str, entries: str = ".[]") -> str:
    limit = f"{DOCUMENT_BYTES // 1_000_000} MB"
    return f"{what} of more than {limit} is not read; write one request a line, or an array (jq -c '{entries}' FILE)"


def _parsed(file: str, blocks: _Blocks) -> Iterator[Found | Broken]:
    """The values of a file, by what it begins with: one array, JSON documents one after the other, or lines."""
    first = _first_block(blocks)
    if first is None:
        if blocks.broken is not None:
            yield Broken(file, 1, blocks.broken)
        return
    blank, head = first
    start = head.lstrip()
    again = _Again(head, blocks)
    if _ARRAY.match(start) and not _is_line_of_lines(start):
        yield from _array(file, again)
    elif start[:1] == b"{" and not _is_object(start) and not _is_line_of_lines(start):
        yield from _documents(file, again, blank)
    else:
        yield from _by_line(file, again, blank)


def _first_block(blocks: _Blocks) -> tuple[int, bytes] | None:
    """How many blank lines stand in blocks of nothing else, and the first block that holds something."""
    blank, begun = 0, True
    while block := blocks.read():
        text = block.removeprefix(_BOM) if begun else block
        begun = False
        if text.strip():
            return blank, text
        blank += text.count(b"\n")
    return None


class _Again(_Blocks):
    """Blocks of which the first was looked at."""

    def __init__(self, head: bytes, blocks: _Blocks) -> None:
        self._head: bytes | None = head
        self._blocks = blocks

    @property
    def broken(self) -> str | None:  # type: ignore[override]
        """What ended the file."""
        return self._blocks.broken

    def read(self) -> bytes:
        """The first block once more, then the rest."""
        if self._head is not None:
            head, self._head = self._head, None
            return head
        return self._blocks.read()


def _by_line(file: str, blocks: _Blocks, blank: int) -> Iterator[Found | Broken]:
    """The values of a file read by lines: JSON, a table with titles, or a program's log with JSON in its lines."""
    lines = _lines(file, blocks)
    first = next(lines, None)
    if first is None:
        return
    if isinstance(first, _Line) and not _VALUE.match(first.data):
        titles = _titles(first.data)
        if titles:
            yield from _table(file, titles, lines, blank)
            return
    texts, first_text = 0, 0
    looks, read = "", False
    for line in chain((first,), lines):
        if isinstance(line, Broken):
            yield line
            continue
        values = _one(file, line.number + blank, line.data)
        if values is None:
            # The text of a log, not a broken line of JSON: named once.
            texts, first_text = texts + 1, first_text or line.number + blank
            looks = looks or _told(line.data)
            continue
        for found in values:
            read = read or isinstance(found, Found)
            yield found
    if texts:
        more = f"; and {texts - 1:,} more lines of text" if texts > 1 else ""
        yield Broken(file, first_text, f"{_TEXT if read or not looks else looks}{more}", count=texts)


def _one(file: str, number: int, line: bytes) -> Iterable[Found | Broken] | None:
    """The JSON values of a line; None for one of text."""
    if _NO_JSON.match(line) and _SDK not in line:
        return None
    try:
        value = loads(line)
    except BodyError as error:
        logged = _logged(line)
        if logged is not None:
            return (Found(file, number, None, logged, len(line)),)
        return (Broken(file, number, error.problem),) if _VALUE.match(line) else None
    if isinstance(value, list):
        size = len(line) // max(1, len(value))
        return (Found(file, None, item, inner, size) for item, inner in enumerate(value))
    return (Found(file, number, None, value, len(line)),)


def _logged(line: bytes) -> dict[str, Any] | None:
    """The request in a line of an SDK's debug log; None for any other text."""
    if _SDK not in line:
        return None
    text = line.decode("utf-8", "replace")
    told = _OPTIONS.search(text)
    if told is None:
        return None
    open_braces = 0
    for token in _LITERAL.finditer(text, told.end()):
        open_braces += {"{": 1, "}": -1}.get(token[0], 0)
        if open_braces == 0:
            break
    else:
        return None
    try:
        body = ast.literal_eval(text[told.end() : token.end()])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    time = _TIME.search(line)
    said = time[0].decode().replace(",", ".") if time is not None else None
    return {"timestamp": said, "request": {"url": told[1], "body": body}}


def _told(line: bytes) -> str:
    """What a line of text seems to be; empty where it could be anything."""
    if line.startswith(_PACKED) or b"\0" in line:
        packed = next((name for sign, name in _BINARY.items() if line.startswith(sign)), "binary data")
        return f"this looks like {packed}; export it as JSON lines"
    if any(word in line for word in _CLIENTS) or (b"DEBUG" in line and _DEBUG.search(line)):
        return (
            "this looks like a debug log without the bodies of its requests (newer SDKs leave them out); "
            "record the program instead: cacheprefix record -- COMMAND"
        )
    return ""


def _titles(line: bytes) -> list[str]:
    """The columns of a CSV file that holds requests; empty for any other line."""
    try:
        row = next(csv.reader([line.decode("utf-8", "replace")]), [])
    except csv.Error:
        return []
    return row if len(row) > 1 and _COLUMNS.intersection(row) else []


def _table(file: str, titles: list[str], lines: Iterator[_Line | Broken], blank: int) -> Iterator[Found | Broken]:
    """The rows of a CSV file; cells that hold JSON are read as such."""
    broken: list[Broken] = []
    at = [2 + blank]

    def texts() -> Iterator[str]:
        for line in lines:
            if isinstance(line, Broken):
                broken.append(line)
                continue
            at[0] = line.number + blank
            yield line.data.decode("utf-8", "replace") + "\n"

    rows = csv.reader(texts())
    while True:
        try:
            row = next(rows)
        except StopIteration:
            break
        except csv.Error as error:
            yield Broken(file, at[0], f"no row of a table: {error}")
            continue
        cells = {title: _cell(cell) for title, cell in zip(titles, row, strict=False) if cell != ""}
        yield Found(file, at[0], None, cells, sum(map(len, row)))
    yield from broken


def _cell(text: str) -> Any:
    if text[:1] not in "[{":
        return text
    try:
        return loads(text)
    except BodyError:
        return text


def _array(file: str, blocks: _Blocks) -> Iterator[Found | Broken]:
    """The items of a file that is one array, of whatever size: each is parsed as soon as it is whole."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    text, at, item, ended = "", 0, -1, False
    while not ended:
        block = blocks.read()
        ended = not block
        text, at = text[at:] + decoder.decode(block, final=ended), 0
        while True:
            at = _behind_space(text, at)
            sign = text[at : at + 1]
            if sign == "]" and item >= 0:
                if text[at + 1 :].strip() or blocks.read().strip():
                    yield Broken(file, None, "something stands behind the array", item)
                return
            if sign in ("[", ",") and (sign == ",") == (item >= 0):
                at = _behind_space(text, at + 1)
                if text[at : at + 1] == "]":
                    return
                item += 1
            elif sign:
                yield Broken(file, None, "no item of an array", item + 1)
                return
            begun = at
            try:
                value, at = _ITEM.raw_decode(text, at)
            except RecursionError:
                yield Broken(file, None, f"{_TOO_DEEP}, and nothing behind it is read", item)
                return
            except ValueError as error:
                at, item = begun, item - 1
                if ended and text[at:].strip():
                    problem = blocks.broken or f"the array breaks off: {error}"
                    yield Broken(file, None, problem, item + 1)
                # What came so far is no whole item: the sign before it is read again with more behind it.
                text, at = ("," if item >= 0 else "[") + text[at:], 0
                break
            if at == len(text) and not ended:
                # A number may go on in the next block.
                text, at, item = ("," if item > 0 else "[") + text[begun:], 0, item - 1
                break
            yield Found(file, None, item, value, at - begun)
        if len(text) > DOCUMENT_BYTES:
            yield Broken(file, None, _too_large("an item"), item + 1)
            return


def _behind_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _documents(file: str, blocks: _Blocks, blank: int) -> Iterator[Found | Broken]:
    """A file whose first line is no JSON by itself: documents over many lines each, or lines of which one is broken."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    text, at, item, wanted, ended = "", 0, 0, 0, False
    problem = "the last document does not end"
    while True:
        at = _behind_space(text, at)
        if ended and at == len(text):
            return
        try:
            value, end = _ITEM.raw_decode(text, at) if len(text) - at >= wanted or ended else (None, -1)
        except RecursionError:
            # Of a file of lines only that line is lost.
            problem = f"{_TOO_DEEP}, and nothing behind it is read"
            break
        except ValueError:
            end = -1
        if end >= 0:
            yield Found(file, None, item, value, end - at)
            at, item, wanted = end, item + 1, 0
        elif ended:
            break
        elif len(text) - at > DOCUMENT_BYTES:
            yield Broken(file, None, _too_large("a document that is no array", ".data[]"), item)
            return
        else:
            # Parsed again only when twice as much is there: a long document is not read over and over.
            wanted = 2 * (len(text) - at)
            text, at = text[at:], 0
            while len(text) < max(wanted, 1) and not ended:
                block = blocks.read()
                ended = not block
                text += decoder.decode(block, final=ended)
    if item:
        yield Broken(file, None, blocks.broken or problem, item)
    else:
        rest = _Again(text[at:].encode("utf-8", "surrogateescape"), blocks)
        yield from _by_line(file, rest, blank)


def _is_object(text: bytes) -> bool:
    """Whether the first line of a text is a whole JSON object, and so the file one of JSON lines."""
    line, newline, _ = text.partition(b"\n")
    if not newline and len(line) >= _BUFFER // 2:
        return True  # A line that is longer than a block.
    try:
        return isinstance(loads(line), dict)
    except BodyError:
        return False


def _is_line_of_lines(text: bytes) -> bool:
    """Whether the first line is an array by itself, or a damaged line, and others follow, each on its own."""
    line, newline, rest = text.partition(b"\n")
    if not newline or not rest.strip():
        return False
    following = rest.split(b"\n", 2)
    if len(following) > 1 and all(one.strip() and _is_object(one) for one in following[:2]):
        return True
    try:
        loads(line)
    except BodyError:
        return False
    return True
