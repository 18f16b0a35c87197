"""Builds a request's messages from a state, most stable first, and predicts what the next request reads from cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cacheprefix.history.state import ContextState, check_system
from cacheprefix.prompt import Prompt, estimate_tokens
from cacheprefix.prompt.views import MESSAGE_TOKENS, Count, Role
from cacheprefix.wire.apis import CHATS
from cacheprefix.wire.apply_decisions import sendable, text_message
from cacheprefix.wire.message_views import views_of


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place at which a stable part of a prompt ends."""

    index: int
    """Index of the last section of the part."""
    path: str
    kind: str
    """``tools``, ``system``, ``marker`` (a breakpoint in the body) or ``stable`` (the last stable section)."""
    tokens: int
    """Tokens of the prompt up to and including the section."""


@dataclass(frozen=True, slots=True)
class Boundaries:
    """The predicted cacheable prefix of a prompt. ``prefix_tokens`` and ``suffix_tokens`` add up to its tokens."""

    boundaries: tuple[Boundary, ...]
    sections: int
    """Sections of the cacheable prefix; 0 when it is below the provider's minimum."""
    prefix_tokens: int
    suffix_tokens: int


def boundaries_of(prompt: Prompt, *, volatile: int = 0, minimum: int = 0) -> Boundaries:
    """Boundaries of any prompt, counted before breakpoints are set.

    The last ``volatile`` sections change with every call and are no part of the prefix. ``minimum``
    is the provider's smallest cacheable prefix in tokens.
    """
    stable = max(0, len(prompt.sections) - volatile)
    found: list[Boundary] = []
    tokens = 0
    for index, section in enumerate(prompt.sections[:stable]):
        tokens += section.tokens
        last = index + 1 == stable
        ends_tier = last or prompt.sections[index + 1].tier != section.tier
        if section.marker is not None:
            kind = "marker"
        elif ends_tier and section.tier != "messages":
            kind = section.tier
        elif last:
            kind = "stable"
        else:
            continue
        found.append(Boundary(index, section.path, kind, tokens))
    cacheable = bool(found) and tokens >= minimum
    return Boundaries(
        tuple(found),
        stable if cacheable else 0,
        tokens if cacheable else 0,
        prompt.tokens - (tokens if cacheable else 0),
    )


_MESSAGE = re.compile(r"(?:messages|input)\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Built:
    """A request's messages and what can be said about them before they are sent."""

    messages: list[Any]
    """In the chat form the system message comes first; in the others the system text stands beside them.

    In the responses form they are the items of ``input``.
    """
    system: str
    boundaries: tuple[int, ...]
    """Indexes of the messages that end a stable zone: system text, zones, committed history, the turn."""
    prefix_messages: int
    prefix_tokens: int
    """Tokens that the next request repeats: all but the volatile text."""
    suffix_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens of the whole."""
        return self.prefix_tokens + self.suffix_tokens

    def boundary(self, prompt: Prompt) -> int:
        """How many leading sections of the decoded request the next request repeats.

        Everything before the first message behind ``prefix_messages``; for ``Request(boundary=...)``.
        """
        for index, section in enumerate(prompt.sections):
            number = _MESSAGE.match(section.path)
            if number is not None and int(number[1]) >= self.prefix_messages:
                return index
        return len(prompt.sections)


def build(
    state: ContextState,
    system: str = "",
    volatile: str | None = None,
    *,
    volatile_role: Role = "user",
    count: Count | None = None,
) -> Built:
    """The messages to send, in the state's form.

    ``volatile`` (time, retrieval, UI state) is for this call alone: it is never stored and stands
    after everything that is cached, also inside a tool loop. While a tool call lacks results it
    stands before that call. Raises ``StateError`` when ``system`` is not the state's.
    """
    check_system(state, system)
    counter = count or estimate_tokens
    out: list[Any] = []
    boundaries: list[int] = []
    tokens = 0
    if system:
        tokens += counter(system) + MESSAGE_TOKENS
        if CHATS[state.api].FIELDS.system is None:
            out.append({"role": "system", "content": system})
            boundaries.append(0)
    for zone in state.zones:
        if zone.shown:
            out.append(text_message("user", zone.text()))
            tokens += counter(zone.text()) + MESSAGE_TOKENS
    _mark(boundaries, out)
    out += state.committed.wire
    _mark(boundaries, out)
    out += state.turn.wire
    _mark(boundaries, out)
    tokens += state.tokens
    last = len(out)
    open_messages = [*state.pending, *state.waiting]
    suffix = sum(view.tokens for view in views_of(open_messages, state.api, counter)) if open_messages else 0
    if volatile:
        # Provider's rule: of these roles Anthropic's API accepts only the user.
        role = CHATS[state.api].with_last((), volatile, volatile_role)[0]["role"]
        out.append(text_message(role, volatile))
        suffix += counter(volatile) + MESSAGE_TOKENS
    out += sendable(open_messages)
    return Built(out, system, tuple(boundaries), last, tokens, suffix)


def build_messages(
    state: ContextState,
    system: str = "",
    volatile: str | None = None,
    *,
    volatile_role: Role = "user",
    count: Count | None = None,
) -> list[Any]:
    """Only the messages of ``build``. In all forms but chat, pass ``system`` to the API yourself."""
    return build(state, system, volatile, volatile_role=volatile_role, count=count).messages


def _mark(boundaries: list[int], out: Sequence[Any]) -> None:
    if out and (not boundaries or boundaries[-1] != len(out) - 1):
        boundaries.append(len(out) - 1)
