"""``wrap`` and ``unwrap``: agents, teams and model clients as forks of one shared prefix."""

from __future__ import annotations

import asyncio
import copy as copying
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from autogen_agentchat.agents import BaseChatAgent, MessageFilterAgent, SocietyOfMindAgent
from autogen_agentchat.messages import BaseChatMessage, HandoffMessage
from autogen_agentchat.teams import BaseGroupChat, MagenticOneGroupChat, SelectorGroupChat
from autogen_core import AgentId, Image, SingleThreadedAgentRuntime
from autogen_core.models import AssistantMessage, ChatCompletionClient, UserMessage

from cacheprefix import Session, SharedPrefix
from cacheprefix.adapter import given_or_configured
from cacheprefix.errors import SetupError
from cacheprefix.layout import VolatileRole, common_text
from cacheprefix_autogen.agent import Binding, adopt_tools, bind_agent, runners_of, tools_of, unwrapped
from cacheprefix_autogen.client import PrefixClient
from cacheprefix_autogen.fork_agent import ForkAgent
from cacheprefix_autogen.fork_model_context import STATE, ForkContext
from cacheprefix_autogen.group import Group
from cacheprefix_autogen.member import Member, Options, ToolMemory, Volatile
from cacheprefix_autogen.orchestrator import OrchestratorMember
from cacheprefix_autogen.patches import BINDING
from cacheprefix_autogen.provider_clients import model_of
from cacheprefix_autogen.selector import SelectorMember
from cacheprefix_autogen.state import load_member, load_transcript, save_member, save_transcript


def instance_of(team: BaseGroupChat, topic_type: str) -> Any:
    """The runtime's object for a topic type of a team; None when the team has not run yet."""
    instances = getattr(team._runtime, "_instantiated_agents", None)
    return None if instances is None else instances.get(AgentId(topic_type, team._team_id))


def take_over(target: Any, group: Group) -> None:
    """Put what was already said into the members' views; a lone agent's history cannot be told apart and stays."""
    if isinstance(target, BaseGroupChat):
        group.session.attempt("take over", lambda: _take_over_team(target, group), None)
        return
    for _, member in group.members:
        if member.length and not member.alone:
            member.broken = True
            group.session.note(
                f"agent {member.name!r} was wrapped in the middle of a conversation: "
                "its requests stay the application's own until it is reset"
            )


def _take_over_team(team: BaseGroupChat, group: Group) -> None:
    manager = instance_of(team, team._group_chat_manager_topic_type)
    thread = [m for m in getattr(manager, "_message_thread", []) if isinstance(m, BaseChatMessage)]
    if not thread:
        return
    waiting: dict[int, set[str]] = {}
    topics = team._participant_topic_types
    for rank, topic in enumerate(topics):
        container = instance_of(team, topic)
        waiting[rank] = {message.id for message in getattr(container, "_message_buffer", [])}
    for _, member in group.members:
        # What a context was made with is in no thread, and is found at the next turn.
        if not getattr(member.context, "_initial_messages", None):
            member.held = member.length
        if member.view is not None:
            member.view.receive([m for m in thread if m.id not in waiting.get(member.view.rank, set())])
        if group.session.mode == "fork" and not (member.alone or member.bounded) and _beside(member, thread):
            member.broken = True
            group.session.note(
                f"agent {member.name!r}: its model context holds what nobody said in the team, "
                "so its requests stay the application's own until it is reset"
            )


def _beside(member: Member, thread: Sequence[BaseChatMessage]) -> bool:
    """Whether an agent's context holds texts that the team's thread does not: a task of its own, say, or a hint."""
    native = member.context.inner if isinstance(member.context, ForkContext) else member.context
    first = len(getattr(native, "_initial_messages", None) or ())
    held = getattr(native, "_messages", None) or []
    said = {_plain(message.to_model_text()) for message in thread}
    said |= {_plain(message.to_model_message().content) for message in thread}
    said |= {_plain(one.content) for m in thread if isinstance(m, HandoffMessage) for one in m.context}
    # Calls, their results and what a memory said are no part of what agents tell each other.
    texts = [m.content for m in held[first:] if isinstance(m, UserMessage | AssistantMessage)]
    return any(text not in said for content in texts if (text := _plain(content)) is not None)


def _plain(content: Any) -> str | None:
    """A message's words; None for calls of tools."""
    parts = [content] if isinstance(content, str) else [part for part in content if not isinstance(part, Image)]
    return "".join("".join(parts).split()) if all(isinstance(part, str) for part in parts) else None


T = TypeVar("T")


