"""One agent's part in a session: what it has seen, where its turn began, and the layout of its requests."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from autogen_agentchat.messages import BaseChatMessage, HandoffMessage
from autogen_core.model_context import ChatCompletionContext, UnboundedChatCompletionContext
from autogen_core.models import LLMMessage, SystemMessage, UserMessage

from cacheprefix import Conversation
from cacheprefix.adapter import (
    AdapterSession,
    AgentRequest,
    Carried,
    CountedHistory,
    OwnTools,
    Reason,
    RequestPlan,
    VolatileRole,
    economics,
    instruction_of,
    reason,
)
from cacheprefix_autogen.history import Ask, Views, condensed, summarised
from cacheprefix_autogen.layout import Layout, compose, introduced
from cacheprefix_autogen.messages import SENDER, from_history, is_tool_traffic, lead, said_by, split_history
from cacheprefix_autogen.model_context import application_context, take_context
from cacheprefix_autogen.provider_clients import Request, model_of, name_of
from cacheprefix_autogen.settings import PrefixSettings, settings_of
from cacheprefix_autogen.tool_restriction import ANSWER, Restriction, own_tools, restricted, set_apart
from cacheprefix_autogen.transcript import View

ToolMemory = Literal["turn", "private"]
Volatile = Callable[[], Mapping[str, str]]
Planned = tuple[Layout | None, RequestPlan[LLMMessage]]
"""How a request is sent (None: as it came), and why."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user chose at ``wrap``."""

    tool_memory: ToolMemory = "turn"
    volatile: Volatile | None = None
    volatile_role: VolatileRole = "user"
    scope: str | None = None
    """The tenant whose conversation it is; None for the session's."""


_DEFAULTS = Options()


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, read: what all decisions on it go by."""

    given: Request
    texts: tuple[str, ...]
    """The leading system texts."""
    rest: list[LLMMessage]
    """The messages behind them."""
    views: Views
    talk: Conversation
    beside: str
    """What it has of its own beside the conversation: its role's text, and what is for this call alone."""


class Lanes(Protocol):
    """What a member asks its group."""

    @property
    def together(self) -> bool:
        """Whether nobody but the agents themselves reads what they share."""
        ...

    def lane_of(self, member: Member, model: str, opening: Callable[[], int]) -> economics.Lane:
        """The agents it shares with, or what sharing would cost it."""
        ...

    def tools_of(self, lane: Sequence[str]) -> set[str]:
        """Names of their tools."""
        ...


