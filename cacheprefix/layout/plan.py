"""The one way from what an agent asks to how its request is laid out, and why.

    AgentRequest -> which tools it carries -> its text -> what was decided on its history
                 -> is what it shares long enough? -> where does its text stand? -> RequestPlan

An adapter translates a framework's objects into an ``AgentRequest`` and applies the ``RequestPlan`` to them; what costs
decide is decided here. Stages that today differ between frameworks are named policies of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

from cacheprefix.layout.cost_model import CachePrices
from cacheprefix.layout.economics import NAMED
from cacheprefix.layout.known_runs import KnownRuns, RunAhead, RunCall, RunFacts, RunLayout
from cacheprefix.layout.open_runs import OpenRuns
from cacheprefix.layout.prefix import Tool
from cacheprefix.layout.role_position import (
    LONG,
    CountedHistory,
    RoleAsked,
    RolePosition,
    RolePositions,
    TaskPosition,
)
from cacheprefix.layout.shared_text import find_text, mostly_holds
from cacheprefix.layout.tail import RoleAs
from cacheprefix.layout.team import Decided, Team
from cacheprefix.layout.tool_restriction import FREE, Restriction, restrict
from cacheprefix.layout.tool_sets import ToolsAsked, ToolSet, ToolSets
from cacheprefix.layout.worth_sharing import WorthSharing, rules_in
from cacheprefix.profiles import Profile
from cacheprefix.prompt import Api
from cacheprefix.prompt.reasons import LEFT_ALONE, Layout, Reason, reason
from cacheprefix.services import Services

M = TypeVar("M")

Carried = Literal["open", "union", "own"] | tuple[str, ...]
"""Which tools a role's requests carry. ``open``: those of all, or its own, by what an open-ended run is expected to
cost (``ToolSets.choose``); ``union``: those of all; ``own``: the application's array as it is, as where nobody else is
there to carry the same; names: those, as a team that is known beforehand settled."""

Place = Literal["cheapest", "end", "front"] | Callable[[Profile], TaskPosition]
"""Where a role's text stands. ``cheapest``: where it costs least (``RolePositions.place``); ``end``: behind the
history, as a text must that is for this request alone; ``front``: before it, where the history is this role's own. A
callable is the policy of a team whose tasks are known beforehand (``KnownCrews.position``), asked once all else
allows a fork, with the provider's rules in our tokens: it gives the place, or why the request is none."""


@dataclass(frozen=True, slots=True)
class OwnTools:
    """The tools that an agent brings, by name, and what its client can do about those of others."""

    names: tuple[str, ...]
    may_use: tuple[str, ...] | None = None
    """Those that the role may use; None for all of its own."""
    carried: Carried = "open"
    free: bool = True
    """Whether the application leaves ``tool_choice`` to the model."""
    lists: bool = True
    """Whether the client takes a list of allowed tools as ``tool_choice``."""
    calls: bool = True
    """False where this request alone must call none, although the role has some."""
    fans_out: bool = False
    """Whether requests of this very role, which bring the same tools, are sent beside this one."""
    differ: tuple[str, ...] | None = None
    """Those that it declares in another way than the union has them, for which it keeps its own array; None where the
    adapter does not know, and goes by what was declared in two ways by anybody."""


