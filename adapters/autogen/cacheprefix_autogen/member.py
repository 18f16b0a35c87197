"""Decides how an agent's requests are laid out (``Member``), and which agents of a team share a prefix (``Group``)."""

from __future__ import annotations

import operator
import secrets
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import BaseChatMessage, StructuredMessage
from autogen_core.model_context import ChatCompletionContext, UnboundedChatCompletionContext
from autogen_core.models import FunctionExecutionResultMessage, LLMMessage, SystemMessage, UserMessage

from cacheprefix import Conversation
from cacheprefix.adapter import (
    AdapterSession,
    AgentRequest,
    Carried,
    CountedHistory,
    Lane,
    OwnTools,
    Reason,
    Reflections,
    RequestPlan,
    RunAhead,
    RunCall,
    Seat,
    SelectorLane,
    SummaryRequest,
    ToolSource,
    VolatileRole,
    find_text,
    instruction_of,
    make_message,
    make_result,
    reason,
    texts_said,
)
from cacheprefix.errors import ToolClashError
from cacheprefix.wire import Asks, asks
from cacheprefix_autogen.history import Ask, Condensed, Views, as_decided, condensed, summarised
from cacheprefix_autogen.layout import Layout, compose, introduced
from cacheprefix_autogen.messages import (
    ANSWER,
    SENDER,
    Seen,
    Snapshot,
    as_in_context,
    digest,
    durable,
    is_tool_traffic,
    kept,
    lead,
    said_by,
    split_history,
)
from cacheprefix_autogen.model_context import application_context, take_context
from cacheprefix_autogen.own_rounds import (
    Heard,
    Own,
    Turn,
    before_us,
    from_history,
    own_of_turn,
    remembered_once,
    tells_as_held,
)
from cacheprefix_autogen.provider_clients import Forms, Request, model_of, name_of
from cacheprefix_autogen.run_plan import RunPlan
from cacheprefix_autogen.settings import PrefixSettings, settings_of
from cacheprefix_autogen.summaries import Answered, Holds, NewestAnswered
from cacheprefix_autogen.tool_restriction import (
    Restriction,
    frozen_schema,
    own_tools,
    put_back,
    rendered,
    restricted,
    set_apart,
    shared_schema,
)
from cacheprefix_autogen.tool_servers import ask_servers, served
from cacheprefix_autogen.transcript import FROM_OUTSIDE, TOLD, Entry, Transcript, View

ToolMemory = Literal["keep", "drop"]
"""What an agent sees of its own tool calls and results once their turn is over. ``keep``: all, as without us; ``drop``:
only what it said to the others, so it sees less than the unmodified agent would."""
Volatile = Callable[[], Mapping[str, str]]
Planned = tuple[Layout | None, RequestPlan[LLMMessage]]
"""The layout of a request (None: it is sent as it came), and the plan with the reasons for it."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options that the user gave to ``wrap``."""

    tool_memory: ToolMemory = "keep"
    volatile: Volatile | None = None
    volatile_role: VolatileRole = "user"
    scope: str | None = None
    """The tenant whose conversation it is; None for the session's."""


DEFAULTS = Options()


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, taken apart into what the decisions on it need."""

    given: Request
    texts: tuple[str, ...]
    """The leading system texts."""
    rest: list[LLMMessage]
    """The messages behind them."""
    views: Views
    talk: Conversation
    beside: str
    """Its text outside of the conversation: the role's text and the volatile text of this call."""

    @property
    def asks(self) -> Asks:
        """What its messages ask, as the application made it."""
        return asks(map(_only_text, self.rest), system=bool(self.texts))


