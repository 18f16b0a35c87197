"""What adapters use of a session: conversations, decisions on histories, layouts, the gate, calls, notices."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from typing_extensions import Unpack

from cacheprefix.cache import CacheStatus, Verdict
from cacheprefix.cache.lifetimes import Lifetimes
from cacheprefix.cache.routing import RoutingKeys
from cacheprefix.calls.begin import Boundary, Request, Requests
from cacheprefix.calls.counting import TokenCounting
from cacheprefix.calls.gating import AnyGate
from cacheprefix.calls.history_runner import HistoryRunner, RestOfRequest
from cacheprefix.calls.pending import PendingCall
from cacheprefix.calls.report import Call, GateUse, Report
from cacheprefix.calls.state import SharedState
from cacheprefix.calls.tool_calls import ToolCalls
from cacheprefix.conversation import Conversation
from cacheprefix.errors import BudgetError, NotSharedError, SetupError
from cacheprefix.forks import ForkOptions, ForkResult, SideForks
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
    forget_rendered,
)
from cacheprefix.history import Mode as CommitMode
from cacheprefix.history.settling import Ask, AsyncAsk
from cacheprefix.layout import FOLLOW, Fork, Pass, SharedPrefix, TailPlacement, Tool, Worth, find_text, union_tools
from cacheprefix.layout.plan import AgentRequest, Planner, RequestPlan, RoleTold, failed
from cacheprefix.layout.role_position import CountedHistory, RolePosition, Told
from cacheprefix.layout.team import Team
from cacheprefix.mode import Mode
from cacheprefix.notices import Notices
from cacheprefix.options import Options
from cacheprefix.plugins import Plugins
from cacheprefix.profiles import Profile
from cacheprefix.prompt import (
    Api,
    Count,
    Decision,
    MessageView,
    Prompt,
    Reason,
    ReplaceResult,
)
from cacheprefix.stores import MemoryStore, ResultStore
from cacheprefix.wire import Form, forget_views

M = TypeVar("M")
T = TypeVar("T")


class AdapterSession:
    """What adapters use of a session, and what the session itself is made of. Safe to share between threads and tasks.

    An adapter takes the user's session at its front door, and holds this.
    """

    def __init__(
        self,
        options: Options,
        state: SharedState,
        plugins: Plugins,
        counting: TokenCounting,
        gate: AnyGate | None,
        tool_calls: ToolCalls,
        shown: Callable[[AdapterSession], Any],
    ) -> None:
        self._options, self.shared, self.plugins, self._counting, self._gate = options, state, plugins, counting, gate
        self.tool_calls = tool_calls
        self.tool_cache = tool_calls.cache
        self._shown = shown
        self._made: weakref.ref[Any] | None = None

    @property
    def session(self) -> Any:
        """The session as the user has it: the very object that was made, as long as anybody holds it."""
        found = None if self._made is None else self._made()
        return self._shown(self) if found is None else found

    def shown(self, session: Any) -> None:
        """Note the user's session that this belongs to."""
        self._made = weakref.ref(session)

    def lead(self, name: str, scope: str, tail: TailPlacement, prefix: SharedPrefix) -> None:
        """Make the parts that work for one team: its layout, its requests, its histories, its side forks."""
        state = self.shared
        self.team = Team(name, scope, tail, prefix, partial(frozen, self.plugins), state.cards, state.roles)
        options, forks = self._options, self.mode != "observe"
        self._requests = Requests(self.team, state, self.plugins, forks=forks, off=self.off)
        self._history = HistoryRunner(
            self.team,
            state,
            self.plugins,
            forks,
            options.budget,
            options.compaction,
            options.request_budget,
            options.results,
        )
        self._forks = SideForks(self._requests, self._history)
        self._planner = Planner(
            self.team, state.services, forks, state.tool_sets, state.positions, state.sharing, state.arms.kept_own
        )
        self.beside: dict[str, Any] = {}
        """What adapters keep for this session, by their names; it goes with the session."""

    # ------------------------------------------------------------------ the prefix

    @property
    def prefix(self) -> SharedPrefix:
        """The frozen prefix."""
        return self.team.prefix

    @property
    def name(self) -> str:
        """Its name; ``outer/inner`` for a nested team's."""
        return self.team.name

    @property
    def scope(self) -> str:
        """The tenant whose requests these are, where a request does not say."""
        return self.team.scope

    @property
    def tail(self) -> TailPlacement:
        """Where role texts stand: behind what is shared, or as cards in the shared system text."""
        return self.team.tail

    # What was given when it was made: its parts hold it, so that none of it can be set afterwards.

    @property
    def mode(self) -> Mode:
        """``fork``; ``strict``, which raises for what the user can remove; ``observe``, which changes nothing sent.

        A session that is ``off`` observes, as far as adapters go, and what it is told of it forgets.
        """
        return "observe" if self._options.mode == "off" else self._options.mode

    @property
    def off(self) -> bool:
        """Whether not even observing is wanted: a front door that can then leaves its object as it is."""
        return self._options.mode == "off"

    @property
    def asked_mode(self) -> Mode:
        """The mode that the program asked for, for adapters that save it: a variable's is this process's alone."""
        return self._options.asked

    @property
    def budget(self) -> ToolResultBudget | None:
        """How much of a large tool result stands in the prompt."""
        return self._options.budget

    @property
    def compaction(self) -> Compaction | None:
        """When and how histories are shortened."""
        return self._options.compaction

    @property
    def request_budget(self) -> RequestBudget | None:
        """What holds whole requests to the model's window."""
        return self._options.request_budget

    @property
    def results(self) -> Results:
        """Keeps the full texts of results that were cut."""
        return self._options.results

    @property
    def provider(self) -> str | None:
        """The profile that counts where a model's name does not tell."""
        return self._options.provider

    @property
    def clock(self) -> Callable[[], float]:
        """Gives seconds."""
        return self.shared.services.clock

    def child(self, name: str, prefix: SharedPrefix | None = None, *, scope: str | None = None) -> AdapterSession:
        """A session for a nested team: its own agents and prefix, the same trees, policies and totals.

        ``scope`` is the tenant whose requests these are, this session's by default.
        """
        if not name:
            message = "Session.child(name) needs a name"
            raise SetupError(message)
        child = object.__new__(type(self))
        child.__dict__.update(self.__dict__)
        child._made = None
        full = f"{self.name}/{name}" if self.name else name
        tenant = self.scope if scope is None else scope
        child.lead(full, tenant, self.tail, self.prefix if prefix is None else frozen(self.plugins, prefix))
        return child

    def rehearsal(self) -> AdapterSession:
        """A session made alike that has seen nothing yet, for requests that are laid out and never sent.

        It has this one's prefix and roles; no plugin hears of its calls, no store keeps its texts, nobody waits at its
        gate, and where ``strict`` would raise, the reason stands on the call.
        """
        state, notices = self.shared, Notices()
        fresh = SharedState.fresh(replace(state.services, notices=notices), state.envelope)
        fresh.roles.update(state.roles)
        fresh.lifetimes, fresh.routing = Lifetimes(state.lifetimes.chosen), RoutingKeys(state.routing.keys)
        mode: Mode = "fork" if self.mode == "strict" else self.mode
        plugins, results = self.plugins.unheard(), ResultStore(MemoryStore())
        made = AdapterSession(
            replace(self._options, mode=mode, results=results),
            fresh,
            plugins,
            self._counting,
            None,
            ToolCalls(None, plugins, notices, owner=self.name, scope=self.scope, allowed=False),
            self._shown,
        )
        made.lead(self.name, self.scope, self.tail, self.prefix)
        made.team.found = self.team.found
        return made

    def related(self, other: AdapterSession | None) -> bool:
        """Whether ``other`` is this session, its parent or a child: both count into the same totals."""
        return other is not None and other.shared is self.shared

    def adopt_tools(self, tools: Iterable[Any], render: Callable[[Any], Mapping[str, Any]]) -> tuple[Tool, ...]:
        """The union of the prefix's tools and ``tools``, frozen; for adapters, before the first request.

        Raises ``ToolClashError`` when one name has two schemas. A tool that arrives after the first request
        stays outside the union and is noted, since it would change every prompt from its beginning.
        """
        late = None if self.shared.totals.last is None else self.shared.notices.note
        return self.team.adopt_tools(tools, render, late)

    def adopt_system(self, text: str) -> None:
        """Make ``text``, found in most agents' own messages, the shared system text; for adapters, at set-up.

        Does nothing where the prefix has a text of its own. Requests that do not hold it are not shown it: adapters say
        so by ``AgentRequest.holds_shared``, which ``holds_shared`` finds out.
        """
        self.team.adopt_system(text)

    def holds_shared(self, texts: Iterable[str]) -> bool:
        """Whether a request with these texts may be shown the shared one: one of them holds it, or the user gave it."""
        found = self.team.found
        return not found or any(find_text(found, text) is not None for text in texts)

    def unsaid(self, texts: Iterable[str]) -> str:
        """The shared system text where the user gave it to the session alone: what a request with these texts lacks.

        To be said in the application's own layout too. Empty for a text that was found in others' requests.
        """
        given = "" if self.team.found else self.prefix.system
        return "" if not given.strip() or any(find_text(given, text) is not None for text in texts) else given

    def join(self, role: str) -> None:
        """Tell of a role before its first request; for adapters, at set-up."""
        self.shared.roles.add(self.team.role(role))

    @property
    def alone(self) -> bool:
        """Whether no more than one role has joined: then nobody is there to share a prefix with."""
        return self.team.alone

    def tail_for(
        self,
        role: str,
        instruction: str,
        *,
        tools: Sequence[str] | None = None,
        volatile: Mapping[str, str] | None = None,
    ) -> str:
        """The text that makes a request this role's: the only thing that differs between forks."""
        return self.team.tail_for(role, instruction, tools=tools, volatile=volatile)

    def profile(self, model: str, api: Api | None = None, provider: str | None = None) -> Profile:
        """The provider rules in force for a model."""
        return self.shared.services.profile(model, api, provider)

    def plan(self, asked: AgentRequest[M]) -> RequestPlan[M]:
        """How a request is laid out, and why; the application's own layout where that fails.

        Raises ``BudgetError`` as ``condense`` does, and in ``strict`` mode ``NotSharedError``.
        """
        over: list[BudgetError] = []

        def planned() -> RequestPlan[M]:
            try:
                return self._planner.plan(asked)
            except BudgetError as error:
                # A request budget that cannot be met is the application's to hear of.
                over.append(error)
                return failed("request budget")

        otherwise: RequestPlan[M] = failed("layout")
        made = self.attempt("layout", planned, otherwise)
        if over:
            raise over[0]
        removable = tuple(one for one in made.reasons if one.removable)
        if removable and self.mode == "strict":
            raise NotSharedError(asked.role, removable)
        return made

    def left_alone(self, role: str, conversation: str, scope: str | None = None) -> Reason | None:
        """Why a role's requests of a conversation stay the application's own, whatever sharing saves.

        For adapters that settle something before ``plan``, which says the same of its request. None where costs decide.
        """
        return self._planner.held(role, conversation, self.scope if scope is None else scope)

    def told(self, asked: AgentRequest[M]) -> RoleTold:
        """What ``plan`` will tell the role, and its tools: for adapters that ask a model before (a summary)."""
        return self._planner.told(asked)

    def place(
        self,
        conversation: Conversation,
        role: str,
        text: str,
        history: Sequence[M],
        model: str = "",
        *,
        digest: Callable[[M], str],
        tokens: Callable[[M], int],
        **how: Unpack[Told],
    ) -> RolePosition:
        """Where a role's text goes among the messages of ``history``, as they are sent; for adapters, once a request.

        ``text`` is what the role is told and stays the same from request to request; ``digest`` and ``tokens`` are of
        one message. Never raises.
        """
        state, seen = self.shared, CountedHistory(history, digest, tokens)
        work = partial(state.positions.place, self.team, state.services, conversation, role, text, seen, model, **how)
        return self.attempt("place", work, RolePosition(len(history) if how.get("shared", True) else None))

    def places(self, conversation: Conversation) -> dict[str, Any]:
        """Where the roles' texts stand in a conversation, as plain data for a framework's own state."""
        return self.shared.positions.saved(conversation.scope, conversation.id)

    def restore_places(self, conversation: Conversation, saved: Mapping[str, Any]) -> None:
        """Go on with places that another process has saved, so that requests begin with the same bytes."""
        self.attempt("places", lambda: self.shared.positions.load(conversation.scope, conversation.id, saved), None)

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
        return self._history.conversation(
            id,
            scope=scope,
            api=api,
            mode=mode,
            model=model,
            hook=hook,
            consolidate=consolidate,
            context_limit=context_limit,
        )

    def forget(self, id: str, scope: str | None = None) -> None:  # noqa: A002 - as above
        """Drop a conversation whose messages are gone, with all that was decided on them; the next one starts anew."""
        self.shared.forget(self.team.owner(scope), id)
        # Those of other conversations go too: a message is read again in microseconds.
        for count in self._counting.counts:
            forget_views(count)
            forget_rendered(count)

    def unnamed(self, said: Sequence[Hashable], scope: str | None = None, *, run: object = None) -> str:
        """An id for a request that came without one; for adapters, once a request.

        ``said`` stands for its messages, one value each: equal where they say the same. The request belongs to the
        conversation whose last request it begins with, if there is exactly one, and to a new one else. Requests of one
        ``run``, an object that is there for as long as that lasts, are one conversation.
        """
        return self.shared.find(self.team.owner(scope), said, run)

    def known(self, id: str, scope: str | None = None) -> Conversation | None:  # noqa: A002 - as above
        """The conversation of an id, where there is one."""
        return self.shared.conversations.get((*self.team.owner(scope), id))

    def shorten(
        self, conversation: Conversation, views: Sequence[MessageView], model: str = ""
    ) -> tuple[ReplaceResult, ...]:
        """What stands in place of large tool results, decided once and replayed; empty when it fails."""
        return self._history.shorten(conversation, views, model)

    def decides(self, conversation: Conversation) -> bool:
        """Whether ``condense`` may decide on anything, or repeats it, so that making views is worth it."""
        return self._history.decides(conversation)

    def condense(
        self,
        conversation: Conversation,
        views: Sequence[MessageView],
        model: str = "",
        api: Api | None = None,
        rest: RestOfRequest | None = None,
        *,
        ask: Ask | None = None,
    ) -> tuple[Decision, ...]:
        """All decisions on a framework's history: results cut once, and compaction where it is due and pays.

        ``views`` are of the history as the framework has it, never of what was sent; ``rest`` is what the request has
        beside it. ``ask`` writes summaries for ``Compaction(summarise="fork")``. Fails open, but raises
        ``BudgetError`` with ``over_by`` where a ``request_budget`` cannot be met. See ``HistoryRunner.condense``.
        """
        return self._history.condense(conversation, views, model, api, rest, ask=ask)

    async def acondense(
        self,
        conversation: Conversation,
        views: Sequence[MessageView],
        model: str = "",
        api: Api | None = None,
        rest: RestOfRequest | None = None,
        *,
        ask: AsyncAsk | None = None,
    ) -> tuple[Decision, ...]:
        """``condense`` with an ``ask`` that is awaited, such as ``asummary_by_fork`` makes."""
        return await self._history.acondense(conversation, views, model, api, rest, ask=ask)

    def summary_by_fork(
        self,
        *,
        body: Mapping[str, Any],
        api: Api,
        send: Callable[[dict[str, Any]], Any],
        conversation: str = "",
        scope: str | None = None,
    ) -> Ask:
        """An ``ask`` for compaction: a fork of ``body``, the request as last sent, so that its prefix is read."""
        return self._forks.summary(body, api, send, conversation, scope)

    def asummary_by_fork(
        self,
        *,
        body: Mapping[str, Any],
        api: Api,
        send: Callable[[dict[str, Any]], Awaitable[Any]],
        conversation: str = "",
        scope: str | None = None,
    ) -> AsyncAsk:
        """``summary_by_fork`` with an asynchronous ``send``; for ``acondense`` and ``Conversation.abuild``."""
        return self._forks.asummary(body, api, send, conversation, scope)

    def boundaries(self, body: Mapping[str, Any], api: Api, *, volatile: int = 0) -> Boundaries:
        """The predicted cacheable prefix of any body, its boundaries and what stands behind it, in tokens.

        The last ``volatile`` sections change with every call. Raises ``BodyError`` for a malformed body.
        """
        prompt = self.decode(body, api)
        return boundaries_of(prompt, volatile=volatile, minimum=self.profile(prompt.model, api).min_tokens)

    # ------------------------------------------------------------------ one request

    def begin(self, asked: Request, leave: Pass = FOLLOW) -> PendingCall:
        """Observe a request that is about to be sent, and in ``fork`` mode mark it for the cache.

        ``leave`` comes from ``queue`` or ``aqueue``; the call under way releases the siblings that wait behind it.
        Never raises: whatever fails, ``body`` of what it gives is the request's own.
        """
        return self._requests.begin(asked, leave)

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
        found = self.attempt("gate", lambda: self._requests.gate_key(body, api, boundary, scope, streams=streams), None)
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
        found = self.attempt("gate", lambda: self._requests.gate_key(body, api, boundary, scope, streams=streams), None)
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
        return self.shared.decode(body, api, headers=headers)

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
        advice = last and self.shared.cards.advice(last.profile, last.model, self.count)
        notes = (*notices.notes, advice) if advice else notices.notes
        use = self.shared.gating.use
        made = self.shared.totals.report(self.counter_name, notes, notices.failures)
        return replace(made, tool_cache=tools, gate=None if use == GateUse() else use, arms=self.shared.arms.report())

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
        return self._counting.for_model(model)

    def forked(self, fork: Fork) -> Fork:
        """Let plugins change a fork's tail; anything else they change is refused and named."""
        return self._forks.changed(fork)

    # ------------------------------------------------------------------ side forks

    def fork(
        self,
        text: str,
        *,
        body: Mapping[str, Any],
        api: Api,
        send: Callable[[dict[str, Any]], Any],
        **options: Unpack[ForkOptions],
    ) -> ForkResult:
        """Ask something beside a conversation, on its cached prefix, and run the fork's own tool loop.

        ``body`` is a request body of the parent (its messages, tools and settings); ``send(body)`` makes one
        call and gives the response as a dict or an SDK's object. ``tool_executor(id, name, arguments)`` (or with
        ``state`` as fourth argument) runs tools; without one, and when it raises, the model gets an error result.
        ``overrides`` replaces body fields; what then no longer shares raises ``UnsafeForkError`` before any call.
        ``commit`` takes the fork's messages afterwards unless the policy skips the transcript. ``scope`` is the tenant
        whose cache it is, the session's by default.
        """
        return self._forks.run(text, body, api, send, **options)

    async def afork(
        self,
        text: str,
        *,
        body: Mapping[str, Any],
        api: Api,
        send: Callable[[dict[str, Any]], Awaitable[Any]],
        **options: Unpack[ForkOptions],
    ) -> ForkResult:
        """``fork`` with an asynchronous ``send``; the tool executor may be sync or async."""
        return await self._forks.arun(text, body, api, send, **options)

    def __deepcopy__(self, memo: dict[int, Any]) -> AdapterSession:
        """Copies of an application share the session, as they share its cache."""
        return self


def frozen(plugins: Plugins, prefix: SharedPrefix | str | None) -> SharedPrefix:
    """A prefix as the plugins leave it. Raises ``ToolClashError`` when one name has two schemas."""
    made = prefix if isinstance(prefix, SharedPrefix) else SharedPrefix(system=prefix or "")
    # A clash is the application's mistake and raises here; inside a hook it would only be reported.
    union_tools(tool for tool in made.tools if isinstance(tool, Tool))
    frozen = plugins.call_first("freeze", prefix=made)
    return frozen if isinstance(frozen, SharedPrefix) else made