@dataclass(frozen=True, slots=True)
class AgentRequest(Generic[M]):
    """What an agent is about to ask, before any layout. ``M`` is a message as the framework has it."""

    role: str
    model: str
    conversation: Decided
    instruction: str
    """The role's own text, without the shared one."""
    history: Callable[[RoleTold], CountedHistory[M]]
    """The messages among which the role's text may stand, after what was decided on them. Is given that text, which
    the request holds beside them, and the tools that it carries."""
    spoken: Callable[[], Sequence[int]] = tuple
    """Gives the tokens of each message that it shares, before anything is decided on them."""
    api: Api | None = None
    tools: OwnTools | None = None
    """None where the request's tools stay as they are and come into nothing."""
    volatile: Mapping[str, str] = field(default_factory=dict)
    """Text for this request alone that stands in the role's text."""
    worded: str | None = None
    """The role's text, where the adapter words it itself; None for ``Team.tail_for``."""
    shared: int | None = None
    """Tokens before the role's text, where the adapter knows them; None to have them counted."""
    holds_shared: bool = True
    """Whether the application's own request holds the shared system text, in whichever message. One that does not is
    no fork where that text was found in others' requests (``adopt_system``): it is not shown what is theirs."""
    own: tuple[Reason, ...] = ()
    """Why the adapter knows that it keeps the application's own layout; empty where costs decide."""
    known: tuple[Reason, ...] = ()
    """What else the adapter knows of it, laid out as a fork too: a response schema, a tool that it must call, a text
    that was named to be shared and stands nowhere."""
    place: Place = "cheapest"
    holds: bool = False
    """Whether the place holds for as long as nothing is said: for a turn of several requests."""
    resumed: bool = False
    """Whether the role was loaded in its own layout, in which the provider's cache has what came before."""
    moves: int = 0
    """Tokens that stand behind the role's text whatever its place, and so move with it: what this role alone has seen,
    such as its earlier tool results."""
    written: bool = False
    """Whether the request's end is written to the cache in any case, as within a loop of tool calls."""
    alike: bool = False
    """Whether all roles' own requests begin with the shared text without us: where they carry the same tools too and
    the provider caches by itself, a fork gains only by the conversation."""
    joint: bool = True
    """False where the conversation is this role's alone, as far as is known."""
    cached: bool = False
    """Whether the framework itself marks requests in its own layout, so that a provider keeps them."""
    text_counts: bool = False
    """Whether a short text of the role counts as shared: with it, the agent's own requests would soon be kept."""
    long_text_stays: bool = False
    """Whether a role keeps its own layout as long as its text is longer than all that it shares."""
    talk: str = ""
    """The id of the conversation, where ``conversation`` holds the decisions of several."""
    alone: bool = False
    """Whether no other request is there to share with yet, though this one is laid out as if there were."""
    ahead: RunAhead | None = None
    """The calls of the run from this one on, where their number and order are known; None for an open-ended run."""
    played: bool = False
    """Whether layouts are played (``OpenRuns``) in an open-ended run too."""
    base: str | None = None
    """The system text of an agent that no other role is there to share with, in place of the shared one."""


@dataclass(frozen=True, slots=True)
class RoleTold:
    """What a role is told in its request, and the tools that it is given."""

    text: str
    tools: ToolSet | None
    restriction: Restriction

    def carries(self, own: Sequence[str]) -> Sequence[str]:
        """Names of the tools of its request, ``own`` those that the role brought."""
        return own if self.tools is None else self.tools.tools


@dataclass(frozen=True, slots=True)
class RequestPlan(Generic[M]):
    """How a request is laid out, and why."""

    layout: Layout
    reasons: tuple[Reason, ...]
    text: str = ""
    """The role's text as it is sent."""
    at: int | None = None
    """Messages of ``history`` that stand before it; None in the application's own layout."""
    history: Sequence[M] = ()
    """The messages after what was decided on them."""
    tools: ToolSet | None = None
    """The tools of the union that it carries; None where its tools stay as they are."""
    restriction: Restriction = FREE
    continues: bool = False
    """Whether the role's next request may begin with this one, so that its end is written to the cache."""
    said_as: str = "user"
    """Under which role of the API its text is sent, in a message of its own."""
    last: bool = False
    """Whether it is known that no request of this role comes behind it."""

    @property
    def repeats(self) -> bool:
        """Whether costs decided for the application's own layout: so it may come again, and is marked then."""
        others = ("failed", "kept_by_provider", "own_prompt")
        decided = self.at is None and self.layout == "own" and not self.left_alone
        return decided and self.reasons[-1].why not in others

    @property
    def left_alone(self) -> bool:
        """Whether it is to go out as the application made it, with nothing but what it leaves to the session to say."""
        return any(one.why in LEFT_ALONE for one in self.reasons)

    @property
    def forks(self) -> bool:
        """Whether it is laid out as a fork."""
        return self.layout == "fork"


