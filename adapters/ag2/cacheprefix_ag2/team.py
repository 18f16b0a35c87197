"""Decides which agents of a session share a prefix and tools (``Team``), and keeps their conversations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cacheprefix import SharedPrefix
from cacheprefix.adapter import LONG_ROLE, AdapterSession, Bounded, economics
from cacheprefix_ag2.state import Talk

KEEP = 10_000
"""How many conversations are remembered at most; older ones are read from the streams' own histories."""
_LATELY = 64
"""Agents by which it is judged whether sharing pays: those that were wrapped or asked last. A process that serves many
users, each with agents of their own, would else look through all of them with each request."""
_COUNTED = 4_000
"""Texts whose tokens are remembered: more than the tools that a session holds."""
CALLS = 3
"""How many requests a turn with tools is assumed to take."""

Stays = Literal["stream", "turn", "call"]
"""How long the role's text keeps its place, so that later requests read what stands behind it from the cache."""
Lane = tuple[str, str, tuple[str, ...] | None]
"""What must be equal for two agents to share: model, response schema, tools carried (None: the union of all)."""


@dataclass(frozen=True, slots=True)
class Seat:
    """What one agent's newest request was: model, response schema (``schema_key``), names of its own tools."""

    model: str = ""
    schema: str = ""
    tools: tuple[str, ...] = ()
    plain: bool = False
    """Whether it has tools that no union can hold: run by the provider, or of a name with two schemas."""
    tail: int = 0
    """Tokens of its own role text, which other agents' requests do not read from the cache."""
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
    common: bool = False
    """Whether two agents were seen in the same conversation, or asked the same text."""
    _asked: Bounded[str, str] = field(default_factory=lambda: Bounded(KEEP))
    _counted: Bounded[tuple[str, str], int] = field(default_factory=lambda: Bounded(_COUNTED))
    _union: tuple[SharedPrefix | None, str, int] = (None, "", 0)
    """A prefix, a model, and how many tokens the prefix's tools have there."""

    def talk(self, key: str) -> Talk:
        """The conversation of an id, made when it is new, and anew where the session was told to forget it."""
        forgets = self.session.forgets(key)
        with self.session.shared.lock:
            found = self.talks.of(key, lambda: Talk(key, forgets))
            if found.forgets != forgets:
                found = self.talks[key] = Talk(key, forgets)
            return found

    def heard(self, role: str, talk: Talk, request: str) -> None:
        """Note ``request``, with which an agent's stream begins: where two agents get the same, ``common`` is set."""
        with self.session.shared.lock:
            first = self._asked.setdefault(hashlib.blake2b(request.encode("utf-8", "surrogatepass")).hexdigest(), role)
            self.common = self.common or first != role or len(talk.speakers) > 1

    def layout(self, role: str, stays: Stays, asked: int) -> list[bool]:
        """Decide whether an agent's requests are forks, and whether they carry the union of tools.

        They are forks where another agent has the same lane; a single agent's where the user declared the prefix.
        ``stays`` says how long its text keeps its place; ``asked`` is the tokens of the stream's first request.
        """
        with self.session.shared.lock:
            lane = self._lane(self.seats[role], stays, asked)
            others = (self._lane(seat, stays, asked) for name, seat in self.seats.items() if name != role)
            forks = (lane is not None and lane in others) or (self.declared and len(self.seats) == 1)
            return [forks, bool(self.session.prefix.tools) and (lane is None or lane[2] is None)]

    def _lane(self, seat: Seat, stays: Stays, asked: int) -> Lane | None:
        """The agent's lane: what must be equal in another agent's requests to share; None where sharing saves nothing.

        An agent carries the union of tools where ``foreign * r * calls <= gain``: ``foreign`` are the tokens of the
        tools that it does not have, r the price of a cache read per uncached token. Where the union would cost more,
        it shares only with agents that have the same tools.
        """
        gain = self._gain(seat, stays, asked)
        if gain <= 0:
            return None
        read = self.session.profile(seat.model).read
        # At "call" the others read a turn's tool loop too: the results they save outweigh its further requests.
        calls = CALLS if seat.tools and stays != "call" else 1
        carries = not seat.plain and self._foreign(seat) * read * calls <= gain
        return seat.model, seat.schema, None if carries else seat.tools

    def _gain(self, seat: Seat, stays: Stays, asked: int) -> float:
        """What a turn saves by sharing, tools left out, in the price of uncached input tokens.

        With n agents and r the price of a cache read per uncached token, and by ``stays``:

            stream:  (1 - r) * (opening * others / ROUNDS - tail + others * asked)
            call:    (1 - r) * (opening * others / ROUNDS - tail + REPLY * (n - 1))
            turn:    (1 - r) * (opening * others / ROUNDS - tail) + REPLY * ((n - 2) - n * r)

        ``others`` is (n - 1) / n, the share of agents that read what one of them wrote; ``opening`` the shared text's
        tokens, paid once a lane; ``tail`` those of the agent's own text, which others do not read, up to LONG_ROLE.
        """
        profile, agents = self.session.profile(seat.model), max(2, len(self.seats))
        read, others = profile.read, (agents - 1) / agents
        # All own prompts begin alike and the provider caches without marks: a fork saves nothing on the shared text.
        alike = profile.markers is None and all(each.first and not self._foreign(each) for each in self.seats.values())
        opening = 0 if alike else self._count(self.session.prefix.text, seat.model)
        spread = opening * others / economics.ROUNDS - min(seat.tail, LONG_ROLE)
        if stays == "turn":
            # In a channel ag2 leaves an agent's own messages out of its requests; a fork holds and reads them.
            return spread * (1.0 - read) + economics.REPLY * ((agents - 2) - agents * read)
        if stays == "stream":
            # Only the stream's first request is shared. A short one (up to REPLY) is taken for the agent's own until
            # two agents were seen to get the same.
            return (spread + others * (asked if self.common else max(0, asked - economics.REPLY))) * (1.0 - read)
        return (spread + economics.REPLY * (agents - 1)) * (1.0 - read)

    def _foreign(self, seat: Seat) -> int:
        """Tokens of the union's tools that an agent does not have itself."""
        prefix = self.session.prefix
        held, model, union = self._union
        if held is not prefix or model != seat.model:
            # Once for all agents of a request: with tools of many users there are many of both.
            union = self._schemas(prefix.tools, seat.model)
            self._union = prefix, seat.model, union
        return union - self._schemas(prefix.among(seat.tools), seat.model)

    def _schemas(self, tools: Iterable[Any], model: str) -> int:
        """Tokens of some of the union's tools."""
        return sum(self._count(tool.schema.decode(), model) for tool in tools)

    def _count(self, text: str, model: str) -> int:
        return self._counted.of((text, model), lambda: self.session.count(text, model))


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
