"""Turns what an agent asks (``AgentRequest``) into how its request is laid out, and why (``RequestPlan``).

    AgentRequest -> which tools it carries -> its text -> what was decided on its history
                 -> is what it shares long enough? -> where does its text stand? -> RequestPlan

An adapter translates a framework's objects into an ``AgentRequest`` and applies the ``RequestPlan`` to them. Every
decision that depends on costs is made here, for all frameworks; where frameworks differ, the request's fields say so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Generic, Literal, TypeVar

from cacheprefix.layout.cost_model import CachePrices
from cacheprefix.layout.economics import NAMED, OPEN_ROUNDS, REPLY, readers
from cacheprefix.layout.known_runs import KnownRuns, RunAhead, RunCall, RunFacts, RunLayout
from cacheprefix.layout.open_runs import OpenRuns
from cacheprefix.layout.prefix import Tool
from cacheprefix.layout.role_position import (
    LONG,
    NO_TOOLS,
    CountedHistory,
    RolePosition,
    RolePositions,
    RoleRequest,
    TaskPosition,
    lane_of,
)
from cacheprefix.layout.shared_text import find_text, mostly_holds
from cacheprefix.layout.tail import RoleAs
from cacheprefix.layout.team import Decided, Team
from cacheprefix.layout.tool_restriction import FREE, Restriction, restrict
from cacheprefix.layout.tool_sets import ToolsAsked, ToolSet, ToolSets
from cacheprefix.layout.worth_sharing import WorthSharing, rules_in
from cacheprefix.profiles import Profile
from cacheprefix.prompt import Api, digest_of
from cacheprefix.prompt.reasons import FIXES, LEFT_ALONE, Layout, Reason, Why, reason
from cacheprefix.services import Services
from cacheprefix.wire.apis import SHAPES
from cacheprefix.wire.messages import ASKS, Asks

M = TypeVar("M")

Carried = Literal["open", "union", "own"] | tuple[str, ...]
"""Which tools a role's requests carry. ``open``: the union or the role's own tools, whichever is expected to cost less
(``ToolSets.choose``); ``union``: the union of all roles' tools; ``own``: the application's array as it is, as where no
other role exists; a tuple: the tools of these names, as decided for a team that is known beforehand."""

Place = Literal["cheapest", "end", "front"] | Callable[[Profile], TaskPosition]
"""Where a role's text stands. ``cheapest``: where it costs least (``RolePositions.place``); ``end``: behind the
history, as a text must that is for this request alone; ``front``: before the history, which is this role's own then. A
callable decides for a team whose tasks are known beforehand (``KnownCrews.position``): it is called once nothing else
forbids a fork, with the provider's rules in our token counts, and returns the place, or the reason against a fork."""


@dataclass(frozen=True, slots=True)
class OwnTools:
    """The tools that an agent brings, by name, and how it can be kept from calling other roles' tools."""

    names: tuple[str, ...]
    may_use: tuple[str, ...] | None = None
    """Names of the tools that the role may call; None for all in ``names``."""
    carried: Carried = "open"
    free: bool = True
    """Whether the application leaves ``tool_choice`` to the model."""
    lists: bool = True
    """Whether the client takes a list of allowed tools as ``tool_choice``."""
    calls: bool = True
    """False where this one request must call no tool, although the role has some."""
    fans_out: bool = False
    """Whether several requests of this same role, with the same tools, are sent at the same time."""
    mutual: bool = False
    """Whether to carry those of all is worth it only where the others do the same, for whom this role's tools are the
    foreign ones: in a conversation of its own, or where a fork holds more than the role's own request."""
    differ: tuple[str, ...] | None = None
    """Names of the tools that it declares with another schema than the union's: with any, the role keeps its own array.
    None where the adapter does not know: then every name counts that any role declared with a second schema."""


