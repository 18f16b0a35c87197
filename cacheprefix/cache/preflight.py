"""What a session says before anything is lost: lint of tools and system texts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from dataclasses import replace

from cacheprefix.bounded import Bounded
from cacheprefix.cache.linting import lint
from cacheprefix.locks import Lock
from cacheprefix.prompt import Layout, Prompt

_LOOKS = 300
"""Different heads that are looked at: one that changes with every call has shown itself long before."""
_LINES = 1_000
_TWINS = 2
"""Heads of one agent, and of one conversation, that a new one is held against."""


class Preflight:
    """What was seen of tools and system texts. Thread-safe."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self._lines: Bounded[str, deque[Prompt]] = Bounded(_LINES)
        self._lock = Lock()

    def look(
        self,
        prompt: Prompt,
        *,
        agent: str,
        talk: str,
        note: Callable[[str], None],
        layout: Layout | None = None,
    ) -> None:
        """Note what will break the cache sooner or later: once for each head.

        Prompts of the same agent or conversation (``talk``) show what really changes. ``layout`` is what a session
        that forks gave it; None where nobody did.
        """
        earlier = self._new(prompt, [f"agent {agent}" if agent else "", f"conversation {talk}" if talk else ""])
        # In the application's own layout it was us who left the role where it is said; and a fork's system text is what
        # all share, whoever it speaks to, unless another one's is seen to differ.
        no_persona = layout == "own" or (layout == "fork" and not earlier)
        for found in () if earlier is None else lint(prompt, earlier):
            if not (no_persona and found.smell == "persona"):
                note(f"lint, {found.path}: {found.smell}. {found.fix}")

    def forget(self, texts: Container[bytes]) -> None:
        """Hold nothing against the heads any more in which one of these sections' data stands."""
        with self._lock:
            for name, heads in list(self._lines.items()):
                left = [head for head in heads if not any(one.data in texts for one in head.sections)]
                if len(left) < len(heads):
                    heads.clear()
                    heads.extend(left)
                if not left:
                    del self._lines[name]

    def _new(self, prompt: Prompt, names: list[str]) -> list[Prompt] | None:
        """Heads to hold this prompt's against; None where it was looked at before."""
        head = prompt.sections[: prompt.head]
        key = b"".join(section.digest for section in head)
        with self._lock:
            if key in self._seen or len(self._seen) >= _LOOKS:
                return None
            self._seen.add(key)
            earlier = [one for name in names if name for one in self._lines.get(name, ())]
            # Of the messages nothing is kept: they are long, and nothing there stands before something stable.
            kept = replace(prompt, sections=head)
            for name in filter(None, names):
                self._lines.of(name, lambda: deque(maxlen=_TWINS)).append(kept)
        return earlier
