"""Which agents of a session can share at all, and the conversations they take part in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cacheprefix.adapter import LONG_ROLE, AdapterSession, Bounded, economics
from cacheprefix_ag2.state import Talk

KEEP = 10_000
"""Conversations remembered at most; what must last longer is in the streams' own histories."""
CALLS = 3
"""Requests of a turn with tools."""

Stays = Literal["stream", "turn", "call"]
"""How long the role's text keeps its place, so that what stands behind it is read again."""
Lane = tuple[str, str, tuple[str, ...] | None]
"""Model, response schema, and the tools carried: None for the union of all."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One agent, as its newest request was: its model, its response schema, its own tools' names."""

    model: str = ""
    schema: str = ""
    tools: tuple[str, ...] = ()
    plain: bool = False
    """It has tools that no union can hold: those the provider runs, or of a name that means two things."""
    tail: int = 0
    """Tokens of its own text, which its siblings' requests do not read from the cache."""
    first: bool = False
    """Its own prompt begins with the shared system text already."""


@dataclass(slots=True)
class Team:
    """The agents of one session."""

    session: AdapterSession
    declared: bool
    seats: dict[str, Seat] = field(default_factory=dict)
    talks: Bounded[str, Talk] = field(default_factory=lambda: Bounded(KEEP))
    common: bool = False
    """Agents were seen to read the same conversation, or to be asked the same."""
    _asked: Bounded[str, str] = field(default_factory=lambda: Bounded(KEEP))
    _counted: dict[tuple[str, str], int] = field(default_factory=dict)

    def talk(self, key: str) -> Talk:
        """The conversation of an id, made when it is new, and anew where the session was told to forget it."""
        forgets = self.session.forgets(key)
        with self.session.shared.lock:
            found = self.talks.of(key, lambda: Talk(key, forgets))
            if found.forgets != forgets:
                found = self.talks[key] = Talk(key, forgets)
            return found

    def heard(self, role: str, talk: Talk, request: str) -> None:
        """Note with which text a stream of an agent begins."""
        with self.session.shared.lock:
            first = self._asked.setdefault(hashlib.blake2b(request.encode("utf-8", "surrogatepass")).hexdigest(), role)
            self.common = self.common or first != role or len(talk.speakers) > 1

    def layout(self, role: str, stays: Stays, asked: int) -> list[bool]:
        """Whether an agent's requests are forks, and whether they carry the union of tools.

        They are where somebody shares its lane; alone it forks where its session's prefix was declared. ``stays`` is
        how long its text keeps its place, ``asked`` are the tokens of the stream's first request.
        """
        with self.session.shared.lock:
            lane = self._lane(self.seats[role], stays, asked)
            others = (self._lane(seat, stays, asked) for name, seat in self.seats.items() if name != role)
            forks = (lane is not None and lane in others) or (self.declared and len(self.seats) == 1)
            return [forks, bool(self.session.prefix.tools) and (lane is None or lane[2] is None)]

    def _lane(self, seat: Seat, stays: Stays, asked: int) -> Lane | None:
        """What of an agent's requests must be the same in another's, so that they share; None where it is not worth it.

        An agent carries the union of tools where ``foreign * r * calls <= gain``: ``foreign`` are the tokens of the
        tools that it has not, r the price of reading one from the cache. One that would lose by that shares with those
        that have the same tools.
        """
        gain = self._gain(seat, stays, asked)
        if gain <= 0:
            return None
        read = self.session.profile(seat.model).read
        # Where the others read a turn's tool loop too, its results are saved as well, and outweigh the requests.
        calls = CALLS if seat.tools and stays != "call" else 1
        carries = not seat.plain and self._foreign(seat) * read * calls <= gain
        return seat.model, seat.schema, None if carries else seat.tools

    def _gain(self, seat: Seat, stays: Stays, asked: int) -> float:
        """What a turn saves by sharing, tools left out, in uncached input tokens; n agents, r the price of a read.

            stream:  (1 - r) * (opening * others / ROUNDS - tail + others * asked)
            call:    (1 - r) * (opening * others / ROUNDS - tail + REPLY * (n - 1))
            turn:    (1 - r) * (opening * others / ROUNDS - tail) + REPLY * ((n - 2) - n * r)

        ``others`` is (n - 1) / n, the part of the agents that find written what one of them wrote; ``opening`` the
        shared text, paid once a lane; ``tail`` the agent's own text, which siblings do not read, up to LONG_ROLE.
        """
        profile, agents = self.session.profile(seat.model), max(2, len(self.seats))
        read, others = profile.read, (agents - 1) / agents
        # Where all prompts begin alike as they are, and the provider shares what does, nothing is gained there.
        alike = profile.markers is None and all(each.first and not self._foreign(each) for each in self.seats.values())
        opening = 0 if alike else self._count(self.session.prefix.text, seat.model)
        spread = opening * others / economics.ROUNDS - min(seat.tail, LONG_ROLE)
        if stays == "turn":
            # In a channel ag2 leaves an agent's own messages out of its requests, and a fork has and re-reads them.
            return spread * (1.0 - read) + economics.REPLY * ((agents - 2) - agents * read)
        if stays == "stream":
            # Only what the stream begins with is common; a short question is the agent's own until one was not.
            return (spread + others * (asked if self.common else max(0, asked - economics.REPLY))) * (1.0 - read)
        return (spread + economics.REPLY * (agents - 1)) * (1.0 - read)

    def _foreign(self, seat: Seat) -> int:
        """Tokens of the union's tools that an agent has not."""
        tools = [tool for tool in self.session.prefix.tools if tool.name not in seat.tools]
        return sum(self._count(tool.schema.decode(), seat.model) for tool in tools)

    def _count(self, text: str, model: str) -> int:
        found = self._counted.get((text, model))
        if found is None:
            found = self._counted[text, model] = self.session.count(text, model)
        return found


def team_of(session: AdapterSession) -> Team:
    """The session's team; whether its prefix was declared is settled by who asks first."""
    with session.shared.lock:
        found: Team | None = session.beside.get("ag2")
        if found is None:
            found = session.beside["ag2"] = Team(session, bool(session.prefix.text or session.prefix.tools))
        return found


def schema_key(schema: Any) -> str:
    """What a response schema puts into a request before anything else; empty without one."""
    if schema is None:
        return ""
    parts: Mapping[str, Any] = {
        "name": schema.name,
        "description": schema.description,
        "schema": schema.json_schema,
        "prompt": schema.system_prompt,
    }
    return json.dumps(parts, sort_keys=True, default=str)
