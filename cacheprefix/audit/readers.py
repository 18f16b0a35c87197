"""Which reader understands a log, and the project's own two forms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, cast, get_args

from cacheprefix.audit.formats import exchanges, langfuse, langsmith, litellm, otel, sessions, text
from cacheprefix.audit.log_files import Found, values
from cacheprefix.audit.log_records import Broken, Record, Remarks, mapping_or_none, place, seconds, text_or_empty
from cacheprefix.errors import BodyError
from cacheprefix.prompt import Api

_APIS = get_args(Api)
_HTTP = frozenset({"url", "method", "body", "postData", "headers", "path"})
_WRAPPED = frozenset({"response", "output", "request", "url", "timestamp", "ts", "custom_id"})
_TEXT = ("messages", "contents", "input", "instructions")
_LARGE = 100_000
"""Bytes of an entry from which on it is asked how many requests share it; smaller ones fill no window."""


@dataclass(frozen=True, slots=True)
class Reader:
    """One log format. A plugin adds its own through the hook ``trace_readers(register)``.

    ``recognises`` looks at one JSON object of the log; ``read`` makes records of it (none for entries that
    are no model request) and raises BodyError for what it cannot read.
    """

    name: str
    recognises: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Mapping[str, Any]], Iterable[Record]]
    missing: str = ""
    """What to do where its entries hold counts and no text."""
    nothing: str = "no request of a model among the entries"
    """Said of a file that has entries of this form and no request among them."""
    per_file: bool = False
    """Whether a file is one session."""
    model_of: Callable[[Mapping[str, Any]], str] | None = None
    """The model that an entry names for those behind it; None where every entry names its own."""
    signs: frozenset[str] | None = None
    """Fields of which every entry of this form has one; entries with none of them are not looked at. None: all are."""

    def may_read(self, fields: Iterable[str]) -> bool:
        """Whether an entry with these fields may be of this form."""
        return self.signs is None or not self.signs.isdisjoint(fields)


class Placed(NamedTuple):
    """A record and where it stood."""

    file: str
    line: int | None
    item: int | None
    size: int
    record: Record
    reader: str = ""
    """Whose form the entry had."""


def _is_native(value: Mapping[str, Any]) -> bool:
    request = value.get("request")
    if type(request) is dict or isinstance(request, Mapping):
        # Somebody's own record of an exchange wraps the body; ours holds it as it is.
        return not _HTTP & request.keys() and "response" not in value
    return "ts" in value and "usage" in value


def _native(value: Mapping[str, Any]) -> Iterator[Record]:
    """The records of the project's own form: one request with its usage, or with the events of its answer."""
    api = value.get("api")
    if api is not None and api not in _APIS:
        raise BodyError("api", f"unknown API form {api!r:.40}; use one of {', '.join(_APIS)}")
    headers = mapping_or_none(value.get("headers"), "headers")
    events = value.get("events") or ()
    if not isinstance(events, (list, tuple)) or not all(isinstance(event, Mapping) for event in events):
        raise BodyError("events", "expected a list of objects with a type")
    yield Record(
        body=mapping_or_none(value.get("request"), "request"),
        api=cast("Api | None", api),
        model=text_or_empty(value.get("model")),
        provider=text_or_empty(value.get("provider")) or None,
        ts=seconds(value.get("ts"), "ts"),
        session=text_or_empty(value.get("session")),
        agent=text_or_empty(value.get("agent")),
        scope=text_or_empty(value.get("scope")),
        headers=None if headers is None else {name: text_or_empty(held) for name, held in headers.items()},
        # Whatever it is: a call whose counts cannot be read is one without.
        usage=value.get("usage"),
        diagnostics=mapping_or_none(value.get("diagnostics"), "diagnostics"),
        response_id=text_or_empty(value.get("response_id")),
        events=tuple(events),
        response_started_ts=seconds(value.get("response_started_ts"), "response_started_ts"),
        response_ended_ts=seconds(value.get("response_ended_ts"), "response_ended_ts"),
        failed=bool(value.get("failed")) or bool(value.get("error")),
    )


