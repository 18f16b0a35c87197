"""Reading a cut or cleared result again: a tool that the user may give to the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from cacheprefix.errors import SetupError, StoreError
from cacheprefix.history.budget import READ_TOOL
from cacheprefix.prompt.views import Count

MAX_CHARS = 16_000
"""The most that one call returns, about 4,000 tokens, so that reading back does not undo the budget."""


@dataclass(frozen=True, slots=True)
class ReadBudget:
    """How much of a kept result one call of the read tool returns at most."""

    chars: int = MAX_CHARS
    tokens: int | None = None
    """Limit in tokens by the session's counter; None for the limit in characters alone."""

    def __post_init__(self) -> None:
        for name, most in (("chars", self.chars), ("tokens", self.tokens)):
            if most is not None and most < 1:
                raise SetupError(f"ReadBudget({name}={most!r}): use a positive number")


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


_ALL = ReadBudget()


def full_result_reader(
    store: Kept,
    *,
    scope: str | Callable[[], str] = "",
    allowed: Callable[[str], bool] | None = None,
    budget: ReadBudget = _ALL,
    count: Count | None = None,
) -> Callable[..., str]:
    """The function behind the tool: ``read_full_result(ref, offset=0, limit=8000)``.

    ``allowed`` says whether a ref is one of the conversation's that calls; None allows all of the scope.
    """

    def read_full_result(ref: str, offset: int = 0, limit: int = 8_000) -> str:
        """Read part of an earlier tool result's full text.

        Args:
            ref: The ref from the note in the shortened result.
            offset: First character to read.
            limit: How many characters to read.
        """
        wanted = min(max(int(limit), 1), budget.chars)
        start = max(int(offset), 0)
        # Privacy: a ref of another conversation is as unknown as one that never was.
        known = allowed is None or allowed(ref)
        try:
            piece = store.get(ref, start, wanted, scope=scope() if callable(scope) else scope) if known else None
        except StoreError as error:
            return f"Error: the store cannot be read ({error})"
        if piece is None:
            return f"Error: no result is kept under {ref!r}; call the original tool again"
        text = piece.text
        if budget.tokens is not None and count is not None:
            while len(text) > 1 and (size := count(text)) > budget.tokens:
                text = text[: max(1, min(len(text) - 1, len(text) * budget.tokens // size))]
        end = start + len(text)
        if end < piece.total:
            note = f"[characters {start} to {end} of {piece.total}; read on with offset={end}]"
            return f"{text}\n{note}"
        return text

    return read_full_result
