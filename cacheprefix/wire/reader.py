"""What reading a body has in common in all APIs: units, sections, and memory of units and rows read before.

A run keeps the messages of one body by value: a copy of each that holds nothing but texts (which cannot change), the
JSON bytes of every other. How far a new body begins with them is found out by comparing all of it, at the speed of a
loop in C: a message that was changed in place differs from its copy, and is read anew with everything behind it.

A single message is remembered under its fields where all are texts, and under its JSON bytes elsewhere: both are
cheaper than hashing and splitting, and a message that was changed in place has other fields or bytes.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, count, islice
from operator import is_, ne
from typing import Any

import orjson

from cacheprefix.bounded import Generations
from cacheprefix.errors import BodyError
from cacheprefix.locks import Lock
from cacheprefix.prompt.canonical_json import dumps, dumps_sorted, loads
from cacheprefix.prompt.sections import (
    ABOUT,
    IMAGE_TOKENS,
    Envelope,
    Kind,
    Marker,
    Prompt,
    Section,
    Tier,
    learn,
    section,
)
from cacheprefix.wire.messages import Asks

PLAIN = frozenset({"role", "content"})
"""Fields whose order in a message is no part of any prompt."""

_ONLY_TEXT = frozenset({str})
_SHORTEST = 8
"""Messages of a body that is worth remembering as a whole; those of a shorter one are looked up one by one."""
_BRANCHES = 4
"""Runs kept of one beginning: requests of siblings, each with its own end."""
_LINK_BYTES, _COPY_BYTES = 48, 320
"""What one more run costs for a message that others hold too, and for one that only it holds."""

Beginning = tuple[tuple[str, str], Any]


@dataclass(frozen=True, slots=True)
class Run:
    """The messages of one body, and the prompt they were read into."""

    prompt: Prompt
    offset: int
    """Sections of the prompt before the first message's."""
    ends: list[int]
    """Sections of the messages up to and including each."""
    plain: list[dict[str, str]]
    """Copies of the messages that hold texts alone, in order."""
    places: list[int] | None
    """Where those stand; None where all messages are such."""
    written: list[bytes]
    """The JSON of the others."""
    others: list[int]
    """Where those stand."""
    size: int = 0

    def shared(self, messages: Sequence[Any]) -> int:
        """How many messages from the start are the very same in value, order of fields and type."""
        limit = min(len(messages), len(self.ends))
        others = self.others[: bisect_left(self.others, limit)]
        if others:
            try:
                texts = map(orjson.dumps, map(messages.__getitem__, others))
                limit = next(compress(others, map(ne, texts, self.written)), limit)
            except TypeError:
                # Something that only the slower writer can put down: the run is taken up to where such things begin.
                limit = others[0]
        if self.places is None:
            return next(compress(count(), map(ne, islice(messages, limit), self.plain)), limit)
        held = bisect_left(self.places, limit)
        own = map(messages.__getitem__, islice(self.places, held))
        return next(compress(self.places, map(ne, own, self.plain)), limit)


@dataclass(slots=True)
class Row:
    """The messages of a body that is being read; the first ``known`` of them are those of ``run``."""

    key: tuple[str, str]
    """API form and model."""
    messages: Sequence[Any]
    plain: frozenset[str]
    run: Run | None = None
    known: int = 0
    sections: list[Section] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    sign: Beginning | None = None
    """What the conversation is known by, where that was looked for."""

    def add(self, sections: Sequence[Section]) -> None:
        """Take in the sections of the next message."""
        self.sections += sections
        self.ends.append(len(self.sections))


