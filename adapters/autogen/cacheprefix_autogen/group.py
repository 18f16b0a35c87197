"""Agents that share a conversation: a team's participants, or one agent by itself."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from autogen_agentchat.messages import BaseChatMessage

from cacheprefix import Conversation
from cacheprefix.adapter import AdapterSession, economics, instruction_of, make_message, make_result
from cacheprefix.errors import ToolClashError
from cacheprefix_autogen.member import Member, Options
from cacheprefix_autogen.messages import durable
from cacheprefix_autogen.provider_clients import model_of, name_of
from cacheprefix_autogen.run_plan import RunPlan
from cacheprefix_autogen.sending import failed
from cacheprefix_autogen.settings import shown_to
from cacheprefix_autogen.tool_restriction import frozen_schema
from cacheprefix_autogen.transcript import FROM_OUTSIDE, Entry, Transcript

OTHERS = ("",)
"""Stands in a lane for those outside the group: a nested team, agents wrapped one by one."""


class Group:
    """The members of one conversation, its transcript, and what is settled before their first turn."""

    def __init__(self, session: AdapterSession, options: Options) -> None:
        self.session = session
        self.options = options
        self.transcript = Transcript(self._shortened)
        self.members: list[tuple[Any, Member]] = []
        self.callers: list[Member] = []
        """Members that no agent stands behind: a selector."""
        self.loaded: dict[str, Entry] = {}
        """Entries of a team's saved state, until its members have taken theirs."""
        self.team = False
        """Whether the entries stand in the team's state rather than in each agent's."""
        self.lanes: dict[str, economics.Lane] | None = None
        """Lane of every agent, by name; settled with the first request and saved with the state."""
        self.called = False
        """Whether it works as another agent's tool."""
        self.plan: RunPlan | None = None
        """What is known of a team's run; None for an agent by itself."""
        self.from_thread = False
        """Whether a state is being loaded that holds nothing of ours: then the views follow from the team's thread."""
        self.nested = False
        """Whether others read the same prefix: a team inside, around or beside this one, or a client by itself."""
        self._told: list[Entry] = []
        self._told_by: Conversation | None = None
        """Whose durable context that is: it goes with the conversation."""
        self._prepared = False
        self._used_tools = False

    @property
    def callers_options(self) -> Options:
        """What of the options concerns members that no agent stands behind."""
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
        """What the application appended to the conversation as durable context, each where it was first seen.

        What is new stands behind the messages of this depth, for everybody.
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
            entry = Entry(uuid.uuid4().hex, depth, FROM_OUTSIDE, (durable(key, text),))
            self._told.append(self.transcript.keep(entry))
        return self._told

    def heed(self) -> None:
        """Let durable context go that belongs to a conversation which the session has forgotten since."""
        if self._told_by is None or self.session.known(self.transcript.id, self.options.scope) is self._told_by:
            return
        gone = {entry.id for entry in self._told}
        for member in (*(member for _, member in self.members), *self.callers):
            member.leave_out(gone)
        self._told, self._told_by = [], None

    @property
    def told_so_far(self) -> Sequence[Entry]:
        """Durable context that somebody was told."""
        return self._told

    def resume(self, told: Sequence[str]) -> None:
        """Go on from a saved state, with durable context that was told before."""
        self._told = [self.loaded[one] for one in told if one in self.loaded]
        self._told_by = self.conversation if self._told else None

    def _shortened(self, tool: str, text: str) -> str:
        """What stands in the public transcript for one tool's result."""
        count = self.session.count
        view = make_message("tool", (), count, results=(make_result("", tool, text, count),))
        decisions = self.session.histories.shorten(self.conversation, (view,))
        return decisions[0].text if decisions else text

    def adopt(self, member: Member, tools: Sequence[Any]) -> None:
        """Put an agent's tools into the union; one that clashes keeps its own, and is noted."""
        session = self.session
        try:
            if tools:
                session.adopt_tools([frozen_schema(tool) for tool in tools], lambda schema: schema, grows=True)
        except ToolClashError as error:
            member.keeps_tools = True
            session.note(f"agent {member.name!r} keeps its own tools, which others share no cache with: {error}")

    def lane_of(self, member: Member, model: str, opening: Callable[[], int]) -> economics.Lane:
        """The agents that ``member`` shares tools and transcript with; only itself where sharing does not pay."""
        if self.lanes is None:
            self.lanes = self._settled(model, opening())
        return self.lanes.get(member.name, economics.Lane((member.name,)))

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

    def _settled(self, model: str, opening: int) -> dict[str, economics.Lane]:
        session = self.session
        counts = {tool.name: session.count(tool.schema.decode(), model) for tool in session.prefix.tools}
        opening += session.count(session.prefix.text, model)
        seats = []
        for agent, member in self.members:
            texts = [str(message.content) for message in getattr(agent, "_system_messages", None) or []]
            # One that is not shown the shared text shares nothing.
            if member.alone or member.bounded or not shown_to(session, texts):
                continue
            own = {name: counts[name] for name in self.tools_of((member.name,)) if name in counts}
            tail = session.count(instruction_of(texts, session.prefix.system), model)
            # A long text keeps its place once it is written, unless a memory's is said with it.
            keeps = not getattr(agent, "_memory", None)
            client = getattr(agent, "_model_client", None)
            asks = model_of(getattr(client, "client", client))
            seats.append(economics.Seat(member.name, asks, own, tail, keeps))
        # With whom an agent alone shares is not known here: its session's other agents, the team around its own.
        if len(seats) < 2 and (self.nested or not self.team):
            return {seat.name: economics.Lane((*OTHERS, seat.name)) for seat in seats}
        rules = session.profile(model)
        rounds = None if self.plan is None or self._has_run else self.plan.rounds
        found = economics.lanes(seats, read=rules.read, opening=opening, least=rules.min_tokens, rounds=rounds)
        for lane in found:
            if len(lane.names) == 1:
                session.note(
                    f"agent {lane.names[0]!r} keeps its own layout: carrying its tools or its role's text behind the "
                    "transcript would cost more than sharing saves"
                )
        return {name: lane for lane in found for name in lane.names}

    async def enter(self, member: Member, messages: Sequence[BaseChatMessage]) -> None:
        """A member's turn begins; when that fails, its requests stay the application's own until it is reset.

        What the agent's own model context raises is the application's, and reaches it.
        """
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
            failed(self.session, "turn", error)

    def leave(self, member: Member, message: BaseChatMessage | None) -> None:
        """A member's turn is over."""
        try:
            member.leave(message)
        except Exception as error:
            member.broken = True
            failed(self.session, "turn", error)

    def let_go(self) -> None:
        """Once nobody has anything in view any more: drop what was decided on what was said."""
        views = [member.view for _, member in self.members if member.view is not None]
        if not any(view.everything() for view in views):
            self.session.forget(self.transcript.id, self.options.scope)
            self._told, self._told_by = [], None

    def use_tools(self) -> None:
        """A member's tool was called through the tool cache."""
        self._used_tools = True

    async def reset_tools(self, member: Member) -> None:
        """A member was reset: it may repeat itself, and with the first of a team the kept results are forgotten.

        An inner team is reset after every answer, which ends no conversation.
        """
        calls = self.session.tool_calls
        calls.new_turn(member.conversation, member.name, self.options.scope)
        if self._used_tools and calls.owner == self.session.name:
            self._used_tools = False
            await calls.areset(member.conversation, self.options.scope)

    def _voices(self) -> set[str]:
        """Names of those whose messages come from a model; anybody else's begin a new turn of the user."""
        return {member.name for agent, member in self.members if getattr(agent, "_model_client", None) is not None}

    async def _ask_workbenches(self) -> None:
        """Tools of servers are known only by asking; their union has to stand before the first request."""
        if self.session.mode == "observe":
            return
        for agent, member in self.members:
            listed = []
            for workbench in getattr(agent, "_workbench", None) or []:
                if not hasattr(workbench, "_tools"):
                    listed += await workbench.list_tools()
            member.tools = [*member.tools, *listed]
            if listed and not member.alone:
                self.adopt(member, listed)
