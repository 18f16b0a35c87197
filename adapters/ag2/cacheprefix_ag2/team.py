"""The agents of a session (``Team``): who may share with whom, and their conversations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cacheprefix.adapter import AdapterSession, Bounded, Reason, reason
from cacheprefix_ag2.state import Talk

KEEP = 10_000
"""How many conversations are remembered at most; older ones are read from the streams' own histories."""
_LATELY = 64
"""Agents by which it is judged who may share: those that were wrapped or asked last. A process that serves many users,
each with agents of their own, would else look through all of them with each request."""


@dataclass(frozen=True, slots=True)
class Seat:
    """What one agent's newest request was."""

    model: str
    apart: str = ""
    """A digest of its tools where no union can hold them: agents with others read nothing of what it writes."""
    schema: str = ""
    """The response schema that it was made with (``schema_key``)."""
    first: bool = False
    """Whether its own prompt begins with the shared system text even without us."""


@dataclass(slots=True)
class Team:
    """The agents of one session, by name, and their conversations; ``declared``: the user gave the session a prefix."""

    session: AdapterSession
    declared: bool
    seats: Bounded[str, Seat] = field(default_factory=lambda: Bounded(_LATELY))
    """Of the agents that were wrapped or asked last, by name."""
    talks: Bounded[str, Talk] = field(default_factory=lambda: Bounded(KEEP))

    def talk(self, key: str) -> Talk:
        """The conversation of an id, made when it is new, and anew where the session was told to forget it."""
        forgets = self.session.forgets(key)
        with self.session.shared.lock:
            found = self.talks.of(key, lambda: Talk(key, forgets))
            if found.forgets != forgets:
                found = self.talks[key] = Talk(key, forgets)
            return found

    def seated(self, role: str, seat: Seat, schema: str) -> Reason | None:
        """Note an agent's newest request, for an answer by ``schema``; why nobody can share with it, where known.

        With another schema than it was made with, the planner knows by the conversation's own record who shares: which
        agents asked for such an answer before, no other process knows that takes the conversation up.
        """
        with self.session.shared.lock:
            made = self.seats.get(role)
            self.seats[role] = seat = replace(seat, schema="" if made is None else made.schema)
            if len(self.seats) == 1:
                # A prefix that the user gave is shared with those who come.
                return None if self.declared else reason("alone")
            like = replace(seat, first=False)
            others = [replace(one, first=False) for name, one in self.seats.items() if name != role]
            if schema != seat.schema:
                like, others = replace(like, schema=""), [replace(one, schema="") for one in others]
            return None if like in others else reason("lane_of_its_own")

    @property
    def alike(self) -> bool:
        """Whether all agents' own prompts begin with the shared system text."""
        with self.session.shared.lock:
            return bool(self.session.prefix.system) and all(seat.first for seat in self.seats.values())


def team_of(session: AdapterSession) -> Team:
    """The session's team, made at the first call: that settles whether its prefix was declared."""
    with session.shared.lock:
        found: Team | None = session.beside.get("ag2")
        if found is None:
            found = session.beside["ag2"] = Team(session, bool(session.prefix.text or session.prefix.tools))
        return found


def schema_key(schema: Any) -> str:
    """A key of a response schema, equal for equal schemas, which stand in front of the prompt; empty without one."""
    if schema is None:
        return ""
    parts: Mapping[str, Any] = {
        "name": schema.name,
        "description": schema.description,
        "schema": schema.json_schema,
        "prompt": schema.system_prompt,
    }
    return json.dumps(parts, sort_keys=True, default=str)
