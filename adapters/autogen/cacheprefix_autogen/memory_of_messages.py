"""What was made of messages once, so that a long conversation costs only what is new in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from autogen_core.models import LLMMessage

T = TypeVar("T")

_KEEP = 20_000


class Seen(Generic[T]):
    """Remembers what was made of a message for as long as it is the same object holding the same things.

    Texts do not change in place, and whatever is put in a message's or a result's field is another object or an
    equal one; so a message that was edited is made anew.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[LLMMessage, tuple[Any, ...], T]] = {}

    def of(self, message: LLMMessage, make: Callable[[LLMMessage], T]) -> T:
        """What ``make`` gave for this message, the first time or now."""
        holds = _fields(message)
        known = self._known.get(id(message))
        # Tuples look at identity first, so that nothing is compared where nothing changed.
        if known is not None and known[0] is message and known[1] == holds:
            return known[2]
        made = make(message)
        if len(self._known) >= _KEEP:
            self._known.clear()
        self._known[id(message)] = (message, holds, made)
        return made


def _fields(message: LLMMessage) -> tuple[Any, ...]:
    """The objects that a message holds, and those that the parts of its content hold."""
    own = tuple(vars(message).values())
    content = message.content
    if isinstance(content, str):
        return own
    return (*own, *(value for part in content for value in (part, *getattr(part, "__dict__", {}).values())))
