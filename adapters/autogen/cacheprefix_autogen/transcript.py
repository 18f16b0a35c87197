"""What was said in a team, in an order that does not depend on who finished first.

Every public message has a depth: one more than the deepest message its author had seen. Branches that ran
side by side have the same depth and stand in the order of the participants, whenever they were finished.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from autogen_agentchat.messages import BaseChatMessage
from autogen_core.models import UserMessage
from pydantic import TypeAdapter

from cacheprefix_autogen.messages import Shorten, kept, public

FROM_OUTSIDE = 1_000_000
"""Rank of a message that no participant wrote; behind all participants' of the same depth."""

_FORMS: TypeAdapter[list[UserMessage]] = TypeAdapter(list[UserMessage])


@dataclass(eq=False)
class Entry:
    """One public message: its id, its place in the order, and its canonical form."""

    id: str
    depth: int
    rank: int
    forms: tuple[UserMessage, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a saved state."""
        return {
            "id": self.id,
            "depth": self.depth,
            "rank": self.rank,
            "forms": _FORMS.dump_python(list(self.forms), mode="json"),
        }


def entry_from(data: Any) -> Entry:
    """The entry a saved state holds."""
    return Entry(data["id"], data["depth"], data["rank"], tuple(_FORMS.validate_python(data["forms"])))


class Transcript:
    """The public messages of one team; an entry lives as long as an agent has it in view.

    ``shorten`` is applied to tool results once, when a message is first seen.
    """

    def __init__(self, shorten: Shorten = kept) -> None:
        self.id = secrets.token_hex(16)
        self.shorten = shorten
        self._known: WeakValueDictionary[str, Entry] = WeakValueDictionary()

    def known(self, message_id: str) -> Entry | None:
        """The entry of a message, if it is in anyone's view."""
        return self._known.get(message_id)

    def add(self, message: BaseChatMessage, depth: int, rank: int = FROM_OUTSIDE) -> Entry:
        """Enter a message; one that is known already keeps its place."""
        found = self._known.get(message.id)
        return found or self.keep(Entry(message.id, depth, rank, public(message, self.shorten)))

    def keep(self, entry: Entry) -> Entry:
        """Take over an entry, or give the one of the same id that is known."""
        return self._known.setdefault(entry.id, entry)


class View:
    """What one agent has seen of a transcript, in the transcript's order; it only grows at its end."""

    def __init__(self, transcript: Transcript, rank: int = FROM_OUTSIDE) -> None:
        self.transcript = transcript
        self.rank = rank
        self.entries: list[Entry] = []
        self._ids: set[str] = set()
        self._own: list[Entry] = []

    @property
    def depth(self) -> int:
        """Depth of the newest message seen; 0 before the first."""
        return max((entry.depth for entry in self.entries), default=0)

    def receive(
        self, messages: Iterable[BaseChatMessage], beside: Callable[[int], Sequence[Entry]] = lambda _: ()
    ) -> None:
        """Take in what came since the last turn; own messages stand where the transcript has them.

        ``beside`` gives what else everybody is told, from the depth of the newest message on.
        """
        new, self._own = self._own, []
        depth = max(self.depth, max((entry.depth for entry in new), default=0))
        taken = {entry.id for entry in new}
        for message in messages:
            if message.id in self._ids or message.id in taken:
                continue
            entry = self.transcript.add(message, depth + 1)
            depth = max(depth, entry.depth)
            taken.add(entry.id)
            new.append(entry)
        told = [entry for entry in beside(depth) if entry.id not in self._ids]
        new += told
        taken |= {entry.id for entry in told}
        new.sort(key=lambda entry: (entry.depth, entry.rank))
        self.entries += new
        self._ids |= taken

    def holds(self, message_id: str) -> bool:
        """Whether a message is in view."""
        return message_id in self._ids

    def produce(self, message: BaseChatMessage) -> None:
        """Enter the agent's own message; it comes into view with the next turn."""
        if message.id not in self._ids:
            self._own.append(self.transcript.add(message, self.depth + 1, self.rank))

    def forms(self) -> list[UserMessage]:
        """The canonical messages in view."""
        return [form for entry in self.entries for form in entry.forms]

    def everything(self) -> list[Entry]:
        """All entries, with those that come into view with the next turn."""
        return [*self.entries, *self._own]

    def restore(self, entries: Sequence[Entry], own: Sequence[Entry]) -> None:
        """Put saved entries in place of what is in view."""
        self.entries = [self.transcript.keep(entry) for entry in entries]
        self._own = [self.transcript.keep(entry) for entry in own]
        self._ids = {entry.id for entry in self.entries}

    def pending(self) -> list[Entry]:
        """Own entries that come into view with the next turn."""
        return list(self._own)

    def leave_out(self, gone: set[str]) -> None:
        """Forget these entries alone."""
        self.entries = [entry for entry in self.entries if entry.id not in gone]
        self._ids -= gone

    def forget(self) -> None:
        """Forget what was said, but not how far it went: what the agent says next stands behind that for the others."""
        depth = max((entry.depth for entry in self.everything()), default=0)
        self.clear()
        if depth:
            self.restore([Entry(secrets.token_hex(16), depth, FROM_OUTSIDE, ())], [])

    def clear(self) -> None:
        """Forget everything; what others have in view stays."""
        self.entries, self._own, self._ids = [], [], set()
