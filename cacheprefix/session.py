"""Session and Conversation: the only objects an adapter talks to."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Literal, TypeVar

from cacheprefix import _condense, _lanes, _places, _side
from cacheprefix._condense import conversation_of
from cacheprefix._counting import Counting
from cacheprefix._requests import Asked, Boundary, Original, Shared, begin, gate_key
from cacheprefix._sharing import forked, freeze, profile_of, profiles_of, shares, with_tools
from cacheprefix._side import ForkResult
from cacheprefix._tool_calls import ToolCacheOption, ToolCalls, ToolUse
from cacheprefix.cache import CacheStatus, Verdict
from cacheprefix.calls.gating import LIMIT, PRICE, gate_of
from cacheprefix.calls.pending import PendingCall
from cacheprefix.calls.report import Call, GateUse, Report, tally
from cacheprefix.conversation import Conversation
from cacheprefix.errors import SetupError, named
from cacheprefix.history import (
    Boundaries,
    Compaction,
    Consolidate,
    RequestBudget,
    Results,
    ToolResultBudget,
    TransitionHook,
    boundaries_of,
    concatenate,
)
from cacheprefix.history import Mode as CommitMode
from cacheprefix.layout import FOLLOW, Fork, ForkPolicy, Pass, SharedPrefix, TailPlacement, Tool, Worth, tail_text
from cacheprefix.layout.baseline import unmodified
from cacheprefix.notices import CacheprefixWarning
from cacheprefix.plugins import Plugins, look_up_installed
from cacheprefix.profiles import Profile, Registry, default_registry, load_price_library, load_price_table
from cacheprefix.prompt import ABOUT, Api, Count, Counter, Prompt, load_vocabularies
from cacheprefix.stores import MemoryStore, ResultStore, Store
from cacheprefix.wire import Form, decode

__all__ = [
    "Boundary",
    "CacheprefixWarning",
    "Call",
    "Conversation",
    "ForkResult",
    "Mode",
    "PendingCall",
    "Report",
    "Session",
    "ToolCalls",
    "ToolUse",
    "tally",
    "unmodified",
]

Mode = Literal["observe", "fork"]
T = TypeVar("T")


class Session:
    """A team's shared prefix, policies, prompt trees and totals. Make one and bind it to the front doors.

    Safe to share between threads, tasks and conversations. ``mode="observe"`` changes nothing that is sent.
    ``budget`` shortens large tool results once; ``results`` keeps their full texts. ``compaction`` (or its trigger
    in tokens) shortens histories when that pays; ``request_budget`` holds whole requests to the model's window.
    Siblings that start together on a cold prefix wait for the first one to write it, for as long as that pays: a second
    of waiting is to save ``gate_price`` cost units (0: wait always), and nobody waits beyond ``gate`` seconds; None
    sends all at once. ``gate_store`` lets them wait for other processes' siblings too. ``tool_cache`` answers repeated
    calls of the tools that it names (``["read", ToolSpec(...)]``) or that a ``ToolResultCache`` allows; with True, of
    those that a plugin calls cacheable. ``provider`` names a profile where the model's name does not tell. ``clock``
    gives seconds. ``on_break`` is called with every verdict that is an alarm, beside the log. Raises ``SetupError`` for
    options that do not exist.
    """

    def __init__(
        self,
        prefix: SharedPrefix | str | None = None,
        *,
        mode: Mode = "fork",
        budget: ToolResultBudget | None = None,
        compaction: Compaction | int | None = None,
        request_budget: RequestBudget | None = None,
        tail: TailPlacement = "tail",
        gate: float | None = LIMIT,
        gate_price: float = PRICE,
        provider: str | None = None,
        scope: str = "",
        profiles: Registry | None = None,
        counter: Counter | None = None,
        results: Results | None = None,
        tool_cache: ToolCacheOption = None,
        gate_store: Store | None = None,
        plugins: Sequence[object] = (),
        on_break: Callable[[Verdict], None] | None = None,
        clock: Callable[[], float] = time.time,
        name: str = "",
    ) -> None:
        _one_of("mode", mode, ("observe", "fork"))
        _one_of("tail", tail, ("tail", "cards"))
        self.mode = mode
        self.budget = budget
        self.compaction = Compaction(compaction) if isinstance(compaction, int) else compaction
        self.request_budget = request_budget
        if self.compaction is not None:
            self.compaction.limits(request_budget)
        self.tail = tail
        self.provider = provider
        self.scope = scope
        self.name = name
        self.clock = clock
        self.on_break = on_break
        self.results: Results = results if results is not None else ResultStore(MemoryStore())
        self.plugins = Plugins.with_builtins(plugins)
        self._counting = Counting(counter, self.plugins)
        self._envelope = counter.envelope if counter else ABOUT
        self.shared = Shared.fresh(clock, self.count, self._envelope, gate_price)
        if isinstance(self.results, ResultStore):
            self.results.on_failure(self.shared.notices.not_kept)
        self.gate_store = gate_store
        self._gate = gate_of(gate_store, gate, self.shared.notices) if gate else None
        self.tool_calls = ToolCalls(self, tool_cache)
        self.tool_cache = self.tool_calls.cache
        self._registry = profiles_of(self.plugins, profiles or default_registry())
        self._prefix = freeze(self.plugins, prefix)
        self.beside: dict[str, Any] = {}
        """What adapters keep for this session, by their names; it goes with the session."""
        load_price_library()

    @classmethod
    def from_config(
        cls, prefix: SharedPrefix | str | None = None, *, path: str | PathLike[str] | None = None, **options: Any
    ) -> Session:
        """A session with the options of ``cacheprefix.toml``, ``[tool.cacheprefix]`` and ``CACHEPREFIX_*`` variables.

        ``options`` win over them. ``path`` names the file, else the nearest one counts (see ``cacheprefix.config``).
        Raises ``ConfigError`` with file and line.
        """
        from cacheprefix.config import load  # noqa: PLC0415 - a session made without it needs no TOML

        found = load(path)
        return found.bind(cls(prefix, **{**found.options(), **options}))

    # ------------------------------------------------------------------ the prefix

    @property
    def prefix(self) -> SharedPrefix:
        """The frozen prefix."""
        return self._prefix

    def child(self, name: str, prefix: SharedPrefix | None = None) -> Session:
        """A session for a nested team: its own agents and prefix, the same trees, policies and totals."""
        if not name:
            message = "Session.child(name) needs a name"
            raise SetupError(message)
        child = object.__new__(type(self))
        child.__dict__.update(self.__dict__)
        child.name, child.beside = (f"{self.name}/{name}" if self.name else name), {}
        if prefix is not None:
            child._prefix = freeze(self.plugins, prefix)
        return child

    def related(self, other: Session | None) -> bool:
        """Whether ``other`` is this session, its parent or a child: both count into the same totals."""
        return other is not None and other.shared is self.shared

    def adopt_tools(self, tools: Iterable[Any], render: Callable[[Any], Mapping[str, Any]]) -> tuple[Tool, ...]:
        """The union of the prefix's tools and ``tools``, frozen; for adapters, before the first request.

        Raises ``ToolClashError`` when one name has two schemas. A tool that arrives after the first request
        stays outside the union and is noted, since it would change every prompt from its beginning.
        """
        with self.shared.lock:
            self._prefix = with_tools(self, tools, render)
            return tuple(self._prefix.tools)

    def adopt_system(self, text: str) -> None:
        """Make ``text``, found in all agents' system messages, the shared system text; for adapters, at set-up.

        Does nothing where the prefix has a text of its own.
        """
        with self.shared.lock:
            if not self._prefix.text:
                self._prefix = freeze(self.plugins, replace(self._prefix, system=text))

    def join(self, role: str) -> None:
        """Tell of a role before its first request; for adapters, at set-up."""
        self.shared.roles.add(f"{self.name}/{role}")

    @property
    def alone(self) -> bool:
        """Whether no more than one role has joined: then nobody is there to share a prefix with."""
        return len(self.shared.roles) <= 1

    def tail_for(
        self,
        role: str,
        instruction: str,
        *,
        tools: Sequence[str] | None = None,
        volatile: Mapping[str, str] | None = None,
    ) -> str:
        """The text that makes a request this role's: the only thing that differs between forks."""
        card = self.tail == "cards" and self._prefix.roles.get(role) == instruction
        if not card:
            self.shared.placement.told(role, instruction)
        return tail_text(role, instruction, card=card, tools=tools, volatile=volatile)

    def profile(self, model: str, api: Api | None = None, provider: str | None = None) -> Profile:
        """The provider rules in force for a model."""
        observed = self.mode == "observe"
        found = profile_of(self._registry, model, provider or self.provider, api, warn=not observed)
        if observed and not found.known and found.name not in (provider, self.provider):
            # A warning is something that the application sees.
            told = f"no cache profile for model {named(model)!r}"
            self.note(f"{told}: taken as 'automatic, nothing known'; name its provider")
        return found

    def shares(self, conversation: str, model: str, tokens: Callable[[], int]) -> bool:
        """Whether requests of a conversation are to become forks: what they share must be long enough to be cached.

        ``tokens`` counts what the next request shares beside the prefix's own text. Once a conversation shares,
        it goes on, because its layout must not change. What is left alone is noted once.
        """
        return shares(self, conversation, model, tokens)

    # ------------------------------------------------------------------ conversations

    def conversation(
        self,
        id: str = "",  # noqa: A002 - the field's word
        *,
        scope: str | None = None,
        api: Form | None = None,
        mode: CommitMode | None = None,
        model: str = "",
        hook: TransitionHook | None = None,
        consolidate: Consolidate = concatenate,
        context_limit: int | None = None,
    ) -> Conversation:
        """The conversation of a thread or run id, made when it is new; without an id one of its own, that is not kept.

        The most recent 10,000 are kept; what must last longer belongs into the framework's own state. Without a
        framework the conversation keeps the history itself: then say in which form of messages (``api``), when a
        turn becomes history (``mode``, through ``hook``), and what durable context may have (``context_limit``).
        Raises ``SetupError`` when it has a history in another form or mode.
        """
        options = {"hook": hook, "consolidate": consolidate, "context_limit": context_limit}
        return conversation_of(self, id, scope, api, mode, model, options)

    def forget(self, id: str, scope: str | None = None) -> None:  # noqa: A002 - as above
        """Drop a conversation whose messages are gone, with all that was decided on them; the next one starts anew."""
        self.shared.let_go((self.name, self.scope if scope is None else scope), id)

    def unnamed(self, said: Sequence[Hashable], scope: str | None = None, *, run: object = None) -> str:
        """An id for a request that came without one; for adapters, once a request.

        ``said`` stands for its messages, one value each: equal where they say the same. The request belongs to the
        conversation whose last request it begins with, if there is exactly one, and to a new one else. Requests of one
        ``run``, an object that is there for as long as that lasts, are one conversation.
        """
        return self.shared.find((self.name, self.scope if scope is None else scope), said, run)

    def known(self, id: str, scope: str | None = None) -> Conversation | None:  # noqa: A002 - as above
        """The conversation of an id, where there is one."""
        return self.shared.conversations.get((self.name, self.scope if scope is None else scope, id))

    # Methods like the others, written where their work is.
    lane = _lanes.lane
    place = _places.place
    shorten = _condense.shorten
    decides = _condense.decides
    condense = _condense.condense
    acondense = _condense.acondense
    summary_by_fork = _condense.summary_by_fork
    asummary_by_fork = _condense.asummary_by_fork

    def boundaries(self, body: Mapping[str, Any], api: Api, *, volatile: int = 0) -> Boundaries:
        """The predicted cacheable prefix of any body, its boundaries and what stands behind it, in tokens.

        The last ``volatile`` sections change with every call. Raises ``BodyError`` for a malformed body.
        """
        prompt = self.decode(body, api)
        return boundaries_of(prompt, volatile=volatile, minimum=self.profile(prompt.model, api).min_tokens)

    # ------------------------------------------------------------------ one request

    def begin(
        self,
        body: Mapping[str, Any],
        api: Api,
        *,
        agent: str = "",
        conversation: str | Conversation = "",
        boundary: Boundary = None,
        original: Original = None,
        headers: Mapping[str, str] | None = None,
        provider: str | None = None,
        rewrite: bool = True,
        repeated: bool = False,
        policy: ForkPolicy | None = None,
        scope: str | None = None,
        leave: Pass | None = None,
        continues: bool = False,
        trailing: bool = False,
    ) -> PendingCall:
        """Observe a request that is about to be sent, and in ``fork`` mode mark it for the cache.

        ``boundary`` is the number of leading sections shared with siblings, or a function that finds it in the
        decoded prompt. ``original`` gives, from the prompt as sent, the prompt as the application made it, for the
        estimate of what it would have cost. ``rewrite=False`` only observes. ``repeated`` is for a layout that nobody
        may share: where the provider keeps only what is marked, it is marked as far as an earlier request began with
        it, so that a call that stays the only one pays for no write. ``leave`` comes from ``queue`` or ``aqueue``; the
        turn releases the siblings that wait behind it. ``continues`` says that a request that begins like this one
        will follow, ``trailing`` that text for this one alone will be put behind it. Never raises: whatever fails,
        ``turn.body`` is ``body``.
        """
        held = self.known(conversation, scope) if isinstance(conversation, str) else conversation
        name = conversation if isinstance(conversation, str) else conversation.id
        asked = Asked(
            body, api, agent, name, boundary, original, headers, provider, policy,
            self.scope if scope is None else scope, rewrite and self.mode == "fork",
            repeated and self.mode == "fork", held, continues, trailing,
        )  # fmt: skip
        return begin(self, asked, leave or FOLLOW)

    def queue(
        self,
        body: Mapping[str, Any],
        api: Api,
        *,
        boundary: Boundary,
        scope: str | None = None,
        streams: bool | None = None,
    ) -> Pass:
        """Wait in this thread until a sibling that is writing the same cold prefix has begun to answer.

        Returns at once where nothing is gained: the prefix is warm or short, nobody writes it, the provider lets
        parallel requests share, or the sibling is expected to take longer than the saving is worth. ``streams`` says
        that this request's own answer, should it lead, will let the others go with its first token; by default it
        does where the body asks for a stream.
        """
        found = self.attempt("gate", lambda: gate_key(self, body, api, boundary, scope, streams=streams), None)
        return FOLLOW if found is None else self.follow(*found)

    async def aqueue(
        self,
        body: Mapping[str, Any],
        api: Api,
        *,
        boundary: Boundary,
        scope: str | None = None,
        streams: bool | None = None,
    ) -> Pass:
        """``queue`` without blocking the event loop."""
        found = self.attempt("gate", lambda: gate_key(self, body, api, boundary, scope, streams=streams), None)
        return FOLLOW if found is None else await self.afollow(*found)

    def worth(self, model: str, api: Api, *, cold: int, streams: bool = False) -> Worth | None:
        """What a request gains by waiting for a sibling that writes ``cold`` tokens; None where that is nothing.

        For ``follow``, in adapters that must wait before the body is made.
        """
        return self.shared.gating.worth(self.profile(model, api), model, cold=cold, streams=streams)

    def follow(self, key: bytes, worth: Worth) -> Pass:
        """Lead all that share the cold part named ``key``, or wait for who leads, as far as that is worth it."""
        return FOLLOW if self._gate is None else self.shared.gating.passed(self._gate.enter(key, worth))

    async def afollow(self, key: bytes, worth: Worth) -> Pass:
        """``follow`` without blocking the event loop."""
        return FOLLOW if self._gate is None else self.shared.gating.passed(await self._gate.aenter(key, worth))

    def followed(self, leave: Pass, agent: str, model: str, *, expected: bool = False) -> bool:
        """Whether a leader's whole answer is to be received as a stream, so that siblings go with its first token.

        It is where one waits for it, is ``expected`` (by who knows the framework), came when the agent led the last
        time, or may wait in another process. Else one is looked for, for ``LINGER`` seconds; where none comes, those
        who come later go by how long whole answers take.
        """
        if not leave.leader:
            return False
        known = expected or self.shared.gating.awaited(leave, agent)
        return known or leave.joined() or not self.shared.gating.goes_whole(leave, model)

    async def afollowed(self, leave: Pass, agent: str, model: str, *, expected: bool = False) -> bool:
        """``followed`` without blocking the event loop."""
        if not leave.leader:
            return False
        known = expected or self.shared.gating.awaited(leave, agent)
        return known or await leave.ajoined() or not self.shared.gating.goes_whole(leave, model)

    def decode(self, body: Mapping[str, Any], api: Api, *, headers: Mapping[str, str] | None = None) -> Prompt:
        """A body as a prompt, counted by this session's counter; history seen before costs next to nothing."""
        return decode(body, api, headers=headers, count=self.count, memo=self.shared.memo, envelope=self._envelope)

    # ------------------------------------------------------------------ what came of it

    @property
    def calls(self) -> tuple[Call, ...]:
        """The recent calls (the newest 10,000 at least)."""
        return self.shared.totals.calls

    @property
    def last_verdict(self) -> Verdict | None:
        """What the cache did on the last finished call."""
        last = self.shared.totals.last
        return None if last is None else last.verdict

    def cache_status(self) -> CacheStatus:
        """Recent hit rate, last read and write, last break."""
        return self.shared.model.status()

    def report(self) -> Report:
        """Tokens, cost units and money by agent, against the unmodified layout; breaks with their causes."""
        notices, tools, last = self.shared.notices, self.tool_calls.stats(), self.shared.totals.last
        advice = last and self.shared.placement.advice(last.profile, last.model, self.count)
        notes = (*notices.notes, advice) if advice else notices.notes
        use = self.shared.gating.use
        made = self.shared.totals.report(self.counter_name, notes, notices.failures)
        return replace(made, tool_cache=tools, gate=None if use == GateUse() else use)

    @property
    def counter_name(self) -> str:
        """Which token counter is in force; shown in every report."""
        last = self.shared.totals.last
        return self._counting.name(last.model if last else "")

    # ------------------------------------------------------------------ failing open

    @property
    def failures(self) -> Mapping[str, int]:
        """Steps at which cacheprefix failed and the application's own request went out, with counts."""
        return dict(self.shared.notices.failures)

    def attempt(self, step: str, work: Callable[[], T], otherwise: T) -> T:
        """Do our own work; whatever it raises is counted and named once, and ``otherwise`` is the answer."""
        return self.shared.notices.attempt(step, work, otherwise)

    def note(self, text: str) -> None:
        """Remember something the user should know, once; it stands in the report and the log."""
        self.shared.notices.note(text)

    def warn_once(self, key: str, text: str) -> None:
        """Warn about something the application did, once."""
        self.shared.notices.warn_once(key, text)

    # ------------------------------------------------------------------ hooks

    def count(self, text: str, model: str = "") -> int:
        """Tokens of a text, by the counter given, a plugin, or the default for the model."""
        return self._counting.count(text, model)

    def counter(self, model: str = "") -> Count:
        """``count`` for one model; the same object each time, as the memory of views needs it."""
        return self._counting.for_model(model, self.count)

    def forked(self, fork: Fork) -> Fork:
        """Let plugins change a fork's tail; anything else they change is refused and named."""
        return forked(self, fork)

    # ------------------------------------------------------------------ side forks

    fork = _side.fork
    afork = _side.afork

    def __deepcopy__(self, memo: dict[int, Any]) -> Session:
        """Copies of an application share the session, as they share its cache."""
        return self


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        message = f"Session({option}={value!r}): use {' or '.join(repr(name) for name in allowed)}"
        raise SetupError(message)


# What every session reads is read here, once: a session may be made in an event loop.
default_registry()
load_price_table()
load_vocabularies()
look_up_installed()
