"""Durable keyed context of a framework's history: one block a key, right behind the static text.

The framework keeps its messages where they were appended. The ledger records which of them a block stands for, by their
addresses, and the block's text only where a hook wrote it. A block holds while all its sources stand in the history,
so that a rewound or trimmed history never shows what it does not hold; of two for one key the larger one holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from cacheprefix.context._decisions import Insert
from cacheprefix.context._views import MessageView
from cacheprefix.context._zones import concatenate

ZONES: Final = "~zones"
"""Behind the address of an inserted text that holds the application's zones; kept as durable context is."""


class Block(NamedTuple):
    """A key's durable context in one text."""

    key: str
    sources: tuple[int, ...]
    """Indexes of the messages that it stands for, in the order in which they were joined."""
    text: str
    """Empty where a hook left nothing of it."""
    written: bool
    """Whether a hook wrote the text; else it is the sources' own."""
    address: str


def blocks_of(views: Sequence[MessageView], recorded: Mapping[str, str], place: Mapping[str, int]) -> list[Block]:
    """The recorded blocks that hold for a history, in the order of their first sources; ``place`` by address."""
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
    """Whether a message is durable context of nothing but words; what is more stays where it is."""
    more = view.calls or view.results or view.thinking or view.media
    return view.key is not None and view.role == "user" and bool(view.texts) and not view.pinned and not more


def texts_of(blocks: Sequence[Block], views: Sequence[MessageView]) -> list[tuple[str, Insert]]:
    """The blocks as texts before the first message that is no system text."""
    front = next((index for index, view in enumerate(views) if view.role != "system"), len(views))
    return [
        (block.address, Insert(front, "user", block.text, summary=False, key=block.key))
        for block in blocks
        if block.text
    ]