def _is_body(value: Mapping[str, Any]) -> bool:
    return any(isinstance(value.get(name), (list, str)) for name in _TEXT)


def _body(value: Mapping[str, Any]) -> Iterator[Record]:
    aside = exchanges.aside_of(value)
    yield Record(body=None, aside=aside) if aside else Record(body=value)


def _exchanges(value: Mapping[str, Any]) -> Iterator[Record]:
    return _body(value) if _is_body(value) and not _WRAPPED & value.keys() else exchanges.read(value)


BUILTIN: tuple[Reader, ...] = (
    Reader(
        "cacheprefix JSONL",
        _is_native,
        _native,
        missing="write each request's body into the log, as `request`",
        signs=frozenset({"request", "usage"}),
    ),
    Reader(
        "Codex rollout",
        sessions.recognises_codex,
        sessions.read_codex,
        missing="rollouts keep no requests: record them with cacheprefix record",
        nothing="rollouts without counts of tokens",
        per_file=True,
        model_of=sessions.model_of_codex,
        signs=frozenset({"payload"}),
    ),
    Reader(
        "Claude Code session",
        sessions.recognises_claude_code,
        sessions.read_claude_code,
        missing="session files keep no requests: record them with cacheprefix record",
        nothing="session files without answers",
        signs=frozenset({"type"}),
    ),
    Reader("LMCache agent trace", text.recognises_text, text.read_text, signs=frozenset({"session_id"})),
    Reader(
        "spans (OpenTelemetry, OpenInference, Vercel AI SDK, MLflow)",
        otel.recognises,
        otel.read,
        missing="switch on the capture of message content in the instrumentation; give its log of events too",
        nothing="spans, but none of a model request: instrument the model's client, or export its spans too",
        signs=otel.SIGNS,
    ),
    Reader(
        "Langfuse export",
        langfuse.recognises,
        langfuse.read,
        missing="export with input and output",
        nothing="observations, but none of type GENERATION",
        signs=frozenset({"observations", "input"}),
    ),
    Reader(
        "LangSmith runs",
        langsmith.recognises,
        langsmith.read,
        missing="export the runs with their inputs",
        nothing="runs, but none of type llm: export all runs of a trace, not its root alone",
        signs=frozenset({"run_type", "runs"}),
    ),
    Reader(
        "LiteLLM log",
        litellm.recognises,
        litellm.read,
        missing="LiteLLM's spend rows hold messages with general_settings.store_prompts_in_spend_logs: true",
        signs=litellm.SIGNS,
    ),
    Reader("token counts", text.recognises_counts, text.read_counts, signs=frozenset({"prefix_tokens"})),
    Reader(
        "exchanges (HAR, Helicone, Bedrock, batch files, hand-written)",
        exchanges.recognises,
        _exchanges,
        missing="log the request bodies as well as the answers",
        signs=exchanges.SIGNS,
    ),
    Reader("request bodies", _is_body, _body, signs=frozenset(_TEXT)),
)
"""The formats cacheprefix reads by itself, in the order they are tried."""


_LOOKS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"traceId", "calculatedTotalCost"}), "a Langfuse export without inputs; export with input and output"),
    (frozenset({"observations", "traceId"}), "a Langfuse trace; export its observations of type GENERATION"),
    (frozenset({"request_id", "request_created_at"}), "a Helicone export without bodies; export with request bodies"),
    (frozenset({"schemaType", "modelId"}), "Bedrock's log without bodies (S3 holds the large ones); log them inline"),
    (frozenset({"spanId", "name"}), "a span without GenAI attributes; let the instrumentation capture content"),
    (frozenset({"context", "span_kind"}), "a Phoenix span without LLM attributes; export spans of kind LLM"),
    (frozenset({"level", "message"}), "an application's log; switch on the SDK's own log of requests"),
    (frozenset({"choices", "usage"}), "answers without their requests; log the request bodies as well"),
    (frozenset({"content", "stop_reason"}), "answers without their requests; log the request bodies as well"),
    (frozenset({"prompt_tokens", "completion_tokens"}), "counts without requests; log the request bodies as well"),
    (frozenset({"event", "data"}), "a stream of events; log the request body that was answered"),
)
"""Fields by which a form that holds no request is told, and what to do."""


