"""What is remembered of a stream, and how it is saved: as an event in the stream's own history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from ag2.events import BaseEvent, Field

from cacheprefix.adapter import AdapterSession, merged_places

VERSION = 1


class PrefixState(BaseEvent):
    """Decisions on a stream's tool results and layout, and who spoke on it; in its history, never sent to a model.

    A stream resumed from its storage in another process sends the same bytes, also under another budget.
    """

    __conversational__ = False

    state: dict[str, Any] = Field(default_factory=dict)


@dataclass(slots=True)
class Talk:
    """One conversation: a stream, or a channel of a network."""

    id: str
    forgets: int = 0
    """How often the session had forgotten it by then."""
    speakers: set[str] = field(default_factory=set)
    layouts: dict[str, list[bool]] = field(default_factory=dict)
    """By role and the place of its text: whether its requests are forks, and whether they carry the union of tools."""
    tools: list[str] = field(default_factory=list)
    """Names of the shared tools that there were when it began."""
    saved: dict[str, Any] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)
    """How many of our events the history of each of its streams held when it was last read."""
    kept: bool = False
    """Whether a history was seen to keep our events."""
    holders: WeakSet[Any] = field(default_factory=WeakSet)
    """The streams whose histories make up what is known here."""

    def behind(self, stream: Any, events: Iterable[BaseEvent]) -> bool:
        """Whether a history is not the one that what is known here goes on from.

        It holds fewer events of ours than when it was last read, or it is another object's than before: the application
        has put an earlier one in its place, or one of several that went on from it. ag2 lets those ask one by one.
        """
        known = str(stream.id)
        other = self.kept and known in self.states and stream not in self.holders
        return other or sum(isinstance(event, PrefixState) for event in events) < self.states.get(known, 0)

    def load(self, session: AdapterSession, stream: Any, events: Sequence[BaseEvent]) -> None:
        """Take over what a stream's history holds: at first sight, and where it is not what is known here."""
        held = [event.state for event in events if isinstance(event, PrefixState)]
        known, back = str(stream.id) in self.states, self.behind(stream, events)
        self.states[str(stream.id)] = len(held)
        self.kept = self.kept or bool(held)
        if back and len(self.states) == 1:
            self.holders.clear()
        self.holders.add(stream)
        # What several streams have in common is not undone by one of them.
        if known and not (back and len(self.states) == 1):
            return
        if back:
            self.speakers, self.layouts, self.tools, self.saved = set(), {}, [], {}
        found = next((state for state in reversed(held) if state.get("version") == VERSION), None)
        if found is None:
            if back:
                session.forget(self.id)
                self.forgets = session.forgets(self.id)
            return
        places = found.get("standing") or {}
        talk = session.conversation(self.id)
        if not back:
            places = merged_places(session.places(talk), places)
        self.speakers |= set(found["speakers"])
        self.layouts |= found["layouts"]
        self.tools = list(found.get("tools") or self.tools)
        # The ledger's own budget is taken over with it, whatever the prefix is now.
        talk.restore(found["conversation"], rebase=True, merge=not back)
        session.restore_places(talk, places)
        self.saved = self.state(session)

    def state(self, session: AdapterSession) -> dict[str, Any]:
        """As it is to be saved; empty while there is nothing to remember."""
        held = session.known(self.id)
        if not any(forks for forks, _ in self.layouts.values()) and (held is None or not len(held.ledger)):
            return {}
        talk = session.conversation(self.id)
        places = session.places(talk)
        return {
            "version": VERSION,
            "speakers": sorted(self.speakers),
            "layouts": dict(self.layouts),
            **({"tools": list(self.tools)} if session.late_tools else {}),
            "conversation": talk.to_json(places=False),
            **({"standing": places} if places else {}),
        }

    def unsaved(self, session: AdapterSession, events: Iterable[BaseEvent]) -> PrefixState | None:
        """The event to append to a history of these events; None where it holds all there is to remember."""
        state = self.state(session)
        if not state or (state == self.saved and any(isinstance(event, PrefixState) for event in events)):
            return None
        self.saved = state
        return PrefixState(state=state)
