"""Finds a text by its words in other texts, and what the system texts of several agents have in common.

Runs of white space are equal, line ends and indentation among them: a handbook that was indented, wrapped anew or saved
with other line ends is the same handbook. All of this takes time in proportion to the texts.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

LEAST = 200
"""Characters below which moving a text is not worth a changed prompt; about 50 tokens."""
_SHINGLE = 5
"""Words in a row that no two texts have by chance."""
_WHOLE = 3
"""Words of the shortest text that has one between its first and its last."""
_WORD = re.compile(r"\S+")
_NEXT = re.compile(r"\S")


def find_text(wanted: str, text: str) -> tuple[int, int] | None:
    """Where ``wanted`` stands in ``text``: the span of its characters there, without white space around it.

    None where it stands nowhere, and where ``wanted`` has no words. Its very characters are found before the same words
    with other white space.
    """
    bare = wanted.strip()
    if not bare:
        return None
    start = _stands(bare, text)
    if start >= 0:
        return start, start + len(bare)
    sought_words = bare.split()
    if not _may_stand(sought_words, text):
        return None
    plain, sought = " ".join(text.split()), " ".join(sought_words)
    first = _stands(sought, plain)
    if first < 0:
        return None
    # One object a word takes ten times as long, and a text may be nearly the wanted one, as another edition of it is.
    words = list(_WORD.finditer(text))
    # Where each word begins in ``plain``: a space stands between any two.
    begins = list(accumulate((len(word.group()) + 1 for word in words), initial=0))

    def place(at: int) -> int:
        word = bisect_right(begins, at) - 1
        return words[word].start() + at - begins[word]

    return place(first), place(first + len(sought) - 1) + 1


def _may_stand(words: Sequence[str], text: str) -> bool:
    """Whether the longest of the words stands in ``text`` before the one that follows it: False for most texts.

    Taking a text apart takes a hundred times as long, and an event loop waits for it at each request.
    """
    if len(words) < 2:
        return False
    at = max(range(len(words) - 1), key=lambda at: len(words[at]))
    found = text.find(words[at])
    while found >= 0:
        following = _NEXT.search(text, found + len(words[at]))
        if following is None:
            return False
        # The last word wanted may have punctuation of the text's behind it.
        if text.startswith(words[at + 1], following.start()):
            return True
        found = text.find(words[at], found + 1)
    return False


class SearchedText:
    """A text in which many others are looked for, by their words: it is taken apart once, whatever their number."""

    def __init__(self, text: str) -> None:
        self._text = text
        found = list(_WORD.finditer(text))
        self._words = [word.group() for word in found]
        self._starts = [word.start() for word in found]
        self._places: dict[str, list[int]] = {}
        for at, word in enumerate(self._words):
            self._places.setdefault(word, []).append(at)

    def spans(self, wanted: str) -> Iterator[tuple[int, int]]:
        """Where ``wanted`` stands, as ``find_text`` finds it: all places that do not overlap, in their order."""
        sought = wanted.split()
        if len(sought) < _WHOLE:
            yield from self._one_by_one(wanted)
            return
        # The first and the last word may have punctuation of the text's beside them; those between stand as they are.
        inner = sought[1:-1]
        rarest = min(range(len(inner)), key=lambda at: len(self._places.get(inner[at], ())))
        free = 0
        for place in self._places.get(inner[rarest], ()):
            first = place - rarest - 1
            last = first + len(sought) - 1
            if first < free or last >= len(self._words) or self._words[first + 1 : last] != inner:
                continue
            span = self._edges(first, last, sought[0], sought[-1])
            if span is not None:
                free = last + 1
                yield span

    def _edges(self, first: int, last: int, begins: str, ends: str) -> tuple[int, int] | None:
        """From a word that ends with ``begins`` to one that begins with ``ends``; None where a word goes on there."""
        opening, closing = self._words[first], self._words[last]
        if not (opening.endswith(begins) and closing.startswith(ends)):
            return None
        before, after = opening[: -len(begins)], closing[len(ends) :]
        if _within(before[-1:], begins[0]) or _within(ends[-1], after[:1]):
            return None
        return self._starts[first] + len(before), self._starts[last] + len(ends)

    def _one_by_one(self, wanted: str, at: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
        """The places from ``at`` to ``end`` of a text of few words."""
        while (span := find_text(wanted, self._text[at:end])) is not None:
            # Before its very characters the same words may stand with other white space.
            yield from self._one_by_one(wanted, at, at + span[0])
            yield at + span[0], at + span[1]
            at += span[1]


def _stands(wanted: str, text: str) -> int:
    """Where ``wanted`` stands in ``text`` as words of its own, and not within longer ones; -1 for nowhere."""
    at = text.find(wanted)
    while at >= 0:
        end = at + len(wanted)
        if not (_within(text[at - 1 : at], wanted[0]) or _within(wanted[-1], text[end : end + 1])):
            return at
        at = text.find(wanted, at + 1)
    return -1


def _within(before: str, after: str) -> bool:
    """Whether a word goes on between two characters. Scripts without spaces (from U+2E80 on) are not asked."""
    return all(one.isalnum() and one < "\u2e80" for one in (before, after))


def mostly_holds(wanted: str, text: str) -> bool:
    """Whether most of ``wanted`` stands in ``text``: an older version of it, or a draft. False for short ones.

    Counted are the short runs of words of ``wanted`` that ``text`` has too.
    """
    # Without half of its characters it cannot have half of its words; most roles' texts are short.
    if len(wanted) < LEAST or 2 * len(text) < len(wanted):
        return False
    sought, known = _shingles(wanted), _shingles(text)
    return 2 * len(sought & known) > len(sought)


def _shingles(text: str) -> set[tuple[str, ...]]:
    """All runs of ``_SHINGLE`` words of a text; the whole of a shorter one."""
    words = text.split()
    return {tuple(words[at : at + _SHINGLE]) for at in range(max(1, len(words) - _SHINGLE + 1))}


def majority_text(texts: Sequence[str]) -> tuple[str, tuple[int, ...]]:
    """The whole lines that most of the texts begin or end with, as the first of them spells it, and who holds it.

    Of all runs of lines of ``LEAST`` characters and more that more than half of them begin or end with, the one that
    saves most: ``(holders - 1) * length``. Where there is none, the one that saves most for at least two. Holders are
    given by their indexes; one that has the text in its middle is one too. An empty text and nobody where none is
    found.
    """
    found = max(_runs(texts), key=lambda run: run.rank(len(texts)), default=_NONE)
    return found.text, tuple(at for at, text in enumerate(texts) if find_text(found.text, text) is not None)


@dataclass(frozen=True, slots=True)
class _Run:
    """Whole lines that some texts begin or end with."""

    holders: tuple[int, ...]
    whole: str
    start: int
    end: int

    @property
    def text(self) -> str:
        return self.whole[self.start : self.end]

    def rank(self, texts: int) -> tuple[bool, int, int]:
        """Larger for the one to share."""
        holders = len(self.holders)
        return 2 * holders > texts, (holders - 1) * (self.end - self.start), holders


_NONE = _Run((), "", 0, 0)


def _runs(texts: Sequence[str]) -> Iterator[_Run]:
    """All runs of ``LEAST`` characters and more that at least two texts begin or end with."""
    for forwards in (True, False):
        held: dict[bytes, list[tuple[int, int]]] = {}
        for at, text in enumerate(texts):
            for digest, edge in _edges(text, forwards=forwards):
                held.setdefault(digest, []).append((at, edge))
        for found in held.values():
            at, edge = found[0]
            whole = texts[at]
            start = len(whole) - len(whole.lstrip()) if forwards else edge
            end = edge if forwards else len(whole.rstrip())
            if len(found) > 1 and end - start >= LEAST:
                yield _Run(tuple(at for at, _ in found), whole, start, end)


def _edges(text: str, *, forwards: bool) -> Iterator[tuple[bytes, int]]:
    """For each line: a digest of all words up to its end, and where that is; from the text's end backwards if told."""
    said = hashlib.blake2b(digest_size=16)
    lines = text.splitlines(keepends=True)
    starts = accumulate(map(len, lines), initial=0)
    both = list(zip(starts, lines, strict=False))
    for start, line in both if forwards else reversed(both):
        words = line.split()
        if words:
            for word in words if forwards else reversed(words):
                said.update(word.encode("utf-8", "surrogatepass") + b" ")
            yield said.digest(), start + (len(line.rstrip()) if forwards else len(line) - len(line.lstrip()))
