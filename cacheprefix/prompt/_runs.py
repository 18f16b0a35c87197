"""Rows of messages already read, so that a request that begins like an earlier one is read from where it goes on.

A run keeps the messages of one body by value: a copy of each that holds nothing but texts (which cannot change), the
JSON bytes of every other. How far a new body begins with them is found out by comparing all of it, at the speed of a
loop in C: a message that was changed in place differs from its copy, and is read anew with everything behind it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress, count, islice
from operator import is_, ne
from typing import TYPE_CHECKING, Any

import orjson

from cacheprefix.locks import Lock
from cacheprefix.prompt._sections import learn

if TYPE_CHECKING:
    from cacheprefix.prompt._sections import Prompt, Section

PLAIN = frozenset({"role", "content"})
"""Fields whose order in a message is no part of any prompt."""

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
        sign = _beginning(row)
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
        sign = _beginning(row)
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
    return type(message) is dict and message.keys() <= plain and all(type(one) is str for one in message.values())


def _run(row: Row, prompt: Prompt, offset: int) -> Run | None:
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