class Runs:
    """The latest runs, found by how a conversation begins. Bounded by bytes; safe to share between threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[Beginning, list[Run]] = OrderedDict()
        self._lock = Lock()

    def row(self, key: tuple[str, str], messages: Sequence[Any], plain: frozenset[str]) -> Row:
        """A row that already holds what an earlier one begins with."""
        row = Row(key, messages, plain)
        sign = row.sign = _beginning(row)
        with self._lock:
            kept = list(self._kept.get(sign, ())) if sign is not None else []
        for run in reversed(kept):
            shared = run.shared(messages)
            if shared > row.known:
                row.run, row.known = run, shared
            if row.known + _BRANCHES >= min(len(messages), len(run.ends)):
                break
        if row.run is not None:
            run = row.run
            row.ends = run.ends[: row.known]
            row.sections = list(run.prompt.sections[run.offset : run.offset + row.ends[-1]])
        return row

    def keep(self, row: Row, prompt: Prompt, offset: int) -> None:
        """Remember a row that was read to its end, and what its prompt has in common with the one before."""
        run = row.run
        if run is not None:
            before, head = run.prompt, prompt.sections[:offset]
            if offset == run.offset and all(map(is_, head, before.sections)):
                learn(prompt, before, offset + run.ends[row.known - 1])
            if row.known == len(row.messages) == len(run.ends):
                return
        sign = row.sign
        if sign is None or len(row.ends) != len(row.messages):
            return
        made = _run(row, prompt, offset)
        if made is None:
            return
        with self._lock:
            kept = self._kept.setdefault(sign, [])
            if run is not None and row.known == len(run.ends) and run in kept:
                # The new one begins with all of it.
                kept.remove(run)
                self._bytes -= run.size
            kept.append(made)
            self._bytes += made.size
            self._kept.move_to_end(sign)
            if len(kept) > _BRANCHES:
                self._bytes -= kept.pop(0).size
            while self._bytes > self._max and self._kept:
                _, gone = self._kept.popitem(last=False)
                self._bytes -= sum(one.size for one in gone)

    def forget(self, texts: Container[bytes]) -> None:
        """Let the rows go in which one of these sections' data stands."""
        with self._lock:
            for sign, kept in list(self._kept.items()):
                left = [run for run in kept if not any(one.data in texts for one in run.prompt.sections)]
                self._bytes -= sum(run.size for run in kept) - sum(run.size for run in left)
                kept[:] = left
                if not left:
                    del self._kept[sign]

    def __len__(self) -> int:
        """Runs held."""
        return sum(len(kept) for kept in self._kept.values())


def _beginning(row: Row) -> Beginning | None:
    """What a conversation is known by: one of its first messages, but none that all conversations begin with."""
    if len(row.messages) < _SHORTEST:
        return None
    one = row.messages[_SHORTEST - 1]
    try:
        return row.key, tuple(one.values()) if _texts(one, PLAIN) else orjson.dumps(one)
    except TypeError:
        return None


def _texts(message: Any, plain: frozenset[str]) -> bool:
    """Whether a message holds texts alone, in fields whose order does not matter."""
    return type(message) is dict and message.keys() <= plain and _ONLY_TEXT.issuperset(map(type, message.values()))


def _run(row: Row, prompt: Prompt, offset: int) -> Run | None:
    """What a row of messages is told by the next time, from what was known of it before; None where it is no JSON."""
    known, before = row.known, row.run
    plain: list[dict[str, str]] = []
    places: list[int] = []
    written: list[bytes] = []
    others: list[int] = []
    if before is not None:
        others = before.others[: bisect_left(before.others, known)]
        written = before.written[: len(others)]
        plain = before.plain[: known - len(others)]
        places = list(range(known)) if before.places is None else before.places[: len(plain)]
    size = _LINK_BYTES * known
    for index in range(known, len(row.messages)):
        message = row.messages[index]
        if _texts(message, row.plain):
            plain.append(dict(message))
            places.append(index)
            size += _COPY_BYTES
            continue
        try:
            written.append(orjson.dumps(message))
        except TypeError:
            return None
        others.append(index)
        size += _COPY_BYTES + len(written[-1])
    return Run(prompt, offset, row.ends, plain, places if others else None, written, others, size)


Content = bytes | tuple[tuple[str, str], ...]
Key = tuple[str, str, str, Content]

_OVERHEAD = 900
"""What an entry costs beside its texts: keys, tuples, the sections themselves."""