def wrap(
    target: T,
    session: Session | None = None,
    *,
    copy: bool = False,
    tool_memory: ToolMemory = "turn",
    volatile: Volatile | None = None,
    volatile_role: VolatileRole = "user",
    scope: str | None = None,
) -> T:
    """Make an agent, a team or a model client send forks of the session's shared prefix.

    In place, also in a team that has already run; with ``copy=True`` the original stays as it is. The agents
    of a team share its transcript; what their system messages have in common becomes the shared system text
    unless the session's prefix has one. ``tool_memory="private"`` shows an agent its own tool traffic of
    earlier turns again (dearer; by default only its public message stays). ``volatile`` gives texts for one
    request of an agent (time, retrieval); they stand behind everything cached, in each step of a tool loop too,
    under ``volatile_role``, and nothing keeps them. ``scope`` is the tenant whose conversation it is, by default the
    session's: decisions, cache lanes, side questions and cached tool results of tenants are kept apart. Without a
    session one is made from the configuration; ``session_of`` finds it.

    Raises ``SetupError`` for anything else, for what is wrapped already, and for an AutoGen whose private
    names are not those this version knows.
    """
    if isinstance(target, ChatCompletionClient):
        return PrefixClient(target, session)  # type: ignore[return-value]
    if not isinstance(target, (BaseChatAgent, BaseGroupChat)):
        message = f"wrap takes an AutoGen agent, team or model client, found {type(target).__name__}"
        raise SetupError(message)
    if vars(target).get(BINDING) is not None:
        message = f"{target.name!r} is wrapped already; unwrap it first, or wrap with copy=True before"
        raise SetupError(message)
    if copy:
        target = copied(target)
    _free(target)
    _bind(target, given_or_configured(session), Options(tool_memory, volatile, volatile_role, scope))
    return target


def _free(target: Any) -> None:
    """Take back what was wrapped by itself inside ``target``; what is part of something else is not ours to take."""
    bound = [b for one in _inside(target) if isinstance(b := vars(one).get(BINDING), Binding)]
    inside = {id(one) for one in _inside(target)}
    for binding in bound:
        whole = binding.root.patches.target
        if id(whole) not in inside:
            name, other = binding.patches.target.name, whole.name
            message = (
                f"{name!r} is wrapped already as a part of {other!r}: unwrap that first, or wrap both in one team. "
                "What two wraps share could not be taken back by one of them"
            )
            raise SetupError(message)
    for binding in bound:
        binding.root.undo()


def _inside(target: Any) -> Iterator[Any]:
    """The agents and teams within a team, a filter or a mind, those that hold others included."""
    if isinstance(target, BaseGroupChat):
        parts: Sequence[Any] = target._participants
    else:
        parts = [getattr(target, name) for name in ("_wrapped_agent", "_team") if hasattr(target, name)]
    for part in parts:
        yield part
        yield from _inside(part)


def _bind(target: Any, session: Session, options: Options) -> None:
    agents = _agents(target)
    session = _settled(session, agents)
    if isinstance(target, BaseGroupChat):
        binding = _bind_team(target, session, options)
    else:
        declared = bool(session.prefix.system or session.prefix.tools) and len(agents) == 1
        binding = _bind_alone(target, session, options, private=not declared)
    for each in binding.whole:
        each.root = binding
        each.patches.rebind = partial(_bind_copy, each, session, options)


def _bind_copy(original: Binding, session: Session, options: Options, made: Any) -> None:
    """Bind a deep copy as its original is, in a conversation of its own that begins with what was said so far."""
    _bind(made, session, options)
    copy = vars(made).get(BINDING)
    if isinstance(copy, Binding) and session.mode != "observe":
        session.attempt("copy", lambda: _carry_over(original, copy), None)


def _carry_over(original: Binding, copy: Binding) -> None:
    pairs = list(zip(original.whole, copy.whole, strict=True))
    news = {id(new.group): (old.group, new.group) for old, new in pairs if old.group and new.group}
    for old, new in news.values():
        load_transcript(new, {**save_transcript(old), "id": new.transcript.id})
    for before, after in pairs:
        if before.member is None or after.member is None or before.group is None or after.group is None:
            continue
        saved = save_member(before.member, before.group)
        load_member(after.member, after.group, {name: one for name, one in saved.items() if name != "entries"})
        after.member.broken |= before.member.broken


def unwrap(target: T) -> T:
    """Take everything back; the agent or team goes on with its own full context. Does nothing when not wrapped."""
    if isinstance(target, PrefixClient):
        return target.client  # type: ignore[return-value]
    binding = vars(target).get(BINDING)
    if isinstance(binding, Binding):
        binding.undo()
    return target


