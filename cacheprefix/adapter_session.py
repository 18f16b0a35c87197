"""What adapters use of a session: conversations, decisions on histories, layouts, the gate, calls, notices."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import starmap
from typing import Any, NoReturn, TypeVar

from cacheprefix.bounded import Bounded
from cacheprefix.cache.lifetimes import Lifetimes
from cacheprefix.cache.routing import RoutingKeys
from cacheprefix.call import Call
from cacheprefix.calls.begin import Request, Requests, Waiting
from cacheprefix.calls.counting import TokenCounting
from cacheprefix.calls.gating import AnyGate
from cacheprefix.calls.history_runner import HistoryRunner
from cacheprefix.calls.pending import PendingCall
from cacheprefix.calls.report import GateUse, Report
from cacheprefix.calls.state import SharedState
from cacheprefix.calls.tool_calls import ToolCalls
from cacheprefix.conversation import Conversation
from cacheprefix.errors import BudgetError, NotPicklableError, NotSharedError, SetupError
from cacheprefix.forks import SideForks
from cacheprefix.history import Boundaries, boundaries_of, concatenate, forget_rendered
from cacheprefix.layout import (
    FOLLOW,
    Pass,
    SharedPrefix,
    TailPlacement,
    Tool,
    context_block,
    economics,
    find_text,
    union_tools,
)
from cacheprefix.layout.economics import Lane, Seat, SelectorChoice
from cacheprefix.layout.plan import AgentRequest, Planner, RequestPlan, RoleTold, failed
from cacheprefix.layout.prefix import tool_of
from cacheprefix.layout.team import MADE_WITH, Team, ToolSource, Whose
from cacheprefix.mode import Mode
from cacheprefix.notices import Notices
from cacheprefix.options import Options
from cacheprefix.plugins import Plugins
from cacheprefix.profiles import Profile, load_price_library
from cacheprefix.prompt import Api, Count, Prompt, Reason, digest_of, reason
from cacheprefix.stores import MemoryStore, ResultStore
from cacheprefix.wire import forget_views

M = TypeVar("M")
T = TypeVar("T")
_REFUSED = "not sent, as the mode is strict"
_EDITIONS = 1_000
"""Prefixes beside a session's own that are remembered, those that came last."""


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
        roles = state.roles_of(scope)
        self.team = Team(name, scope, tail, prefix, partial(frozen, self.plugins), state.cards, roles)
        # Privacy: a child of another tenant would be answered from what the parent's tools said.
        self.tool_calls = self.tool_calls.of(scope)
        options, forks = self._options, self.mode != "observe"
        waits = self._gate is not None
        self._requests = Requests(self.team, state, self.plugins, forks=forks, off=self.off, waits=waits)
        self.histories = HistoryRunner(
            self.team,
            state,
            self.plugins,
            forks,
            options.budget,
            options.compaction,
            options.request_budget,
            options.results,
        )
        self.side_forks = SideForks(self._requests, self.histories)
        self.waiting = Waiting(self._requests, self._gate)
        self._planner = Planner(
            self.team, state.services, forks, state.tool_sets, state.positions, state.sharing, state.runs,
            state.open_runs, state.arms.kept_own, options.role_as,
        )  # fmt: skip
        self.beside: dict[str, Any] = {}
        """What adapters keep for this session, by their names; it goes with the session."""
        self._editions: Bounded[tuple[str, str], AdapterSession] = Bounded(_EDITIONS)

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
            raise SetupError("Session.child(name) needs a name")
        child = object.__new__(type(self))
        child.__dict__.update(self.__dict__)
        child._made = None
        full = f"{self.name}/{name}" if self.name else name
        tenant = self.scope if scope is None else scope
        if prefix is not None:
            child.lead(full, tenant, self.tail, frozen(self.plugins, prefix))
        elif tenant != self.scope:
            # Privacy: tools and text that were found in one tenant's requests are not told to another's.
            child.lead(full, tenant, self.tail, self.team.given)
        else:
            with self.team.lock:
                child.lead(full, tenant, self.tail, self.prefix)
                child.team.inherit(self.team)
        return child

    def edition(self, scope: str, tools: str = "") -> AdapterSession:
        """This session with another prefix, of what the user gave to all: same name, policies, roles and totals.

        For adapters, where tools have names that this one's prefix knows with another definition: the edition of the
        tenant ``scope``, or of those of whom ``tools`` names the definitions.
        """

        def made() -> AdapterSession:
            own = object.__new__(type(self))
            own.__dict__.update(self.__dict__)  # the user's own session too
            own.lead(self.name, scope, self.tail, self.team.given)
            return own

        with self.team.lock:
            return self._editions.of((scope, tools), made)

    def rehearsal(self) -> AdapterSession:
        """A session made alike that has seen nothing yet, for requests that are laid out and never sent.

        It has this one's prefix and roles; no plugin hears of its calls, no store keeps its texts, nobody waits at its
        gate, and where ``strict`` would raise, the reason stands on the call.
        """
        state, notices = self.shared, Notices()
        fresh = SharedState.fresh(replace(state.services, notices=notices), state.envelope)
        fresh.rehearsed = []
        fresh.roles_of(self.scope).update(self.team.roles)
        fresh.lifetimes, fresh.routing = Lifetimes(state.lifetimes.chosen), RoutingKeys(state.routing.keys)
        mode: Mode = "fork" if self.mode == "strict" else self.mode
        plugins, results = self.plugins.unheard(), ResultStore(MemoryStore())
        # The application's own consolidation may ask a model.
        rules = self._options.compaction and replace(self._options.compaction, consolidate=concatenate)
        made = AdapterSession(
            replace(self._options, mode=mode, results=results, compaction=rules),
            fresh,
            plugins,
            self._counting,
            None,
            ToolCalls(None, plugins, notices, owner=self.name, scope=self.scope, allowed=False),
            self._shown,
        )
        made.lead(self.name, self.scope, self.tail, self.prefix)
        # What a run will be asked need not be known yet: an empty task is none that a provider refuses.
        made._planner = replace(made._planner, rehearses=True)
        # Tools that came late, or with a run, are in a run's requests as whose they are, and so here.
        made.team.inherit(self.team)
        return made

    def asked_again(self) -> list[Call]:
        """In a rehearsal, what its requests come to in a further conversation (``Requests.asked_again``), in order."""
        return [self._requests.asked_again(one) for one in tuple(self.shared.rehearsed or ())]

    def related(self, other: AdapterSession | None) -> bool:
        """Whether ``other`` is this session, its parent or a child: both count into the same totals."""
        return other is not None and other.shared is self.shared

    def adopt_tools(
        self,
        tools: Iterable[Any],
        render: Callable[[Any], Mapping[str, Any]],
        *,
        grows: bool = False,
        scope: str | None = None,
        source: ToolSource = MADE_WITH,
    ) -> tuple[Tool, ...]:
        """The union of the prefix's tools and ``tools``, frozen; for adapters, before the first request.

        Raises ``ToolClashError`` when one name has two schemas. A tool that arrives after the first request
        stays outside the union and is noted, since it would change every prompt from its beginning. ``grows`` is for
        adapters that send of the union what ``RequestPlan.tools`` names: such a tool comes in. As it may be made for
        one user, conversations carry it whose own requests have it, where that costs less (``ToolSets.choose``).
        ``scope`` is the tenant whose tools these are, where that is not the session's own: all its conversations may
        carry them. ``source`` says where they were found.
        """
        given = [tool if isinstance(tool, Tool) else tool_of(tool, render) for tool in tools]
        tenant = None if scope in (None, self.scope) else scope
        first = not self.begun
        late = None if first and tenant is None and not self.team.parted else self.shared.notices.note
        self.shared.tool_sets.let_go(self.team)
        union = self.team.adopt_tools(given, render, late, grows=grows, source=source)
        self.shared.tool_sets.bring(self.team, self.scope if tenant is None else tenant, [tool.name for tool in given])
        if not (first or source.of_run or source.of_door) and self.team.late.intersection(tool.name for tool in given):
            self._part()
        return union

    def makes(self, role: Hashable, text: str | None, tools: Iterable[Any] = ()) -> None:
        """Note that the application makes an agent, and of what; for adapters, where that happens outside of all runs.

        ``text`` is what it is told, ``tools`` are their schemas in any form, in any order. None where nobody knows what
        it is made of: then each is another one.

        Privacy: an agent that is made again of something else, or in a new role after the first request, may be made
        for one user, and so may those that were made before. Then no tool of theirs is everybody's any longer: a
        conversation carries those that its own requests have, or have carried.
        """
        what = object() if text is None else digest_of(text, *sorted(map(str, tools)))
        before = self.team.made_as_before(role, what)
        if before is False or (before is None and self.begun):
            self._part()

    @property
    def begun(self) -> bool:
        """Whether the application has asked: what it makes from then on may be made for one user."""
        # Privacy: answers take their time, and while the first one is awaited other users' agents are made.
        return self.shared.asked or self.shared.totals.last is not None

    def _part(self) -> None:
        """Keep the tools of agents in their own conversations from now on."""
        if not self.team.parted:
            self.attempt("tools", lambda: self.shared.tool_sets.part(self.team), None)

    @property
    def mixed(self) -> bool:
        """Whether a conversation must not go on with tools that no own request has, for adapters that choose."""
        return self.team.mixed

    def resume_tools(self, conversation: Conversation) -> None:
        """Make known which tools a conversation that was saved elsewhere carries, as its decisions say."""
        self.attempt("tools", lambda: self.shared.tool_sets.resume(self.team, conversation), None)

    def bring_tools(self, who: Conversation | Whose, names: Collection[str], differ: Collection[str] = ()) -> None:
        """Note whose own some of the shared tools are, for adapters that choose by themselves.

        Not those that ``differ`` from the shared tool of their name, which may be somebody else's.
        """
        self.shared.tool_sets.bring(self.team, who, names, differ)

    def drop_tools(self, who: Whose) -> None:
        """Forget whose own tools were: a run is over, or a front door is gone."""
        self.shared.tool_sets.forget(who.id)

    def tools_open_to(self, who: Conversation | Whose | str) -> frozenset[str]:
        """Names of the shared tools that requests may carry, for adapters that choose by themselves.

        ``who`` is their conversation, run or front door, or the tenant that has many.
        """
        return frozenset(self.shared.tool_sets.open_to(self.team, who))

    def union_in(self, conversation: Conversation) -> tuple[str, ...]:
        """Names of the shared tools that a conversation's requests carry where they carry those of all."""
        return self.shared.tool_sets.union(self.team, conversation)

    def reachable(self, conversation: Conversation, own: Iterable[str] = ()) -> tuple[Tool, ...]:
        """The shared tools that a conversation's requests carry, or may come to carry; a session of many has others.

        ``own`` are the names of those that this request has: nobody may have had them in the conversation before.
        """
        return self.team.prefix.among({*self.tools_open_to(conversation), *self.union_in(conversation), *own})

    def adopt_system(self, text: str, *, with_context: bool = False) -> None:
        """Make ``text``, found in most agents' own messages, the shared system text; for adapters, at set-up.

        Does nothing where the prefix has a text of its own. Requests that do not hold it are not shown it: adapters say
        so by ``AgentRequest.holds_shared``, which ``holds_shared`` finds out.
        """
        self.team.adopt_system(text, with_context=with_context)

    def holds_shared(self, texts: Iterable[str]) -> bool:
        """Whether a request with these texts may be shown the shared one: one of them holds it, or the user gave it."""
        # Privacy: text that was found in some agents' requests is shown to none that does not hold it.
        found = self.team.found
        return not found or any(find_text(found, text) is not None for text in texts)

    def unsaid(self, texts: Iterable[str], role: str = "") -> str:
        """What the user gave to the session alone and a request with these texts lacks: to be said in its own layout.

        The shared system text, but for one that was found in others' requests, the durable context, the role's card.
        """
        prefix, said = self.prefix, tuple(texts)
        system = "" if self.team.found else prefix.system
        given = (system, *starmap(context_block, prefix.context.items()), prefix.roles.get(role, ""))
        missing = (text.strip() for text in given if all(find_text(text, one) is None for one in said))
        return "\n\n".join(text for text in missing if text)

    def join(self, role: str) -> None:
        """Tell of a role before its first request; for adapters, at set-up."""
        name = self.team.role(role)
        with self.shared.lock:
            self.team.roles.of(name, lambda: digest_of(name))

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

    def takes_lists(self, model: str) -> bool:
        """Whether a model's endpoint takes a list of allowed tools; False once it has refused one, as a gateway may."""
        return self.shared.services.takes_lists(model)

    def profile(self, model: str, api: Api | None = None, provider: str | None = None) -> Profile:
        """The provider rules in force for a model."""
        return self.shared.services.profile(model, api, provider)

    def plan(self, asked: AgentRequest[M]) -> RequestPlan[M]:
        """How a request is laid out, and why; the application's own layout where that fails.

        Raises ``BudgetError`` as ``HistoryRunner.condense`` does, and in ``strict`` mode ``NotSharedError``.
        """
        over: list[BudgetError] = []
        self.shared.asked = True
        if self.team.hears(asked.conversation, asked.role):
            self._part()

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
            refused = NotSharedError(asked.role, removable)
            self.note(f"{_REFUSED}: {refused}")
            raise refused
        return made

    def left_alone(self, role: str, conversation: str, scope: str | None = None) -> Reason | None:
        """Why a role's requests of a conversation stay the application's own, whatever sharing saves.

        For adapters that settle something before ``plan``, which says the same of its request. None where costs decide.
        """
        return self._planner.held(role, conversation, self.scope if scope is None else scope)

    def lanes(
        self,
        seats: Sequence[Seat],
        model: str,
        *,
        opening: int,
        rounds: float | None = None,
        speakers: int | None = None,
    ) -> dict[str, Lane]:
        """With whom each agent of a team that is known beforehand shares, by its name.

        ``opening`` are the tokens that were said before the first request, ``rounds`` how often each agent will speak,
        ``speakers`` how many do in a run at most; None where nobody knows.
        """
        rules, shared = self.profile(model), opening + self.count(self.prefix.text, model)
        found = economics.lanes(
            seats, read=rules.read, opening=shared, least=rules.min_tokens, rounds=rounds, speakers=speakers,
            whole=rules.match == "unit",
        )  # fmt: skip
        return {name: lane for lane in found for name in lane.names}

    def selector_lane(
        self, model: str, *, carried: int | None, opening: int, speakers: int, before: int, heads: int
    ) -> SelectorChoice:
        """What the questions of a team's selector begin with, as ``economics.selector_lane`` weighs it."""
        rules = self.profile(model)
        # A provider's rule: where marks or messages end what is kept, of a prompt in one message nothing is read.
        reads = heads if rules.match != "breakpoint" else 0
        return economics.selector_lane(
            carried=carried, opening=opening, speakers=speakers, read=rules.read, before=before, heads=reads
        )

    def selector_waits(self, conversation: Conversation, model: str, *, carried: int, said: int) -> Reason | None:
        """Why a selector that is to ask behind what its agents carry asks by its own prompt for now; None if it joins.

        ``carried`` are the tokens of shared text and tools, ``said`` those of the conversation so far.
        """
        # Money: who asks before any agent writes for itself alone what no agent may come to read.
        begun = self.shared.positions.begun(conversation, model)
        cost = economics.joined_question(carried=carried, said=said, read=self.profile(model).read if begun else 1.0)
        return reason("little_to_share", cost=round(cost), saved=said) if cost >= said else None

    def told(self, asked: AgentRequest[M]) -> RoleTold:
        """What ``plan`` will tell the role, and its tools: for adapters that ask a model before (a summary)."""
        return self._planner.told(asked)

    def places(self, conversation: Conversation) -> dict[str, Any]:
        """Where the roles' texts stand in a conversation, as plain data for a framework's own state."""
        return self.shared.positions.saved(conversation.scope, conversation.id)

    def restore_places(self, conversation: Conversation, saved: Mapping[str, Any], *, merge: bool = False) -> None:
        """Go on with places that another process has saved, so that requests begin with the same bytes.

        With ``merge`` beside those that came about here, as ``merged_places`` says.
        """
        load = partial(self.shared.positions.load, conversation.scope, conversation.id, saved, merge=merge)
        self.attempt("places", load, None)

    # ------------------------------------------------------------------ conversations

    def conversation(self, id: str = "", *, scope: str | None = None) -> Conversation:  # noqa: A002 - the field's word
        """The conversation of an id, made when it is new; without an id one of its own, that is not kept."""
        return self.histories.conversation(id, scope=scope)

    def forget(self, id: str, scope: str | None = None) -> None:  # noqa: A002 - as above
        """Drop a conversation whose messages are gone, with all that was decided on them; the next one starts anew."""
        self.shared.forget(self.team.owner(scope), id)
        # Privacy: no memory of ours holds its texts any longer.
        # Those of other conversations go too: a message is read again in microseconds.
        for count in self._counting.counts:
            forget_views(count)
            forget_rendered(count)

    def forgets(self, id: str, scope: str | None = None) -> int:  # noqa: A002 - as above
        """How often it was dropped so: adapters that keep a saved state of it somewhere let that go, too."""
        return self.shared.forgets.get((*self.team.owner(scope), id), 0)

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

    def decode(self, body: Mapping[str, Any], api: Api, *, headers: Mapping[str, str] | None = None) -> Prompt:
        """A body as a prompt, counted by this session's counter; history seen before costs next to nothing."""
        return self.shared.decode(body, api, headers=headers)

    def markable(self, body: Any, api: Api) -> Any:
        """A fork's body with its system text where a mark can stand behind it; the very same where it can already."""
        text = body.get("instructions") if api == "openai-responses" else None
        if not isinstance(text, str) or self.profile(str(body.get("model", "")), api).markers is None:
            return body
        # Money: instructions take no mark, and where a provider reads up to marks alone, none of them is read.
        rest = {name: value for name, value in body.items() if name != "instructions"}
        return {**rest, "input": [{"role": "system", "content": text}, *body["input"]]}

    # ------------------------------------------------------------------ what came of it

    def report(self) -> Report:
        """Tokens, cost units and money by agent, against the unmodified layout; breaks with their causes."""
        load_price_library()
        self.shared.catch_up()
        notices, tools, last = self.shared.notices, self.tool_calls.stats(), self.shared.totals.last
        use = self.shared.gating.told
        made = self.shared.totals.report(self.counter_name, notices.notes, notices.failures)
        if last is None:
            # What went out and failed, or was refused by ``strict``, did come.
            came = made.unanswered or any(one.startswith(_REFUSED) for one in notices.notes)
            notes = (*notices.notes, *(() if came else notices.unasked))
        else:
            advice = self.shared.cards.advice(last.profile, last.model, self.count, paid=made.total.cost_units)
            dearer = {line.agent for line in made.lines if line.ratio is not None and line.ratio > 1}
            added = self.team.told_more(last.model, self.count, dearer)
            notes = (*notices.notes, *filter(None, (advice, added)))
        gate = None if use == GateUse() else use
        return replace(made, notes=notes, tool_cache=tools, gate=gate, arms=self.shared.arms.report())

    @property
    def counter_name(self) -> str:
        """Which token counter is in force; shown in every report."""
        last = self.shared.totals.last
        return self._counting.name(last.model if last else "")

    # ------------------------------------------------------------------ failing open

    def attempt(self, step: str, work: Callable[[], T], otherwise: T) -> T:
        """Do our own work; whatever it raises is counted and named once, and ``otherwise`` is the answer."""
        return self.shared.notices.attempt(step, work, otherwise)

    def failed(self, step: str, error: Exception) -> None:
        """Count a failure of ours that was caught outside of ``attempt``, and name it once; raises what that raises."""

        def again() -> None:
            raise error

        self.attempt(step, again, None)

    def note_if_unasked(self, text: str) -> None:
        """Remember what the report is to say as long as no request has come: what was probably wrapped amiss."""
        self.shared.notices.note_if_unasked(text)

    def note(self, text: str) -> None:
        """Remember something the user should know, once; it stands in the report and the log."""
        self.shared.notices.note(text)

    def unseen(self, text: str) -> None:
        """``note`` that requests go out which the session does not see: what the whole run costs is unknown then."""
        self.shared.totals.unseen = True
        self.note(text)

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

    def __deepcopy__(self, memo: dict[int, Any]) -> AdapterSession:
        """Copies of an application share the session, as they share its cache."""
        return self

    def __copy__(self) -> AdapterSession:
        """As ``__deepcopy__``."""
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raise ``NotPicklableError``: what a session knows of the cache, and who waits for whom, is here alone."""
        raise NotPicklableError(
            "a session stays in its process: make one in each, with the same arguments or by Session.from_config(), "
            "and wrap the application's own objects there; a store that processes share is named by Gate(store=...)"
        )


def frozen(plugins: Plugins, prefix: SharedPrefix | str | None) -> SharedPrefix:
    """A prefix as the plugins leave it. Raises ``ToolClashError`` when one name has two schemas."""
    made = prefix if isinstance(prefix, SharedPrefix) else SharedPrefix(system=prefix or "")
    # A clash is the application's mistake and raises here; inside a hook it would only be reported.
    union_tools(tool for tool in made.tools if isinstance(tool, Tool))
    frozen = plugins.call_first("freeze", prefix=made)
    return frozen if isinstance(frozen, SharedPrefix) else made
