"""What a crew's tasks have in common: inputs, blocks of lines, a background of several agents; and who holds it."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from types import MappingProxyType

from cacheprefix.adapter import SearchedText, digest_of, find_text, majority_text
from cacheprefix_crewai.framing import CONTEXT_LABEL, block_label, headed, input_label, reference

MIN_CHARS = 200
"""Shorter texts stay where they are: the reference to them would cost as much as they do."""


@dataclass(frozen=True, slots=True)
class SharedText:
    """A text that stands in the shared part, and the words that refer to it from a task."""

    label: str
    text: str
    named: bool = False
    """The user named it to be shared, so that it is in front of what was found."""
    on_lines: bool = False
    """It is found only where it stands on lines of its own, as CrewAI puts the results of tasks."""
    any_space: bool = False
    """It is found in other white space too, as the words of instructions are. What tasks work on may be code or a
    table, in which white space says something: that is found with its very characters alone."""
    key: str = field(init=False, compare=False, repr=False)
    """A digest of what stands in the shared part."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", digest_of(self.block))

    @property
    def reference(self) -> str:
        """What stands in a task in place of the text."""
        return reference(self.label)

    @property
    def block(self) -> str:
        """How the text stands in the shared part."""
        return headed(self.label, self.text)


def inputs_to_share(
    inputs: Mapping[str, object], texts: Sequence[str], names: Iterable[str] | None, constant: frozenset[str]
) -> list[SharedText]:
    """The inputs of a run to put into the shared part: those of the ``names``, else long ones that two texts contain.

    What is the same in all runs of a ``kickoff_for_each`` (``constant``) comes first, and is shared for one text too.
    An input that is no string, or that no text contains, stays where it is.
    """
    wanted = None if names is None else set(names)
    found = []
    for name, value in inputs.items():
        if not isinstance(value, str) or not value.strip():
            continue
        uses = sum(stands_in(value, text) for text in texts)
        if wanted is None:
            take = len(value) >= MIN_CHARS and uses >= (1 if name in constant else 2)
        else:
            take = name in wanted and uses > 0
        if take:
            found.append((name not in constant, name, SharedText(input_label(name), value, wanted is not None)))
    return [shared for *_, shared in sorted(found, key=lambda item: item[:2])]


def common_blocks(texts: Sequence[str]) -> list[SharedText]:
    """Runs of whole lines, together at least 200 characters long, that two texts have in common.

    In order of their first appearance; of two that overlap only the first is taken. Takes time in proportion to the
    texts: a block that was found is not looked for again in the texts that hold it.
    """
    lines = [text.split("\n") for text in texts]
    places: dict[str, list[tuple[int, int]]] = {}
    """Where each line stands: the number of the text, and of the line in it."""
    for number, own in enumerate(lines):
        for index, line in enumerate(own):
            if line.strip():
                places.setdefault(line, []).append((number, index))
    found: list[SharedText] = []
    known: dict[str, list[list[str]]] = {}
    """The lines of the blocks found so far, by their first one."""
    for number, own in enumerate(lines):
        index = 0
        while index < len(own):
            again = next((one for one in known.get(own[index], ()) if own[index : index + len(one)] == one), None)
            if again is not None:
                index += len(again)
                continue
            others = [(lines[other], start) for other, start in places.get(own[index], ()) if other > number]
            length = max((_equal_lines(own, index, other, start) for other, start in others), default=0)
            block = "\n".join(own[index : index + length]).strip()
            if len(block) >= MIN_CHARS and all(block not in shared.text for shared in found):
                found.append(SharedText(block_label(1 + len(found)), block))
                known.setdefault(own[index], []).append(own[index : index + length])
            index += max(length, 1)
    return found


def _equal_lines(a: Sequence[str], i: int, b: Sequence[str], j: int) -> int:
    """How many lines are the same from two places on."""
    length = 0
    while i + length < len(a) and j + length < len(b) and a[i + length] == b[j + length]:
        length += 1
    return length


def with_references(text: str, shared: Iterable[SharedText]) -> str:
    """The text with each shared text in it replaced by the words that refer to it.

    Takes time in proportion to all of them.
    """
    parts, done = [], 0
    for start, end, one in _places(text, shared):
        parts += [text[done:start], one.reference]
        done = end
    return "".join([*parts, text[done:]])


def _places(text: str, shared: Iterable[SharedText]) -> list[tuple[int, int, SharedText]]:
    """Where shared texts stand in a text: start, end, and which one, in their order.

    One that stands there within a longer one, or is equal to an earlier one, is not there: it would be said twice.
    """
    found: list[tuple[int, int, SharedText]] = []
    searched = SearchedText(text)
    first: dict[str, SharedText] = {}
    for one in shared:
        first.setdefault(one.text, one)  # two tasks may have found the same, and two inputs may say it
    for one in sorted(first.values(), key=lambda one: -len(one.text)):
        for start, end in searched.spans(one.text):
            if one.on_lines and not on_lines(text, start, end):
                continue
            if not one.any_space and text[start:end] != one.text.strip():
                continue
            at = bisect(found, start, key=itemgetter(0))
            if (at == 0 or found[at - 1][1] <= start) and (at == len(found) or end <= found[at][0]):
                found.insert(at, (start, end, one))
    return found


