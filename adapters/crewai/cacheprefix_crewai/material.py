"""What a crew's tasks have in common: inputs, blocks of lines, a background of several agents; and who holds it."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from types import MappingProxyType

from cacheprefix.adapter import SearchedText, find_text, majority_text
from cacheprefix_crewai.framing import CONTEXT_LABEL, block_label, headed, input_label, reference

MIN_CHARS = 200
"""Shorter texts stay where they are: the reference to them would cost as much as they do."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A text that stands in the shared part, and the words that refer to it from a task."""

    label: str
    text: str
    for_all: bool = False
    """The user named it to be shared, so every agent's requests hold it; others only where the task holds it itself."""
    key: bytes = field(init=False, compare=False, repr=False)
    """A digest of what stands in the shared part."""

    def __post_init__(self) -> None:
        digest = blake2b(self.block.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        object.__setattr__(self, "key", digest)

    @property
    def reference(self) -> str:
        """What stands in a task in place of the text."""
        return reference(self.label)

    @property
    def block(self) -> str:
        """How the text stands in the shared part."""
        return headed(self.label, self.text)


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
        uses = sum(find_text(value, text) is not None for text in texts)
        if wanted is None:
            take = len(value) >= MIN_CHARS and uses >= (1 if name in constant else 2)
        else:
            take = name in wanted and uses > 0
        if take:
            found.append((name not in constant, name, Piece(input_label(name), value, wanted is not None)))
    return [piece for *_, piece in sorted(found, key=lambda item: item[:2])]


def common_blocks(texts: Sequence[str], first_label: int = 1) -> list[Piece]:
    """Runs of whole lines, together at least 200 characters long, that two texts have in common.

    In order of their first appearance; of two that overlap only the first is taken. Takes time in proportion to the
    texts: a block that was found is not looked for again in the texts that hold it.
    """
    lines = [text.split("\n") for text in texts]
    where: dict[str, list[tuple[int, int]]] = {}
    for number, own in enumerate(lines):
        for index, line in enumerate(own):
            if line.strip():
                where.setdefault(line, []).append((number, index))
    found: list[Piece] = []
    begins: dict[str, list[list[str]]] = {}
    for number, own in enumerate(lines):
        index = 0
        while index < len(own):
            done = next((one for one in begins.get(own[index], ()) if own[index : index + len(one)] == one), None)
            if done is not None:
                index += len(done)
                continue
            others = [(lines[other], start) for other, start in where.get(own[index], ()) if other > number]
            length = max((_equal_lines(own, index, other, start) for other, start in others), default=0)
            block = "\n".join(own[index : index + length]).strip()
            if len(block) >= MIN_CHARS and all(block not in piece.text for piece in found):
                found.append(Piece(block_label(first_label + len(found)), block))
                begins.setdefault(own[index], []).append(own[index : index + length])
            index += max(length, 1)
    return found


def _equal_lines(a: Sequence[str], i: int, b: Sequence[str], j: int) -> int:
    length = 0
    while i + length < len(a) and j + length < len(b) and a[i + length] == b[j + length]:
        length += 1
    return length


def referred(text: str, pieces: Iterable[Piece]) -> str:
    """The text with every piece replaced by the words that refer to it, whatever its white space.

    Takes time in proportion to the text and the pieces. Of two pieces that overlap there the first is taken.
    """
    found: list[tuple[int, int, str]] = []
    searched = SearchedText(text)
    # Two tasks may have found the same.
    for piece in _different(pieces):
        for start, end in searched.spans(piece.text):
            at = bisect(found, (start, end, ""))
            if (at == 0 or found[at - 1][1] <= start) and (at == len(found) or end <= found[at][0]):
                found.insert(at, (start, end, piece.reference))
    parts, done = [], 0
    for start, end, said in found:
        parts += [text[done:start], said]
        done = end
    return "".join([*parts, text[done:]])


def _different(pieces: Iterable[Piece]) -> Iterable[Piece]:
    first: dict[str, Piece] = {}
    for piece in pieces:
        first.setdefault(piece.text, piece)
    return first.values()


def used(text: str, pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces a text contains."""
    return [piece for piece in pieces if find_text(piece.text, text) is not None]


def without(text: str, part: str) -> str:
    """The text without a part of it, whatever the part's white space; the very same text where it is not there."""
    span = find_text(part, text) if part.strip() else None
    return text if span is None else (text[: span[0]] + text[span[1] :]).strip()


@dataclass(frozen=True, slots=True)
class Words:
    """What one task says without us."""

    task: str
    """Its description and what it expects."""
    background: str
    """Its agent's background."""
    agent: str
    """Its agent's role."""
    template: str = ""
    """Its description with the names of inputs in their places."""


@dataclass(frozen=True, slots=True)
class Material:
    """What tasks have in common, and which of them holds what. Pieces stand in the order in which requests have them.

    Those that all are to have come first, then those that stay the same from run to run, then by how many tasks hold
    them: so that requests begin alike for as long as they can.
    """

    pieces: tuple[Piece, ...] = ()
    held: tuple[frozenset[Piece], ...] = ()
    """Those in each task's own words."""
    backgrounds: frozenset[Piece] = frozenset()
    """Those from the agents' backgrounds."""
    begins: tuple[tuple[tuple[int, Piece], ...], ...] = ()
    """Those in the words of each task alone, in their order, each with where it ends."""

    def carried(self, at: int) -> list[Piece]:
        """Those that the requests of a task would carry in front."""
        return [piece for piece in self.pieces if piece.for_all or piece in self.held[at]]

    def in_words(self, text: str) -> list[Piece]:
        """Those that a request's own words let it have in front: what another task holds it must not be shown."""
        found = set(used(text, self.pieces))
        return [piece for piece in self.pieces if piece.for_all or piece in found]


def common_material(
    words: Sequence[Words],
    inputs: Mapping[str, object],
    *,
    context: str = "",
    names: Iterable[str] | None = None,
    constant: frozenset[str] = frozenset(),
    known: str = "",
    flow: Mapping[str, str] = MappingProxyType({}),
) -> Material:
    """What the tasks have in common: the user's shared ``context``, inputs, blocks of lines, and a background.

    ``names`` are the inputs that the user named; ``known`` is the session's system text, which is shared without us;
    ``flow`` are the texts of a flow's state with their names, which its other crews may hold too.
    """
    pieces = [Piece(CONTEXT_LABEL, context, for_all=True)] if context else []
    others = [Piece(input_label(name), text) for text, name in flow.items() if text != context]
    pieces += [piece for piece in others if any(find_text(piece.text, one.task) is not None for one in words)]
    places = {piece: at for at, piece in enumerate(others)}
    texts = [referred(one.task, pieces) for one in words]
    pieces += given_inputs(inputs, texts, names, constant)
    blocks = common_blocks([referred(one.task, pieces) for one in words])
    # One that words its own is an outlier: it is given nothing of the others'.
    agents = {one.agent: without(one.background, known) for one in words}
    text, holders = majority_text(list(agents.values()))
    shown = [*pieces, *blocks]
    if len(text) >= MIN_CHARS and len(holders) > 1 and not used(text, shown):
        background = [Piece(block_label(len(blocks) + 1), text)]
    else:
        background = []
    pieces += [*blocks, *background]
    held = tuple(frozenset(used(f"{one.background}\n{one.task}", pieces)) for one in words)
    counts = {piece: sum(piece in mine for mine in held) for piece in pieces}
    stays = {input_label(name) for name in constant}

    def order(piece: Piece) -> tuple[bool, int, bool, int]:
        # A flow's crews begin alike, whatever each of them has besides.
        return not piece.for_all, places.get(piece, len(places)), piece.label not in stays, -counts[piece]

    ordered = sorted(pieces, key=order)
    begins = tuple(_ends(one.task, mine) for one, mine in zip(words, held, strict=True))
    return Material(tuple(ordered), held, frozenset(background), begins)


def _ends(text: str, pieces: Iterable[Piece]) -> tuple[tuple[int, Piece], ...]:
    spans = ((find_text(piece.text, text), piece) for piece in pieces)
    found = [(span[1], piece) for span, piece in spans if span is not None]
    return tuple(sorted(found, key=lambda one: (one[0], one[1].label)))
