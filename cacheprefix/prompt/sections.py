"""The values every room works with: a prompt as a row of sections in the order the provider caches it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Literal, NamedTuple

Tier = Literal["tools", "system", "messages"]
"""The three parts of a prompt, in cache order; a change in one invalidates it and those after it."""

Api = Literal["openai-chat", "openai-responses", "anthropic", "gemini", "bedrock"]
"""The wire form of a request body."""

Kind = Literal["tool", "text", "thinking", "tool_use", "tool_result", "image", "block"]
"""What a section holds; ``block`` is anything this version does not know, kept byte for byte."""

CountTokens = Callable[[str, str], int]
"""``count(text, model)`` gives tokens."""

TIERS: tuple[Tier, ...] = ("tools", "system", "messages")
DIGEST_BYTES = 16
MESSAGE_TOKENS = 3
"""Tokens that a message's own envelope adds (role and delimiters), about what chat templates spend."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Tokens that a chat template spends around the text of a message, such as ``<|im_start|>user`` and ``<|im_end|>``.

    With an exact counter and its model's envelope, what is expected to be read is what the engine counts. Without, a
    message's envelope is taken for ``MESSAGE_TOKENS``, and none of it for read where two messages part.
    """

    tokens: int = MESSAGE_TOKENS
    """All of them."""
    opening: int = 0
    """Those in front of the text, the role's name included; 0 where that is not known."""
    before_role: int = 0
    """Of these, those in front of the role's name: an engine reads them from a message of another role too."""
    longer_answer: int = 0
    """How many more the name ``assistant`` has than the other roles' names."""
    begins_answer: bool = False
    """Whether the opening of an answer stands behind the last message."""

    def of(self, head: str) -> int:
        """Tokens around the text of a message."""
        return self.tokens + (self.longer_answer if head == ANSWER_HEAD else 0)

    @property
    def closing(self) -> int:
        """Those behind the text."""
        return self.tokens - self.opening

    @property
    def answer(self) -> int:
        """Those behind the last message."""
        return self.opening + self.longer_answer if self.begins_answer else 0

    def shared(self, a: str | None, b: str | None) -> int:
        """Tokens of markers that messages with these heads begin with; None is the answer behind the last message."""
        if (a is None or b is None) and not self.begins_answer:
            return 0
        heads = {ANSWER_HEAD if head is None else head for head in (a, b)}
        if len(heads) > 1:
            return self.before_role
        return self.opening + (self.longer_answer if ANSWER_HEAD in heads else 0)


ANSWER_HEAD = "assistant"
"""The head of what a model answers."""

ABOUT = Envelope()
"""What holds of no model in particular."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A cache breakpoint found on a section. Where it stands is not content (providers strip it).

    ``ttl`` is the lifetime asked for as the provider spells it (``"5m"``, ``"1h"``), None for its default.
    """

    ttl: str | None = None


IMAGE_TOKENS = 1_600
"""Flat estimate of an image, audio clip or file: about a 1.15 megapixel picture on Claude
(width x height / 750, platform.claude.com/docs vision, read 2026-11); never its base64 length."""


@dataclass(frozen=True, slots=True)
class Section:
    """One addressable part of a prompt.

    Equality is equality of content: place, token count and marker are left out.
    """

    tier: Tier
    path: str = field(compare=False)
    """``tools[2]``, ``system[0]``, ``messages[7].content[1]``; message indexes are those of the body's list."""
    kind: Kind
    head: str
    """The message envelope (``user``, or JSON with role, name, call id); ``+`` for further blocks of a message."""
    data: bytes
    """Canonical bytes without markers: text as UTF-8 (surrogates passed), everything else as JSON."""
    digest: bytes = field(compare=False)
    tokens: int = field(compare=False)
    marker: Marker | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """The data as text, lone surrogates included."""
        return self.data.decode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one model request asks, in cache order. Immutable."""

    api: Api
    model: str
    sections: tuple[Section, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    """All other body fields and cache-relevant headers (``header:name``), as canonical JSON."""
    top_marker: Marker | None = field(default=None, compare=False)
    """Anthropic's automatic breakpoint, asked for at the top level of the body."""
    _sums: Sums | None = field(init=False, default=None, repr=False, compare=False)

    @property
    def tokens(self) -> int:
        """Input tokens by the counter the prompt was decoded with."""
        totals = self.totals
        return totals[-1] if totals else 0

    @property
    def totals(self) -> list[int]:
        """Tokens up to and including each section. Not to be changed."""
        return (self._sums or self._summed()).totals

    @property
    def digests(self) -> list[bytes]:
        """The digest of each section. Not to be changed."""
        return (self._sums or self._summed()).digests

    @property
    def marked(self) -> list[int]:
        """Indexes of the sections with a marker. Not to be changed."""
        return self._summed().marked

    @property
    def head(self) -> int:
        """Sections before the first message: tools and system."""
        return (self._sums or self._summed()).head

    def with_settings(self, settings: Mapping[str, str]) -> Prompt:
        """The same prompt with other settings."""
        made = replace(self, settings=settings)
        learn(made, self, len(self.sections))
        return made

    def _summed(self) -> Sums:
        sums = self._sums
        if sums is None:
            learn(self, None, 0)
            sums = self._sums
            assert sums is not None
        return sums

    def tier(self, tier: Tier) -> tuple[Section, ...]:
        """The sections of one tier."""
        return tuple(section for section in self.sections if section.tier == tier)

    def last_of(self, text: str) -> int | None:
        """Index of the last section that holds this text and nothing else; None without one, and for an empty text."""
        data = text.encode("utf-8", "surrogatepass")
        found = (at for at in range(len(self.sections) - 1, -1, -1) if self.sections[at].data == data)
        return next(found, None) if data else None