def on_lines(text: str, start: int, end: int) -> bool:
    """Whether nothing else stands on the lines of a part of a text."""
    before, after = text[:start].rpartition("\n")[2], text[end:].partition("\n")[0]
    return not (before.strip() or after.strip())


def texts_in(text: str, shared: Iterable[SharedText]) -> list[SharedText]:
    """Those of the shared texts that a text contains, but for those that stand within longer ones there."""
    wanted = list(shared)
    there = {one for *_, one in _places(text, wanted)}
    return [one for one in wanted if one in there]


def stands_in(wanted: str, text: str) -> bool:
    """Whether a text stands in another one, with its very characters."""
    span = find_text(wanted, text)
    return span is not None and text[span[0] : span[1]] == wanted.strip()


def without(text: str, part: str) -> str:
    """The text without a part of it, whatever the part's white space; the very same text where it is not there."""
    span = find_text(part, text) if part.strip() else None
    return text if span is None else (text[: span[0]] + text[span[1] :]).strip()


@dataclass(frozen=True, slots=True)
class TaskWords:
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
class CommonTexts:
    """What tasks have in common, and which of them holds what."""

    texts: tuple[SharedText, ...] = ()
    """In the order in which requests carry them, in which requests begin alike for as long as they can.

    Those that the user named come first, then a flow's, then those that stay the same from run to run, then by how many
    tasks hold them.
    """
    held: tuple[frozenset[SharedText], ...] = ()
    """Those in each task's own words, its agent's background among them."""
    backgrounds: frozenset[SharedText] = frozenset()
    """Those from the agents' backgrounds."""
    ends: tuple[tuple[tuple[int, SharedText], ...], ...] = ()
    """Those in the words of each task without its agent's, in their order, each with the index at which it ends."""

    def carried(self, at: int) -> list[SharedText]:
        """Those that the requests of a task, by its place, would carry in front."""
        return [text for text in self.texts if text in self.held[at]]

    def allowed_with(self, words: str) -> list[SharedText]:
        """Those that a request may carry in front, by its own ``words``."""
        # Privacy: what only another task holds this one must not be shown, nor what the application's hooks took out.
        return texts_in(words, self.texts)


def common_texts(
    words: Sequence[TaskWords],
    inputs: Mapping[str, object],
    *,
    context: str = "",
    names: Iterable[str] | None = None,
    constant: frozenset[str] = frozenset(),
    known: str = "",
    flow: Mapping[str, str] = MappingProxyType({}),
) -> CommonTexts:
    """What the tasks have in common: the user's shared ``context``, inputs, blocks of lines, and a background.

    Args:
        words: What each task says.
        inputs: What the crew was kicked off with.
        context: A text that the user named, which is no input.
        names: The inputs that the user named; None to look for long ones.
        constant: The names of inputs that stay the same from run to run.
        known: The session's system text, which is shared without us.
        flow: The texts of a flow's state with their names, which its other crews may hold too.
    """
    found = [SharedText(CONTEXT_LABEL, context, named=True, any_space=True)] if context else []
    of_flow = [SharedText(input_label(name), text) for text, name in flow.items() if text != context]
    found += [text for text in of_flow if any(stands_in(text.text, one.task) for one in words)]
    # Inputs and blocks are looked for in what the texts found so far leave of the tasks' words.
    found += inputs_to_share(inputs, [with_references(one.task, found) for one in words], names, constant)
    blocks = common_blocks([with_references(one.task, found) for one in words])
    found += blocks
    background = _common_background(words, known, found, block_label(len(blocks) + 1))
    found += background
    held = tuple(frozenset(texts_in(f"{one.background}\n{one.task}", found)) for one in words)
    counts = {text: sum(text in mine for mine in held) for text in found}
    places = {text: at for at, text in enumerate(of_flow)}
    stays = {input_label(name) for name in constant}

    def order(text: SharedText) -> tuple[bool, int, bool, int]:
        # Money: what more requests have stands further in front, so that they are read from the cache for longer.
        return not text.named, places.get(text, len(places)), text.label not in stays, -counts[text]

    ends = tuple(_ends(one.task, mine) for one, mine in zip(words, held, strict=True))
    return CommonTexts(tuple(sorted(found, key=order)), held, frozenset(background), ends)


def _common_background(
    words: Sequence[TaskWords], known: str, found: Sequence[SharedText], label: str
) -> list[SharedText]:
    """The background that several agents have in common, under a label, but for what is ``known`` to all already.

    Empty where there is none, or where it holds one of the texts that were ``found``.
    """
    backgrounds = {one.agent: without(one.background, known) for one in words}
    # Privacy: an agent that words its own is an outlier, which is given nothing of the others'.
    text, holders = majority_text(list(backgrounds.values()))
    shared = len(text) >= MIN_CHARS and len(holders) > 1 and not texts_in(text, found)
    return [SharedText(label, text, any_space=True)] if shared else []


def _ends(text: str, shared: Iterable[SharedText]) -> tuple[tuple[int, SharedText], ...]:
    """The shared texts that a text contains, in their order, each with the index at which it ends."""
    first: dict[SharedText, int] = {}
    for _, end, one in _places(text, shared):
        first.setdefault(one, end)
    return tuple((end, one) for one, end in first.items())