@dataclass(frozen=True, slots=True)
class AgentRequest(Generic[M]):
    """What an agent is about to ask, before any layout. ``M`` is a message as the framework has it."""

    role: str
    model: str
    conversation: Decided
    instruction: str
    """The role's own text, without the shared one."""
    history: Callable[[RoleTold], CountedHistory[M]]
    """Gives the messages among which the role's text may stand, with large results shortened and the history compacted
    as decided. Called with the role's text and the tools that the request carries, which take up room beside them."""
    spoken: Callable[[int], Sequence[int]] = lambda _behind: ()
    """Gives the tokens of each message that it shares behind so many, before anything is shortened. Asked for all of
    them only where a decision needs it: counting a long history takes its time."""
    api: Api | None = None
    tools: OwnTools | None = None
    """None where the request's tools stay as they are and play no part in the decisions."""
    volatile: Mapping[str, str] = field(default_factory=dict)
    """Text for this request alone (time, retrieval), by key; it becomes part of the role's text."""
    worded: str | None = None
    """The role's text, where the adapter writes it itself; None for ``Team.tail_for``."""
    shared: int | None = None
    """Tokens before the role's text, where the adapter knows them; None to have them counted."""
    beside: int = 0
    """Tokens of the application's own request that are neither among these nor the role's text, as a task's words."""
    holds_shared: bool = True
    """Whether the application's own request contains the shared system text, in any of its messages. Privacy: where
    that text was found in others' requests (``adopt_system``), a request without it is no fork and not shown it."""
    shared_at: int | None = None
    """Characters of the role's own text that stand in front of the shared text in the application's own system text;
    None where that is not there, or the adapter does not know."""
    own: tuple[Reason, ...] = ()
    """The adapter's reasons to keep the application's own layout whatever it costs; empty where costs decide."""
    known: tuple[Reason, ...] = ()
    """Further reasons for the report, which forbid no fork: a response schema, a tool that it must call, a text that
    was named to be shared and was found nowhere."""
    place: Place = "cheapest"
    holds: bool = False
    """Whether the text keeps its last place until a new message comes: for a turn of several requests."""
    resumed: bool = False
    """Whether the role's saved conversation was in the application's own layout, which the provider may still cache."""
    moves: int = 0
    """Tokens that always stand behind the role's text and so move with it: what this role alone has seen, such as its
    earlier tool results."""
    written: bool = False
    """Whether the request's end is written to the cache in any case, as within a loop of tool calls."""
    alike: bool = False
    """Whether all roles' own requests begin with the shared text even without us: where they carry the same tools too
    and the provider caches by itself, a fork saves only on the conversation."""
    joint: bool = True
    """False where no other role takes part in the conversation, as far as is known."""
    hears_itself: bool = True
    """Whether the application's own requests hold what the role itself said before. A fork always does."""
    cached: bool = False
    """Whether the framework itself marks requests in its own layout, so that a provider caches them."""
    text_counts: bool = False
    """Whether a short role text counts towards the provider's minimum: with it, the agent's own requests would soon be
    long enough to be cached."""
    long_text_stays: bool = False
    """Whether a role keeps its own layout as long as its text is longer than all that it shares."""
    talk: str = ""
    """The id of the conversation, where ``conversation`` holds the decisions of several."""
    schema: str = ""
    """A name of the schema that the answer follows, where the provider reads nothing of requests with another one."""
    peers: bool = False
    """Whether it is known that other roles ask the same model, also where none of them has yet."""
    alone: bool = False
    """Whether no other request exists to share with yet, although this one is laid out as a fork."""
    ahead: RunAhead | None = None
    """The calls of the run from this one on, where their number and order are known; None for an open-ended run."""
    played: bool = False
    """Whether the cheapest layout is found by simulating the cache (``OpenRuns``) in an open-ended run too."""
    asks: Asks = "words"
    """What the application's own messages ask (``asks``)."""
    base: str | None = None
    """The system text of an agent that has no other role to share with, in place of the shared one; else None."""
    says_shared: bool = True
    """False where the fork begins with what was said, without the shared text."""

    @property
    def lane(self) -> str:
        """The model, with the schema of the answer: requests of another lane read nothing of this one's."""
        return lane_of(self.model, self.schema)


@dataclass(frozen=True, slots=True)
class RoleTold:
    """The role's text of one request and the tools that the request carries."""

    text: str
    tools: ToolSet | None
    restriction: Restriction

    def carries(self, own: Sequence[str]) -> Sequence[str]:
        """Names of the tools that the request carries; ``own``, those that the role brought, where they stay as is."""
        return own if self.tools is None else self.tools.tools