def session_of(target: Any) -> Session | None:
    """The session of a wrapped agent, team or client; None when it is not wrapped."""
    if isinstance(target, PrefixClient):
        return target.session
    binding = vars(target).get(BINDING)
    return binding.session if isinstance(binding, Binding) else None


def _agents(target: Any) -> list[BaseChatAgent]:
    """All agents inside, those of nested teams and filters included; agents used as tools are not."""
    if isinstance(target, BaseGroupChat):
        return [agent for participant in target._participants for agent in _agents(participant)]
    if isinstance(target, MessageFilterAgent):
        return _agents(target._wrapped_agent)
    if isinstance(target, ForkAgent):
        return _agents(target.inner)
    if isinstance(target, SocietyOfMindAgent):
        return [target, *_agents(target._team)]
    return [target]


def _settled(session: Session, agents: Sequence[BaseChatAgent]) -> Session:
    """The session with what the agents' system texts have in common, unless it has a system text."""
    if session.mode == "observe" or session.prefix.text:
        return session
    runners = [agent for outer in agents for runner in runners_of(outer) for agent in _agents(runner)]
    texts = [text for agent in (*agents, *runners) if (text := _system_text(agent))]
    found = common_text(texts)
    if found:
        session.adopt_system(found)
    return session


def _system_text(agent: Any) -> str:
    if getattr(agent, "_model_client", None) is None:
        return ""
    return "\n".join(str(message.content) for message in getattr(agent, "_system_messages", None) or [])


def _bind_alone(agent: BaseChatAgent, session: Session, options: Options, *, private: bool) -> Binding:
    group = Group(session, options, adopt=adopt_tools)
    sub = runners_of(agent)
    binding = bind_agent(agent, group, private=private or bool(sub))
    _adopt_all(group)
    if isinstance(agent, SocietyOfMindAgent):
        inner: Any = agent._team
        binding.inner.append(_bind_team(inner, session.child(agent.name), options))
    for runner in sub:
        binding.inner += _bind_runner(runner, session, options)
    take_over(agent, group)
    return binding


def _bind_runner(runner: Any, session: Session, options: Options) -> list[Binding]:
    """An agent or team that works as a tool: a conversation of its own, from an empty context.

    Nothing for one that is bound already: by another agent's tool, or by itself.
    """
    if isinstance(vars(runner).get(BINDING), Binding):
        return []
    session.note(
        f"{runner.name!r} works as a tool and starts from its own task: it shares the common system text and no "
        "conversation, since inheriting its caller's would cost more than it saves"
    )
    child = session.child(runner.name, SharedPrefix(system=session.prefix.system))
    if isinstance(runner, BaseGroupChat):
        return [_bind_team(runner, child, options)]
    return [_bind_alone(runner, child, options, private=True)]


def _bind_team(team: BaseGroupChat, session: Session, options: Options, *, inner: bool = False) -> Binding:
    group = Group(session, options, adopt=adopt_tools)
    group.team = True
    binding = Binding(team, session, group=group)
    binding.patches.expect("_participants", "save_state", "load_state")
    nested: list[tuple[Any, str]] = []
    for rank, participant in enumerate(team._participants):
        if isinstance(participant, BaseGroupChat):
            nested.append((participant, participant.name))
            continue
        binding.inner.append(bind_agent(participant, group, rank=rank))  # type: ignore[arg-type]
        if isinstance(participant, SocietyOfMindAgent):
            nested.append((participant._team, participant.name))
        for runner in runners_of(participant):
            binding.inner += _bind_runner(runner, session, options)
    _adopt_all(group, [agent for each, _ in nested for agent in _agents(each)])
    group.nested = inner or bool(nested)
    binding.inner += [_bind_team(each, session.child(name), options, inner=True) for each, name in nested]
    _bind_callers(team, group, binding)
    if session.mode != "observe":
        _keep_transcript(team, group, binding)
    take_over(team, group)
    return binding.attach()


def _adopt_all(group: Group, nested: Sequence[Any] = ()) -> None:
    if group.session.mode == "observe":
        return
    for agent, member in group.members:
        if not member.alone:
            adopt_tools(group, member, tools_of(agent))
    for agent in nested:
        adopt_tools(group, Member(group.session, agent.name), tools_of(agent))