def failed(step: str) -> RequestPlan[M]:
    """The plan of a request whose layout failed: the application's own."""
    return RequestPlan("own", (reason("failed", step),))


@dataclass(frozen=True, slots=True)
class Planner:
    """Lays out the requests of one team. Thread-safe."""

    team: Team
    services: Services
    active: bool
    """False for a session that only observes."""
    tool_sets: ToolSets
    positions: RolePositions
    sharing: WorthSharing
    runs: KnownRuns
    open_runs: OpenRuns
    kept_own: Callable[[str, str, str], Reason | None] = lambda _scope, _conversation, _role: None
    """Why a role's requests of a tenant's conversation keep the application's own layout, whatever costs say."""
    role_as: RoleAs = "user"
    """As whom the user wants role texts to be said."""

    def held(self, role: str, conversation: str, scope: str) -> Reason | None:
        """Why a role's requests of a conversation are left alone, whatever sharing saves; None where costs decide."""
        return self.kept_own(scope, conversation, self.team.agent(role)) if self.active else None

    def plan(self, asked: AgentRequest[M]) -> RequestPlan[M]:
        """The layout of one request. What ``asked.history`` raises, it raises."""
        if not self.active:
            return RequestPlan("observed", (reason("observe_mode"),))
        asked = self._kept(asked)
        told = self.told(asked)
        mistakes = (*self._mistakes(asked, told.tools), *asked.known)
        text, tools, restriction = told.text, told.tools, told.restriction
        history = asked.history(told)
        said = (*history.messages, *history.behind)
        own = asked.own or (() if self._may_see(asked) else (reason("other_text", asked.role),))
        if own:
            return RequestPlan("own", (*mistakes, *own), text, None, said, tools, restriction)
        shared = self._shared(asked, tools, history) if asked.shared is None else asked.shared
        refused = self._refused(asked, tools, shared, text, history)
        run = self._run(asked) if refused is None else None
        if run is not None:
            position = self._placed_in(asked, run, tools, text, history)
            if not run.forks:
                # What is too short says so: the costs of the run follow from it.
                refused = self._too_short(asked, shared, text)
                refused = refused or reason("little_to_share", cost=run.cost, saved=run.own)
        elif not callable(asked.place):
            position = self._placed(asked, asked.place, tools, text, history, shares=refused is None)
        else:
            rules = rules_in(asked.conversation, self.services, asked.model, asked.api)
            found = asked.place(rules) if refused is None else refused
            position, refused = (RolePosition(None), found) if isinstance(found, Reason) else (found, None)
        if position.at is None:
            if tools is not None and asked.tools is not None and set(tools.tools) != set(asked.tools.names):
                # What is said of its tools in the history holds for those that it goes out with.
                history = asked.history(replace(told, tools=None))
                said = (*history.messages, *history.behind)
            size = self._size(text, asked.model)
            why = refused or reason("role_costs_more", size=size)
            if asked.base is not None and not text and why.why in ("little_to_share", "role_costs_more"):
                # With nobody to share with, and no text to move, those numbers say nothing.
                why = reason("alone")
            return RequestPlan("own", (*mistakes, why), text, None, said, tools, restriction, last=_last_call(asked))
        alone = asked.alone or asked.base is not None
        if tools is not None and asked.tools is not None and not set(asked.tools.names) <= set(tools.tools):
            # A tool that the siblings do not carry stands behind theirs: what follows is another prompt than theirs.
            shared = self._schemas(tools.tools, asked.model)
        reasons = [*mistakes, reason("alone") if alone else reason("shares", shared=shared)]
        if tools is not None and tools.name:
            reasons.append(reason("own_tools", foreign=self._foreign(tools, asked.model)))
        in_front = position.at < len(history.messages) and asked.place == "cheapest"
        if in_front or (position.continues and callable(asked.place)):
            reasons.append(reason("role_kept", size=self._size(text, asked.model)))
        # With nobody to share with and nothing moved, it is the application's own, which is only marked.
        layout: Layout = "fork" if asked.base is None or text else "own"
        return RequestPlan(
            layout, tuple(reasons), text, position.at, said, tools, restriction, position.continues,
            said_as=self._said_as(asked),
        )  # fmt: skip

    def told(self, asked: AgentRequest[M]) -> RoleTold:
        """What ``plan`` will tell the role, before anything is decided on its history."""
        asked = self._kept(asked)
        tools, restriction = self._tools(asked)
        text = asked.worded
        if text is None:
            text = self.team.tail_for(
                asked.role,
                asked.instruction,
                tools=restriction.said,
                volatile=asked.volatile,
                sent=not asked.own and self._may_see(asked),
            )
        return RoleTold(text, tools, restriction)

    def _said_as(self, asked: AgentRequest[M]) -> str:
        """Under which role of the API the role's text is sent."""
        if self.role_as == "user":
            return "user"
        rules = self.services.profile(asked.model, asked.api)
        if not rules.mid_system:
            self.services.notices.note(
                f"role texts are said as a user's on {asked.model or 'an unknown model'}: {rules.name} is not known to "
                "take a developer's or a system message behind a conversation"
            )
            return "user"
        return "developer" if rules.developer else "system"

    def _may_see(self, asked: AgentRequest[M]) -> bool:
        """Whether the role may be shown the shared text: it holds it itself, or the user gave it for all."""
        return asked.holds_shared or not self.team.found or asked.base is not None

    def _kept(self, asked: AgentRequest[M]) -> AgentRequest[M]:
        found = self.held(asked.role, asked.talk or asked.conversation.id, asked.conversation.scope)
        return asked if found is None else replace(asked, own=(found,))

    def _mistakes(self, asked: AgentRequest[M], tools: ToolSet | None) -> tuple[Reason, ...]:
        """What keeps the request from sharing, or from sharing all, that the user can remove."""
        found = []
        known = self.team.prefix.system
        # The text was taken out of the role's before; what is left of it stands there again, or in other words.
        if known and (find_text(known, asked.instruction) or mostly_holds(known, asked.instruction)):
            found.append(reason("text_not_found", asked.role))
        own = asked.tools
        if own is not None and asked.base is None:
            differ = self.team.clashing if own.differ is None else own.differ
            shared = () if tools is None or tools.name else tools.tools
            late = (name for name in own.names if name in self.team.late and name not in shared)
            found += [reason("made_too_late", name) for name in late]
            found += [reason("tool_schema_differs", name) for name in own.names if name in differ]
        if self.team.other_model(asked.role, asked.model):
            found.append(reason("other_model", asked.model))
        return tuple(found)

    def _tools(self, asked: AgentRequest[M]) -> tuple[ToolSet | None, Restriction]:
        """The tools of the union that the request carries, and how the role is kept to its own."""
        own = asked.tools
        if own is None:
            return None, FREE
        self.tool_sets.bring(self.team, asked.conversation.scope, own.names)
        if own.carried == "own":
            return None, Restriction(said=own.may_use)
        run = self._run(asked)
        if run is not None and own.carried == "open":
            mine = tuple(name for name in self.team.prefix.tool_names if name in set(own.names))
            tools = ToolSet(mine, shares=True, name="\0".join(sorted(mine)))
            if run.union:
                tools = ToolSet(self.tool_sets.union(self.team, asked.conversation, own.names), shares=True)
        elif own.carried == "open":
            role, model, positions = self.team.role(asked.role), asked.model, self.positions
            tools = self.tool_sets.choose(
                self.team, self.services, asked.conversation, asked.role, model,
                ToolsAsked(
                    own.names,
                    asked.spoken,
                    own.fans_out,
                    self._size(asked.instruction, model),
                    lambda: positions.paid(asked.conversation, model),
                    lambda lane, units: positions.outrun(asked.conversation, f"{model}\0{lane}", role, units=units),
                ),
            )  # fmt: skip
        elif own.carried == "union":
            tools = ToolSet(self.tool_sets.union(self.team, asked.conversation, own.names), shares=True)
        else:
            wanted = set(own.carried)
            tools = ToolSet(tuple(name for name in self.team.prefix.tool_names if name in wanted), shares=True)
        if own.differ:
            # Chosen all the same, as it says whether others carry tools of these names; the array stays its own.
            return tools, Restriction(said=own.may_use)
        rules = self.services.profile(asked.model, asked.api)
        names = own.names if own.may_use is None else own.may_use
        return tools, restrict(names, tools.tools, rules, free=own.free, lists=own.lists, calls=own.calls)

    def _shared(self, asked: AgentRequest[M], tools: ToolSet | None, history: CountedHistory[M]) -> int:
        """Tokens before the role's text: the system text, the tools carried, the history; each once."""
        own = asked.tools.names if asked.tools is not None else ()
        system = self.team.prefix.text
        return (
            self._size(system if asked.base is None else asked.base, asked.model)
            + self._schemas(own if tools is None else tools.tools, asked.model)
            + sum(map(history.tokens, history.messages))
        )

    def _schemas(self, names: Collection[str], model: str) -> int:
        """Tokens of the shared tools of these names."""
        known = (tool.schema.decode() for tool in self.team.prefix.tools if tool.name in names)
        return sum(self.services.count(schema, model) for schema in known)

    def _refused(
        self, asked: AgentRequest[M], tools: ToolSet | None, shared: int, text: str, history: CountedHistory[M]
    ) -> Reason | None:
        """Why the request is no fork whatever its text's place; None where it may be one."""
        if tools is not None and not tools.shares:
            return reason("tools_cost_more", foreign=self._foreign(tools, asked.model))
        size = self._size(text, asked.model)
        key = (asked.conversation, asked.role, asked.model)
        if asked.long_text_stays and size > shared and not self.sharing.moved(*key):
            return reason("text_longer_than_shared", size=size, shared=shared)
        refused = self._too_short(asked, shared, text)
        # One that is no longer than the shared text never is again: nothing need be recorded.
        always = self.team.prefix.text if asked.base is None else asked.base
        if refused is None and asked.long_text_stays and size > self._size(always, asked.model):
            self.sharing.move(*key)
        played = asked.ahead is not None or asked.played
        if played and self.services.profile(asked.model, asked.api).control != "none":
            # The model of the cache reckons with the provider's minimum.
            return None
        return refused or self._little(asked, tools, history)

    def _too_short(self, asked: AgentRequest[M], shared: int, text: str) -> Reason | None:
        """Why nothing of what a request shares would be cached; None where it would."""
        size = self._size(text, asked.model)
        # A short text counts: with it, the agent's own requests would soon be kept, and leaving those is paid for.
        counted = shared + size if asked.text_counts and size < LONG else shared
        return self.sharing.refusal(
            self.team, self.services, asked.conversation, asked.model, counted, base=asked.base is not None
        )

    def _run(self, asked: AgentRequest[M]) -> RunLayout | None:
        """How a request of a run is laid out whose layouts are played; None for others. Asked again, it is the same."""
        run = asked.ahead
        if (run is None and not asked.played) or (run is not None and not run.calls) or asked.place != "cheapest":
            return None
        profile = rules_in(asked.conversation, self.services, asked.model, asked.api)
        carried = asked.tools.carried if asked.tools else "own"
        carries = self.tool_sets.union(self.team, asked.conversation) if asked.tools else ()
        own = asked.tools.names if asked.tools else ()
        text = self._size(asked.instruction, asked.model)
        facts = RunFacts(
            run or RunAhead((RunCall(asked.role, text, own),)),
            CachePrices.of(profile, cached=asked.cached),
            asked.conversation.id,
            self._size(self.team.prefix.text, asked.model),
            {
                tool.name: self._size(tool.schema.decode(), asked.model)
                for tool in self.team.prefix.tools
                if isinstance(tool, Tool) and tool.name in {*carries, *own}
            },
            text + NAMED + asked.moves,
            asked.spoken(),
            alike=asked.alike,
            union=carried in ("open", "union"),
            kits=carried in ("open", "own"),
        )
        scope = asked.conversation.scope
        if run is None:
            key = (scope, asked.model, self.team.key)
            return self.open_runs.layout(key, facts, len(self.team.roles))
        return self.runs.layout((scope, asked.conversation.id if run.joint else "", asked.model, self.team.key), facts)

    def _placed_in(
        self, asked: AgentRequest[M], run: RunLayout, tools: ToolSet | None, text: str, history: CountedHistory[M]
    ) -> RolePosition:
        """Where the role's text stands in a run whose layouts are played."""
        found = RolePosition(None)
        if run.forks:
            # What was decided on the history may have made it shorter; a text for this request alone stands behind it.
            behind = asked.volatile or run.at >= len(history.messages)
            found = RolePosition(len(history.messages) if behind else run.at, run.continues and not asked.volatile)
        role = _role_asked(asked, tools, text, history)
        self.positions.settle(self.team, self.services, role, found, last_call=_last_call(asked))
        return found

    def _little(self, asked: AgentRequest[M], tools: ToolSet | None, history: CountedHistory[M]) -> Reason | None:
        """Why a fork would gain nothing yet, where requests begin alike without us; None where it may gain."""
        brought = () if asked.tools is None else asked.tools.names
        foreign = tools is not None and not set(tools.tools) <= set(brought)
        if not asked.alike or asked.place != "cheapest" or asked.volatile or foreign:
            return None
        # Who caches only what is marked reads nothing of requests in the application's own layout.
        if self.services.profile(asked.model, asked.api).markers is not None:
            return None
        said = sum(map(history.tokens, history.messages))
        # Another layout is another prompt, once; as much of the conversation must be worth it as of a text that keeps
        # its place.
        return reason("little_to_share", cost=LONG, saved=said) if said < LONG else None

    def _placed(
        self,
        asked: AgentRequest[M],
        place: str,
        tools: ToolSet | None,
        text: str,
        history: CountedHistory[M],
        *,
        shares: bool,
    ) -> RolePosition:
        """Where the role's text stands; asked for other requests too, as it goes by what earlier ones were."""
        if place == "front":
            return RolePosition(0 if shares else None, continues=shares)
        if place == "end" or asked.volatile:
            return RolePosition(len(history.messages) if shares else None)
        return self.positions.place(
            self.team, self.services, replace(_role_asked(asked, tools, text, history), shared=shares)
        )

    def _foreign(self, tools: ToolSet, model: str) -> int:
        """Tokens of the union's tools that a request does not carry."""
        others = (tool for tool in self.team.prefix.tools if tool.name not in tools.tools)
        return sum(self.services.count(tool.schema.decode(), model) for tool in others)

    def _size(self, text: str, model: str) -> int:
        return self.services.count(text, model) if text else 0


def _role_asked(asked: AgentRequest[M], tools: ToolSet | None, text: str, history: CountedHistory[M]) -> RoleAsked[M]:
    """A request as its role's text is placed in it."""
    return RoleAsked(
        asked.conversation, asked.role, text, history, asked.model,
        joint=asked.joint, cached=asked.cached, lane=tools.name if tools is not None else "",
        moves=asked.moves, holds=asked.holds, resumed=asked.resumed, written=asked.written,
    )  # fmt: skip


def _last_call(asked: AgentRequest[Any]) -> bool:
    """Whether it is known that no request of this role comes behind it."""
    return asked.ahead is not None and all(call.role != asked.role for call in asked.ahead.calls[1:])