@lru_cache(maxsize=256)
def guess(fields: frozenset[str]) -> str:
    """What an entry with these fields, which no reader knows, seems to be. Millions of lines may have the same."""
    for known, what in _LOOKS:
        if known <= fields:
            return f"this looks like {what}"
    names = ", ".join(sorted(map(str, fields))[:6]) or "none"
    return f"no request in a form that is known here (fields: {names:.120}); see docs/audit.md for the forms"


def records(
    file: str,
    readers: Sequence[Reader] = BUILTIN,
    *,
    on_bytes: Callable[[int], None] | None = None,
    remarks: Remarks | None = None,
) -> Iterator[Placed | Broken]:
    """The records of one log, in the order they stand; ``-`` is standard input.

    The reader is found by looking at the first entry, and again wherever an entry is not of its form. ``remarks``
    takes what is said of entries that are no calls. Raises SetupError for a file that cannot be opened.
    """
    unknown: dict[str, Broken] = {}
    counts: Counter[str] = Counter()
    entries = _Entries(readers, Remarks() if remarks is None else remarks)
    for found in _by_span(_by_page(values(file, on_bytes), readers)):
        if isinstance(found, Broken):
            yield found
            continue
        problem = entries.problem(found.value)
        if problem:
            counts[problem] += 1
            if problem not in unknown:
                unknown[problem] = _broken(found, problem)
            continue
        try:
            yield from entries.read(found)
        except BodyError as error:
            yield _broken(found, str(error))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            # A reader (a plugin's perhaps) met a shape it did not expect; only this entry is lost.
            yield _broken(found, f"{entries.form}: {type(error).__name__}: {error}")
    entries.ended(file)
    for problem, first in unknown.items():
        count = counts[problem]
        more = f" (and {count - 1:,} more like it)" if count > 1 else ""
        yield replace(first, problem=problem + more, count=count)


class _Entries:
    """Makes records of the entries of one file."""

    def __init__(self, readers: Sequence[Reader], remarks: Remarks) -> None:
        # Of an application's log nearly all lines have the same fields, and those are no reader's.
        self._asked = lru_cache(maxsize=256)(lambda fields: [one for one in readers if one.may_read(fields)])
        self._remarks = remarks
        self._reader: Reader | None = None
        self._model = ""
        self._first: dict[str, tuple[Reader, str]] = {}
        """The place of the first entry of each form."""
        self._read: set[str] = set()
        """Forms whose entries held requests."""

    @property
    def form(self) -> str:
        """The form of the latest entry."""
        return "reader" if self._reader is None else self._reader.name

    def problem(self, value: Any) -> str:
        """Why an entry is none that a reader knows; empty where one does, which reads it then."""
        if type(value) is not dict and not isinstance(value, Mapping):
            return f"expected an object, found {_JSON_NAMES.get(type(value), 'text')}"
        if not value:
            return guess(frozenset())
        try:
            if self._reader is not None and self._reader.recognises(value):
                return ""
            fields = frozenset(value)
            fitting = next((one for one in self._asked(fields) if one.recognises(value)), None)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return f"{self.form}: {type(error).__name__}: {error}"
        if fitting is None:
            return guess(fields)
        self._reader = fitting
        return ""

    def read(self, found: Found) -> Iterator[Placed]:
        """The requests of an entry; what else is to be said of it goes to the remarks."""
        reader = self._reader
        if reader is None:
            return
        if reader.name not in self._first:
            self._first[reader.name] = reader, place(found.file, found.line, found.item)
        if reader.model_of is not None:
            self._model = reader.model_of(found.value) or self._model
        for record, size in _sized(reader.read(found.value), found.size):
            self._read.add(reader.name)
            if record.remark:
                self._remarks.add(record.remark, found.file, place(found.file, found.line, found.item))
            if record.left_out:
                continue
            if reader.model_of is not None:
                record = replace(record, model=record.model or self._model)  # noqa: PLW2901
            if reader.per_file:
                record = replace(record, session=f"{found.file} {record.session}".strip())  # noqa: PLW2901
            yield Placed(found.file, found.line, found.item, size, record, reader.name)

    def ended(self, file: str) -> None:
        """Say which forms had entries and not one request."""
        for reader, first in self._first.values():
            if reader.name not in self._read:
                self._remarks.add(reader.nothing, file, first)