def _bind_callers(team: BaseGroupChat, group: Group, binding: Binding) -> None:
    """Teams whose manager asks a model itself: the selector, Magentic-One's orchestrator."""
    client = unwrapped(getattr(team, "_model_client", None))
    if not isinstance(client, ChatCompletionClient):
        return
    session = group.session
    models = [model_of(agent._model_client.client) for agent, m in group.members if not m.alone]
    member: Member
    if isinstance(team, SelectorGroupChat):
        member = _selector(team, group, binding, models)
    elif isinstance(team, MagenticOneGroupChat):
        member = OrchestratorMember(session, group.transcript, group.callers_options)
        session.note(
            "Magentic-One's orchestrator keeps its own messages: as forks of the agents' prefix they would cost "
            "more where reads are half price"
        )
    else:
        member = Member(session, "manager", alone=True, options=group.callers_options)
    wrapped = PrefixClient(client, session, role=member.name, member=member)
    for owner in (binding, *_manager(team, binding)):
        owner.patches.set("_model_client", wrapped)


def _selector(team: SelectorGroupChat, group: Group, binding: Binding, models: Sequence[str]) -> Member:
    binding.patches.expect("_selector_prompt", "_selector_func", "_model_context")
    member = SelectorMember(group.session, group.transcript, team._selector_prompt, models, group.callers_options)
    member.context = team._model_context
    group.callers.append(member)
    if group.session.mode == "observe":
        return member
    own: Any = team._selector_func

    async def selector_func(thread: Sequence[Any]) -> Any:
        group.session.attempt("selector", lambda: member.observe(thread), None)
        if own is None:
            return None
        return await own(thread) if asyncio.iscoroutinefunction(own) else own(thread)

    for owner in (binding, *_manager(team, binding)):
        owner.patches.set("_selector_func", selector_func)
        if hasattr(owner.patches.target, "_is_selector_func_async"):
            owner.patches.set("_is_selector_func_async", value=True)
    return member


def _manager(team: BaseGroupChat, binding: Binding) -> list[Binding]:
    """The manager of a team that has already run, bound beside it."""
    found = instance_of(team, team._group_chat_manager_topic_type)
    if found is None:
        return []
    for inner in binding.inner:
        if inner.patches.target is found:
            return [inner]
    binding.inner.append(Binding(found, binding.session))
    return [binding.inner[-1]]


def _keep_transcript(team: BaseGroupChat, group: Group, binding: Binding) -> None:
    save, load = team.save_state, team.load_state

    async def save_state() -> Mapping[str, Any]:
        return {**await save(), STATE: save_transcript(group)}

    async def load_state(state: Mapping[str, Any]) -> None:
        kept = state.get(STATE)
        for caller in group.callers:
            caller.reset()
        if kept:
            group.session.attempt("load state", lambda: load_transcript(group, kept), None)
        await load({name: value for name, value in state.items() if name != STATE})

    binding.patches.set("save_state", save_state)
    binding.patches.set("load_state", load_state)


def copied(target: Any) -> Any:
    """A copy with contexts of its own; tools, model clients and conditions without state are shared."""
    if isinstance(target, BaseGroupChat):
        return _copied_team(target)
    new = copying.copy(target)
    for name in ("_model_context", "_memory_buffer"):
        if hasattr(new, name):
            setattr(new, name, copying.deepcopy(getattr(new, name)))
    if isinstance(target, MessageFilterAgent):
        new._wrapped_agent = copied(target._wrapped_agent)
    if isinstance(target, SocietyOfMindAgent):
        new._team = _copied_team(target._team)  # type: ignore[arg-type]
    return new


def _copied_team(team: BaseGroupChat) -> BaseGroupChat:
    if not getattr(team, "_embedded_runtime", False):
        message = f"{team.name!r} runs on a runtime of its own, which a copy cannot join; wrap it in place"
        raise SetupError(message)
    new = copying.copy(team)
    vars(new).update(
        _participants=[copied(participant) for participant in team._participants],
        _team_id=(team_id := str(uuid.uuid4())),
        _group_topic_type=f"group_topic_{team_id}",
        _group_chat_manager_topic_type=f"{team._group_chat_manager_name}_{team_id}",
        _participant_topic_types=[f"{name}_{team_id}" for name in team._participant_names],
        _output_topic_type=f"output_topic_{team_id}",
        _output_message_queue=asyncio.Queue(),
        _termination_condition=copying.deepcopy(team._termination_condition),
        _runtime=SingleThreadedAgentRuntime(ignore_unhandled_exceptions=False),
        _initialized=False,
        _is_running=False,
    )
    for name in ("_model_context",):
        if hasattr(new, name):
            setattr(new, name, copying.deepcopy(getattr(new, name)))
    return new