class Member:
    """One agent's state: what it has seen, and how its next request is laid out. Its model client asks it.

    ``view`` is None where the client was built by configuration and knows no team: then who saw a message, and to which
    conversation a request belongs, is read from the request's messages. With ``alone`` (a single agent with nobody to
    share with) the messages stay as they are; only the tools are kept in requests that AutoGen sends without them.
    """

    asked = 0
    """Number of turns it had begun at its last request, where all calls of the run are known beforehand."""
    known = False
    """Whether all calls of the run are known: then a request in its own layout gets cache marks only if it repeats."""
    by_itself = False
    """Whether it is in no team, and would share with others in one, or what ``SharedPrefix`` gives to all."""
    own_class = False
    """Whether the agent's class is the application's, which may tell the others something else than it answered."""
    unread = False
    """Whether a state was loaded whose part of ours could not be read; it is ``broken`` then, until it is reset."""
    _shown = False
    """Whether any request of the agent so far contained the shared system text."""

    def __init__(
        self,
        session: AdapterSession,
        name: str,
        view: View | None = None,
        *,
        context: ChatCompletionContext | None = None,
        alone: bool = False,
        options: Options = DEFAULTS,
    ) -> None:
        self.session = session
        self.name = name
        self.view = view
        self.context = context
        self.alone = alone
        self.options = options
        self.tools: Sequence[Any] = ()
        self._views: Views | None = None
        """Token counts of the messages; made anew for another model, which counts otherwise."""
        self.keeps_layout = False
        """Whether the agent keeps its own layout because that costs less; goes into its saved state."""
        self.resumed = False
        """Whether its state was loaded with ``keeps_layout`` set, and it has sent no request since."""
        self.filtered = False
        """Whether a ``MessageFilterAgent`` lets only some of the team's messages through to it."""
        self.own_prompts = False
        """Whether the agent's class builds its requests in its own way: then they keep the application's layout."""
        self.keeps_tools = False
        """Set where a tool has the name of another agent's tool but another schema: its tools stay out of the union."""
        self._adopted: dict[str, Any] = {}
        """Its tools in the union, by their names."""
        self.start: int | None = None
        """Index in the agent's own context at which the current turn's messages begin; None outside a turn."""
        self.before = 0
        """Messages in that context before the first known turn: of an agent that ran before it was wrapped."""
        self._reflections = Reflections()
        self.turns: list[Turn] = []
        """All turns since it was wrapped; goes into its saved state."""
        self._closed: list[list[Own]] = []
        """Messages that only this agent saw, a list for each finished turn; the first list is from before ``turns``."""
        self._memories: dict[str, UserMessage] = {}
        self._words: Seen[UserMessage] = Seen()
        self.forms = Forms()
        """The wire forms of its requests' messages, for the estimate of what they would have cost."""
        self.held: Snapshot | None = Snapshot([])
        """What that context held at the end of the last turn; None where the context does not tell."""
        self._came = Snapshot([])
        """What the messages hold with which the turn began, as AutoGen puts them into that context."""
        self.told: list[tuple[int, str]] = []
        """Durable context of the conversation: its index in the agent's own context, and its entry's id."""
        self.lane: SelectorLane | None = None
        """What a selector's requests begin with; decided with the first one, saved with the state."""
        self.group: Group | None = None
        """Who decides with whom the agent shares; None for clients that stand alone."""
        self.hears: Callable[[int], Sequence[Entry]] | None = None
        """Gives the conversation's durable context; new entries are placed behind the messages of the depth it is
        called with. None where there is no conversation."""
        self.answered = NewestAnswered()
        """What a summary may be asked behind."""
        self.broken = False
        """Set when the view no longer holds all that the agent was told: its requests then keep their own layout."""

    @property
    def conversation(self) -> str:
        """The id of the conversation, the team's or the agent's; empty for a client that stands alone."""
        return "" if self.view is None else self.view.transcript.id

    @property
    def bounded(self) -> bool:
        """Whether the application shortens this agent's context itself; then its messages are left alone."""
        native = application_context(self.context)
        if not isinstance(native, UnboundedChatCompletionContext):
            return native is not None
        # A class derived from the unbounded context may leave messages out as well.
        return type(native).get_messages is not UnboundedChatCompletionContext.get_messages

    def look(self) -> None:
        """Take what the agent's own context holds now as what the view was made of."""
        found = self._held_messages
        self.held = None if found is None else Snapshot(found)

    def _compare(self, *, all_of_it: bool = False) -> None:
        """Give up where the application changed what the context held: the view does not know of it.

        Between turns ``all_of_it`` is compared; within one the agent adds to it.
        """
        held, found = self.held, self._held_messages
        if held is None or found is None or self.broken or self.alone or self.bounded:
            return
        # Privacy: another user's messages, loaded into the context, may be as many as those of the one before.
        same = held.is_held(found if all_of_it else found[: len(held)])
        # Privacy: what came may have been redacted on its way into the context; what was added is not to be lost.
        if self.start is not None:
            same = same and self._came.is_held(found[self.start - len(self._came) : self.start])
        if not same:
            self.give_up("the application changed its model context")

    @property
    def digest(self) -> str | None:
        """What a saved state says of the agent's own context; None where that is not known, or makes no difference."""
        found = None if self.alone or self.bounded else self._held_messages
        return None if found is None else digest(found)

    def check(self, saved: str) -> None:
        """After a state was loaded: go by the agent's own context where it is not the one that ``saved`` tells of."""
        if self.digest in (None, saved):
            return
        if self._held_messages:
            # Privacy: what the application took out of the state, our own part of it may still hold.
            self.give_up("its model context is not the one that was saved")
        else:
            # Its class saves no context: it begins anew, as without us.
            self.reset()

    @property
    def _held_messages(self) -> list[LLMMessage] | None:
        """The messages in the agent's own context; None where it does not say."""
        found = getattr(application_context(self.context), "_messages", None)
        return found if isinstance(found, list) else None

    def enter(self, messages: Sequence[BaseChatMessage], own: int) -> None:
        """Note that a turn begins with ``messages``; the agent's context held ``own`` messages before it."""
        self._compare(all_of_it=True)
        if self.view is not None:
            self.view.receive(messages, self._told)
        if self.context is not None and not self.bounded:
            self._came = Snapshot(as_in_context(messages))
            self.start = own + len(self._came)
            self._turn(own, self.start)
            known = {one for _, one in self.told}
            self.told += [(self.start, entry.id) for entry in self._told(0) if entry.id not in known]

    def leave_out(self, gone: set[str]) -> None:
        """Remove durable context of these ids from the view, and move the turns' places in the view accordingly."""
        view = self.view
        if view is None:
            return
        held: list[str] = [entry.id for entry in view.entries for _ in entry.forms]
        view.leave_out(gone)
        self.told = [(at, one) for at, one in self.told if one not in gone]
        self.turns = [replace(turn, at=turn.at - sum(one in gone for one in held[: turn.at])) for turn in self.turns]
        self._closed = []

    def _told(self, depth: int) -> Sequence[Entry]:
        """What the application told the whole team, at a depth of teams."""
        return () if self.hears is None else self.hears(depth)

    def _turn(self, own: int, start: int) -> None:
        """Note a turn that begins behind ``own`` messages of the agent's context.

        The messages that the agent itself adds in this turn begin at ``start``.
        """
        if self.turns:
            self.turns[-1] = replace(self.turns[-1], end=own)
        else:
            self.before = own
        self.turns.append(Turn(start, None, 0 if self.view is None else len(self.view.forms())))

    def leave(self, message: BaseChatMessage | None) -> None:
        """Note the end of a turn; ``message`` is its answer to the others, None if it failed or was cancelled."""
        self._compare()
        start, self.start = self.start, None
        found = self._held_messages
        # AutoGen writes a structured answer anew for the others, as its class dumps it: dates otherwise, some left out.
        own_words = self.own_class or isinstance(message, StructuredMessage)
        turn = found[start:] if own_words and self._shares and found is not None and start is not None else None
        if self.held is None or found is None:
            self.look()
        else:
            # What it held before was just compared.
            self.held.add(found[len(self.held) :])
        if message is not None and self.view is not None:
            self.view.produce(message)
        if message is not None and turn is not None and not tells_as_held(message, turn, self.name):
            # Equal information: it is not shown what is made of its answers for the others.
            self.give_up("the others are told something else than its model context holds")

    def take_over(self) -> None:
        """Fill the view from the agent's own context: for an agent in no team that ran before it was wrapped."""
        view, messages = self.view, list(self._held_messages or ())
        if view is None or not messages or self.alone or self.bounded:
            return
        forms, _ = from_history(messages)
        view.restore([Entry(secrets.token_hex(16), at, FROM_OUTSIDE, (form,)) for at, form in enumerate(forms)], [])
        self.before = len(messages)
        if self.group is not None:
            # A context does not say when its messages came: its last request may just have been sent.
            self.group.sent_plain = self.session.clock()
        self.look()

    def give_up(self, why: str) -> None:
        """Keep the application's own layout until a reset, as the view misses something; ``why`` goes into a note."""
        self.broken = True
        if self.view is not None:
            # Privacy: what the application took out is not shown in a side question or a saved state either.
            self.view.forget()
        self.session.note(f"agent {self.name!r}: {why}, so its requests stay the application's own until it is reset")

    def reset(self, *, alone: bool = False) -> None:
        """Forget everything that was said; ``alone`` where the others of its team may go on."""
        self.start, self.broken, self.unread = None, False, False
        # Where its class leaves the context alone, the next turn finds more than nothing.
        self.held = Snapshot([])
        self.before, self.turns, self._closed, self.told = 0, [], [], []
        self._reflections, self.asked = Reflections(), 0
        self.keeps_layout = self.resumed = False
        self.answered.clear()
        # Privacy: of what was said nothing stays, in what was reckoned from it neither.
        self._views, self._memories, self._words, self.forms = None, {}, Seen(), Forms()
        if self.view is not None:
            (self.view.forget if alone else self.view.clear)()

    def settings(self) -> PrefixSettings:
        """The session as configuration, for this agent's tenant."""
        return settings_of(self.session, self.options.scope)

    def volatile_text(self) -> str:
        """The text for this one request from the user's ``volatile``; empty without any. Its errors are raised."""
        given, session = self.options.volatile, self.session
        if given is None or session.mode == "observe":
            return ""
        said = texts_said(given)
        return session.attempt("volatile context", lambda: session.tail_for("", "", volatile=said), "")

    async def summarise(
        self, client: Any, given: Request, behind: Callable[[Answered | Request], Ask | None]
    ) -> Holds | None:
        """If a compaction is due with this request, have a fork write its summary (a paid call).

        ``behind`` makes a way to ask behind a request; None where the client has no SDK that is known. Gives what the
        history holds; None where that is not known.
        """
        asked = self._read(client, given)
        self._compare()
        heard = self._heard(asked.rest) if self._shares else Heard((), (), asked.rest)
        if heard is None:
            return None
        messages = _in_order(heard)
        holds = Holds(asked.talk, [asked.views.of(message).digest for message in messages])
        newest = self.answered.of(asked.talk)

        async def ask(request: SummaryRequest) -> str:
            # Money: behind the newest request all of it is read from the cache.
            reads = newest is not None and newest.stands_for(holds, request.loses)
            way = behind(newest if newest is not None and reads else self._now(asked, messages))
            # An empty answer has the extract written in its place.
            return "" if way is None else await way(request)

        own = asked.given.tools
        await summarised(asked.views, asked.talk, messages, ask, asked.beside, self._tool_names, own)
        return holds

    def _now(self, asked: Asked, messages: Sequence[LLMMessage]) -> Request:
        """The history as it stands, behind what all share where the agent may be shown that."""
        said = as_decided(asked.views, asked.talk, messages, self._tool_names)
        prefix, shares = self.session.prefix, self._shares and self.view is not None
        if not (shares and self.session.holds_shared(["\n\n".join(asked.texts)])):
            return Request([*asked.given.messages[: len(asked.texts)], *said], asked.given.tools)
        text = [SystemMessage(content=prefix.text)] if prefix.text else []
        # Privacy: as in ``ask``, no tools of other conversations.
        return Request([*text, *said], list(map(shared_schema, prefix.among(self.session.union_in(asked.talk)))))

    @property
    def held_talk(self) -> Conversation | None:
        """The conversation with the decisions on its tool results; None for a client alone, or while none was taken."""
        view = self.view
        return None if view is None else self.session.known(view.transcript.id, self.options.scope)

    def layout(self, client: Any, given: Request) -> Planned:
        """Decide a request's layout (None to send it as it came), and give the plan with the reasons."""
        if given.tools:
            self.tools = given.tools
            # Privacy: a server may declare a tool otherwise by now, and the union's be of whom it served before.
            self.adopt(self._changed(given.tools))
        if self.group is not None:
            self.group.heed()
        asked = self._read(client, given)
        self._compare()
        heard = self.heard(asked) if self._shares else None
        if heard is None:
            return self._left(asked, self._why_own())
        if not self.session.holds_shared(["\n\n".join(asked.texts)]):
            # Privacy: an agent whose system messages lack the shared text is not shown it. Where an earlier request
            # had it, AutoGen left the system message out of this one; there is nothing for the user to correct.
            why = reason("own_prompt", "asked without its system text") if self._shown else None
            return self._left(asked, why or reason("text_taken", self.name))
        self._shown = True
        left = self.session.left_alone(self.name, asked.talk.id, asked.talk.scope)
        if self.group is not None:
            left = self.group.left_plain(asked.views.model, left)
        if left is not None:
            return self._left(asked, left)
        lane, run = None, None
        if self.group is not None:
            run = self.group.ahead(self, asked.views.model)
            self.known = run is not None
        if self.group is not None and run is None:
            lane = self.group.lane_of(self, asked.views.model, _spoken(asked.views, heard.public))
        # Costs decided for the team as a whole that this agent shares with nobody.
        if lane is not None and lane.refused:
            return self._left(asked, lane.refused)
        plan = self._plan(asked, heard, lane, run)
        if plan.forks:
            restriction = restricted(self.session, plan, given, put_back(given, self.tools), self.name)
            made = compose(self.session, plan, heard, restriction, self._words)
            # Within a loop of tool calls the next request begins with this one, so its end is written to the cache.
            if self._returns and any(map(is_tool_traffic, heard.now)):
                made = made.continued()
            return self._weighed(asked, made, plan)
        if plan.reasons[-1].why == "failed":
            return None, plan
        return self._weighed(asked, self._plain(asked), plan)

    def _changed(self, tools: Sequence[Any]) -> list[Any]:
        """Those of an agent's tools whose names the union has, and that are not those which it has adopted."""
        known = set(self.session.prefix.tool_names)
        return [tool for tool in tools if name_of(tool) in known and self._adopted.get(name_of(tool)) != tool]

    def adopt(self, tools: Sequence[Any], *, of_run: bool = False) -> None:
        """Put the agent's tools into the union; where one clashes the agent keeps all its own tools, with a note.

        ``of_run`` says that they come with a run: they may be made for its user, and others' requests go without.
        """
        # What the user gave to the session is read by the first agent, whether that has tools or not.
        if not (tools or self.session.prefix.unfrozen) or self.keeps_tools:
            return
        frozen = [frozen_schema(tool) for tool in tools]
        try:
            self.session.adopt_tools(frozen, rendered, grows=True, source=ToolSource(of_run=of_run))
        except ToolClashError as error:
            self.keeps_tools = True
            self.session.note(f"agent {self.name!r} keeps its own tools, which others share no cache with: {error}")
            return
        # A server's list may be written into later; of a tool's object making the schema takes a millisecond.
        for tool, copy in zip(tools, frozen, strict=True):
            self._adopted[name_of(tool)] = copy if isinstance(tool, Mapping) else tool

    def _left(self, asked: Asked, why: Reason) -> Planned:
        """The application's own layout for the reason ``why``, without comparing costs."""
        plan = self._plan_own(asked, why)
        left_alone = plan.left_alone or self.own_prompts
        shared = None if left_alone else self._shared_first(asked.texts, ())
        if shared is not None:
            # What works as a tool begins with the text that its siblings begin with.
            why = reason("shares", shared=asked.views.tokens(shared[:1], ()))
            plan = replace(plan, layout="fork", reasons=(why,))
        return self._weighed(asked, self._plain(asked, left_alone=left_alone), plan)

    def left_as_it_is(self, client: Any, given: Request, why: Reason) -> Planned:
        """The application's own layout, with no tool put back, for the reason ``why``."""
        asked = self._read(client, given)
        return self._plain(asked, left_alone=True), self._plan_own(asked, why)

    def own_layout(self, client: Any, given: Request) -> Layout | None:
        """The application's own layout of a request, with what only the session knows; None where nothing changes."""
        return self._plain(self._read(client, given), left_alone=True)

    def _weighed(self, asked: Asked, made: Layout | None, plan: RequestPlan[LLMMessage]) -> Planned:
        """The given layout; the application's own request where putting the agent's tools back in would cost more.

        AutoGen leaves the tools out when an agent reflects on tool results, and so changes the prompt from its
        beginning. ``Reflections`` weighs the tokens of the request with tools and without them.
        """
        given, views = asked.given, asked.views
        messages, tools = (given.messages, given.tools) if made is None else (made.messages, made.restriction.tools)
        size = views.tokens(messages, tools)
        if given.tools or not put_back(given, self.tools) or given.tool_choice != "none":
            self._reflections.sent(size)
            return made, plan

        def bare(marked: bool) -> int:  # noqa: FBT001 - the core asks so
            # AutoGen's client for Anthropic (a cache by marks) repeats the last tools where a request has none.
            return views.tokens(given.messages, self.tools if marked else ())

        rules = self.session.profile(views.model)
        why = self._reflections.weigh(size, bare, rules, changed=made is not None)
        if why is None:
            return made, plan
        return self._plain(asked, left_alone=True), self._plan_own(asked, why)

    @property
    def _returns(self) -> bool:
        """Whether the agent may have another turn; True where that is not known."""
        return self.group is None or not self.group.ends(self)

    @property
    def once(self) -> bool:
        """Whether no later request is known to begin with this one: then paying for a cache write may be in vain."""
        if self.group is None or self.view is None or (self.tools and not self.group.answers_at_once(self)):
            return False
        # An agent in no team may never be asked again; one that works as another's tool mostly is.
        by_itself = not self.group.team and not self.group.called
        return by_itself or self.group.ends(self)

    @property
    def _tool_names(self) -> tuple[str, ...]:
        """Names of the agent's tools. Their results stand behind its own text, where no other agent reads them."""
        return tuple(map(name_of, self.tools))

    @property
    def _shares(self) -> bool:
        """Whether the agent's requests may become forks."""
        return not (self.alone or self.bounded or self.broken)

    def _read(self, client: Any, given: Request) -> Asked:
        """A request taken apart: its system texts, what follows, and the conversation that it belongs to."""
        texts, rest = lead(given.messages)
        model = model_of(client)
        if self._views is None or self._views.model != model:
            self._views = Views(self.session, model)
        talk = self.talk(given.messages) if given.talk is None else given.talk
        beside = "\n\n".join(filter(None, (instruction_of(texts, self.session.prefix.system), given.volatile)))
        return Asked(given, texts, rest, self._views, talk, beside)

    def _why_own(self) -> Reason:
        """The reason why this request keeps the application's own layout, where ``heard`` gave nothing to share."""
        if self.own_prompts:
            return reason("own_prompt", "an agent's own class")
        if self.alone:
            if self.group is not None and self.group.called:
                return reason("own_prompt", "its caller words its task")
            minds = self.group is not None and self.group.team
            if minds:
                return reason("own_prompt", "a society's mind")
            return reason("alone", "wrapped by itself" if self.by_itself else "")
        if self.bounded:
            return reason("own_history", "bounded context")
        if self.unread:
            return reason("own_history", "its saved state could not be read")
        return reason("own_history", "changed context" if self.broken else "outside of a turn")

    def _plan_own(self, asked: Asked, why: Reason) -> RequestPlan[LLMMessage]:
        """The plan of a request in the application's own layout."""
        own = put_back(asked.given, self.tools)
        tools = own_tools(asked.given, own, tuple(map(name_of, own)))
        holds = why.why != "text_taken"
        return self.session.plan(replace(self._request(asked, asked.rest, (), tools), own=(why,), holds_shared=holds))

    def _plan(self, asked: Asked, heard: Heard, lane: Lane | None, run: RunAhead | None) -> RequestPlan[LLMMessage]:
        """Ask the planner for a request that may be a fork.

        ``lane`` names the agents whose tools it carries together with its own; ``run`` holds the run's further calls,
        None where they are not known.
        """
        carried: Carried = "union" if run is None else "open"
        if self.keeps_tools:
            carried = ()
        elif lane is not None and self.group is not None:
            carried = tuple(self.group.tools_of(lane.names))
        behind = [*(one.message for one in heard.own), *heard.now]
        tools = own_tools(asked.given, put_back(asked.given, self.tools), carried)
        plan = self.session.plan(
            replace(
                self._request(asked, heard.public, behind, tools),
                known=(*set_apart(asked.given), *self._late(asked.given)),
                holds=True,
                resumed=self.resumed,
                alike=self._alike(asked),
                moves=sum(asked.views.of(one.message).tokens for one in heard.own),
                written=tools.calls and bool(tools.names),
                spoken=lambda behind: [asked.views.of(one).tokens for one in heard.said[behind:]],
                ahead=run,
            )
        )
        if self.view is not None:
            cheaper = plan.reasons[-1].why in ("role_costs_more", "little_to_share")
            self.keeps_layout, self.resumed = cheaper or (run is not None and plan.at is None), False
        return plan

    def _late(self, given: Request) -> tuple[Reason, ...]:
        """The tools that came after the union was fixed: they stand behind it and change the prompt from there on."""
        if self.keeps_tools or set_apart(given):
            return ()
        known = self.session.prefix.tool_names
        return tuple(reason("made_too_late", name) for name in map(name_of, given.tools) if name not in known)

    def _request(
        self, asked: Asked, said: Sequence[LLMMessage], behind: Sequence[LLMMessage], tools: OwnTools | None
    ) -> AgentRequest[LLMMessage]:
        """The request in the planner's form: ``said`` may be shared, ``behind`` stands behind the role's text."""
        views = asked.views
        history: CountedHistory[LLMMessage] = CountedHistory(
            said, lambda one: views.of(one).digest, lambda one: views.of(one).tokens, behind
        )
        instruction = instruction_of(asked.texts, self.session.prefix.system)
        return AgentRequest(
            self.name, views.model, asked.talk, instruction, lambda _: history, tools=tools, asks=asked.asks
        )

    def _alike(self, asked: Asked) -> bool:
        """Whether all agents' own requests begin with the shared text, and only this team reads that prefix."""
        system = self.session.prefix.system.strip()
        together = self.group is not None and self.group.together
        return together and bool(system) and "\n\n".join(asked.texts).startswith(system)

    def _unsaid(self, messages: Sequence[LLMMessage], further: Sequence[str]) -> str:
        """The shared and role text that was given to the session and that no system message contains.

        It has to reach the model in every layout. ``further`` holds zones and durable context of the conversation,
        added where no system message contains them.
        """
        if self.session.mode == "observe":
            return ""
        said = "\n".join(message.content for message in messages if isinstance(message, SystemMessage))
        texts = [self.session.unsaid((said,), self.name), *(text for text in further if find_text(text, said) is None)]
        return "\n\n".join(filter(None, map(str.strip, texts)))

    def heard(self, asked: Asked) -> Heard | None:
        """The request's messages by who sees them, with large results cut and the history compacted as decided.

        None where the view does not know them, as outside of a turn.
        """
        heard = self._heard(asked.rest)
        if heard is None:
            return None
        before = _in_order(heard)
        done = condensed(
            asked.views,
            asked.talk,
            before,
            first_own=len(heard.public),
            beside=asked.beside,
            tools=self._tool_names,
            declared=asked.given.tools,
        )
        if self.view is None:
            # A client alone: decisions are carried out first, then public and own messages are told apart.
            forms, own = from_history(done.messages[: done.first_own])
            said, _ = from_history(heard.public)
            found = Heard(forms, self._kept(own), done.messages[done.first_own :])
            return replace(remembered_once(found, self._memories), shortened=said)
        if len(done.messages) == len(before) and all(map(operator.is_, done.messages, before)):
            return heard
        return replace(_sorted(heard, done), shortened=heard.public)

    def _heard(self, rest: Sequence[LLMMessage]) -> Heard | None:
        """The messages by who sees them, before anything is cut; None where the view does not know them."""
        if self.view is None:
            start = split_history(rest)
            # ``heard`` tells public from own messages once the decisions on them are carried out.
            return Heard(rest[:start], (), rest[start:])  # type: ignore[arg-type]
        if self.start is None or self.start > len(rest):
            return None
        found = Heard(self.view.forms(), self._kept(self._own(rest)), rest[self.start :])
        return remembered_once(found, self._memories)

    def _own(self, rest: Sequence[LLMMessage]) -> list[Own]:
        """The messages of finished turns that only this agent saw; each turn is worked out once."""
        view = self.view
        public, shorten = ([], kept) if view is None else (view.forms(), view.transcript.shorten)
        if not self._closed:
            said = public[: self.turns[0].at] if self.turns else public
            earlier = before_us(rest[: self.before], self.name, said)
            self._closed.append([one for turn in earlier for one in own_of_turn(turn, 0, said, self.name, shorten)])
        # A turn is compared with what was public when the next one began, so that the result is the same at any later
        # time and in any process.
        for turn, after in pairwise(self.turns[len(self._closed) - 1 :]):
            said = public[turn.at : after.at]
            self._closed.append(own_of_turn(rest[turn.start : turn.end], turn.at, said, self.name, shorten))
        return [one for turn in self._closed for one in turn]

    def _kept(self, own: Sequence[Own]) -> Sequence[Own]:
        """Without the tool calls and results where the user chose ``tool_memory="drop"``."""
        return own if self.options.tool_memory == "keep" else [one for one in own if not is_tool_traffic(one.message)]

    def talk(self, messages: Sequence[LLMMessage]) -> Conversation:
        """The conversation that a request belongs to; it holds the decisions on this agent's messages.

        In a team it is the team's. Else it is that of the model context from which the messages were just read, or, as
        a client alone may serve many conversations, the one whose earlier messages these continue.
        """
        scope = self.options.scope
        if self.view is not None:
            return self.session.conversation(self.view.transcript.id, scope=scope)
        context = take_context()
        if context is None:
            return self.session.conversation(self.session.unnamed(said_by(messages), scope), scope=scope)
        if context.conversation is None:
            context.conversation = self.session.conversation(secrets.token_hex(16), scope=scope)
            if "conversation" in context.saved:
                context.conversation.restore(context.saved["conversation"], rebase=True)
        found: Conversation = context.conversation
        return found

    def _plain(self, asked: Asked, *, left_alone: bool = False) -> Layout | None:
        """The application's own layout, with large tool results shortened and the tools kept in every request.

        AutoGen leaves the tools out when it reflects on tool results, which changes the prompt from its beginning. Text
        that was given to the session alone is put in front of the agent's system text. With ``left_alone`` the tools
        and the order of the texts stay as they are. None where nothing changes.
        """
        given = asked.given
        # The application shortens or words the messages itself: durable context then goes into the system text.
        among = not (self.bounded or self.own_prompts)
        rest, further = self._with_told(asked.rest) if among else (asked.rest, self._said_to_all(asked.talk))
        unsaid = self._unsaid(given.messages, further)
        names, own = self._tool_names, given.tools
        done = condensed(
            asked.views, asked.talk, rest, beside=asked.beside, tools=names, declared=own, zones=among
        ).messages
        first = None if left_alone else self._shared_first(asked.texts, done)
        messages = first or [*given.messages[: len(asked.texts)], *done]
        messages = introduced(messages, unsaid)
        restriction, shared = Restriction(given.tools, given.tool_choice), None
        tools = put_back(given, self.tools)
        if tools and not given.tools and given.tool_choice == "none" and not left_alone:
            keep = self.session.profile(asked.views.model).tool_choice_safe == "keep"
            restriction = Restriction(tools, "auto" if keep else "none", ())
            # Provider's rule: where a change of ``tool_choice`` would invalidate the cached messages, it stays "auto"
            # and a last message asks the model to answer without tools.
            if keep:
                shared = len(lead(messages)[1])
                messages = [*messages, UserMessage(content=ANSWER, source=SENDER)]
        same = len(messages) == len(given.messages) and all(map(operator.is_, messages, given.messages))
        if restriction.tools is given.tools and same:
            return None
        return Layout(messages, restriction, shared)

    def _with_told(self, rest: list[LLMMessage]) -> tuple[list[LLMMessage], Sequence[str]]:
        """The agent's own messages with durable context where it was told; and the texts that have no place there."""
        entries = {entry.id: entry for entry in self._told(0)}
        made = list(rest)
        for at, one in reversed(self.told):
            parts = any(isinstance(behind, FunctionExecutionResultMessage) for behind in rest[at : at + 1])
            if one in entries and at <= len(rest) and not parts:
                made[at:at] = entries.pop(one).forms
        texts = [str(form.content) for entry in entries.values() for form in entry.forms]
        return (made, texts) if len(made) > len(rest) else (rest, texts)

    def _said_to_all(self, talk: Conversation) -> Sequence[str]:
        """The texts of the conversation's zones and durable context."""
        if self.session.mode == "observe":
            return ()
        zones = [zone.text() for zone in (one.refreshed() for one in talk.state.zones) if zone.shown]
        return [*zones, *(str(form.content) for entry in self._told(0) for form in entry.forms)]

    def _shared_first(self, texts: Sequence[str], rest: Sequence[LLMMessage]) -> list[LLMMessage] | None:
        """For what works as a tool: the shared text as system text, the role's own in a message behind it; else None.

        Its caller's tools stand in front of all that the caller asks, so that nobody reads the caller's text.
        """
        shared = self.session.prefix.system.strip()
        called = self.alone and self.group is not None and self.group.called
        if not (called and shared and texts and shared in texts[0]) or texts[0].strip() == shared:
            return None
        role = instruction_of(texts, shared)
        return [SystemMessage(content=shared), UserMessage(content=role, source=SENDER), *rest]


