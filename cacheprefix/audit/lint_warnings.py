"""What will break the cache sooner or later: lint, over every different system and tool list of a log."""

from __future__ import annotations

from typing import Any

from cacheprefix.bounded import Bounded
from cacheprefix.cache import LintWarning, lint
from cacheprefix.prompt import Prompt

LOOKS = 80
"""Stable parts that are looked at: a system prompt that changes on every call has shown itself long before."""

_TWINS = 4
_LINES = 1_000
_SEEN = 20_000
"""Systems and tool lists that are known to have been looked at."""


class Warnings:
    """Looks once at every different system and tool list, against others of the same agent and session."""

    def __init__(self, *, text: bool = False) -> None:
        self._text = text
        self._looks = 0
        self._seen: Bounded[tuple[bytes, ...], None] = Bounded(_SEEN)
        self._lines: Bounded[str, list[Prompt]] = Bounded(_LINES)
        self._single: Bounded[str, tuple[Prompt, str]] = Bounded(LOOKS)
        """The only prompts of agents that spoke once, the latest: some loggers give every call a name of its own."""
        self._found: dict[tuple[str, str], dict[str, Any]] = {}

    @property
    def found(self) -> tuple[dict[str, Any], ...]:
        """The findings: smell, path, offset, message, place in the log, and how many variants have it."""
        for prompt, place in self._single.values():
            self._note(lint(prompt), place)
        self._single.clear()
        return tuple(self._found.values())

    def look(self, prompt: Prompt, place: str, agent: str, session: str) -> None:
        """Look at a prompt unless its system and tools were seen before."""
        if self._looks >= LOOKS:
            return
        names = [f"agent {agent}", *([f"session {session}"] if session else [])]
        for name in names:
            # Seen twice: what it says of itself is told by what changes.
            self._single.pop(name, None)
        key = tuple(prompt.digests[: prompt.head])
        if key in self._seen:
            return
        self._seen[key] = None
        earlier = [one for name in names for one in self._lines.get(name, ())]
        if earlier:
            self._looks += 1
            self._note(lint(prompt, earlier), place)
        else:
            self._single[names[0]] = (prompt, place)
        for name in names:
            self._remember(name, prompt)

    def _remember(self, name: str, prompt: Prompt) -> None:
        line = self._lines.of(name, list)
        line.append(prompt)
        del line[:-_TWINS]

    def _note(self, warnings: tuple[LintWarning, ...], place: str) -> None:
        """Add warnings seen at a place of a log; of one smell and path the first stays, and the others are counted."""
        for one in warnings:
            known = self._found.get((one.smell, one.path))
            if known is not None:
                known["count"] += 1
                continue
            told = {
                "smell": one.smell,
                "path": one.path,
                "offset": one.offset,
                "message": f"{one.smell.replace('_', ' ')}: {one.fix}",
                "place": place,
                "count": 1,
            }
            self._found[one.smell, one.path] = {**told, "excerpt": one.excerpt} if self._text else told
