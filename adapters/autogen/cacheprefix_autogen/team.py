"""Binds a team, or an agent in no team, in place, with all inside: agents, inner teams, agents as tools."""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autogen_agentchat.agents import BaseChatAgent, MessageFilterAgent, SocietyOfMindAgent
from autogen_agentchat.messages import BaseChatMessage, HandoffMessage, TextMessage, ToolCallSummaryMessage
from autogen_agentchat.teams import BaseGroupChat
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core import Image, SingleThreadedAgentRuntime
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    UserMessage,
)
from autogen_core.tools import StaticWorkbench

from cacheprefix.adapter import AdapterSession
from cacheprefix.errors import SetupError
from cacheprefix_autogen.agent import StandIn, bind_agent, runners_of, tools_of
from cacheprefix_autogen.binding import Binding, binding_of
from cacheprefix_autogen.managers import bind_manager
from cacheprefix_autogen.member import Group, Member, Options, system_texts
from cacheprefix_autogen.model_context import STATE, application_context
from cacheprefix_autogen.own_rounds import tells_as_held
from cacheprefix_autogen.run_plan import RunPlan, instance_of
from cacheprefix_autogen.state import hold, load_transcript, saved_transcript
from cacheprefix_autogen.tool_restriction import frozen_schema


def agents_in(target: Any) -> list[BaseChatAgent]:
    """All agents inside ``target``, also in nested teams and filters; not those used as tools."""
    if isinstance(target, BaseGroupChat):
        return [agent for participant in target._participants for agent in agents_in(participant)]
    if isinstance(target, MessageFilterAgent):
        return agents_in(target._wrapped_agent)
    if isinstance(target, StandIn):
        return agents_in(target.inner)
    if isinstance(target, SocietyOfMindAgent):
        return [target, *agents_in(target._team)]
    return [target]


def bind_alone(
    agent: BaseChatAgent, session: AdapterSession, options: Options, *, private: bool, called: bool = False
) -> Binding:
    """Bind an agent that is in no team; a ``private`` one has a conversation that nobody shares.

    ``called`` is one that works as another agent's tool.
    """
    group = Group(session, options)
    group.called = called
    sub = runners_of(agent)
    binding = bind_agent(agent, group, private=private or bool(sub))
    _adopt_all(group)
    if isinstance(agent, SocietyOfMindAgent):
        inner: Any = agent._team
        binding.inner.append(bind_team(inner, session.child(agent.name), options))
    for runner in sub:
        binding.inner += _bind_runner(runner, session, options)
    for _, member in group.members:
        # Who calls others has their tools in front of all, and a mind words its requests itself: they would not share.
        member.by_itself = not (called or sub or isinstance(agent, SocietyOfMindAgent))
        session.attempt("take over", member.take_over, None)
    hold(group, None)
    return binding


def _bind_runner(runner: Any, session: AdapterSession, options: Options) -> list[Binding]:
    """Bind an agent or team that works as a tool: it has a conversation of its own, from an empty context.

    One that is bound already, by another agent's tool or by the user, stays as it is.
    """
    known = binding_of(runner)
    if known is not None:
        return [known]
    session.note(
        "what works as a tool starts from its own task: agents called with the same tools share the common system text "
        "among themselves, and nothing with their caller, since inheriting its tools and conversation would cost more "
        "than it saves"
    )
    shared, found = session.prefix, not session.holds_shared(())
    child = session.child(runner.name, replace(shared, system="" if found else shared.system, tools=(), roles={}))
    if found:
        # Privacy: the shared text was found in agents' prompts, not given by the user. It is adopted anew, so that an
        # agent whose own prompt lacks it is not shown it here either.
        child.adopt_system(shared.system, with_context=True)
    if isinstance(runner, BaseGroupChat):
        return [bind_team(runner, child, options)]
    return [bind_alone(runner, child, options, private=True, called=True)]


def bind_team(team: BaseGroupChat, session: AdapterSession, options: Options, *, inner: bool = False) -> Binding:
    """Bind a team and all in it; ``inner`` where another team around it reads the same prefix."""
    group = _joined(team, options)
    if group is None:
        group = Group(session, options)
        group.team = True
        group.plan = RunPlan(team)
    known_before = [member for _, member in group.members]
    binding = Binding(team, session, group=group)
    binding.patches.expect("_participants", "save_state", "load_state")
    nested: list[tuple[Any, str]] = []
    for rank, participant in enumerate(team._participants):
        if isinstance(participant, BaseGroupChat):
            nested.append((participant, participant.name))
            continue
        known = binding_of(participant)
        if known is not None:
            # It is in another team as well, which has bound it with all inside it.
            binding.inner.append(known)
            continue
        binding.inner.append(bind_agent(participant, group, rank=rank))  # type: ignore[arg-type]
        if isinstance(participant, SocietyOfMindAgent):
            nested.append((participant._team, participant.name))
        for runner in runners_of(participant):
            binding.inner += _bind_runner(runner, session, options)
    _adopt_all(group, [agent for each, _ in nested for agent in agents_in(each)])
    group.nested = group.nested or inner or bool(nested)
    binding.inner += [bind_team(each, session.child(name), options, inner=True) for each, name in nested]
    bind_manager(team, group, binding)
    if session.mode != "observe":
        _keep_transcript(team, group, binding)
    _take_over(team, group, [member for _, member in group.members if member not in known_before])
    hold(group, None)
    return binding.attach()


