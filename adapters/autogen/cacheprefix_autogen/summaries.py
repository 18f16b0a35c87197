"""Which request a summary may be asked behind: one that holds what is removed, and nothing from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from cacheprefix import Conversation


@dataclass(frozen=True, slots=True)
class Holds:
    """The history of one request."""

    talk: Conversation
    digests: Sequence[str]
    """Its messages', before anything was decided on them."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The newest request of a conversation that was answered."""

    body: Mapping[str, Any]
    """As it was before it was marked for the cache."""
    digests: frozenset[str]
    """Of the messages that it was made of."""

    def stands_for(self, now: Holds, loses: Sequence[int]) -> bool:
        """Whether a summary asked behind it says what is removed of the history ``now``, and nothing else.

        ``loses`` are the indexes of the messages that are removed.
        """
        # Privacy: of what a reset, a rewind or another user's state took out of the history nothing is told again.
        gone = not self.digests.issubset(now.digests)
        # Nothing is lost: an agent that was not asked for some time has not sent all that is removed.
        return not gone and all(now.digests[at] in self.digests for at in loses)


class NewestAnswered:
    """The newest answered request of each conversation, for as long as the session has the conversation."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Conversation, Answered] = WeakKeyDictionary()

    def of(self, talk: Conversation) -> Answered | None:
        """A conversation's; None where none was answered."""
        return self._of.get(talk)

    def keep(self, holds: Holds, body: Mapping[str, Any]) -> None:
        """Keep a request that was answered."""
        self._of[holds.talk] = Answered(body, frozenset(holds.digests))

    def clear(self) -> None:
        """Let all go."""
        self._of.clear()
