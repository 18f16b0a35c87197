"""What a session and its children have in common: what was seen, decided and counted so far."""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from cacheprefix.bounded import Bounded
from cacheprefix.cache import CacheModel
from cacheprefix.cache.lifetimes import Lifetimes
from cacheprefix.cache.preflight import Preflight
from cacheprefix.cache.routing import RoutingKeys
from cacheprefix.calls.arms import ForkShare
from cacheprefix.calls.gating import Gating
from cacheprefix.calls.own_marks import OwnMarks
from cacheprefix.calls.pending import Started
from cacheprefix.calls.report import Totals
from cacheprefix.conversation import Conversation
from cacheprefix.layout.baseline import Unmodified
from cacheprefix.layout.cards_advice import Placement
from cacheprefix.layout.gate import PRICE
from cacheprefix.layout.kept_answers import KeptAnswers
from cacheprefix.layout.known_runs import KnownRuns
from cacheprefix.layout.open_runs import OpenRuns
from cacheprefix.layout.role_position import RolePositions
from cacheprefix.layout.team import known_roles
from cacheprefix.layout.tool_sets import ToolSets
from cacheprefix.layout.worth_sharing import WorthSharing
from cacheprefix.locks import RLock
from cacheprefix.notices import Notices
from cacheprefix.prompt import ABOUT, Api, Envelope, Prompt
from cacheprefix.services import Services
from cacheprefix.unnamed import Owner, Unnamed, new_name
from cacheprefix.wire import Memo, decode

_KEEP = 10_000
"""Conversations with a name that are kept at most."""


class _Everything:
    """Every text."""

    def __contains__(self, text: object) -> bool:
        return True