def _joined(team: BaseGroupChat, options: Options) -> Group | None:
    """The conversation of another team that has agents in common with this one; None where there is none.

    Raises ``SetupError`` where that would join conversations of two teams that have none in common yet, and where this
    one is given other options, another tenant's above all.
    """
    found = {id(known.joins): known.joins for one in team._participants if (known := binding_of(one)) is not None}
    if len(found) > 1:
        raise SetupError(
            f"{team.name!r} has agents of teams that share nothing: wrap it before them, or give it agents of one of "
            "them alone"
        )
    group = next(iter(found.values()), None)
    if group is not None:
        if options not in (Options(), group.options):
            raise SetupError(
                f"{team.name!r} has agents of a team that was wrapped with another scope, tool_memory or volatile: "
                "they share a conversation, so give both the same, or none to the second"
            )
        # Its agents have turns in both teams, so their order is not known beforehand; lanes are decided anew.
        group.plan, group.lanes, group.nested, group.joined = None, None, True, True
    return group


def _adopt_all(group: Group, nested: Sequence[Any] = ()) -> None:
    if group.session.mode == "observe":
        return
    for agent, member in group.members:
        if not member.alone:
            _adopt(agent, member)
    for agent in nested:
        _adopt(agent, Member(group.session, agent.name))


def _adopt(agent: Any, member: Member) -> None:
    """Put the tools that an agent was built with into the union."""
    tools = tools_of(agent)
    # First: where an agent is made anew, its tools are not everybody's.
    member.session.makes(("agent", member.name), "\n".join(system_texts(agent)), map(frozen_schema, tools))
    member.adopt(tools)


def _keep_transcript(team: BaseGroupChat, group: Group, binding: Binding) -> None:
    """Let the team's saved state hold what its agents have sent, and lay out the same after it was loaded."""
    save, load = team.save_state, team.load_state

    async def save_state() -> Mapping[str, Any]:
        return {**await save(), **group.session.attempt("save state", lambda: saved_transcript(group), {})}

    async def load_state(state: Mapping[str, Any]) -> None:
        kept = state.get(STATE)
        group.kept = None
        for caller in group.callers:
            caller.reset()

        def taken() -> bool:
            load_transcript(group, kept or {})
            return True

        read = bool(kept) and group.session.attempt("load state", taken, otherwise=False)
        # A state that was saved without us has AutoGen's thread of messages alone.
        group.from_thread = not kept
        try:
            await load({name: value for name, value in state.items() if name != STATE})
        finally:
            group.from_thread = False
        if kept and not read:
            for _, member in group.members:
                # Equal information: their views lack what they had seen.
                member.broken = member.unread = True
            # Privacy: as below.
            group.let_go()
        if not kept:
            parts = (each for inner in binding.inner for each in inner.whole if each.group is group)
            members = [each.member for each in parts if each.member is not None]
            for member in members:
                member.reset()
            # Privacy: what was decided and told belongs to the conversation that stood here before.
            group.let_go()
            _take_over(team, group, members)
        hold(group, kept)

    binding.patches.set("save_state", save_state)
    binding.patches.set("load_state", load_state)


def _take_over(team: BaseGroupChat, group: Group, members: Sequence[Member]) -> None:
    """Put the messages that the team has exchanged already into the views of these members."""
    group.session.attempt("take over", lambda: _take_over_thread(team, group, members), None)


def _take_over_thread(team: BaseGroupChat, group: Group, members: Sequence[Member]) -> None:
    """``_take_over``, raising where it fails."""
    manager = instance_of(team, team._group_chat_manager_topic_type)
    thread = [m for m in getattr(manager, "_message_thread", []) if isinstance(m, BaseChatMessage)]
    if not thread:
        return
    # By rank: ids of messages that AutoGen's container of an agent holds back until the agent's next turn.
    waiting = {
        rank: Counter(message.id for message in getattr(instance_of(team, topic), "_message_buffer", []))
        for rank, topic in enumerate(team._participant_topic_types)
    }
    for member in members:
        if member.filtered:
            # Only its own context tells which messages its filter let through.
            member.take_over()
            continue
        told = [] if member.view is None else _without(thread, waiting.get(member.view.rank, Counter()))
        if member.view is not None:
            member.view.receive(told)
        # A context's initial messages are not in the thread; ``Member.enter`` notices them at the next turn. Equal
        # information: so it does where a view could not be filled, which would leave out of forks what was said.
        if not getattr(member.context, "_initial_messages", None):
            member.look()
        if group.session.mode == "observe" or member.alone or member.bounded:
            continue
        if _beside(member, thread):
            member.give_up("its model context holds what nobody said in the team")
        elif _lacks(member, told):
            # Privacy: the application took it out of the context, or of a state.
            member.give_up("its model context lacks what was said in the team")
    # Money: of agents that are in two teams, those of the other one may long be laid out by us.
    group.sent_plain = None if group.joined else max(message.created_at for message in thread).timestamp()


