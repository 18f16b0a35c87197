"""What is remembered of a stream, and how it is saved: as an event in the stream's own history."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ag2.events import BaseEvent, Field

from cacheprefix import Session

VERSION = 1


class PrefixState(BaseEvent):
    """Decisions on tool results and who spoke on a stream; saved with its history, never sent to a model.

    A stream resumed from its storage in another process sends the same bytes, also under another budget.
    """

    __conversational__ = False

    state: dict[str, Any] = Field(default_factory=dict)


@dataclass(slots=True)
class Talk:
    """One conversation: a stream, or a channel of a network."""

    id: str
    speakers: set[str] = field(default_factory=set)
    saved: dict[str, Any] = field(default_factory=dict)
    loaded: bool = False

    def load(self, session: Session, events: Iterable[BaseEvent]) -> None:
        """Take over what the stream's history holds, once."""
        if self.loaded:
            return
        self.loaded = True
        found = next((e.state for e in reversed(list(events)) if isinstance(e, PrefixState)), None)
        if found is None or found.get("version") != VERSION:
            return
        self.speakers |= set(found["speakers"])
        # The ledger's own budget is taken over with it, whatever the prefix is now.
        session.conversation(self.id).restore(found["conversation"], rebase=True)
        self.saved = self.state(session)

    def state(self, session: Session) -> dict[str, Any]:
        """As it is to be saved; empty while there is nothing to remember."""
        held = session.known(self.id)
        if len(self.speakers) < 2 and (held is None or not len(held.ledger)):
            return {}
        return {
            "version": VERSION,
            "speakers": sorted(self.speakers),
            "conversation": session.conversation(self.id).to_json(),
        }

    def unsaved(self, session: Session) -> PrefixState | None:
        """The event to append to the history; None where nothing has changed."""
        state = self.state(session)
        if state == self.saved:
            return None
        self.saved = state
        return PrefixState(state=state)
