"""Requests as the cache model remembers them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from cacheprefix.prompt import Section

if TYPE_CHECKING:
    from cacheprefix.cache._causes import Cause
    from cacheprefix.cache._tree import Node
    from cacheprefix.prompt import Prompt


@dataclass(slots=True, eq=False)
class Record:
    """One request. Its sections are those of the prompt, so keeping them costs a tuple."""

    index: int
    agent: str
    session: str
    scope: str
    provider: str
    prompt: Prompt
    lane: bytes
    keys: Sequence[bytes]
    """Per section its key in the tree: the digest, and where a tier begins what salts it."""
    totals: Sequence[int]
    """Tokens up to and including each section."""
    leaf: Node
    at: float
    marks: tuple[int, ...]
    """Sections with a breakpoint, written or not."""
    line: Line
    salts: Sequence[bytes]
    path: Sequence[Node] = ()
    """The nodes of its sections."""
    failed: bool = False
    forgotten: bool = False
    pending: bool = True
    slim: bool = False
    """Whether only its place in the tree is kept, because it is too old to be compared with."""

    @property
    def sections(self) -> tuple[Section, ...]:
        """The prompt's sections."""
        return self.prompt.sections


class Line:
    """The recent requests of one agent in one session: what its next request is held against."""

    __slots__ = ("alarmed", "alarmed_at", "previous_read", "records")

    def __init__(self, keep: int) -> None:
        self.records: deque[Record] = deque(maxlen=keep)
        self.alarmed: Cause | None = None
        """The break that was reported and is not over yet."""
        self.alarmed_at = -1
        """Index of the request that was alarmed about last."""
        self.previous_read: int | None = None

    def add(self, record: Record) -> Record | None:
        """A request of this line went out; returns the one that it makes too old to be compared with."""
        dropped = self.records[0] if len(self.records) == self.records.maxlen else None
        self.records.append(record)
        return dropped

    def remove(self, record: Record) -> None:
        """It failed."""
        if record in self.records:
            self.records.remove(record)

    def base(self, sections: Sequence[Section]) -> Record | None:
        """The longest of the latest requests that these sections begin with; None when there is none.

        Sections that did not change are the very same objects, which makes this a comparison of addresses.
        """
        best: Record | None = None
        for record in islice(reversed(self.records), 4):
            length = len(record.sections)
            if length > (len(best.sections) if best else 0) and sections[:length] == record.sections:
                best = record
        return best

    def newest(self) -> Iterator[Record]:
        """The requests, newest first."""
        return reversed(self.records)