@dataclass(frozen=True, slots=True)
class RequestPlan(Generic[M]):
    """How a request is laid out, and why."""

    layout: Layout
    reasons: tuple[Reason, ...]
    text: str = ""
    """The role's text as it is sent."""
    at: int | None = None
    """How many messages of ``history`` stand before the role's text; None in the application's own layout."""
    history: Sequence[M] = ()
    """The messages as they are sent: shortened and compacted as decided."""
    tools: ToolSet | None = None
    """The tools of the union that it carries; None where its tools stay as they are."""
    restriction: Restriction = FREE
    continues: bool = False
    """Whether the role's next request may begin with this one, so that its end is written to the cache."""
    said_as: str = "user"
    """The API's message role (``user``, ``developer``, ``system``) under which the role's text is sent."""
    last: bool = False
    """Whether it is known that this role sends no further request."""
    fronts: bool = False
    """Whether the role's text stands in front of all that is said, for its requests of later conversations to read."""
    routed: bool = False
    """Whether it goes where the team's forks go, by their routing key, although it is in the application's own
    layout: it reads the shared text that they wrote, and they what it writes."""
    again: bool = False
    """Whether what is said in it may be read by a later request of the conversation."""
    placed: tuple[str, str] | None = None
    """The tenant and the conversation whose later requests go by where its role's text stands, unless nothing comes of
    it; None where none do."""

    @property
    def repeats(self) -> bool:
        """Whether costs decided for the application's own layout, so that the role's later requests may repeat it.

        Such a request is marked for the cache once an earlier one began alike (``Request.repeated``).
        """
        not_by_costs = ("failed", "asked_again", "list_refused", "kept_by_provider", "own_prompt")
        decided = self.at is None and self.layout == "own" and not self.left_alone
        return decided and self.reasons[-1].why not in not_by_costs

    @property
    def left_alone(self) -> bool:
        """Whether it goes out as the application made it, but for text that the user gave to the session alone."""
        return any(one.why in LEFT_ALONE for one in self.reasons)

    @property
    def unasked(self) -> bool:
        """Whether its messages ask less than the provider takes, so that it goes out as it is, to be refused."""
        return UNASKED in self.reasons

    @property
    def forks(self) -> bool:
        """Whether it is laid out as a fork."""
        return self.layout == "fork"

    @property
    def waits(self) -> bool:
        """Whether it is asked at the gate: requests that begin as it does can read what one of them writes."""
        return self.forks or self.repeats


UNASKED = reason("own_prompt", "it asks nothing")
"""Why a request is no fork that the provider refuses unmodified, as its messages ask nothing."""


def failed(step: str) -> RequestPlan[M]:
    """The plan where our own step ``step`` failed: the application's own layout, with that as the reason."""
    return RequestPlan("own", (reason("failed", step),))


def asked_again(tools: Iterable[str]) -> RequestPlan[M]:
    """The plan of a request whose answers called ``tools`` of other roles: it goes out as the application made it."""
    return RequestPlan("own", (reason("asked_again", ", ".join(sorted(set(tools)))),))