@dataclass(slots=True)
class SharedState:
    """What a session and its children have in common. Thread-safe."""

    services: Services
    envelope: Envelope
    model: CacheModel
    """The provider's cache as our requests leave it."""
    unmodified: Unmodified
    """The same, had the requests gone out as the application made them."""
    totals: Totals = field(default_factory=Totals)
    memo: Memo = field(default_factory=Memo)
    conversations: OrderedDict[tuple[str, str, str], Conversation] = field(default_factory=OrderedDict)
    sharing: WorthSharing = field(default_factory=WorthSharing)
    lock: RLock = field(default_factory=RLock)
    roles: Bounded[str, Bounded[str, str]] = field(default_factory=lambda: Bounded(_KEEP))
    """By tenant: roles that front doors were made for, with their digests (``roles_of``)."""
    preflight: Preflight = field(default_factory=Preflight)
    cards: Placement = field(default_factory=Placement)
    positions: RolePositions = field(default_factory=RolePositions)
    runs: KnownRuns = field(default_factory=KnownRuns)
    open_runs: OpenRuns = field(default_factory=OpenRuns)
    tool_sets: ToolSets = field(default_factory=ToolSets)
    gating: Gating = field(default_factory=Gating)
    arms: ForkShare = field(default_factory=ForkShare)
    own_marks: OwnMarks = field(default_factory=OwnMarks)
    lifetimes: Lifetimes = field(default_factory=Lifetimes)
    routing: RoutingKeys = field(default_factory=RoutingKeys)
    unnamed: Unnamed = field(default_factory=Unnamed)
    forgets: Bounded[tuple[str, str, str], int] = field(default_factory=lambda: Bounded(_KEEP))
    """How often conversations were forgotten because their messages are gone."""
    unanswered: Bounded[str, bool] = field(default_factory=lambda: Bounded(_KEEP))
    """Conversations of which a request failed, whose texts stand in no tree."""
    without_lists: Bounded[str, bool] = field(default_factory=lambda: Bounded(_KEEP))
    """Models whose endpoint has refused a list of allowed tools, as gateways do that serve them by OpenAI's names."""
    asked: bool = False
    """Whether a request was laid out: what the application makes from then on may be made for one user."""
    reads: bool = False
    """Whether the application was given the tool that reads cut results again."""
    kept: KeptAnswers = field(default_factory=KeptAnswers)
    """Answers that the provider may be asked to go on from."""
    rehearsed: list[Started] | None = None
    """In a dry run, its requests, so that they can be asked again in a further conversation; None in a run."""
    late: deque[tuple[int, Callable[[], None]]] = field(default_factory=deque)
    """What is left to do for requests that ended in the middle of one of our steps, and the process that sent them."""

    @classmethod
    def fresh(
        cls,
        services: Services,
        envelope: Envelope = ABOUT,
        gate_price: float = PRICE,
        fork_share: float | None = None,
    ) -> SharedState:
        """That of a session that has seen nothing yet."""
        model, unmodified = (
            CacheModel(clock=services.clock, count=services.count, envelope=envelope) for _ in range(2)
        )
        own = Unmodified(unmodified, model)
        without = Bounded[str, bool](_KEEP)
        services = replace(services, scale=own.scale, takes_lists=lambda name: without.get(name) is None)
        gating, arms = Gating(gate_price), ForkShare(fork_share)
        return cls(services, envelope, model, own, gating=gating, arms=arms, without_lists=without)

    @property
    def notices(self) -> Notices:
        """Failures, and what the user should know."""
        return self.services.notices

    def in_step(self, seen: Started | None) -> bool:
        """Whether this thread is in the middle of a step that a request's end would take part in.

        The garbage collector may drop a stream, which ends its request, between any two lines.
        """
        talks = () if seen is None else (seen.held, seen.decided)
        parts = (self.model, self.unmodified, self.totals, self.positions, *talks)
        return any(part is not None and part.busy for part in parts)

    def afterwards(self, work: Callable[..., None], *arguments: object) -> None:
        """Leave something to do until this thread is in no step any more."""
        # Privacy: in the context of its own request, whoever's work is under way by then.
        self.late.append((os.getpid(), partial(copy_context().run, work, *arguments)))

    def catch_up(self) -> None:
        """Do what was left to do (``late``), unless this thread is in the middle of a step still."""
        while self.late and not self.in_step(None):
            try:
                process, work = self.late.popleft()
            except IndexError:  # another thread was faster
                return
            # In a forked child: its parent counts what it sent.
            if process == os.getpid():
                work()

    def decode(self, body: Mapping[str, Any], api: Api, *, headers: Mapping[str, str] | None = None) -> Prompt:
        """A body as a prompt, counted by the session's counter; history seen before costs next to nothing."""
        count, memo, envelope = self.services.count, self.memo, self.envelope
        return decode(body, api, headers=headers, count=count, memo=memo, envelope=envelope)

    def roles_of(self, scope: str) -> Bounded[str, str]:
        """A tenant's roles.

        Others' ask in none of its conversations: their number changes nothing there, so that a process that met fewer
        tenants sends the same.
        """
        with self.lock:
            return self.roles.of(scope, known_roles)

    def conversation(self, owner: Owner, id_: str, make: Callable[[str], Conversation]) -> tuple[Conversation, bool]:
        """The conversation of an id, and whether it was made just now; without an id one of its own, not kept."""
        key = (*owner, id_ or new_name())
        with self.lock:
            found = self.conversations.get(key)
            if found is not None:
                self.conversations.move_to_end(key)
                return found, False
            made = make(key[2])
            if id_:
                self.conversations[key] = made
            if len(self.conversations) > _KEEP:
                self.conversations.popitem(last=False)
            return made, True

    def find(self, owner: Owner, said: Sequence[Hashable], run: object = None) -> str:
        """The id of a request's conversation that has no name; those that make room for it are let go."""
        found, gone = self.unnamed.find(owner, said, run=run)
        for each in gone:
            self.let_go(*each)
        return found

    def let_go(self, owner: Owner, conversation: str, *, again: bool = False) -> None:
        """Forget a conversation that nobody comes back to, but ``again`` for another one under its name."""
        with self.lock:
            self.conversations.pop((*owner, conversation), None)
        self.positions.forget(owner[1], conversation, again=again)
        self.tool_sets.forget(conversation)
        self.kept.forget((*owner, conversation))
        self.model.let_go(conversation)

    def failed(self, conversation: str) -> None:
        """A request of this conversation got no answer."""
        with self.lock:
            self.unanswered[conversation] = True

    def forget(self, owner: Owner, conversation: str) -> None:
        """Forget a conversation whose messages are gone, and hold no text that only it held."""
        self.let_go(owner, conversation, again=True)
        key = (*owner, conversation)
        with self.lock:
            self.forgets[key] = self.forgets.get(key, 0) + 1
            failed = self.unanswered.pop(conversation, False)
        texts = self.model.forget(conversation) | self.unmodified.forget(conversation)
        if failed or texts:
            # Privacy: which texts a failed request held nobody knows. Others' are read again in microseconds.
            gone: Container[bytes] = _Everything() if failed else texts
            self.memo.forget(gone)
            self.preflight.forget(gone)
        self.totals.redact(conversation)
