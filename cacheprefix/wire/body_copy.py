"""A copy of a request body that is copied only along the ways that change; for setting markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class BodyCopy:
    """Everything in ``body`` that was not asked for is the very same object as in the body given."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body = dict(body)
        self._mine: set[int] = set()

    def items(self, name: str, holder: dict[str, Any] | None = None) -> list[Any]:
        """A list of the body, or of ``holder``, that may be changed."""
        holder = self.body if holder is None else holder
        held: list[Any] = holder[name]
        if id(held) not in self._mine:
            held = holder[name] = list(held)
            self._mine.add(id(held))
        return held

    def item(self, items: list[Any], number: int) -> dict[str, Any]:
        """An object of such a list that may be changed."""
        item: dict[str, Any] = items[number]
        if id(item) not in self._mine:
            item = items[number] = dict(item)
            self._mine.add(id(item))
        return item

    def mark_block(self, blocks: list[Any], number: int, kind: str, marker: Mapping[str, Any]) -> None:
        """Set a marker on a block; a bare string becomes a text block of ``kind``."""
        block = blocks[number]
        plain = {"type": kind, "text": block} if isinstance(block, str) else block
        blocks[number] = {**plain, **marker}

    def mark_content(
        self,
        messages: list[Any],
        number: int,
        block: int,
        kind: str,
        marker: Mapping[str, Any],
        field: str = "content",
    ) -> None:
        """Set a marker on a block of a message's content; the one text of a message becomes its one block."""
        message = self.item(messages, number)
        content = message.get(field)
        if isinstance(content, str):
            message[field] = [{"type": kind, "text": content, **marker}]
        elif isinstance(content, Sequence) and content:
            self.mark_block(self.items(field, message), block, kind, marker)
