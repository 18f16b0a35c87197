"""How much of a role's own text another request began with: what is kept of a text holds no word of it.

Of a text the names of a few beginnings are kept: of 256 bytes, and of a quarter more each time. What two texts have in
common is told by the longest of them that both have, which is four fifths of it at least.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

_SHORTEST = 256
"""Bytes of the shortest beginning that is looked at: about 64 tokens."""
_MORE = 4
"""Each is longer than the one before by one part in so many."""

Beginnings = tuple[int, ...]
"""Names of a text's beginnings, the shortest first."""


def beginnings_of(text: str, beside: Iterable[str]) -> Beginnings:
    """What is kept of a text. ``beside`` are the names of the tools in front of it: with others nothing is alike."""
    data, found, at, end = text.encode("utf-8", "surrogatepass"), list[int](), 0, _SHORTEST
    name = crc32("\0".join(sorted(beside)).encode("utf-8", "surrogatepass"))
    while end <= len(data):
        name = crc32(data[at:end], name)
        found.append(name)
        at, end = end, end + end // _MORE
    return tuple(found)


def in_common(text: str, mine: Beginnings, others: Iterable[Beginnings]) -> str:
    """The longest beginning of a text, of which ``mine`` is kept, that one of the others has too."""
    longest = max((_alike(mine, one) for one in others), default=0)
    end = 0
    for _ in range(longest):
        end = end + end // _MORE if end else _SHORTEST
    return text.encode("utf-8", "surrogatepass")[:end].decode("utf-8", "ignore")


def _alike(one: Beginnings, other: Beginnings) -> int:
    """How many beginnings of two texts are the same."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
