"""What will break the cache sooner or later, found by looking at the stable part of the prompts."""

from __future__ import annotations

from typing import Any

from cacheprefix.prompt import Prompt

_KEPT = 200
_SEEN = 10_000


class Warnings:
    """Looks once at every different system and tool list; keeps the first place of each finding."""

    def __init__(self) -> None:
        self._seen: set[tuple[bytes, ...]] = set()
        self._found: dict[tuple[str, str], dict[str, Any]] = {}

    @property
    def found(self) -> tuple[dict[str, Any], ...]:
        """The findings, in the order they were found: path, message, place in the log, how many variants."""
        return tuple(self._found.values())

    def look(self, prompt: Prompt, place: str) -> None:
        """Look at a prompt unless its system and tools were seen before."""