@dataclass(frozen=True, slots=True)
class Kept:
    """A saved state that was loaded, as long as nothing was said or decided since."""

    state: Mapping[str, Any] | None
    """The part of it that this adapter wrote; None where there is none."""
    seen: Any
    """What the members had in view when it was loaded."""
    decided: Any
    """The decisions on the conversation when it was loaded."""


class Group:
    """The members of one conversation, its transcript, and which of them share tools and prefix."""

    def __init__(self, session: AdapterSession, options: Options) -> None:
        self.session = session
        self.options = options
        self.transcript = Transcript(self._shortened)
        self.members: list[tuple[Any, Member]] = []
        self.callers: list[Member] = []
        """Members that belong to no agent, as a selector's."""
        self.loaded: dict[str, Entry] = {}
        """Entries of a team's saved state, until its members have taken theirs."""
        self.team = False
        """Whether this is a team, whose saved state holds the entries; else each agent's state holds them."""
        self.lanes: dict[str, Lane] | None = None
        """Each agent's lane (with whom it shares), by name; decided with the first request, saved with the state."""
        self.called = False
        """Whether the agent works as another agent's tool."""
        self.said_of: dict[Member, Mapping[str, Any] | None] = {}
        """This adapter's part of each member's loaded state; None where there is none."""
        self.kept: Kept | None = None
        """The loaded state, until something is said or decided."""
        self.plan: RunPlan | None = None
        """What is known beforehand of a team's run; None for an agent in no team."""
        self.sent_plain: float | None = None
        """When a request without us was last sent in the conversation, in seconds; None once it is laid out by us."""
        self.from_thread = False
        """Whether a state without this adapter's part is being loaded: then views are built from the team's thread."""
        self.joined = False
        """Whether several teams share this conversation, so that each team's state holds a part of it."""
        self.nested = False
        """Whether others read the same prefix: a team inside, around or beside this one, or a client alone."""
        self._told: list[Entry] = []
        self._told_by: Conversation | None = None
        """The conversation that ``_told`` belongs to: once the session forgets it, ``_told`` is dropped."""
        self._prepared = False
        self._used_tools = False

    @property
    def callers_options(self) -> Options:
        """The options for members that belong to no agent: only the tenant."""
        return Options(scope=self.options.scope)

    @property
    def together(self) -> bool:
        """Whether nobody but this team's agents reads what they share: no selector, and no other team."""
        return self.team and not self.callers and not self.nested

    @property
    def conversation(self) -> Conversation:
        """The decisions taken for this conversation."""
        return self.session.conversation(self.transcript.id, scope=self.options.scope)

    def told(self, depth: int) -> Sequence[Entry]:
        """The durable context that the application appended to the conversation.

        A new entry is placed behind the messages of ``depth``, and stays there for all agents.
        """
        if self.session.mode == "observe":
            return ()
        self.heed()
        talk = self.session.known(self.transcript.id, self.options.scope)
        if talk is None or not talk.state.messages:
            return self._told
        self._told_by = talk
        said = zip([*talk.state.committed.messages, *talk.state.turn.messages], talk.state.views, strict=True)
        texts = [(view.key, view.text) for _, view in said if view.key is not None]
        for key, text in texts[len(self._told) :]:
            depth = max([depth, *(entry.depth for entry in self._told)]) + 1
            entry = Entry(secrets.token_hex(16), depth, TOLD, (durable(key, text),))
            self._told.append(self.transcript.keep(entry))
        return self._told

    def left_plain(self, model: str, left: Reason | None) -> Reason | None:
        """Why a request goes out as it would without us: ``left``, or that the provider may hold such ones; else None.

        A conversation that began without us, in a saved state or before it was wrapped, goes on so until a pause in
        which the provider forgets: what it holds would be paid anew in another layout, and for how long nobody knows.
        """
        rules, now = self.session.profile(model), self.session.clock()
        if left is not None:
            if left.why == "not_in_fork_share":
                self.sent_plain = now
            return left
        # A provider's rule: without marks nothing is held where it holds what is marked.
        holds = rules.control != "none" and (rules.markers is None or rules.implicit_breakpoint)
        if self.sent_plain is None or not holds:
            return None
        life = rules.ttls[0].seconds
        if life is not None and now - self.sent_plain >= life:
            self.sent_plain = None
            return None
        self.sent_plain = now
        return reason("began_without_us")

    def heed(self) -> None:
        """Drop durable context of a conversation that the session has forgotten since."""
        if self._told_by is None or self.session.known(self.transcript.id, self.options.scope) is self._told_by:
            return
        gone = {entry.id for entry in self._told}
        for member in (*(member for _, member in self.members), *self.callers):
            member.leave_out(gone)
        self._told, self._told_by = [], None

    @property
    def told_so_far(self) -> Sequence[Entry]:
        """The durable context that at least one member was told."""
        return self._told

    def resume(self, told: Sequence[str]) -> None:
        """After loading a state: take the entries with the ids ``told`` as durable context told before."""
        self._told = [self.loaded[one] for one in told if one in self.loaded]
        self._told_by = self.conversation if self._told else None

    def _shortened(self, tool: str, text: str) -> str:
        """The text of a tool's result for the public transcript: cut where the session shortens large results."""
        count = self.session.count
        view = make_message("tool", (), count, results=(make_result("", tool, text, count),))
        decisions = self.session.histories.shorten(self.conversation, (view,))
        return decisions[0].text if decisions else text

    def lane_of(self, member: Member, model: str, opening: Callable[[], int]) -> Lane:
        """The agents with which ``member`` shares tools and transcript; itself alone where sharing costs more."""
        if self.lanes is None:
            self.lanes = self._settled(model, opening())
        return self.lanes.get(member.name, Lane((member.name,)))

    def ahead(self, member: Member, model: str) -> RunAhead | None:
        """The run's calls from this one on, for the planner; None where not all of them are known beforehand.

        They are known only where every agent has no tools, asks the same model once a turn and may share, and in the
        team's first run: a team that has run before may run any number of times again.
        """
        if self.plan is None or member.view is None or not self.together or len(self.members) < 2:
            return None
        # A compaction or a request budget changes the history, so its tokens are not known beforehand.
        decides = self.session.histories
        if decides.compaction or decides.request_budget or any(one.before for _, one in self.members):
            return None
        if not all(self._asks_once(agent, one, model) for agent, one in self.members):
            return None
        found = {one.view.rank: (agent, one) for agent, one in self.members if one.view is not None}
        member.asked = len(member.turns)

        def asked(rank: int) -> bool:
            one = found[rank][1]
            return bool(one.turns) and one.asked == len(one.turns)

        had = sum(len(one.turns) for _, one in self.members) - 1
        turns = self.plan.ahead(member.view.rank, had, asked)
        if not turns or any(turn.rank not in found for turn in turns):
            return None
        session = self.session

        def text(agent: Any) -> int:
            return session.count(instruction_of(system_texts(agent), session.prefix.system), model)

        texts = {rank: text(agent) for rank, (agent, _) in found.items()}
        # All of them hold the shared text (``_asks_once``).
        names = {rank: member.name for rank, (_, member) in found.items()}
        return RunAhead(tuple(RunCall(names[rank], texts[rank], beside=beside, holds=True) for rank, beside in turns))

    def _asks_once(self, agent: Any, member: Member, model: str) -> bool:
        """Whether an agent asks this model exactly once a turn, with the shared text and all public messages."""
        if type(agent) is not AssistantAgent or agent._memory or agent._output_content_type:
            return False
        if member.tools or served(agent):
            return False
        apart = member.alone or member.bounded or member.broken or member.filtered or member.own_prompts
        client = agent._model_client
        alike = model_of(getattr(client, "client", client)) == model
        return alike and not apart and self.session.holds_shared(["\n\n".join(system_texts(agent))])

    def answers_at_once(self, member: Member) -> bool:
        """Whether each turn of a member is one request, although it has tools: their results are its answer."""
        agent = next((agent for agent, one in self.members if one is member), None)
        if type(agent) is not AssistantAgent:
            return False
        return agent._max_tool_iterations == 1 and not agent._reflect_on_tool_use

    def ends(self, member: Member) -> bool:
        """Whether the turn under way is known to be the member's last one."""
        if self.plan is None or member.before or member.view is None:
            return False
        return self.plan.ends(member.view.rank, max(0, len(member.turns) - 1))

    @property
    def _has_run(self) -> bool:
        """Whether the team has run before, and so may run again."""
        return any(member.before or len(member.turns) > 1 for _, member in self.members)

    def tools_of(self, lane: Sequence[str]) -> set[str]:
        """Names of the tools that the agents of a lane have."""
        return {
            name_of(tool)
            for _, member in self.members
            if member.name in lane and not member.keeps_tools
            for tool in member.tools
        }

    def _settled(self, model: str, opening: int) -> dict[str, Lane]:
        """By its name, with which others each agent shares its tools, as the session weighs it."""
        session = self.session
        tools = session.prefix.among(self.tools_of([member.name for _, member in self.members]))
        counts = {tool.name: session.count(tool.schema.decode(), model) for tool in tools}
        seats = []
        for agent, member in self.members:
            texts = system_texts(agent)
            # Privacy: an agent whose own prompt lacks the shared text is not shown it, and so shares nothing.
            if member.alone or member.bounded or not session.holds_shared(["\n\n".join(texts)]):
                continue
            own = {name: counts[name] for name in self.tools_of((member.name,)) if name in counts}
            tail = session.count(instruction_of(texts, session.prefix.system), model)
            # A long role text keeps its cached place, unless a memory adds a text to it in each turn.
            keeps = not getattr(agent, "_memory", None)
            client = getattr(agent, "_model_client", None)
            asks = model_of(getattr(client, "client", client))
            seats.append(Seat(member.name, asks, own, tail, keeps))
        # An agent alone may share with agents of other groups (its session's others, the team around its own), which
        # are not known here: the empty name stands for them.
        if len(seats) < 2 and (self.nested or not self.team):
            return {seat.name: Lane(("", seat.name)) for seat in seats}
        rounds = None if self.plan is None or self._has_run else self.plan.rounds
        speakers = None if self.plan is None else self.plan.speakers
        return session.lanes(seats, model, opening=opening, rounds=rounds, speakers=speakers)

    async def enter(self, member: Member, messages: Sequence[BaseChatMessage]) -> None:
        """Note that a member's turn begins; if that fails, its requests keep their own layout until it is reset.

        Errors of the agent's own model context are the application's, and are raised.
        """
        self.kept = None
        context = None if member.bounded else member.context
        own = 0 if context is None else len(await context.get_messages())
        try:
            if not self._prepared:
                self._prepared = True
                await self._ask_workbenches()
            if any(message.source not in self._voices() for message in messages):
                self.session.tool_calls.new_turn(member.conversation, member.name, self.options.scope)
            member.enter(messages, own)
        except Exception as error:
            member.broken = True
            self.session.failed("turn", error)

    def leave(self, member: Member, message: BaseChatMessage | None) -> None:
        """Note that a member's turn is over; if that fails, its requests keep their own layout until it is reset."""
        try:
            member.leave(message)
        except Exception as error:
            member.broken = True
            self.session.failed("turn", error)

    def let_go(self) -> None:
        """Forget the conversation's decisions once no member has any message in view."""
        views = [member.view for _, member in self.members if member.view is not None]
        if not any(view.forms() or view.pending() for view in views):
            for view in views:
                view.clear()
            self.session.forget(self.transcript.id, self.options.scope)
            self._told, self._told_by = [], None
            self.loaded, self.sent_plain = {}, None
            for caller in self.callers:
                caller.reset()

    def use_tools(self) -> None:
        """Note that a member's tool was called through the tool cache."""
        self._used_tools = True

    async def reset_tools(self, member: Member) -> None:
        """A member was reset: it may repeat its tool calls, and the team's first reset empties the tool cache.

        Only where the tool cache is this session's own: an inner team is reset after every answer, although the
        conversation goes on.
        """
        calls = self.session.tool_calls
        calls.new_turn(member.conversation, member.name, self.options.scope)
        if self._used_tools and calls.owner == self.session.name:
            self._used_tools = False
            await calls.areset(member.conversation, self.options.scope)

    def _voices(self) -> set[str]:
        """Names of the agents with a model; a message from anybody else begins a new turn of the user."""
        return {member.name for agent, member in self.members if getattr(agent, "_model_client", None) is not None}

    async def _ask_workbenches(self) -> None:
        """Ask tool servers for their tools and put these into the union, before the first request is laid out."""
        if self.session.mode == "observe":
            return
        found = await ask_servers([one for agent, _ in self.members for one in served(agent)])
        for agent, member in self.members:
            listed: list[Any] = []
            for workbench in served(agent):
                tools = found.get(id(workbench), [])
                if isinstance(tools, Exception):
                    # Where the agent needs it, AutoGen asks once more, and its error reaches the application.
                    self.session.failed("tool server", tools)
                else:
                    listed += tools
            member.tools = [*member.tools, *listed]
            if listed and not member.alone:
                member.adopt(listed, of_run=True)