class Memo:
    """What messages came to, bounded by bytes."""

    def __init__(self, max_bytes: int = 64_000_000) -> None:
        self._kept: Generations[Key, tuple[Section, ...]] = Generations(max_bytes)
        self.runs = Runs(max_bytes // 4)
        """Whole rows of messages, so that a history is not even looked up message by message."""

    def get(self, key: Key) -> tuple[Section, ...] | None:
        """The sections stored under ``key``; None when unknown."""
        return self._kept.get(key)

    def put(self, key: Key, sections: tuple[Section, ...]) -> None:
        """Store the sections of one message."""
        size = _size(key[3]) + sum([len(section.data) for section in sections]) + _OVERHEAD
        self._kept.put(key, sections, size)

    def forget(self, texts: Container[bytes]) -> None:
        """Let go what holds one of these sections' data; it is read anew where it comes again."""
        self._kept.discard(lambda sections: any(one.data in texts for one in sections))
        self.runs.forget(texts)

    def __len__(self) -> int:
        """Entries held."""
        return len(self._kept)


def _size(content: Content) -> int:
    """Bytes of a key, or characters where it shares its texts with the application's message."""
    return len(content) if isinstance(content, bytes) else sum([len(text) for _, text in content])


@dataclass(frozen=True, slots=True)
class Fields:
    """The names that an API has for what each of them knows; a module of an API says its own at its top."""

    path: re.Pattern[str]
    """How the path of its URL ends; the group ``model`` where that names the model."""
    content: frozenset[str]
    """Fields of a body that are read into sections, and the model's name; all others are settings."""
    history: str
    """The list of messages."""
    model: str = "model"
    system: str | None = None
    """The system text beside the messages; None where it is one of them."""
    leading: tuple[str, ...] = ()
    """Roles whose messages are system text where nothing else stands before them; none where none may be such."""
    signs: tuple[str, ...] = ()
    """Fields that tell a bare body from one of the APIs that ``apis`` lists after this one."""
    schema: tuple[str, ...] = ()
    """Settings that can hold the schema of an answer."""
    inner: Mapping[str, str] = field(default_factory=dict)
    """Settings that stand inside a field of the content: which, and inside which field."""
    top_marker: str | None = None
    """The marker of a whole body: a breakpoint that moves with its end."""
    only_marked: Mapping[str, Any] = field(default_factory=dict)
    """What says that nothing is written but at a body's own markers, where the provider else sets one itself."""
    limits: tuple[str, ...] = ()
    """Upper bounds of an answer's tokens; the last is the one to write where a body has none."""
    asks_usage: Mapping[str, Any] = field(default_factory=dict)
    """What a streaming request asks with for its usage, where it is not told unasked."""
    answer: str = ""
    """The list in an answer that holds what was answered."""
    begun: bool = False
    """Whether a last message of the assistant's is the beginning of the answer, and not one that was given before."""
    chained: tuple[str, ...] = ()
    """What a request goes on from that the provider keeps."""
    thread: str = ""
    """What names a conversation that the provider keeps whole: only its first request says system text and tools."""
    least: Asks = "words"
    """The least that its messages must ask: whatever asks less is refused with 400."""
    template: str | None = None
    """A prompt, or its beginning, that the provider keeps: own instructions would replace that, or be refused."""


MARKER_FIELDS = ("cache_control", "prompt_cache_breakpoint")

_WORDS = frozenset({"text", "thinking", "tool", "tool_use"})
"""Kinds of sections that hold no media."""
_MEDIA = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{1000,}={0,2}")
"""Bytes of an image, a clip or a file, as base64. Looked for only where a run of such characters begins: else one
of fewer would be read over again from each of its characters."""

EMPTY = b"null"
"""Data of the one section that stands for a message without content; no block can be this."""

RESERVED = frozenset({"+", "item", "instructions"})
"""Heads with a meaning of their own, which no role may be mistaken for."""

Split = Callable[["Reader", Tier, str, Any], "list[Section]"]


class Reader:
    """Reads the units (a tool, a system block, a message) of one body."""

    def __init__(
        self,
        api: str,
        model: str,
        count: Callable[[str, str], int],
        memo: Memo | None,
        same: Sequence[Section] = (),
        envelope: Envelope = ABOUT,
    ) -> None:
        self.api = api
        self.model = model
        self._count = count
        self._memo = memo
        self._envelope = envelope
        self._row: Row | None = None
        self._same = {(one.tier, one.kind, one.head, one.data): one for one in same}
        """Sections whose digest and tokens are known: those of a unit that is read again for its markers."""

    def count(self, text: str) -> int:
        """Tokens of a text for this body's model."""
        return self._count(text, self.model)

    def unit(self, tier: Tier, path: str, value: Any, split: Split) -> Sequence[Section]:
        """The sections of one unit, from memory when the same bytes stood at the same place before."""
        if self._memo is None:
            return split(self, tier, path, value)
        key = (self.api + tier, self.model, path, _content(value, path))
        known = self._memo.get(key)
        if known is None:
            known = tuple(split(self, tier, path, value))
            self._memo.put(key, known)
        return known

    def units(self, tier: Tier, name: str, values: Any, split: Split) -> list[Section]:
        """The sections of a list of units, such as a body's tools: from memory when it was the very same before."""
        if not values:
            return []
        if self._memo is None:
            return self._each(tier, name, values, split)
        key = (self.api + tier, self.model, name, dumps(values, name))
        known = self._memo.get(key)
        if known is None:
            known = tuple(self._each(tier, name, values, split))
            self._memo.put(key, known)
        return list(known)

    def _each(self, tier: Tier, name: str, values: Any, split: Split) -> list[Section]:
        listed = enumerate(items(values, name))
        return [one for index, value in listed for one in self.unit(tier, f"{name}[{index}]", value, split)]

    def history(
        self,
        messages: Sequence[Any],
        split: Split,
        *,
        plain: frozenset[str] = PLAIN,
        leading: Sequence[str] = (),
        lead: int = 0,
        kind: str = "",
    ) -> list[Section]:
        """The sections of a body's messages; those that an earlier body began with are not read again.

        Args:
            messages: all of them.
            split: how one is read.
            plain: fields whose order in a message of texts does not matter to how it is read.
            leading: roles whose messages are system sections while nothing else stands before them.
            lead: system sections before the messages, which count into their paths.
            kind: tells messages from those of the same API that are read in another way.
        """
        key = (self.api + kind, self.model)
        row = Row(key, messages, plain) if self._memo is None else self._memo.runs.row(key, messages, plain)
        self._row = row
        end = 0
        for message in messages if leading else ():
            if not isinstance(message, Mapping) or message.get("role") not in leading:
                break
            end += 1
        for index in range(row.known, len(messages)):
            tier: Tier = "system" if index < end else "messages"
            path = f"{tier}[{index + lead}]" if index < end else f"{tier}[{index}]"
            row.add(self.unit(tier, path, messages[index], split))
        return row.sections

    def keep(self, prompt: Prompt) -> None:
        """Remember what was read, for a body that begins like it."""
        if self._memo is not None and self._row is not None:
            self._memo.runs.keep(self._row, prompt, len(prompt.sections) - len(self._row.sections))

    def make(self, tier: Tier, path: str, kind: Kind, head: str, data: bytes, marker: Marker | None = None) -> Section:
        """One section, counted by this reader."""
        known = self._same.get((tier, kind, head, data)) if self._same else None
        if known is not None:
            # Its very bytes: each request that is remembered holds what it was marked in.
            return Section(tier, path, kind, head, known.data, known.digest, known.tokens, marker)
        # An image counts as much however it is given: an address is short.
        count = self.count if kind in _WORDS else _flat if kind == "image" else self._with_media
        return section(tier, path, kind, head, data, count, marker, self._envelope)

    def _with_media(self, text: str) -> int:
        """Tokens of content that may hold images or files: each at a flat rate, as no provider counts their bytes."""
        left, found = _MEDIA.subn("", text)
        return self.count(left) + IMAGE_TOKENS * found

    def text(self, tier: Tier, path: str, head: str, text: str, marker: Marker | None = None) -> Section:
        """A text section."""
        data = text.encode("utf-8", "surrogatepass")
        if self._same:
            return self.make(tier, path, "text", head, data, marker)
        return section(tier, path, "text", head, data, self.count, marker, self._envelope, text)

    def json(self, tier: Tier, path: str, kind: Kind, head: str, value: Any, marker: Marker | None = None) -> Section:
        """A section whose data is the value as JSON, key order kept."""
        return self.make(tier, path, kind, head, dumps(value, path), marker)


def _flat(_: str) -> int:
    return IMAGE_TOKENS


def _content(value: Any, path: str) -> Content:
    """What tells whether a unit is the same: its fields where all are texts (Python keeps their hashes), else JSON."""
    if type(value) is dict and _ONLY_TEXT.issuperset(map(type, value.values())):
        return tuple(value.items())
    return dumps(value, path)


def envelope(role: str, **fields: Any) -> str:
    """The head of a message: its role, and as JSON whatever else the envelope carries."""
    extra = {name: value for name, value in fields.items() if value is not None} if fields else fields
    plain = not extra and role not in RESERVED and not role.startswith("{")
    return role if plain else dumps({"role": role, **extra}, "role").decode()


def open_envelope(head: str) -> dict[str, Any]:
    """The message fields that ``envelope`` wrote."""
    if head.startswith("{"):
        opened: dict[str, Any] = loads(head)
        return opened
    return {"role": head}


def pop_marker(block: Mapping[str, Any], path: str) -> tuple[Mapping[str, Any], Marker | None]:
    """The block without its cache marker, and the marker; the very same block when it has none."""
    marker = None
    for name in MARKER_FIELDS:
        value = block.get(name)
        if name in block:
            block = {key: inner for key, inner in block.items() if key != name}
        if isinstance(value, Mapping):
            ttl = value.get("ttl")
            if ttl is not None and not isinstance(ttl, str):
                raise BodyError(f"{path}.{name}.ttl", f"expected a string, found {type(ttl).__name__}")
            marker = Marker(ttl)
        elif value is not None:
            raise BodyError(f"{path}.{name}", f"expected an object, found {type(value).__name__}")
    return block, marker


def ttl_field(ttl: str | None) -> dict[str, str]:
    """The field of a marker that says its lifetime; none for the provider's default."""
    return {} if ttl is None else {"ttl": ttl}


def mapping(value: Any, path: str) -> Mapping[str, Any]:
    """``value`` if it is a JSON object, else a ``BodyError`` at ``path``."""
    # A dict is asked for first: whether something is a Mapping takes ten times as long to tell.
    if type(value) is not dict and not isinstance(value, Mapping):
        raise BodyError(path, f"expected an object, found {type(value).__name__}")
    return value


def items(value: Any, path: str) -> Sequence[Any]:
    """``value`` if it is a JSON array, else a ``BodyError`` at ``path``."""
    if type(value) is not list and (isinstance(value, (str, bytes)) or not isinstance(value, Sequence)):
        raise BodyError(path, f"expected a list, found {type(value).__name__}")
    return value


def string(value: Any, path: str) -> str:
    """``value`` if it is a string, else a ``BodyError`` at ``path``."""
    if not isinstance(value, str):
        raise BodyError(path, f"expected a string, found {type(value).__name__}")
    return value


def messages_of(sections: Iterable[Section]) -> Iterator[list[Section]]:
    """The sections of each message."""
    group: list[Section] = []
    for one in sections:
        if one.head != "+" and group:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def written(sections: Iterable[Section], name: str, wire: Callable[[Section], Iterable[Any]]) -> list[dict[str, Any]]:
    """The messages that sections describe, their blocks in the field ``name``."""
    made = []
    for group in messages_of(sections):
        full = [one for one in group if one.data != EMPTY or one.kind == "text"]
        made.append({**open_envelope(group[0].head), name: [block for one in full for block in wire(one)]})
    return made


def top_marker(body: Mapping[str, Any], fields: Fields) -> Marker | None:
    """The marker of a whole body, in the APIs that have one."""
    return pop_marker({fields.top_marker: body.get(fields.top_marker)}, "body")[1] if fields.top_marker else None


def settings_of(body: Mapping[str, Any], fields: Fields, headers: Mapping[str, str] | None) -> dict[str, str]:
    """Every field that is not content, as canonical JSON, and the headers as ``header:name``."""
    settings = {
        name: dumps_sorted(value, name)
        for name, value in body.items()
        if name not in fields.content and value is not None
    }
    for name, value in (headers or {}).items():
        settings[f"header:{name.lower()}"] = dumps_sorted(value, f"header:{name}")
    for name, outer in fields.inner.items():
        held = body.get(outer)
        if isinstance(held, Mapping) and held.get(name) is not None:
            settings[name] = dumps_sorted(held[name], f"{outer}.{name}")
    return settings