class Member:
    """What the model client of an agent asks for the layout of a request.

    ``view`` is None where the client stands alone, built by configuration: then the layout is a pure function
    of the messages it is handed. ``alone`` leaves the messages as they are (a single agent with nobody to
    share with) and only keeps the tools in requests that AutoGen sends without them.
    """

    def __init__(
        self,
        session: AdapterSession,
        name: str,
        view: View | None = None,
        *,
        context: ChatCompletionContext | None = None,
        alone: bool = False,
        options: Options = _DEFAULTS,
    ) -> None:
        self.session = session
        self.name = name
        self.view = view
        self.context = context
        self.alone = alone
        self.options = options
        self.tools: Sequence[Any] = ()
        self._views: Views | None = None
        """Views are in tokens, so another model has its own."""
        self.keeps_layout = False
        """Whether the agent keeps its own layout although its team shares enough; goes into its saved state."""
        self.resumed = False
        """Whether its state was loaded so, and nothing was asked since."""
        self.keeps_tools = False
        """Set where the agent's tools clash with others' of the same name: they stay out of the union."""
        self.start: int | None = None
        """Where, in the agent's own context, the messages of the turn under way begin; None outside a turn."""
        self.held: int | None = 0
        """Messages in that context when the last turn had ended; None where it does not say."""
        self.joins: bool | None = None
        """Whether a selector's questions extend the agents' prefix; settled with the first and saved with the state."""
        self.group: Lanes | None = None
        """Who decides with whom the agent shares; None for clients that stand alone."""
        self.broken = False
        """Set when the view no longer holds all that the agent was told; requests are then left as they are."""

    @property
    def conversation(self) -> str:
        """The team's or the agent's run, for reports and decisions."""
        return "" if self.view is None else self.view.transcript.id

    @property
    def bounded(self) -> bool:
        """Whether the application shortens this agent's context itself; then its messages are left alone."""
        native = application_context(self.context)
        if not isinstance(native, UnboundedChatCompletionContext):
            return native is not None
        # One that derives from it may leave out as well.
        return type(native).get_messages is not UnboundedChatCompletionContext.get_messages

    @property
    def length(self) -> int | None:
        """Messages in the agent's own context; None where it does not say."""
        native = application_context(self.context)
        found = getattr(native, "_messages", None)
        return len(found) if isinstance(found, list) else None

    def enter(self, messages: Sequence[BaseChatMessage], own: int) -> None:
        """A turn begins with these messages, behind ``own`` ones in the agent's context."""
        if self.view is not None:
            self.view.receive(messages)
        if self.context is not None and not self.bounded:
            incoming = sum(1 + (len(m.context) if isinstance(m, HandoffMessage) else 0) for m in messages)
            if self.held not in (None, own) and not (self.broken or self.alone):
                # No view holds what the application put into the context, or took out of it.
                self.give_up("the application changed its model context")
            self.start = own + incoming

    def leave(self, message: BaseChatMessage | None) -> None:
        """The turn is over; ``message`` is what it gave the others, None if it failed or was cancelled."""
        self.start = None
        self.held = self.length
        if message is not None and self.view is not None:
            self.view.produce(message)

    def give_up(self, why: str) -> None:
        """Leave the agent's requests as they are, as no view holds all that it was told."""
        self.broken = True
        self.session.note(f"agent {self.name!r}: {why}, so its requests stay the application's own until it is reset")

    def reset(self) -> None:
        """Forget everything that was said."""
        self.start, self.broken, self.held = None, False, self.length
        self.keeps_layout = self.resumed = False
        if self.view is not None:
            self.view.clear()

    def settings(self) -> PrefixSettings:
        """The session as configuration, for this agent's tenant."""
        return settings_of(self.session, self.options.scope)

    def volatile_text(self) -> str:
        """What is said with one request alone; empty without any. What the callable raises is the application's."""
        given, session = self.options.volatile, self.session
        if given is None or session.mode == "observe":
            return ""
        said = dict(given())
        return session.attempt("volatile context", lambda: session.tail_for("", "", volatile=said), "")

    async def summarise(self, client: Any, given: Request, ask: Ask) -> None:
        """Let a fork of the newest request write the summary of a compaction that is due with this one."""
        asked = self._read(client, given)
        found = self._history(asked.rest) if self._shares else (asked.rest, 0)
        if found is not None:
            await summarised(asked.views, asked.talk, found[0], ask, asked.beside)

    def layout(self, client: Any, given: Request) -> Planned:
        """The layout of a request (None to send it as it came), and its plan."""
        if given.tools:
            self.tools = given.tools
        asked = self._read(client, given)
        split = self.split(asked) if self._shares else None
        if split is None:
            plan = self._plan_own(asked, self._why_own())
            return self._plain(asked, left_alone=plan.left_alone), plan
        shared, local = split
        left = self.session.left_alone(self.name, asked.talk.id, asked.talk.scope)
        if left is not None:
            plan = self._plan_own(asked, left)
            return self._plain(asked, self._unsaid(given.messages), left_alone=True), plan
        lane = None if self.group is None else self.group.lane_of(self, asked.views.model, _spoken(asked.views, shared))
        if lane is not None and len(lane.names) == 1:
            plan = self._plan_own(asked, _costs_more(lane))
            return self._plain(asked), plan
        plan = self._plan(asked, shared, local, lane)
        if plan.forks:
            restriction = restricted(self.session, plan, given, self.tools, self.name)
            return compose(self.session, plan, restriction), plan
        if plan.reasons[-1].why == "failed":
            return None, plan
        return self._plain(asked, self._unsaid(given.messages)), plan

    @property
    def _shares(self) -> bool:
        """Whether the agent's requests may become forks."""
        return not (self.alone or self.bounded or self.broken)

    def _read(self, client: Any, given: Request) -> Asked:
        texts, rest = lead(given.messages)
        model = model_of(client)
        if self._views is None or self._views.model != model:
            self._views = Views(self.session, model)
        talk = self.talk(given.messages) if given.talk is None else given.talk
        beside = "\n\n".join(filter(None, (instruction_of(texts, self.session.prefix.system), given.volatile)))
        return Asked(given, texts, rest, self._views, talk, beside)

    def _why_own(self) -> Reason:
        """Why the agent's requests keep the application's own layout, whatever sharing costs."""
        if self.alone:
            return reason("alone")
        if self.bounded:
            return reason("own_history", "bounded context")
        return reason("own_history", "changed context" if self.broken else "outside of a turn")

    def _plan_own(self, asked: Asked, why: Reason) -> RequestPlan[LLMMessage]:
        """The plan of a request in the application's own layout."""
        tools = own_tools(asked.given, self.tools, tuple(map(name_of, self.tools)))
        return self.session.plan(replace(self._request(asked, asked.rest, (), tools), own=(why,)))

    def _plan(
        self, asked: Asked, shared: Sequence[UserMessage], local: Sequence[LLMMessage], lane: economics.Lane | None
    ) -> RequestPlan[LLMMessage]:
        """The plan of a request that may be a fork: what its lane carries, and where the role's text may stand."""
        carried: Carried = "union"
        if lane is not None and self.group is not None:
            carried = () if self.keeps_tools else tuple(self.group.tools_of(lane.names))
        # AutoGen asks an agent's memory once a turn, so its text moves out of the turn into the role's text.
        remembered = [str(message.content) for message in local if isinstance(message, SystemMessage)]
        behind = [message for message in local if not isinstance(message, SystemMessage)]
        # A text for this turn alone goes to the end, and so does that of a client that has no conversation of its own:
        # its requests follow from nothing but its messages. Behind private tool traffic nothing continues a request.
        ends = bool(remembered) or self.options.tool_memory == "private" or (self.view is None and not asked.talk.named)
        plan = self.session.plan(
            replace(
                self._request(asked, shared, behind, own_tools(asked.given, self.tools, carried)),
                volatile={"memory": "\n\n".join(dict.fromkeys(remembered))} if remembered else {},
                known=set_apart(asked.given),
                place="end" if ends else "cheapest",
                holds=True,
                resumed=self.resumed,
                alike=self._alike(asked),
            )
        )
        if not ends:
            self.keeps_layout, self.resumed = plan.reasons[-1].why in ("role_costs_more", "little_to_share"), False
        return plan

    def _request(
        self, asked: Asked, said: Sequence[LLMMessage], behind: Sequence[LLMMessage], tools: OwnTools | None
    ) -> AgentRequest[LLMMessage]:
        """What the agent asks, for the planner."""
        views = asked.views
        history: CountedHistory[LLMMessage] = CountedHistory(
            said, lambda one: views.of(one).digest, lambda one: views.of(one).tokens, behind
        )
        instruction = instruction_of(asked.texts, self.session.prefix.system)
        return AgentRequest(self.name, views.model, asked.talk, instruction, lambda _: history, tools=tools)

    def _alike(self, asked: Asked) -> bool:
        """Whether all agents' own requests begin with the shared text, and nobody else reads what they share."""
        system = self.session.prefix.system.strip()
        together = self.group is not None and self.group.together
        return together and bool(system) and "\n\n".join(asked.texts).startswith(system)

    def _unsaid(self, messages: Sequence[LLMMessage]) -> str:
        """What only the session knows of the shared and of the role's text."""
        prefix = self.session.prefix
        said = "\n".join(message.content for message in messages if isinstance(message, SystemMessage))
        known = (prefix.system.strip(), prefix.roles.get(self.name, "").strip())
        return "\n\n".join(text for text in known if text and text not in said)

    def split(self, asked: Asked) -> tuple[list[UserMessage], list[LLMMessage]] | None:
        """The team's messages and those of the turn under way, after what was decided; None where no view has them."""
        found = self._history(asked.rest)
        if found is None:
            return None
        done, own = condensed(asked.views, asked.talk, found[0], first_own=found[1], beside=asked.beside)
        if self.view is None:
            return list(from_history(done[:own])), done[own:]
        return [message for message in done[:own] if isinstance(message, UserMessage)], done[own:]

    def _history(self, rest: Sequence[LLMMessage]) -> tuple[Sequence[LLMMessage], int] | None:
        """The conversation and the turn's own messages behind it, and where those begin."""
        if self.view is None:
            return rest, split_history(rest)
        if self.start is None or self.start > len(rest):
            return None
        local = list(rest[self.start :])
        if self.options.tool_memory == "private":
            local = [*(message for message in rest[: self.start] if is_tool_traffic(message)), *local]
        forms = self.view.forms()
        return [*forms, *local], len(forms)

    def talk(self, messages: Sequence[LLMMessage]) -> Conversation:
        """The conversation that a request belongs to, which holds what was decided on this agent's messages.

        A team's, or that of the context which the messages were just read from; a client alone serves many, so it is
        told by what the messages go on from.
        """
        scope = self.options.scope
        if self.view is not None:
            return self.session.conversation(self.view.transcript.id, scope=scope)
        context = take_context()
        if context is None:
            return self.session.conversation(self.session.unnamed(said_by(messages), scope), scope=scope)
        if context.conversation is None:
            context.conversation = self.session.conversation(uuid.uuid4().hex, scope=scope)
            if "conversation" in context.saved:
                context.conversation.restore(context.saved["conversation"], rebase=True)
        found: Conversation = context.conversation
        return found

    def _plain(self, asked: Asked, unsaid: str = "", *, left_alone: bool = False) -> Layout | None:
        """The application's own messages: large tool results shortened, and the tools kept in every request.

        AutoGen leaves them out when it reflects on tool results, which changes the prompt from its beginning.
        ``unsaid`` is put in front of the agent's own system text. What is ``left_alone`` has nothing else changed.
        """
        given = asked.given
        done, _ = condensed(asked.views, asked.talk, asked.rest, beside=asked.beside)
        first = None if left_alone else self._shared_first(asked.texts, done)
        messages = first or [*given.messages[: len(asked.texts)], *done]
        messages = introduced(messages, unsaid)
        restriction, shared = Restriction(given.tools, given.tool_choice), None
        if self.tools and not given.tools and given.tool_choice == "none" and not left_alone:
            keep = self.session.profile(asked.views.model).tool_choice_safe == "keep"
            restriction = Restriction(self.tools, "auto" if keep else "none", ())
            # Where another ``tool_choice`` would invalidate the messages, it stays and the model is asked in words.
            if keep:
                shared = len(lead(messages)[1])
                messages = [*messages, UserMessage(content=ANSWER, source=SENDER)]
        same = len(messages) == len(given.messages) and all(map(operator.is_, messages, given.messages))
        if restriction.tools is given.tools and same:
            return None
        return Layout(messages, restriction, shared)

    def _shared_first(self, texts: Sequence[str], rest: Sequence[LLMMessage]) -> list[LLMMessage] | None:
        """For agents that share no conversation: the common text as the system's, the role's own behind it."""
        shared = self.session.prefix.system.strip()
        if not (self.alone and shared and texts and shared in texts[0]) or texts[0].strip() == shared:
            return None
        role = instruction_of(texts, shared)
        return [SystemMessage(content=shared), UserMessage(content=role, source=SENDER), *rest]


def _spoken(views: Views, shared: Sequence[UserMessage]) -> Callable[[], int]:
    """Counts what was said in the team."""
    return lambda: sum(views.count(str(message.content)) for message in shared)


def _costs_more(lane: economics.Lane) -> Reason:
    """Why an agent shares with nobody."""
    numbers = bool(lane.cost or lane.saved)
    return reason("little_to_share", cost=lane.cost, saved=lane.saved) if numbers else reason("alone")
