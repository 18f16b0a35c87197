"""Zones of the prompt beside the history: durable keyed context, project text, memories.

They change only together with a break of the prefix that happens anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from cacheprefix.context._views import MessageView
from cacheprefix.errors import SetupError

Consolidate = Callable[[str, Sequence[str]], str]
"""``consolidate(key, texts)`` gets the base first and then the deltas in order; gives one text."""
_LAST_SHOWN = 2_000


@dataclass(frozen=True, slots=True)
class Zone:
    """A named text before the history. ``staged`` waits for the next break of the prefix."""

    name: str
    shown: str = ""
    staged: str | None = None

    def refreshed(self) -> Zone:
        """The zone with its staged text shown. One that became empty says so and shows what it was."""
        if self.staged is None or self.staged == self.shown:
            return replace(self, staged=None)
        if self.staged or not self.shown:
            return Zone(self.name, self.staged)
        half = _LAST_SHOWN // 2
        was = self.shown if len(self.shown) <= _LAST_SHOWN else f"{self.shown[:half]} ... {self.shown[-half:]}"
        return Zone(self.name, f"(This text is empty now. Before, it said:)\n{was}")

    def text(self) -> str:
        """The zone as it stands in the prompt."""
        return f"<{self.name}>\n{self.shown}\n</{self.name}>"


def concatenate(key: str, texts: Sequence[str]) -> str:  # noqa: ARG001 - one signature for all hooks
    """The default consolidation: everything, in order, nothing lost."""
    return "\n\n".join(texts)


def consolidated(views: Iterable[MessageView], hook: Consolidate) -> list[tuple[str, str]]:
    """One (key, text) for each key, in order of first appearance."""
    texts: dict[str, list[str]] = {}
    for view in views:
        if view.key is not None:
            texts.setdefault(view.key, []).append(view.text)
    out: list[tuple[str, str]] = []
    for key, parts in texts.items():
        text = joined_text(key, parts, hook)
        if text:
            out.append((key, text))
    return out


def joined_text(key: str, texts: Sequence[str], hook: Consolidate) -> str:
    """One text for a key; a text alone stays as it is. Raises ``SetupError`` when the hook returns no text."""
    if len(texts) == 1:
        return texts[0]
    text = hook(key, tuple(texts))
    if not isinstance(text, str):
        raise SetupError(f"the consolidation hook must return text for {key!r}, found {type(text).__name__}")
    return text
