"""From a state to the messages of a request: zones in order, most stable first, volatile text last."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cacheprefix.context._apply import sendable, text_message
from cacheprefix.context._read import views_of
from cacheprefix.context._state import ContextState, check_system
from cacheprefix.context._views import MESSAGE_TOKENS, Count, Role
from cacheprefix.prompt import Prompt, estimate_tokens

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
    """Tokens that the next request will find again: all but the volatile text."""
    suffix_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens of the whole."""
        return self.prefix_tokens + self.suffix_tokens

    def boundary(self, prompt: Prompt) -> int:
        """How many leading sections of the decoded request the next one will find again.

        Everything before the first message behind ``prefix_messages``; for ``Session.begin(boundary=...)``.
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
    zone_role: Role = "user",
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
        if state.api == "openai-chat":
            out.append({"role": "system", "content": system})
            boundaries.append(0)
    for zone in state.zones:
        if zone.shown:
            out.append(text_message(zone_role, zone.text()))
            tokens += counter(zone.text()) + MESSAGE_TOKENS
    _mark(boundaries, out)
    state.committed.send_to(out)
    _mark(boundaries, out)
    state.turn.send_to(out)
    _mark(boundaries, out)
    tokens += state.committed.tokens + state.turn.tokens
    last = len(out)
    open_messages = [*state.pending, *state.waiting]
    suffix = sum(view.tokens for view in views_of(open_messages, state.api, counter)) if open_messages else 0
    if volatile:
        out.append(text_message(volatile_role, volatile))
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
    """The messages of ``build`` alone. But for the chat form, pass ``system`` to the API yourself."""
    return build(state, system, volatile, volatile_role=volatile_role, count=count).messages


def _mark(boundaries: list[int], out: Sequence[Any]) -> None:
    if out and (not boundaries or boundaries[-1] != len(out) - 1):
        boundaries.append(len(out) - 1)
