"""Requests as the cache model remembers them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
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
    alike: int | None = None
    """Sections from the start that the request before it in its line has too; None where that is not known."""
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
            at = self.records.index(record)
            if at + 1 < len(self.records):
                self.records[at + 1].alike = None
            del self.records[at]

    def shared(self, digests: Sequence[bytes]) -> list[tuple[Record, int]]:
        """The requests, newest first, and how many sections from the start each has in common with a new one.

        What each has in common with the one before it was noted when it came, so only the newest is compared as
        a whole, and of the others what stands behind that.
        """
        found: list[tuple[Record, int]] = []
        equal, alike = 0, None
        for record in reversed(self.records):
            if alike is None:
                equal = equal_digests(digests, record.prompt.digests)
            elif alike == equal:
                equal = equal_digests(digests, record.prompt.digests, equal)
            else:
                equal = min(equal, alike)
            found.append((record, equal))
            alike = record.alike
        return found


def equal_digests(a: Sequence[bytes], b: Sequence[bytes], start: int = 0) -> int:
    """How many two rows have in common from the start, of which the first ``start`` are known to be equal.

    By bisection on slices, which are compared in C: mostly the very same objects.
    """
    low, high = start, min(len(a), len(b))
    if a[low:high] == b[low:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