def _without(thread: Sequence[BaseChatMessage], waiting: Counter[str]) -> list[BaseChatMessage]:
    """A thread's messages without those that wait; of one that was sent several times the newest do."""
    left, told = Counter(waiting), []
    for message in reversed(thread):
        if left[message.id]:
            left[message.id] -= 1
        else:
            told.append(message)
    return told[::-1]


def _beside(member: Member, thread: Sequence[BaseChatMessage]) -> bool:
    """Whether an agent's context holds texts that are not in the team's thread, such as a task of its own."""
    native = application_context(member.context)
    first = len(getattr(native, "_initial_messages", None) or ())
    held = getattr(native, "_messages", None) or []
    said = {_plain(message.to_model_text()) for message in thread}
    said |= {_plain(message.to_model_message().content) for message in thread}
    said |= {_plain(one.content) for m in thread if isinstance(m, HandoffMessage) for one in m.context}
    # Calls, their results and what a memory said are no part of what agents tell each other.
    texts = [m.content for m in held[first:] if isinstance(m, UserMessage | AssistantMessage)]
    return any(text not in said for content in texts if (text := _plain(content)) is not None)


def _lacks(member: Member, told: Sequence[BaseChatMessage]) -> bool:
    """Whether an agent's context does not hold all that it was told and that it said."""
    held = getattr(application_context(member.context), "_messages", None)
    if held is None:
        return False
    texts = Counter(_plain(one.content) for one in held if isinstance(one, UserMessage | AssistantMessage))
    texts.update(_plain(result.content) for result in _results(held))
    said, own = Counter[str | None](), [m for m in told if m.source == member.name]
    for message in told:
        if message not in own or isinstance(message, TextMessage):
            said[_plain(message.to_model_message().content)] += 1
        # What a hand-off carries stands in all agents' contexts; what a summary is of, in the agent's own.
        if isinstance(message, HandoffMessage):
            said.update(_plain(result.content) for result in _results(message.context))
        elif isinstance(message, ToolCallSummaryMessage) and message in own:
            said.update(_plain(result.content) for result in message.results)
    return bool(said - texts) or not all(tells_as_held(message, held, member.name) for message in own)


def _results(messages: Iterable[LLMMessage]) -> Iterator[FunctionExecutionResult]:
    """The results of tools among messages."""
    return (one for m in messages if isinstance(m, FunctionExecutionResultMessage) for one in m.content)


def _plain(content: Any) -> str | None:
    """A message's text without white space, to compare; None for tool calls."""
    parts = [content] if isinstance(content, str) else [part for part in content if not isinstance(part, Image)]
    return "".join("".join(parts).split()) if all(isinstance(part, str) for part in parts) else None


def copied(target: Any) -> Any:
    """A copy of an agent or a team that a run of the original does not change, nor the other way round.

    They share tools, model clients, and what else they hold that is no plain container. Raises ``SetupError`` for a
    team on a runtime of the application's.
    """
    return _part(target, {})


def _part(value: Any, made: dict[int, Any]) -> Any:
    """What stands in a copy for something that an original holds; ``made`` has those made so far, by id.

    What two agents of a team hold both, their copies hold both.
    """
    new: Any
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, ChatCompletionContext):
        made[id(value)] = new = copy.deepcopy(value)
    elif isinstance(value, set):
        made[id(value)] = new = copy.copy(value)
    elif isinstance(value, (list, deque, dict)):
        made[id(value)] = new = copy.copy(value)
        for at in list(value) if isinstance(value, dict) else range(len(value)):
            new[at] = _part(value[at], made)
    elif isinstance(value, (BaseChatAgent, BaseGroupChat, AgentTool, TeamTool, StaticWorkbench)):
        made[id(value)] = new = copy.copy(value)
        for name, one in list(vars(new).items()):
            setattr(new, name, _part(one, made))
        if isinstance(value, BaseGroupChat):
            _begin(value, new)
    else:
        return value
    return new


def _begin(team: BaseGroupChat, new: Any) -> None:
    """Give the copy of a team a runtime of its own, in which nothing was said."""
    if not getattr(team, "_embedded_runtime", False):
        raise SetupError(f"{team.name!r} runs on a runtime of its own, which a copy cannot join; wrap it in place")
    vars(new).update(
        _team_id=(team_id := str(uuid.uuid4())),
        _group_topic_type=f"group_topic_{team_id}",
        _group_chat_manager_topic_type=f"{team._group_chat_manager_name}_{team_id}",
        _participant_topic_types=[f"{name}_{team_id}" for name in team._participant_names],
        _output_topic_type=f"output_topic_{team_id}",
        _output_message_queue=asyncio.Queue(),
        _termination_condition=copy.deepcopy(team._termination_condition),
        _runtime=SingleThreadedAgentRuntime(ignore_unhandled_exceptions=False),
        _initialized=False,
        _is_running=False,
    )
