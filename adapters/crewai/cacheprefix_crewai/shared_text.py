"""What several tasks of a crew have in common, so that it can stand once, before the roles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MIN_CHARS = 200
"""Shorter texts stay where they are: the reference to them would cost as much as they do."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A text that stands in the shared part, and the words that refer to it from a task."""

    label: str
    text: str

    @property
    def reference(self) -> str:
        """What stands in a task in place of the text."""
        return f"(see {self.label} above)"

    @property
    def block(self) -> str:
        """How the text stands in the shared part."""
        return f"[{self.label}]\n{self.text}"


def given_inputs(
    inputs: Mapping[str, object], texts: Sequence[str], names: Iterable[str] | None, constant: frozenset[str]
) -> list[Piece]:
    """The interpolated inputs to hoist: those named, or else long ones that two texts contain.

    What is the same in all runs of a ``kickoff_for_each`` (``constant``) comes first, and is hoisted for one
    text too. An input that is no string, or that no text contains, stays where it is.
    """
    wanted = None if names is None else set(names)
    found = []
    for name, value in inputs.items():
        if not isinstance(value, str) or not value.strip():
            continue
        uses = sum(value in text for text in texts)
        if wanted is None:
            take = len(value) >= MIN_CHARS and uses >= (1 if name in constant else 2)
        else:
            take = name in wanted and uses > 0
        if take:
            found.append((name not in constant, name, Piece(f"shared input {name!r}", value)))
    return [piece for *_, piece in sorted(found, key=lambda item: item[:2])]


def common_blocks(texts: Sequence[str], first_label: int = 1) -> list[Piece]:
    """Runs of whole lines, together at least 200 characters long, that two texts have in common.

    In order of their first appearance; of two that overlap only the first is taken.
    """
    lines = [text.split("\n") for text in texts]
    where: dict[str, list[tuple[int, int]]] = {}
    for number, own in enumerate(lines):
        for index, line in enumerate(own):
            if line.strip():
                where.setdefault(line, []).append((number, index))
    found: list[Piece] = []
    for number, own in enumerate(lines):
        index = 0
        while index < len(own):
            length = max(
                (
                    _run(own, index, lines[other], start)
                    for other, start in where.get(own[index], ())
                    if other > number
                ),
                default=0,
            )
            block = "\n".join(own[index : index + length]).strip()
            if len(block) >= MIN_CHARS and all(block not in piece.text for piece in found):
                found.append(Piece(f"shared text {first_label + len(found)}", block))
            index += max(length, 1)
    return found


def _run(a: Sequence[str], i: int, b: Sequence[str], j: int) -> int:
    length = 0
    while i + length < len(a) and j + length < len(b) and a[i + length] == b[j + length]:
        length += 1
    return length


def referred(text: str, pieces: Iterable[Piece]) -> str:
    """The text with every piece replaced by the words that refer to it."""
    for piece in pieces:
        text = text.replace(piece.text, piece.reference)
    return text


def used(text: str, pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces a text contains."""
    return [piece for piece in pieces if piece.text in text]
