"""What is written down of a call: the audit's own log form, in a file that only its owner can read."""

from __future__ import annotations

import hmac
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from cacheprefix.errors import BodyError, SetupError
from cacheprefix.profiles import merge_usage
from cacheprefix.prompt import Api, dumps, loads
from cacheprefix.wire import api_of_path
from cacheprefix.wire.apis import SHAPES
from cacheprefix.wire.content_encoding import decoded

HEADERS = ("anthropic-beta", "anthropic-version", "openai-beta")
"""Request headers that are written down: those that decide about the cache. Nothing else is, so no key ever is."""

_CREDENTIALS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
_ENTRY_KEYS = frozenset({"type", "role", "model", "modelId", "ttl", "effort", "mode", "service_tier", "status"})
"""Fields whose text is a word of the API and no text of the user's: kept when texts are not."""

_LAST_EVENTS = ("message_stop", "response.completed", "response.incomplete")
"""What closes a stream of Anthropic's Messages (platform.claude.com/docs, "Streaming Messages") and of OpenAI's
Responses (platform.openai.com/docs, "Streaming events"). Chat completions close with ``[DONE]``."""

_RUN = 48
"""Characters of text behind one digest. Two prompts that begin alike are seen to, to this many characters."""

_LARGEST = 48_000_000
"""Bytes of a body, of an answer and of a line that is written down: an audit reads no longer line. Larger ones only
pass."""


@dataclass(slots=True)
class Exchange:
    """One request under way through the proxy, and its answer. Times are seconds since the epoch."""

    provider: str
    path: str
    started: float
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    status: int = 0
    """0 until the provider answered."""
    answer_headers: Mapping[str, str] = field(default_factory=dict)
    answer: bytearray = field(default_factory=bytearray)
    first_byte: float | None = None
    ended: float | None = None
    whole: bool = False
    """Whether the answer was passed on to its end."""
    too_large: bool = False
    unreached: bool = False
    """Whether no connection to the provider could be made."""

    def take(self, into: bytearray, chunk: bytes) -> None:
        """Keep a chunk of the body or the answer, up to what memory is given to one call."""
        if len(into) + len(chunk) > _LARGEST:
            self.too_large = True
        else:
            into += chunk


@dataclass(slots=True)
class Seen:
    """What came by, for the closing lines."""

    calls: int = 0
    """Requests for an answer of a model, written down."""
    failed: int = 0
    """Those among them that were refused or broke off."""
    without_counts: int = 0
    """Answers that named no token counts: streams that were not asked for them, mostly."""
    other: int = 0
    """Requests of other kinds (embeddings, lists of models), passed on and not written down."""
    unreached: int = 0
    """Requests for which no connection to the provider could be made."""
    refused: int = 0
    """What came and was no request in HTTP/1.1, such as HTTP/2 without a word before."""
    unreadable: int = 0
    """Requests whose body is no JSON object, or larger than what is kept in memory."""
    unwritten: int = 0
    """Calls that came when the file had reached its bound, or could not be written."""
    problem: str = ""
    """The first error of writing."""


