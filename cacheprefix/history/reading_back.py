"""Reading a cut or cleared result again: a tool that the user may give to the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from cacheprefix.errors import StoreError
from cacheprefix.history.budget import READ_TOOL

MAX_CHARS = 16_000
"""The most that one call returns, about 4,000 tokens, so that reading back does not undo the budget."""


class Piece(Protocol):
    """Part of a kept text; ``cacheprefix.stores.Slice`` is one."""

    @property
    def text(self) -> str:
        """The part."""
        ...

    @property
    def total(self) -> int:
        """Characters of the whole."""
        ...


class Kept(Protocol):
    """Where full texts are read from; ``cacheprefix.stores.ResultStore`` is one."""

    def get(self, ref: str, offset: int = 0, limit: int | None = None, *, scope: str = "") -> Piece | None:
        """A part of a text, None when it is gone."""
        ...


READ_TOOL_SCHEMA: dict[str, Any] = {
    "name": READ_TOOL,
    "description": (
        "Read the full text of an earlier tool result that was shortened or cleared. "
        "Its note names the ref, and the offset (in characters) from which on text was cut."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "ref": {"type": "string", "description": "The ref from the note"},
            "offset": {"type": "integer", "description": "First character to read", "default": 0},
            "limit": {"type": "integer", "description": "How many characters to read", "default": 8000},
        },
        "required": ["ref"],
    },
}
"""The tool's schema in the neutral form (``parameters`` is JSON Schema)."""


def full_result_reader(store: Kept, *, scope: str = "") -> Callable[..., str]:
    """The function behind the tool: ``read_full_result(ref, offset=0, limit=8000)``."""

    def read_full_result(ref: str, offset: int = 0, limit: int = 8_000) -> str:
        """Read part of an earlier tool result's full text.

        Args:
            ref: The ref from the note in the shortened result.
            offset: First character to read.
            limit: How many characters to read.
        """
        wanted = min(max(int(limit), 1), MAX_CHARS)
        start = max(int(offset), 0)
        try:
            piece = store.get(ref, start, wanted, scope=scope)
        except StoreError as error:
            return f"Error: the store cannot be read ({error})"
        if piece is None:
            return f"Error: no result is kept under {ref!r}; call the original tool again"
        end = start + len(piece.text)
        if end < piece.total:
            note = f"[characters {start} to {end} of {piece.total}; read on with offset={end}]"
            return f"{piece.text}\n{note}"
        return piece.text

    return read_full_result
