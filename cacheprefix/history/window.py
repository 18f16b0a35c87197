"""Limits a request to the model's window, and writes recent messages as plain text for a hand-over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cacheprefix.errors import BudgetError, SetupError
from cacheprefix.history.groups import groups_of
from cacheprefix.profiles import window_of
from cacheprefix.prompt.views import MessageView


@dataclass(frozen=True, slots=True)
class RequestBudget:
    """The model's window and the part of it that is kept free for the answer.

    The ``reserve`` is declared and not measured, so that the same history is always cut at the same
    message. ``spent`` may hold tokens of a task-wide allowance that are used up: the window shrinks
    to what remains of ``allowance``.
    """

    window: int
    reserve: int = 0
    allowance: int | None = None
    spent: int = 0

    def __post_init__(self) -> None:
        if self.window < 1 or self.reserve < 0 or self.spent < 0:
            raise SetupError(
                f"RequestBudget: window {self.window} must be positive, reserve {self.reserve} not negative"
            )
        if self.reserve >= self.window:
            raise SetupError(f"RequestBudget: the reserve {self.reserve} leaves nothing of the window {self.window}")

    @classmethod
    def for_model(
        cls, model: str, *, reserve: int = 0, provider: str | None = None, allowance: int | None = None, spent: int = 0
    ) -> RequestBudget:
        """The budget of a model's own window, looked up once (extra ``prices``), so that it stays what it is.

        Raises ``SetupError`` for a model whose window is not known, ``MissingExtraError`` without the extra.
        """
        window = window_of(model, provider)
        if window is None:
            raise SetupError(f"the window of {model!r} is not known; say it: RequestBudget(window=..., reserve=...)")
        return cls(window, reserve, allowance, spent)

    @property
    def room(self) -> int:
        """Tokens that a whole request may have."""
        left = self.window if self.allowance is None else min(self.window, self.allowance - self.spent)
        return max(0, left - self.reserve)

    def check(self, tokens: int, what: str = "the request") -> None:
        """Raise ``BudgetError`` with ``over_by`` when ``tokens`` do not fit."""
        if tokens > self.room:
            over = tokens - self.room
            raise BudgetError(
                f"{what} has {tokens} tokens, {over} more than the {self.room} that the window of {self.window} "
                f"less its reserve of {self.reserve} leaves",
                over,
            )


@dataclass(frozen=True, slots=True)
class ContextStats:
    """A conversation's size against its limit, in tokens and messages."""

    messages: int
    tokens: int
    limit: int
    remaining: int
    at_capacity: bool
    since_removal: int
    """Messages since something was last removed."""
    last_removed: int
    """Tokens that the last removal took out."""
    epoch: int


def hand_over(views: Sequence[MessageView], last: int = 6, *, max_chars: int = 4_000) -> str:
    """The last messages as plain text, for a framework that starts an agent with an empty history.

    Tool calls are named and results shortened; a call without an answer, such as the one that hands over to this
    very agent, is left out. ``last`` 0 gives an empty text.
    """
    if last <= 0:
        return ""
    answered = {(group.index, result.call_id) for group in groups_of(views) for _, result in group.results}
    shown: list[str] = []
    for index, view in enumerate(views):
        if view.role == "system" or view.key is not None:
            continue
        parts = [view.text] if view.texts else []
        parts += [f"[calls {call.name}]" for call in view.calls if (index, call.id) in answered]
        parts += [f"[{result.name or 'tool'}: {_short(result.text or '', 400)}]" for result in view.results]
        if parts:
            shown.append(f"{view.role}: {_short(' '.join(parts), max_chars)}")
    return "\n".join(shown[-last:])


def _short(text: str, chars: int) -> str:
    if len(text) <= chars:
        return text
    half = (chars - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"