def _sized(records: Iterable[Record], size: int) -> Iterator[tuple[Record, int]]:
    """The records of an entry of ``size`` bytes, each with its share: one document may hold all requests of a log."""
    if size < _LARGE:
        for record in records:
            yield record, size
        return
    read: list[Record] = []
    try:
        read.extend(records)
    finally:
        # What was read before a part that cannot be read counts.
        yield from ((record, size // len(read)) for record in read)


_JSON_NAMES = {type(None): "null", bool: "true or false", int: "a number", float: "a number", list: "a list"}
"""What stands in a log where an object belongs, in JSON's words."""

_PAGES = ("data", "items", "results", "rows")
"""Where an API's answer to a query holds its entries."""
_ANY_PAGE = frozenset(_PAGES)


def _by_page(found: Iterable[Found | Broken], readers: Sequence[Reader]) -> Iterator[Found | Broken]:
    """The entries of a log; those of an answer that an API gave page by page, saved as it came, one by one."""
    for entry in found:
        held = _page(entry.value) if isinstance(entry, Found) else None
        if isinstance(entry, Broken) or held is None or any(one.recognises(entry.value) for one in readers):
            yield entry
            continue
        for item, value in enumerate(held):
            yield entry._replace(line=None, item=item, value=value, size=entry.size // len(held))


def _page(value: Any) -> list[Any] | None:
    if (type(value) is not dict and not isinstance(value, Mapping)) or _ANY_PAGE.isdisjoint(value):
        return None
    lists = (value[name] for name in _PAGES if name in value)
    return next((held for held in lists if isinstance(held, list) and held and isinstance(held[0], Mapping)), None)


_OPEN_SPANS = 500
"""Requests whose log records may still come; more than that, and the oldest is taken to be whole."""


def _by_span(found: Iterable[Found | Broken]) -> Iterator[Found | Broken]:
    """The entries of a log, OpenTelemetry's log records of one span as one entry, where the first of them stood."""
    spans: dict[str, tuple[Found, list[Mapping[str, Any]]]] = {}

    def whole(name: str) -> Found:
        first, held = spans.pop(name)
        return first._replace(value=otel.of_one_span(held))

    for entry in found:
        if isinstance(entry, Broken) or not (records := otel.log_records(entry.value)):
            yield entry
            continue
        for record in records:
            name, answered = otel.span_named(record)
            if not name and otel.is_part(record):
                # Of two requests under way at once, nothing would say whose message it is.
                yield _broken(entry, "log records without spanId: nothing says which messages are of one request")
                continue
            first, held = spans.get(name, (entry._replace(size=0), []))
            spans[name] = first._replace(size=first.size + entry.size // len(records)), [*held, record]
            if answered or not name:
                yield whole(name)
        while len(spans) > _OPEN_SPANS:
            yield whole(next(iter(spans)))
    for name in list(spans):
        yield whole(name)


def _broken(found: Found, problem: str) -> Broken:
    return Broken(found.file, found.line, problem, found.item)
