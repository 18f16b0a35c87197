"""Decisions on messages, as values: each names a message by its index in the list of views it was made on.

Decisions are values without behaviour; ``apply`` carries them out on message dicts and every adapter on its
framework's own objects. A message that no decision names stays the very same object.
"""

from __future__ import annotations

from dataclasses import dataclass

from cacheprefix.prompt.views import Role


@dataclass(frozen=True, slots=True)
class ReplaceResult:
    """Put ``text`` in the place of a tool result's text; images stay when ``keep_media``."""

    index: int
    part: int
    text: str
    keep_media: bool = True


@dataclass(frozen=True, slots=True)
class DropThinking:
    """Take out a thinking block, or with part -1 the reasoning field beside the content."""

    index: int
    part: int


@dataclass(frozen=True, slots=True)
class DropCall:
    """Take a tool call out of an assistant message; always together with its result."""

    index: int
    call_id: str


@dataclass(frozen=True, slots=True)
class DropResult:
    """Take a tool result out; always together with its call."""

    index: int
    part: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Take a whole message out."""

    index: int


@dataclass(frozen=True, slots=True)
class Insert:
    """Put a new text message before the message at ``index`` (the list's length: at the end)."""

    index: int
    role: Role
    text: str
    summary: bool = True
    """Whether the text stands for messages that were removed."""
    key: str | None = None
    """The key of durable context that the text joins."""


Decision = ReplaceResult | DropThinking | DropCall | DropResult | Drop | Insert