def list_refused() -> RequestPlan[M]:
    """The plan of a request whose endpoint refused its list of tools: it goes out as the application made it."""
    return RequestPlan("own", (reason("list_refused"),))


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
    """Called with tenant, conversation id and agent: why the agent's requests keep the application's own layout there,
    whatever costs say; None where costs decide."""
    role_as: RoleAs = "user"
    """The API's message role under which the user wants role texts to be sent."""
    rehearses: bool = False
    """Whether nothing is sent: what the run will ask may not be known then."""

    def held(self, role: str, conversation: str, scope: str) -> Reason | None:
        """Why a role's requests of a conversation are left alone, whatever sharing saves; None where costs decide."""
        return self.kept_own(scope, conversation, self.team.agent(role)) if self.active else None

    def plan(self, asked: AgentRequest[M]) -> RequestPlan[M]:
        """Decide how one request is laid out, and why. What ``asked.history`` raises, it raises."""
        if not self.active:
            return RequestPlan("observed", (reason("observe_mode"),))
        asked = self._kept_own(asked)
        told = self.told(asked)
        notes = (*self._mistakes(asked, told.tools), *asked.known)
        text, tools, restriction = told.text, told.tools, told.restriction
        history = asked.history(told)
        messages = (*history.messages, *history.behind)
        # Privacy: a role that may not see the shared text keeps its own layout, whatever that costs.
        own = asked.own or (() if self._may_see(asked) else (reason("other_text", asked.role),))
        if own:
            last, why_own = _last_call(asked), tuple(dict.fromkeys((*notes, *own)))
            return RequestPlan("own", why_own, text, None, messages, tools, restriction, last=last)
        shared = self._shared(asked, tools, history) if asked.shared is None else asked.shared
        position, refused = self._placed(asked, told, history, shared)
        if position.at is None:
            if tools is not None and asked.tools is not None and set(tools.tools) != set(asked.tools.names):
                # It goes out with its own tools after all: the history is shortened anew for those.
                history = asked.history(replace(told, tools=None))
                messages = (*history.messages, *history.behind)
            why = self._why_own(asked, text, refused, shared)
            return RequestPlan(
                "own", (*notes, why), text, None, messages, tools, restriction,
                # Money: a request that begins as forks do is read by them, and reads them, only under their key.
                last=_last_call(asked), routed=position.routed or (asked.alike and asked.base is None),
                placed=_placed_in(asked, position),
            )  # fmt: skip
        reasons = (*notes, *self._why_shared(asked, told, history, shared, position))
        # With nobody to share with and nothing moved, it is the application's own layout, which is only marked.
        layout: Layout = "fork" if asked.base is None or text else "own"
        return RequestPlan(
            layout, reasons, text, position.at, messages, tools, restriction, position.continues,
            said_as=self._said_as(asked), fronts=position.at == 0 and asked.place == "cheapest" and bool(messages),
            again=position.again, placed=_placed_in(asked, position),
        )  # fmt: skip

    def _placed(
        self, asked: AgentRequest[M], told: RoleTold, history: CountedHistory[M], shared: int
    ) -> tuple[RolePosition, Reason | None]:
        """Where the role's text goes in a fork, ``shared`` tokens of it being in common; nowhere, and why, without one.

        Money: a fork is refused outright, or its cheapest place is looked for in one of three ways: by what is known of
        the run beforehand, by what the conversation has cost so far, or by the adapter's own reckoning.
        """
        tools, text = told.tools, told.text
        refused = self._refused(asked, tools, shared, text, history)
        run = self._run_layout(asked) if refused is None else None
        if run is not None:
            position = self._position_in_run(asked, run, tools, text, history)
            if run.forks:
                return position, None
            # A prompt too short to be cached is the reason then: the costs of the run only follow from it.
            short = self._too_short(asked, shared, text)
            return position, short or reason("little_to_share", cost=run.cost, saved=run.own)
        if not callable(asked.place):
            return self._position(asked, asked.place, tools, text, history, shares=refused is None), refused
        if refused is not None:
            return RolePosition(None), refused
        decided = asked.place(rules_in(asked.conversation, self.services, asked.model, asked.api))
        return (RolePosition(None), decided) if isinstance(decided, Reason) else (decided, None)

    def _why_own(self, asked: AgentRequest[M], text: str, refused: Reason | None, shared: int) -> Reason:
        """Why a request keeps the application's own layout: it was ``refused``, or its text costs more elsewhere."""
        size = self._size(text, asked.model)
        why = refused or reason("role_costs_more", size=size)
        if why.why in ("tools_cost_more", "text_longer_than_shared"):
            # Costs are not the reason where the provider caches nothing of the request in any layout.
            whole = shared + size + asked.beside
            short = self.sharing.too_short(self.services, asked.conversation, asked.model, shared, whole)
            return short or why
        if asked.base is not None and not text and why.why in ("little_to_share", "role_costs_more"):
            # With nobody to share with, and no text to move, those numbers say nothing.
            return reason("alone")
        return why

    def _why_shared(
        self, asked: AgentRequest[M], told: RoleTold, history: CountedHistory[M], shared: int, position: RolePosition
    ) -> list[Reason]:
        """What a fork shares, and what it does not."""
        tools, at = told.tools, position.at
        peers = tools is not None and tools.peers
        outside = tools is not None and asked.tools is not None and not set(asked.tools.names) <= set(tools.tools)
        if tools is not None and outside and not peers:
            # A tool outside the union is sent behind the union's tools. From there on the prompt of nobody who has not
            # the very same is the same, as tools come first: only the schemas before it are shared.
            shared = self._schemas(tools.tools, asked.model)
        elif asked.shared is None and at is not None:
            # What stands behind a text that kept its place is nobody else's beginning.
            shared -= sum(map(history.tokens, history.messages[at:]))
            if not asked.says_shared:
                shared -= self._size(self.team.prefix.text, asked.model)
        reasons = [reason("alone" if asked.alone else "shares", shared=shared)]
        if asked.base is not None:
            reasons = [reason("alone")]
        if tools is not None and tools.name:
            parted = self._parted("own_tools", tools, asked.model)
            # Where others carry the very same, and nobody a further one, its own tools part it from nobody.
            reasons += [parted] if parted.numbers or not peers else []
        before_end = at is not None and at < len(history.messages) and asked.place == "cheapest"
        if before_end or (position.continues and callable(asked.place)):
            reasons.append(reason("role_kept", size=self._size(told.text, asked.model)))
        return reasons

    def told(self, asked: AgentRequest[M]) -> RoleTold:
        """The role's text and tools as ``plan`` will send them, known before anything is decided on the history."""
        asked = self._kept_own(asked)
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
        """The API's message role (``user``, ``developer``, ``system``) under which the role's text is sent."""
        if self.role_as == "user":
            return "user"
        rules = self.services.profile(asked.model, asked.api)
        # A provider's rule: not all take a developer's or system message behind a conversation.
        if not rules.mid_system:
            self.services.notices.note(
                f"role texts are said as a user's on {asked.model or 'an unknown model'}: {rules.name} is not known to "
                "take a developer's or a system message behind a conversation"
            )
            return "user"
        return "developer" if rules.developer else "system"

    def _may_see(self, asked: AgentRequest[M]) -> bool:
        """Whether the role may be shown the shared text: its own request has it, or the user gave it for all."""
        return asked.holds_shared or not self.team.found or asked.base is not None

    def _kept_own(self, asked: AgentRequest[M]) -> AgentRequest[M]:
        """The request with further reasons to keep its own layout: that of ``held``, and that it asks nothing."""
        why = self.held(asked.role, asked.talk or asked.conversation.id, asked.conversation.scope)
        own = asked.own if why is None else (why,)
        if UNASKED not in own and ASKS.index(asked.asks) < ASKS.index(self._least(asked)):
            own = (*own, UNASKED)
        return asked if own is asked.own else replace(asked, own=own)

    def _least(self, asked: AgentRequest[M]) -> Asks:
        """The least that the provider takes messages that ask: of less, a role's text would have it answer."""
        if asked.asks == "words" or self.rehearses:
            return "nothing"
        apis = self.services.profile(asked.model, asked.api).apis
        translated = asked.api is not None and bool(apis) and asked.api not in apis
        first: Api = next((api for api in SHAPES if api in apis[:1]), "openai-chat")
        least = SHAPES[first if asked.api is None or translated else asked.api].FIELDS.least
        # In another form than the provider's own it is translated on the way, by LiteLLM, which fills blanks in.
        return min(least, "empty", key=ASKS.index) if translated else least

    def _mistakes(self, asked: AgentRequest[M], tools: ToolSet | None) -> tuple[Reason, ...]:
        """Reasons why less is shared than could be that the user can remove, such as a tool with two schemas."""
        mistakes = []
        shared_text = self.team.prefix.system
        # The adapter took the shared text out of the instruction: what is still found there is a second copy of it, or
        # another version.
        if shared_text and (find_text(shared_text, asked.instruction) or mostly_holds(shared_text, asked.instruction)):
            # What was found in another team's requests is no text that the user gave amiss.
            mistakes.append(reason("text_not_found" if self._may_see(asked) else "text_taken", asked.role))
            if self._may_see(asked):
                # Money: an edit at one place alone costs both texts in each request from then on.
                self.services.notices.warn_once(
                    f"text {asked.role}",
                    f"role {asked.role!r} holds the shared text in other words, or twice, so that both are sent: "
                    f"{FIXES['text_not_found']}",
                )
        own = asked.tools
        if own is not None and asked.base is None:
            differ = self.team.clashing if own.differ is None else own.differ
            in_union = () if tools is None or tools.name else tools.tools
            outside = own.names if self._may_see(asked) else ()
            late = [name for name in outside if name in self.team.late and name not in in_union]
            # What the conversation carries came in time there: it is for its costs that the role goes without.
            carries = self.tool_sets.union(self.team, asked.conversation) if late else ()
            mistakes += [reason("made_too_late", name) for name in late if name not in carries]
            mistakes += [reason("tool_schema_differs", name) for name in own.names if name in differ]
        if self.team.other_model(asked.role, asked.model) and not asked.peers:
            mistakes.append(reason("other_model", asked.model))
        return tuple(mistakes)

    def _tools(self, asked: AgentRequest[M]) -> tuple[ToolSet | None, Restriction]:
        """The tools of the union that the request carries, and how the role is kept from calling others' tools."""
        own, sees = asked.tools, self._may_see(asked)
        self.team.note_sees(asked.role, sees=sees)
        heard = self.positions.asked_by(asked.conversation)
        others = self.team.others_with(asked.conversation, asked.role, asked.schema, heard)
        if own is None:
            return None, FREE
        differ = self.team.clashing if own.differ is None else own.differ
        foreign = self.tool_sets.bring(self.team, asked.conversation, own.names, differ)
        brought = [name for name in own.names if name not in foreign]
        if own.carried == "own":
            return None, Restriction(said=own.may_use)
        run = self._run_layout(asked)
        if not sees:
            # Who keeps its own layout, whatever sharing saves, has carried no other tools that anybody could read.
            return None, Restriction(said=own.may_use)
        if run is not None and own.carried == "open":
            mine = tuple(tool.name for tool in self.team.prefix.among(own.names))
            tools = ToolSet(mine, shares=True, name="\0".join(sorted(mine)))
            if run.union:
                tools = ToolSet(self.tool_sets.union(self.team, asked.conversation, brought), shares=True)
        elif own.carried == "open":
            role, model, positions = self.team.role(asked.role), asked.model, self.positions
            lane = asked.lane
            said = cache(partial(asked.spoken, 0))
            tools = self.tool_sets.choose(
                self.team, self.services, asked.conversation, asked.role, model,
                ToolsAsked(
                    own.names,
                    said,
                    own.fans_out,
                    self._size(asked.instruction, model),
                    lambda: positions.paid(asked.conversation, lane),
                    lambda kit, units: positions.outrun(
                        asked.conversation, f"{lane}\0{kit}", role, said(), units=units
                    ),
                    lambda kit: positions.forked(asked.conversation, f"{lane}\0{kit}", role),
                    asked.schema,
                    others,
                    lambda: positions.anew(asked.conversation, role, said()),
                    lambda cost, grows: positions.paid_anew(asked.conversation, cost, grows=grows),
                    asked.cached,
                    lambda: len(positions.asked_by(asked.conversation)),
                    asked.hears_itself,
                    asked.joint,
                    own.mutual,
                    foreign,
                ),
            )  # fmt: skip
        elif own.carried == "union":
            tools = ToolSet(self.tool_sets.union(self.team, asked.conversation, brought), shares=True)
        else:
            tools = ToolSet(tuple(tool.name for tool in self.team.prefix.among(own.carried)), shares=True)
        if own.differ:
            # A tool of its own has another schema than the union's: the array stays the application's. The set was
            # chosen all the same, since it says whether other roles carry tools of these names.
            return tools, Restriction(said=own.may_use)
        rules = self.services.profile(asked.model, asked.api)
        names = own.names if own.may_use is None else own.may_use
        lists = own.lists and self.services.takes_lists(asked.model)
        return tools, restrict(names, tools.tools, rules, free=own.free, lists=lists, calls=own.calls)

    def _shared(self, asked: AgentRequest[M], tools: ToolSet | None, history: CountedHistory[M]) -> int:
        """Tokens before the role's text: the system text, the tools that it carries, and the history."""
        own = asked.tools.names if asked.tools is not None else ()
        system = self.team.prefix.text
        return (
            self._size(system if asked.base is None else asked.base, asked.model)
            + self._schemas(own if tools is None else tools.tools, asked.model)
            + sum(map(history.tokens, history.messages))
        )

    def _schemas(self, names: Collection[str], model: str) -> int:
        """Tokens of the shared tools of these names."""
        schemas = (tool.schema.decode() for tool in self.team.prefix.among(names))
        return sum(self.services.count(schema, model) for schema in schemas)

    def _refused(
        self, asked: AgentRequest[M], tools: ToolSet | None, shared: int, text: str, history: CountedHistory[M]
    ) -> Reason | None:
        """Why the request is no fork, wherever its text would stand; None where it may be one. ``shared`` in tokens."""
        if tools is not None and not tools.shares:
            return self._parted("tools_cost_more", tools, asked.model)
        size = self._size(text, asked.model)
        key = (asked.conversation, asked.role, asked.model)
        played = asked.ahead is not None or asked.played
        if asked.long_text_stays and size > shared and not self.sharing.moved(*key):
            return reason("text_longer_than_shared", size=size, shared=shared)
        refused = self._too_short(asked, shared, text)
        # A role whose long text was moved once stays a fork, for which that is recorded. A text no longer than the
        # shared system text needs no record: it is never longer than what is shared.
        system = self.team.prefix.text if asked.base is None else asked.base
        if refused is None and asked.long_text_stays and size > self._size(system, asked.model):
            self.sharing.move(*key)
        if played and self.services.profile(asked.model, asked.api).control != "none":
            # Money: the simulated cache applies the provider's minimum itself, and refuses where a fork costs more.
            return None
        return refused or self._little(asked, tools, history) or self._unheard(asked, tools)

    def _too_short(self, asked: AgentRequest[M], shared: int, text: str) -> Reason | None:
        """Why ``shared`` tokens are too few for the provider to cache; None where they are enough."""
        size = self._size(text, asked.model)
        # Money: with a short role text the agent's own requests may be long enough to be cached already. To leave that
        # layout later would cost that cache, so the text counts and the role forks from the start.
        counted = shared + size if asked.text_counts and size < LONG else shared
        return self.sharing.refusal(
            self.team, self.services, asked.conversation, asked.role, asked.model, counted,
            whole=shared + size + asked.beside, base=asked.base is not None,
        )  # fmt: skip

    def _run_layout(self, asked: AgentRequest[M]) -> RunLayout | None:
        """The cheapest layout for a request of a run, found by simulating the cache; None where it is not found so.

        It is where the calls ahead are known (``ahead``), or the role wants it (``played``). Called again for the same
        request, it returns the same.
        """
        run = asked.ahead
        if (run is None and not asked.played) or (run is not None and not run.calls) or asked.place != "cheapest":
            return None
        profile = rules_in(asked.conversation, self.services, asked.model, asked.api)
        key = (asked.conversation.scope, asked.model, self.team.key)
        begins = (asked.role, asked.conversation.id, digest_of(asked.instruction))
        brought = asked.tools.names if asked.tools else ()
        again = self.positions.told_before(
            asked.conversation, self.team.role(asked.role), asked.instruction, brought
        ) or self.runs.again(key, *begins)
        if run is not None and not asked.played and profile.match == "block" and again:
            # Money: without us each role's beginning is read of the run before, which the simulated cache begins
            # without. Where texts stand then, in front of what is said, is for what all conversations have told.
            return None
        carried = asked.tools.carried if asked.tools else "own"
        carries = self.tool_sets.union(self.team, asked.conversation) if asked.tools else ()
        own = asked.tools.names if asked.tools else ()
        text = self._size(asked.instruction, asked.model)
        facts = RunFacts(
            run.known(asked.role, asked.schema, self.team.sees)
            if run
            else RunAhead((RunCall(asked.role, text, own, asked.schema, holds=self._may_see(asked)),)),
            CachePrices.of(profile, cached=asked.cached),
            asked.conversation.id,
            self._size(self.team.prefix.text, asked.model),
            {
                tool.name: self._size(tool.schema.decode(), asked.model)
                for tool in self.team.prefix.tools
                if isinstance(tool, Tool) and tool.name in {*carries, *own}
            },
            text + NAMED + asked.moves,
            asked.spoken(0),
            alike=asked.alike,
            union=carried in ("open", "union"),
            kits=carried in ("open", "own"),
        )
        scope = asked.conversation.scope
        if run is None:
            return self.open_runs.layout(key, facts, len(self.team.roles))
        return self.runs.layout((scope, asked.conversation.id if run.joint else "", asked.model, self.team.key), facts)

    def _position_in_run(
        self, asked: AgentRequest[M], run: RunLayout, tools: ToolSet | None, text: str, history: CountedHistory[M]
    ) -> RolePosition:
        """Where the role's text stands by the layout ``run`` that the simulated cache found cheapest."""
        position = RolePosition(None)
        if run.forks:
            # The history may have been compacted to fewer messages than ``run.at``, or to others. A text for this
            # request alone stands behind all of it, and no later request begins with it.
            at_end = asked.volatile or run.at >= len(history.messages) or history.parts(run.at)
            position = RolePosition(len(history.messages) if at_end else run.at, run.continues and not asked.volatile)
        role = self._role_request(asked, tools, text, history)
        self.positions.settle(self.team, self.services, role, position, last_call=_last_call(asked))
        return position._replace(noted=True)

    def _little(self, asked: AgentRequest[M], tools: ToolSet | None, history: CountedHistory[M]) -> Reason | None:
        """Why a fork would gain nothing yet, where requests begin alike without us; None where it may gain."""
        brought = () if asked.tools is None else asked.tools.names
        foreign = tools is not None and not set(tools.tools) <= set(brought)
        if not asked.alike or asked.place != "cheapest" or asked.volatile or foreign:
            return None
        # A provider's rule: where only marked requests are cached, those in the application's own layout are not.
        if self.services.profile(asked.model, asked.api).markers is not None:
            return None
        conversation_tokens = sum(map(history.tokens, history.messages))
        # Money: the first request in another layout reads nothing of the earlier ones. That is worth it only for as
        # many tokens of conversation as let a text keep its place (``LONG``).
        if conversation_tokens < LONG:
            return reason("little_to_share", cost=LONG, saved=conversation_tokens)
        return None

    def _unheard(self, asked: AgentRequest[M], tools: ToolSet | None) -> Reason | None:
        """Why a role keeps requests without what it said itself; None where it saves more than that costs."""
        lane = f"{asked.lane}\0{_tools_lane(asked, tools)}"
        role = self.team.role(asked.role)
        # Money: it goes on as it began.
        if asked.hears_itself or self.positions.forked(asked.conversation, lane, role):
            return None
        heard = self.positions.asked_by(asked.conversation)
        others = self.team.others_with(asked.conversation, asked.role, asked.schema, heard)
        read = self.services.profile(asked.model, asked.api).read
        opening = self._size(self.team.prefix.text, asked.model)
        saved = readers(others, read=read, hears_itself=False) * REPLY + opening / OPEN_ROUNDS
        cost = self._size(asked.instruction, asked.model)
        # Money: nor does it come over later, when what it never heard is written for it at once.
        joins = saved > min(cost, LONG) and role not in heard
        return None if joins else reason("little_to_share", cost=cost, saved=max(0, round(saved)))

    def _position(
        self,
        asked: AgentRequest[M],
        place: str,
        tools: ToolSet | None,
        text: str,
        history: CountedHistory[M],
        *,
        shares: bool,
    ) -> RolePosition:
        """Where the role's text stands; ``shares`` is False where the request keeps the application's own layout.

        Called for those requests too, because later places depend on what earlier requests were.
        """
        if place == "front":
            return RolePosition(0 if shares else None, continues=shares)
        if place == "end" or asked.volatile:
            return RolePosition(len(history.messages) if shares else None)
        return self.positions.place(
            self.team, self.services, replace(self._role_request(asked, tools, text, history), shared=shares)
        )

    def _role_request(
        self, asked: AgentRequest[M], tools: ToolSet | None, text: str, history: CountedHistory[M]
    ) -> RoleRequest[M]:
        """A request in the form that ``RolePositions`` takes."""
        lane = _tools_lane(asked, tools)
        joint = asked.joint and not (tools is not None and tools.alone)
        return RoleRequest(
            asked.conversation, asked.role, text, history, asked.model,
            joint=joint, cached=asked.cached, lane=lane,
            moves=asked.moves, holds=asked.holds, resumed=asked.resumed, written=asked.written, schema=asked.schema,
            said=asked.spoken, instruction=asked.instruction, shared_at=asked.shared_at,
            tools=tuple(asked.tools.names) if asked.tools is not None else (),
        )  # fmt: skip

    def _parted(self, why: Why, tools: ToolSet, model: str) -> Reason:
        """The reason ``why`` of a request with a tool set of its own, with the others' tokens where there are any."""
        foreign = self._foreign(tools, model)
        return reason(why, foreign=foreign) if foreign else reason(why)

    def _foreign(self, tools: ToolSet, model: str) -> int:
        """Tokens of the union's tools that are not in ``tools``."""
        others = (tool for tool in self.team.prefix.tools if tool.name not in tools.tools)
        return sum(self.services.count(tool.schema.decode(), model) for tool in others)

    def _size(self, text: str, model: str) -> int:
        return self.services.count(text, model) if text else 0


def _tools_lane(asked: AgentRequest[Any], tools: ToolSet | None) -> str:
    """The name of the tool set that a request carries."""
    bare = asked.tools is not None and not (asked.tools.names if tools is None else tools.tools)
    return NO_TOOLS if bare else "" if tools is None else tools.name


def _placed_in(asked: AgentRequest[Any], position: RolePosition) -> tuple[str, str] | None:
    """The tenant and the conversation in which a role's place is noted."""
    return (asked.conversation.scope, asked.conversation.id) if position.noted else None


def _last_call(asked: AgentRequest[Any]) -> bool:
    """Whether it is known that this role sends no further request."""
    return asked.ahead is not None and all(call.role != asked.role for call in asked.ahead.calls[1:])
