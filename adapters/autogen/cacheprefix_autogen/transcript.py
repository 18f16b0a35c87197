"""What was said in a team, in an order that does not depend on who finished first.

Every public message has a depth: one more than the deepest message its author had seen. Branches that ran
side by side have the same depth and stand in the order of the participants, whenever they were finished. What comes
from outside is deeper than all that was said before it: nothing runs beside the beginning of a run.

A message that is sent again is told again, as without us: each time has an entry of its own.
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

from cacheprefix_autogen.messages import Shorten, kept, public, text_of

FROM_OUTSIDE = 1_000_000
"""Rank of a message that no participant wrote; behind all participants' of the same depth."""

TOLD = FROM_OUTSIDE + 1
"""Rank of durable context, which comes while branches run."""

_AGAIN = "\n"
"""Stands in an entry's id behind the message's id where the message was sent before."""

_FORMS: TypeAdapter[list[UserMessage]] = TypeAdapter(list[UserMessage])


@dataclass(eq=False)
class Entry:
    """One public message, told once: its id, its place in the order, and its canonical form."""

    id: str
    depth: int
    rank: int
    forms: tuple[UserMessage, ...]

    @property
    def message(self) -> str:
        """The message's id."""
        return self.id.partition(_AGAIN)[0]

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
        self.deepest = 0
        """Depth of the deepest message so far."""
        self._known: WeakValueDictionary[str, Entry] = WeakValueDictionary()

    def known(self, message_id: str) -> Entry | None:
        """The entry of a message, if it is in anyone's view."""
        return self._known.get(message_id)

    def keep(self, entry: Entry) -> Entry:
        """Take over an entry, or give the one of the same id that is known."""
        self.deepest = max(self.deepest, entry.depth)
        return self._known.setdefault(entry.id, entry)


class View:
    """What one agent has seen of a transcript, in the transcript's order; it only grows at its end."""

    def __init__(self, transcript: Transcript, rank: int = FROM_OUTSIDE) -> None:
        self.transcript = transcript
        self.rank = rank
        self.entries: list[Entry] = []
        self._ids: set[str] = set()
        self._own: list[Entry] = []
        self._began = 0
        """Depth of the newest message from outside."""

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
            fresh = (max(depth, self.transcript.deepest) + 1, FROM_OUTSIDE)
            entry = self._entry(message, taken, fresh, since=self._began, late=(depth, FROM_OUTSIDE))
            depth = max(depth, entry.depth)
            taken.add(entry.id)
            new.append(entry)
            if entry.rank == FROM_OUTSIDE:
                self._began = max(self._began, entry.depth)
        told = [entry for entry in beside(depth) if entry.id not in self._ids]
        new += told
        taken |= {entry.id for entry in told}
        new.sort(key=lambda entry: (entry.depth, entry.rank))
        self.entries += new
        self._ids |= taken

    def produce(self, message: BaseChatMessage) -> None:
        """Enter the agent's own message; it comes into view with the next turn."""
        place = (self.depth + 1, self.rank)
        self._own.append(self._entry(message, set(), place, since=self.depth + 1, late=place))

    def _entry(
        self, message: BaseChatMessage, taken: set[str], fresh: tuple[int, int], *, since: int, late: tuple[int, int]
    ) -> Entry:
        """The entry of a message that this agent is told now, once more than it is in view and in ``taken``.

        A new one has its place at ``fresh``. It stands at ``late`` where what others have in view is less deep than
        ``since``: they were told before what this agent was told before.
        """
        forms, place = public(message, self.transcript.shorten), fresh
        name, times = message.id, 1
        while (known := self.transcript.known(name)) is not None:
            if name not in self._ids and name not in taken:
                if known.depth < since:
                    place = late
                # Privacy: under the same id, what the application redacted since may say something else.
                elif list(map(text_of, known.forms)) == list(map(text_of, forms)):
                    return known
                else:
                    place = (known.depth, known.rank)
            times += 1
            name = f"{message.id}{_AGAIN}{times}"
        return self.transcript.keep(Entry(name, *place, forms))

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
        self._began = max((entry.depth for entry in self.entries if entry.rank == FROM_OUTSIDE), default=0)

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
        self.entries, self._own, self._ids, self._began = [], [], set(), 0
