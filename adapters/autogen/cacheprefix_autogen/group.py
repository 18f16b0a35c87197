"""Agents that share a conversation: a team's participants, or one agent by itself."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import BaseChatMessage

from cacheprefix import Conversation
from cacheprefix.adapter import (
    AdapterSession,
    Lane,
    RunAhead,
    RunCall,
    Seat,
    instruction_of,
    make_message,
    make_result,
)
from cacheprefix.errors import ToolClashError
from cacheprefix_autogen.member import Member, Options
from cacheprefix_autogen.messages import durable
from cacheprefix_autogen.provider_clients import model_of, name_of
from cacheprefix_autogen.run_plan import RunPlan
from cacheprefix_autogen.tool_restriction import frozen_schema
from cacheprefix_autogen.transcript import FROM_OUTSIDE, Entry, Transcript

OTHERS = ("",)
"""Stands in a lane for those outside the group: a nested team, agents wrapped one by one."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A state that was loaded and not yet used."""

    state: Mapping[str, Any] | None
    """What it said of us; None where it said nothing."""
    seen: Any
    """What the members had in view then."""
    decided: Any
    """What had been decided then."""


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
        self.lanes: dict[str, Lane] | None = None
        """Lane of every agent, by name; settled with the first request and saved with the state."""
        self.called = False
        """Whether it works as another agent's tool."""
        self.said_of: dict[Member, Mapping[str, Any] | None] = {}
        """What the states that were loaded said of each member; None where they said nothing."""
        self.kept: Kept | None = None
        """The state that was loaded, until something is said or decided."""
        self.plan: RunPlan | None = None
        """What is known of a team's run; None for an agent by itself."""
        self.from_thread = False
        """Whether a state is being loaded that holds nothing of ours: then the views follow from the team's thread."""
        self.joined = False
        """Whether several teams have its conversation in common, each of whose states holds a part of it."""
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

    def lane_of(self, member: Member, model: str, opening: Callable[[], int]) -> Lane:
        """The agents that ``member`` shares tools and transcript with; only itself where sharing does not pay."""
        if self.lanes is None:
            self.lanes = self._settled(model, opening())
        return self.lanes.get(member.name, Lane((member.name,)))

    def ahead(self, member: Member, model: str) -> RunAhead | None:
        """The run's calls from this one on; None where not all of them are known, or where they are not all alike.

        Known are those of agents without tools, each of which asks once a turn. A team that has run before may run
        again, and again.
        """
        if self.plan is None or member.view is None or not self.together or len(self.members) < 2:
            return None
        # With a compaction or a request budget the history is not what was said.
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
        return RunAhead(tuple(RunCall(found[rank][1].name, texts[rank], beside=beside) for rank, beside in turns))

    def _asks_once(self, agent: Any, member: Member, model: str) -> bool:
        """Whether an agent is known to ask this model once a turn, with the shared text and all that was said."""
        # A server may bring tools later.
        served = any(not hasattr(one, "_tools") for one in getattr(agent, "_workbench", None) or [])
        if type(agent) is not AssistantAgent or agent._memory or agent._output_content_type or member.tools or served:
            return False
        apart = member.alone or member.bounded or member.broken or member.filtered or member.own_prompts
        client = agent._model_client
        alike = model_of(getattr(client, "client", client)) == model
        return alike and not apart and self.session.holds_shared(["\n\n".join(system_texts(agent))])

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
        session = self.session
        counts = {tool.name: session.count(tool.schema.decode(), model) for tool in session.prefix.tools}
        seats = []
        for agent, member in self.members:
            texts = system_texts(agent)
            # One that is not shown the shared text shares nothing.
            if member.alone or member.bounded or not session.holds_shared(["\n\n".join(texts)]):
                continue
            own = {name: counts[name] for name in self.tools_of((member.name,)) if name in counts}
            tail = session.count(instruction_of(texts, session.prefix.system), model)
            # A long text keeps its place once it is written, unless a memory's is said with it.
            keeps = not getattr(agent, "_memory", None)
            client = getattr(agent, "_model_client", None)
            asks = model_of(getattr(client, "client", client))
            seats.append(Seat(member.name, asks, own, tail, keeps))
        # With whom an agent alone shares is not known here: its session's other agents, the team around its own.
        if len(seats) < 2 and (self.nested or not self.team):
            return {seat.name: Lane((*OTHERS, seat.name)) for seat in seats}
        rounds = None if self.plan is None or self._has_run else self.plan.rounds
        return session.lanes(seats, model, opening=opening, rounds=rounds)

    async def enter(self, member: Member, messages: Sequence[BaseChatMessage]) -> None:
        """A member's turn begins; when that fails, its requests stay the application's own until it is reset.

        What the agent's own model context raises is the application's, and reaches it.
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
        """A member's turn is over."""
        try:
            member.leave(message)
        except Exception as error:
            member.broken = True
            self.session.failed("turn", error)

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


def system_texts(agent: Any) -> list[str]:
    """An agent's own system texts."""
    return [str(message.content) for message in getattr(agent, "_system_messages", None) or []]
