"""Sections of message bodies already seen, so that an append-only history costs only what is new.

A message's fields are the key where all are texts, and its JSON bytes elsewhere: both are cheaper than hashing
and splitting, and a message that was changed in place has other fields or bytes, so a change is never missed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacheprefix.bounded import Generations
from cacheprefix.prompt._runs import Runs

if TYPE_CHECKING:
    from cacheprefix.prompt._sections import Section

Content = bytes | tuple[tuple[str, str], ...]
Key = tuple[str, str, str, Content]

_OVERHEAD = 400


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
        size = _size(key[3]) + sum(len(section.data) for section in sections) + _OVERHEAD
        self._kept.put(key, sections, size)

    def __len__(self) -> int:
        """Entries held."""
        return len(self._kept)


def _size(content: Content) -> int:
    """Bytes of a key, or characters where it shares its texts with the application's message."""
    return len(content) if isinstance(content, bytes) else sum(len(text) for _, text in content)