class CallLog:
    """Appends calls to a JSON-lines file that ``cacheprefix audit`` reads.

    Args:
        path: the file; made readable by its owner only. It must not exist yet, so that nothing is mixed or lost.
        text: False writes digests in place of texts. Each run of 48 characters becomes a digest of the same length
            under a key that is drawn for this log and kept nowhere: lengths and what is equal can be seen, words
            cannot, not even by guessing.
        limit: bytes that the file may grow to; what comes later is counted and not written.

    Raises:
        SetupError: the file exists or cannot be made.
    """

    def __init__(self, path: Path, *, text: bool = True, limit: int = 1_000_000_000) -> None:
        self.path = path
        self.seen = Seen()
        self._key = secrets.token_bytes(32)
        self._text = text
        self._room = limit
        self._lock = threading.Lock()
        try:
            # Only the owner may read what was said to a model.
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise SetupError(f"{path} exists already; name another file, or remove it") from None
        except OSError as error:
            raise SetupError(f"cannot write {path}: {error.strerror}; name a file that can be written") from error
        self._file = os.fdopen(handle, "wb")

    def write(self, exchange: Exchange) -> None:
        """Write one finished call down. Never raises: what cannot be written is counted in ``seen``."""
        try:
            line = self._line(exchange)
        except Exception as error:
            with self._lock:
                self.seen.unreadable += 1
                self.seen.problem = self.seen.problem or type(error).__name__
            return
        if line is None:
            return
        with self._lock:
            try:
                if len(line) > self._room:
                    self._room = 0
                    self.seen.unwritten += 1
                    return
                self._file.write(line)
                self._file.flush()
                self._room -= len(line)
                self.seen.calls += 1
            except (OSError, ValueError) as error:
                self.seen.unwritten += 1
                self.seen.problem = self.seen.problem or str(error)

    def refused(self) -> None:
        """Count what came to the proxy and was no request that it can read."""
        self._count("refused")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def _line(self, exchange: Exchange) -> bytes | None:
        """An exchange as a line of the log; None, and counted, where it asked no model or cannot be read."""
        addressed = api_of_path(exchange.path)
        if addressed is None:
            self._count("other")
            return None
        api, named = addressed
        if exchange.unreached:
            self._count("unreached")
            return None
        try:
            request = None if exchange.too_large else loads(decoded(exchange.body, exchange.headers))
        except BodyError:
            request = None
        if not isinstance(request, dict):
            self._count("unreadable")
            return None
        if named is not None and not ({"model", "modelId"} & request.keys()):
            request = {SHAPES[api].FIELDS.model: named, **request}
        reports = () if exchange.too_large else tuple(_reports(exchange))
        usage = _usage(reports)
        failed = exchange.status >= 400 or not (exchange.whole or _is_said_to_its_end(exchange))
        line: dict[str, Any] = {"ts": exchange.started, "provider": _provider(exchange.provider), "api": api}
        optional = {
            "headers": {name: exchange.headers[name] for name in HEADERS if name in exchange.headers} or None,
            "scope": self._scope(exchange.headers),
            "request": request if self._text else self._hidden(request, api),
            "usage": usage or None,
            "diagnostics": _diagnostics(reports),
            "response_id": _response_id(reports),
            "response_started_ts": exchange.first_byte,
            "response_ended_ts": exchange.ended,
            "failed": failed or None,
        }
        written = dumps(line | {name: value for name, value in optional.items() if value is not None}, "call") + b"\n"
        if len(written) > _LARGEST:
            self._count("unreadable")
            return None
        if failed:
            self._count("failed")
        elif not usage:
            self._count("without_counts")
        return written

    def _count(self, name: str) -> None:
        with self._lock:
            setattr(self.seen, name, getattr(self.seen, name) + 1)

    def _scope(self, headers: Mapping[str, str]) -> str | None:
        """Who may share a cache: a digest of the key under one that nobody has, so that it tells nothing of it."""
        found = next((headers[name] for name in _CREDENTIALS if name in headers), None)
        return None if found is None else self._digest(found)[:12]

    def _digest(self, text: str) -> str:
        return hmac.new(self._key, text.encode("utf-8", "surrogatepass"), sha256).hexdigest()

    def _hidden(self, value: Any, api: Api, name: str = "") -> Any:
        """The same JSON with digests for texts. Names of fields, numbers and the API's own words stay."""
        if isinstance(value, dict):
            return {key: self._hidden(inner, api, key) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._hidden(inner, api, name) for inner in value]
        if not isinstance(value, str) or name in _ENTRY_KEYS:
            return value
        return "".join(self._cover(value[at : at + _RUN]) for at in range(0, len(value), _RUN))

    def _cover(self, run: str) -> str:
        """A digest as long as the text, with its spaces and line ends, so that it counts about as many tokens."""
        digest = self._digest(run)
        return "".join(one if one in " \n" else digest[at % len(digest)] for at, one in enumerate(run))


def _provider(route: str) -> str | None:
    """The provider as the audit names it; None where the variable does not tell (the model's name does then)."""
    return next((name for name in ("openai", "anthropic", "gemini") if name in route and "azure" not in route), None)


def _texts(exchange: Exchange) -> Sequence[bytes]:
    """The answer's body, or the data of each event of a stream. Nothing where it cannot be read."""
    try:
        plain = decoded(exchange.answer, exchange.answer_headers)
    except BodyError:
        return ()
    if exchange.answer_headers.get("content-type", "").startswith("text/event-stream"):
        return [row[5:].strip() for row in plain.splitlines() if row.startswith(b"data:")]
    return [plain]


def _is_said_to_its_end(exchange: Exchange) -> bool:
    """Whether the last event is the one that closes a stream.

    OpenAI's SDK reads to that event and hangs up, now and then before the bytes that end the body: nothing was lost.
    """
    last = next(iter(_texts(exchange)[-1:]), b"")
    if last == b"[DONE]":
        return True
    try:
        event = loads(last)
    except BodyError:
        return False
    return isinstance(event, Mapping) and event.get("type") in _LAST_EVENTS


def _reports(exchange: Exchange) -> Iterator[Mapping[str, Any]]:
    """The answer's JSON objects: one, or those of a stream's events. Nothing where it cannot be read."""
    for text in _texts(exchange):
        # A stream has thousands of events, and counts stand in one or two: only those are worth reading.
        if not any(mark in text for mark in (b"usage", b"diagnostics", b'"id"', b"responseId")):
            continue
        try:
            value = loads(text)
        except BodyError:
            continue
        yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, Mapping))


def _held(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A report, and what events carry it in: Anthropic's ``message``, Responses' ``response``."""
    yield report
    yield from (report[name] for name in ("message", "response") if isinstance(report.get(name), Mapping))


def _usage(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = [
        held[name]
        for report in reports
        for held in _held(report)
        for name in ("usage", "usageMetadata")
        if isinstance(held.get(name), Mapping)
    ]
    return merge_usage(*found)


def _response_id(reports: Sequence[Mapping[str, Any]]) -> str | None:
    """What the provider calls the answer: the same in a call that was recorded twice."""
    names = ("id", "responseId")
    found = (held[name] for one in reports for held in _held(one) for name in names if isinstance(held.get(name), str))
    return next(found, None)


def _diagnostics(reports: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    names = ("diagnostics", "prompt_cache_diagnostics")
    held = (one[name] for report in reports for one in _held(report) for name in names if name in one)
    return next((value for value in held if isinstance(value, Mapping)), None)
