"""Texts before the history: zones (project text, memories), and blocks that join durable context of one key.

They change only when the prefix changes anyway, so that they cost no cache. A framework's history keeps the context
where it was appended: the ledger records which messages a block replaces, by their addresses, and the block's text only
where a hook wrote it. A block applies while all its sources are in the history, so that a rewound or trimmed history
never shows what is no longer in it; of two blocks for one key the one with more sources applies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from cacheprefix.errors import SetupError
from cacheprefix.prompt.decisions import Insert
from cacheprefix.prompt.views import MessageView

Consolidate = Callable[[str, Sequence[str]], str]
"""``consolidate(key, texts)`` gets the text so far and then what was appended, in order; returns one text."""
_LAST_SHOWN = 2_000


@dataclass(frozen=True, slots=True)
class Zone:
    """A named text before the history. ``staged`` replaces ``shown`` when the prefix next changes; None for nothing."""

    name: str
    shown: str = ""
    staged: str | None = None

    def refreshed(self) -> Zone:
        """The zone with its staged text shown; one that became empty tells the model so, with its last text."""
        if self.staged is None:
            return self
        if self.staged or not self.shown:
            return Zone(self.name, self.staged)
        half = _LAST_SHOWN // 2
        was = self.shown if len(self.shown) <= _LAST_SHOWN else f"{self.shown[:half]} ... {self.shown[-half:]}"
        return Zone(self.name, f"(This text is empty now. Before, it said:)\n{was}")

    def text(self) -> str:
        """The zone as it is sent."""
        return f"<{self.name}>\n{self.shown}\n</{self.name}>"


def concatenate(key: str, texts: Sequence[str]) -> str:  # noqa: ARG001 - one signature for all hooks
    """The default consolidation: all texts in order."""
    return "\n\n".join(texts)


def joined_text(key: str, texts: Sequence[str], hook: Consolidate) -> str:
    """The texts of a key joined by ``hook``; a single one is kept. Raises ``SetupError`` when it gives no text."""
    if len(texts) == 1:
        return texts[0]
    text = hook(key, tuple(texts))
    if not isinstance(text, str):
        raise SetupError(f"the consolidation hook must return text for {key!r}, found {type(text).__name__}")
    return text


ZONES: Final = "~zones"
"""Suffix of the address of an inserted text with the application's zones; never compacted."""


class Block(NamedTuple):
    """The durable context of one key, joined into one text."""

    key: str
    sources: tuple[int, ...]
    """Indexes of the messages that it replaces, in the order in which they were joined."""
    text: str
    """Empty where a hook returned nothing."""
    written: bool
    """Whether a hook wrote the text; else it is the sources' texts joined."""
    address: str


def blocks_of(views: Sequence[MessageView], recorded: Mapping[str, str], place: Mapping[str, int]) -> list[Block]:
    """The recorded blocks that apply to a history, in its order; ``place`` gives each address's index."""
    best: dict[str, Block] = {}
    for address, value in sorted(recorded.items()):
        key, names, text = json.loads(value)
        sources = tuple(place.get(name, -1) for name in names)
        known = best.get(key)
        if known is not None and len(known.sources) >= len(sources):
            continue
        if all(index >= 0 and views[index].key == key and may_join(views[index]) for index in sources):
            whole = concatenate(key, [views[index].text for index in sources]) if text is None else text
            best[key] = Block(key, sources, whole, text is not None, address)
    return sorted(best.values(), key=lambda block: min(block.sources))


def may_join(view: MessageView) -> bool:
    """Whether a message is durable context of text alone, so that it may be moved into a block."""
    more = view.calls or view.results or view.thinking or view.media
    return view.key is not None and view.role == "user" and bool(view.texts) and not view.pinned and not more


def texts_of(blocks: Sequence[Block], views: Sequence[MessageView]) -> list[tuple[str, Insert]]:
    """The blocks as texts to insert before the first message that is no system text."""
    front = next((index for index, view in enumerate(views) if view.role != "system"), len(views))
    return [
        (block.address, Insert(front, "user", block.text, summary=False, key=block.key))
        for block in blocks
        if block.text
    ]
