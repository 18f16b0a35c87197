"""Keeps the decisions on a conversation, and saves them as an event in the stream's own history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ag2.events import BaseEvent, Field

from cacheprefix.adapter import AdapterSession, Bounded, ByObject, digest_of, merged_places

VERSION = 1
_STREAMS = 1_000
"""Streams of a conversation of which something is remembered."""


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
    """How often the session had been told to forget it when this was made."""
    speakers: set[str] = field(default_factory=set)
    layouts: dict[str, list[bool]] = field(default_factory=dict)
    """By role and the place of its text: whether its requests are forks, and whether they carry the union of tools."""
    tools: list[str] = field(default_factory=list)
    """Names of the shared tools when the conversation began."""
    saved: str = ""
    """Digest of the state that was saved last. Privacy: the state itself holds texts of the conversation's."""
    states: Bounded[str, int] = field(default_factory=lambda: Bounded(_STREAMS))
    """By stream: how many ``PrefixState`` events its history held when it was last read. Each turn of a channel is a
    stream of its own."""
    kept: bool = False
    """Whether any history was seen to keep ``PrefixState`` events."""
    holders: ByObject[Any, bool] = field(default_factory=ByObject)
    """The stream objects whose histories were loaded here."""

    def behind(self, stream: Any, events: Iterable[BaseEvent]) -> bool:
        """Whether the application went back to an earlier history, so that what is known here does not belong to it.

        It holds fewer ``PrefixState`` events than when it was last read, or it is another stream object of the same
        id: an earlier one, or one of several branches, which ag2 lets ask one by one.
        """
        known = str(stream.id)
        other = self.kept and known in self.states and stream not in self.holders
        return other or sum(isinstance(event, PrefixState) for event in events) < self.states.get(known, 0)

    def load(self, session: AdapterSession, stream: Any, events: Sequence[BaseEvent]) -> None:
        """Load what a stream's history has saved: the first time, and when the application went back (``behind``)."""
        saved = [event.state for event in events if isinstance(event, PrefixState)]
        known = str(stream.id) in self.states
        # A conversation of several streams is not reset because one of them went back.
        back = len(self.states) == 1 and self.behind(stream, events)
        self.states[str(stream.id)] = len(saved)
        self.kept = self.kept or bool(saved)
        if back:
            self.holders.clear()
            self.speakers, self.layouts, self.tools, self.saved = set(), {}, [], ""
        self.holders[stream] = True
        if known and not back:
            return
        newest = next((state for state in reversed(saved) if state.get("version") == VERSION), None)
        if newest is not None:
            self._restore(session, newest, merge=not back)
        elif back:
            # Privacy: the application went back to before anything was decided, so nothing of it is kept.
            session.forget(self.id)
            self.forgets = session.forgets(self.id)

    def _restore(self, session: AdapterSession, saved: dict[str, Any], *, merge: bool) -> None:
        """Take over a saved state; with ``merge`` what is known of the conversation already stays beside it."""
        talk = session.conversation(self.id)
        places = saved.get("standing") or {}
        self.speakers |= set(saved["speakers"])
        self.layouts |= saved["layouts"]
        self.tools = list(saved.get("tools") or self.tools)
        if merge:
            places = merged_places(session.places(talk), places)
        # The saved limits for results stay with the saved decisions, even if the session's are others now.
        talk.restore(saved["conversation"], rebase=True, merge=merge)
        session.restore_places(talk, places)
        self.saved = _digest(self.state(session))

    def state(self, session: AdapterSession) -> dict[str, Any]:
        """The state to save; empty while nothing was decided."""
        held = session.known(self.id)
        if not self.layouts and (held is None or not len(held.ledger)):
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
        """The event to append to a history with these events; None where the newest state is saved already."""
        state = self.state(session)
        digest = _digest(state)
        if not state or (digest == self.saved and any(isinstance(event, PrefixState) for event in events)):
            return None
        self.saved = digest
        return PrefixState(state=state)


def _digest(state: dict[str, Any]) -> str:
    return digest_of(json.dumps(state, sort_keys=True))