def system_texts(agent: Any) -> list[str]:
    """An agent's own system texts."""
    return [str(message.content) for message in getattr(agent, "_system_messages", None) or []]


def _sorted(heard: Heard, done: Condensed) -> Heard:
    """The messages that are left of ``heard`` once some were cut or dropped, again by who sees them.

    ``done.origins`` are indexes in ``_in_order(heard)``, where the agent's own messages stand in front of the newest
    public one.
    """
    newest = len(heard.public[:-1])
    mine = range(newest, newest + len(heard.own))
    public: list[UserMessage] = []
    own: list[Own] = []
    now: list[LLMMessage] = []
    left: list[int] = []
    """For each message of ``public`` how many public ones stood before it."""
    for at, (origin, message) in enumerate(zip(done.origins, done.messages, strict=True)):
        # Privacy: a summary put in front of the first own message tells of public ones and is public itself.
        summary = origin == newest and at in done.put_in
        if origin >= len(heard.public) + len(heard.own):
            now.append(message)
        elif origin in mine and not summary:
            own.append(Own(heard.own[origin - newest].at, message))
        elif isinstance(message, UserMessage):
            public.append(message)
            left.append(origin if origin <= newest else origin - len(mine))
    return Heard(public, [Own(bisect_left(left, one.at), one.message) for one in own], now)


def _in_order(heard: Heard) -> list[LLMMessage]:
    """All messages: public ones first, which all share; the newest public one behind the agent's own; then ``now``."""
    return [*heard.public[:-1], *(one.message for one in heard.own), *heard.public[-1:], *heard.now]


def _only_text(message: LLMMessage) -> str | None:
    """The text of a message that is nothing else; None where it has calls, results, pictures or a thought."""
    parts = [message.content] if isinstance(message.content, str) else message.content
    texts = [part for part in parts if isinstance(part, str)]
    return None if getattr(message, "thought", None) or len(texts) < len(parts) else "".join(texts)


def _spoken(views: Views, shared: Sequence[UserMessage]) -> Callable[[], int]:
    """Gives a function that counts the tokens of the public messages."""
    return lambda: sum(views.count(str(message.content)) for message in shared)
