"""Keeps the decisions on a conversation, and saves them as an event in the stream's own history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ag2.events import BaseEvent, Field

from cacheprefix.adapter import AdapterSession, Bounded, ByObject, merged_places
from cacheprefix.errors import check_version

WHOLE, MORE = 1, 2
"""Versions of a saved state: all that was decided, and of messages what was decided since the event before alone."""
_OF_MESSAGES = ("results", "turns", "actions", "inserts", "blocks", "places")
"""The kinds of decisions on single messages: they grow with a history, and are saved once each. The others are in each
event, as the application may drop the earlier ones with the messages that they stood behind."""
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
        saved = _states(events)
        known = str(stream.id) in self.states
        # A conversation of several streams is not reset because one of them went back.
        back = len(self.states) == 1 and self.behind(stream, events)
        self.states[str(stream.id)] = len(saved)
        self.kept = self.kept or bool(saved)
        if back:
            self.holders.clear()
            self.speakers = set()
        self.holders[stream] = True
        if known and not back:
            return

        def check() -> None:
            for one in saved:
                check_version(one.get("version"), WHOLE, MORE)

        session.attempt("load state", check, None)
        newest = _joined(saved)
        if newest:
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
        if merge:
            places = merged_places(session.places(talk), places)
        # The saved limits for results stay with the saved decisions, even if the session's are others now.
        talk.restore(saved["conversation"], rebase=True, merge=merge)
        session.restore_places(talk, places)

    def state(self, session: AdapterSession) -> dict[str, Any]:
        """The state to save; empty while nothing was decided."""
        held = session.known(self.id)
        if not self.speakers and (held is None or not len(held.ledger)):
            return {}
        talk = session.conversation(self.id)
        places = session.places(talk)
        return {
            "version": WHOLE,
            "speakers": sorted(self.speakers),
            "conversation": talk.to_json(places=False),
            **({"standing": places} if places else {}),
        }

    def unsaved(self, session: AdapterSession, events: Iterable[BaseEvent]) -> PrefixState | None:
        """The event to append to a history with these events; None where they hold the state already."""
        state, before = self.state(session), _joined(_states(events))
        if not state or _text(state) == _text(before):
            return None
        return PrefixState(state=_news(before, state))


def _states(events: Iterable[BaseEvent]) -> list[dict[str, Any]]:
    return [event.state for event in events if isinstance(event, PrefixState)]


def _joined(saved: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The newest state that a history's events hold together; empty where they hold none."""
    newest: dict[str, Any] = {}
    held: dict[str, dict[str, Any]] = {}
    for state in saved:
        if state.get("version") in (WHOLE, MORE):
            newest, held = state, held if state["version"] == MORE else {}
            ledger = state["conversation"]["ledger"]
            for section in ledger.keys() & set(_OF_MESSAGES):
                held.setdefault(section, {}).update(ledger[section])
    return _with_ledger(newest, WHOLE, held) if newest else {}


def _news(before: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """What a state holds beside an earlier one of its history; all of it where that holds what was taken back since."""
    held, ledger = (each.get("conversation", {}).get("ledger", {}) for each in (before, state))
    old, new = ({name: each.get(name, {}) for name in _OF_MESSAGES} for each in (held, ledger))
    if not before or any(old[name].keys() - new[name].keys() for name in _OF_MESSAGES):
        return state
    news = {name: {key: one for key, one in new[name].items() if old[name].get(key) != one} for name in _OF_MESSAGES}
    return _with_ledger(state, MORE, {name: entries for name, entries in news.items() if entries})


def _with_ledger(state: dict[str, Any], version: int, of_messages: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A state with these decisions on messages in place of its own."""
    talk = state["conversation"]
    others = {name: part for name, part in talk["ledger"].items() if name not in _OF_MESSAGES}
    return {**state, "version": version, "conversation": {**talk, "ledger": {**others, **of_messages}}}


def _text(state: dict[str, Any]) -> str:
    return json.dumps(state, sort_keys=True)