class Sums(NamedTuple):
    """What is looked up of all sections of a prompt; that of a longer one goes on from it."""

    totals: list[int]
    digests: list[bytes]
    marked: list[int]
    head: int


_NO_SUMS = Sums([], [], [], 0)


def learn(prompt: Prompt, known: Prompt | None, shared: int) -> None:
    """Sum a prompt up, of which the first ``shared`` sections are the very same objects as those of ``known``."""
    sums = None if known is None else known._summed()  # noqa: SLF001 - a function of the class, in its own module
    if sums is None or known is None:
        sums, shared = _NO_SUMS, 0
    if shared == len(prompt.sections) == len(sums.totals):
        object.__setattr__(prompt, "_sums", sums)
        return
    added = prompt.sections[shared:]
    totals = sums.totals[:shared]
    tokens = totals[-1] if totals else 0
    for section in added:
        tokens += section.tokens
        totals.append(tokens)
    digests = sums.digests[:shared]
    digests += [section.digest for section in added]
    marked = sums.marked[: bisect_left(sums.marked, shared)]
    marked += [index for index, section in enumerate(added, shared) if section.marker is not None]
    head = sums.head
    if head >= shared:
        # No message is among those that are known: what stands before the first is to be found.
        behind = (index for index, section in enumerate(added, shared) if section.tier == "messages")
        head = next(behind, len(prompt.sections))
    object.__setattr__(prompt, "_sums", Sums(totals, digests, marked, head))


def with_sections(prompt: Prompt, sections: tuple[Section, ...]) -> Prompt:
    """The same prompt of other sections. ``dataclasses.replace`` takes ten times as long."""
    return Prompt(prompt.api, prompt.model, sections, prompt.settings, prompt.top_marker)


def with_front(prompt: Prompt, front: Prompt, cut: int) -> Prompt:
    """The same prompt with another's sections in place of its first ``cut``, none of which is a message.

    The sums of the sections behind are not reckoned again, but moved by what the front has more or less than before.
    """
    made = with_sections(prompt, (*front.sections, *prompt.sections[cut:]))
    sums = prompt._summed()  # noqa: SLF001 - as above
    before = front._summed()  # noqa: SLF001 - as above
    more_tokens = front.tokens - (sums.totals[cut - 1] if cut else 0)
    more = len(front.sections) - cut
    known = Sums(
        before.totals + [total + more_tokens for total in sums.totals[cut:]],
        before.digests + sums.digests[cut:],
        before.marked + [at + more for at in sums.marked if at >= cut],
        sums.head + more,
    )
    object.__setattr__(made, "_sums", known)
    return made


def with_markers(prompt: Prompt, markers: Mapping[int, Marker | None]) -> Prompt:
    """The same prompt with these markers on its sections, by their index; None takes one away."""
    if not markers:
        return prompt
    sections = list(prompt.sections)
    for at, marker in markers.items():
        one = sections[at]
        sections[at] = Section(one.tier, one.path, one.kind, one.head, one.data, one.digest, one.tokens, marker)
    made = with_sections(prompt, tuple(sections))
    relearn(made, prompt, set(markers))
    return made


def relearn(prompt: Prompt, known: Prompt, changed: set[int]) -> None:
    """Sum a prompt up whose sections are those of ``known`` in content; at ``changed`` they may be marked otherwise."""
    sums = known._summed()  # noqa: SLF001 - as above
    marked = [index for index in sums.marked if index not in changed]
    marked += [index for index in changed if prompt.sections[index].marker is not None]
    object.__setattr__(prompt, "_sums", Sums(sums.totals, sums.digests, sorted(marked), sums.head))


def digest(tier: Tier, kind: str, head: str, data: bytes) -> bytes:
    """16 bytes over a section's content; lengths are mixed in so that no two contents run together."""
    state = blake2b(_before_data(tier, kind, head), digest_size=DIGEST_BYTES)
    state.update(data)
    return state.digest()


@lru_cache(maxsize=256)
def _before_data(tier: Tier, kind: str, head: str) -> bytes:
    return f"{tier}\0{kind}\0{head}\0".encode("utf-8", "surrogatepass")


def section(
    tier: Tier,
    path: str,
    kind: Kind,
    head: str,
    data: bytes,
    count: Callable[[str], int],
    marker: Marker | None = None,
    envelope: Envelope = ABOUT,
    text: str | None = None,
) -> Section:
    """Make a section: digest and tokens follow from the content. ``text`` is ``data`` where that is at hand as text."""
    tokens = count(data.decode("utf-8", "surrogatepass") if text is None else text)
    tokens += 0 if head == "+" else envelope.of(head)
    return Section(tier, path, kind, head, data, digest(tier, kind, head, data), tokens, marker)
