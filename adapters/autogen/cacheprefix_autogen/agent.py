"""An agent bound in place: its client and its turns' beginning and end are watched; everything else is its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any

from autogen_agentchat.agents import BaseChatAgent, MessageFilterAgent, SocietyOfMindAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core import CancellationToken
from autogen_core.models import ChatCompletionClient

from cacheprefix.adapter import AdapterSession, users_session, vendor_of
from cacheprefix_autogen.binding import Binding, Patches, binding_of
from cacheprefix_autogen.client import PrefixClient, note_moved, unwrapped
from cacheprefix_autogen.member import Group, Member
from cacheprefix_autogen.model_context import STATE
from cacheprefix_autogen.reading import in_turn
from cacheprefix_autogen.sending import ending
from cacheprefix_autogen.state import hold, load_member, saved_member
from cacheprefix_autogen.tool_cache import Caller, cached_by
from cacheprefix_autogen.tracebacks import without_ours
from cacheprefix_autogen.transcript import FROM_OUTSIDE, View

_ASKS_NO_OTHER_WAY = ("autogen_agentchat.", "cacheprefix_autogen.")
"""Packages whose agents ask models by clients that they hold."""


class StandIn(BaseChatAgent):
    """An agent that answers as another one does, which it holds as ``inner``."""

    inner: BaseChatAgent


def bind_agent(agent: BaseChatAgent, group: Group, *, rank: int = FROM_OUTSIDE, private: bool = False) -> Binding:
    """Bind one agent. ``rank`` is its place among the participants; ``private`` agents share no conversation."""
    if isinstance(agent, StandIn):
        return _bind_stand_in(agent, group, rank, private=private)
    if isinstance(agent, MessageFilterAgent):
        return _bind_filter(agent, group, rank, private=private)
    session = group.session
    clients, own_context = clients_of(agent), getattr(agent, "_model_context", None)
    # An agent that keeps its context elsewhere, or asks no model, is watched and never laid out.
    forks = "_model_client" in clients and own_context is not None
    member = Member(
        session,
        agent.name,
        View(group.transcript, rank),
        context=own_context if forks else None,
        alone=private or not forks or isinstance(agent, SocietyOfMindAgent),
        options=group.options,
    )
    member.tools = tools_of(agent)
    member.group, member.hears = group, group.told
    binding = Binding(agent, session, member, group)
    group.members.append((agent, member))
    member.own_prompts = not forks
    member.own_class = not type(agent).__module__.startswith(_ASKS_NO_OTHER_WAY)
    for name, client in clients.items():
        if not forks and isinstance(client, PrefixClient):
            # The application made forks of its requests, which the team's may share with.
            group.nested = group.nested or client.session is users_session(session)
        else:
            inside = unwrapped(client)
            note_moved(client, session, agent.name)
            binding.patches.set(name, PrefixClient(inside, users_session(session), role=agent.name, member=member))
    if not clients and not type(agent).__module__.startswith(_ASKS_NO_OTHER_WAY):
        _note_unseen(agent, session)
    benches = getattr(agent, "_workbench", None)
    if benches and session.tool_cache is not None and session.mode != "observe":
        caller = Caller(session, agent.name, lambda: member.conversation, group.options.scope, group.use_tools)
        binding.patches.set("_workbench", [cached_by(each, caller) for each in benches])
    # By itself, one that asks no model and calls no tool has nothing to be laid out.
    if session.mode != "observe" and (group.team or clients or benches):
        _watch_turns(agent, group, member, binding.patches)
    return binding.attach()


def _note_unseen(agent: BaseChatAgent, session: AdapterSession) -> None:
    """Say of an agent that holds none of AutoGen's model clients how its requests would be seen."""
    sdk = [one for one in vars(agent).values() if vendor_of(one)]
    if any(hasattr(type(one), "__unwrapped__") for one in sdk):
        return  # cacheprefix_sdk watches it
    way = "cacheprefix_sdk.wrap" if sdk else "PrefixClient"
    session.note(
        f"agent {agent.name!r} ({type(agent).__name__}) holds no model client that can be seen: if it asks a "
        f"model, that is in no report. {way}(client, session, role={agent.name!r}) in its place would share"
    )


def _bind_stand_in(agent: StandIn, group: Group, rank: int, *, private: bool) -> Binding:
    """Bind an agent that another object stands in for: the agent inside is the one that asks."""
    binding = Binding(agent, group.session)
    known = binding_of(agent.inner)
    if known is not None:
        rebind = known.patches.rebind
        known.undo()
        if rebind is not None:
            # Taken back, it is what it was made as.
            binding.afterwards.append(partial(rebind, agent.inner))
    binding.inner.append(bind_agent(agent.inner, group, rank=rank, private=private))
    return binding.attach()


def _bind_filter(agent: MessageFilterAgent, group: Group, rank: int, *, private: bool) -> Binding:
    """Bind an agent that hears only what its filter lets through: the agent inside is the one that asks."""
    binding = Binding(agent, group.session)
    binding.patches.expect("_wrapped_agent")
    inner: BaseChatAgent = agent._wrapped_agent
    binding.inner.append(bind_agent(inner, group, rank=rank, private=private))
    for each in binding.whole:
        if each.member is not None:
            each.member.filtered = True
    return binding.attach()


def _watch_turns(agent: BaseChatAgent, group: Group, member: Member, patches: Patches) -> None:
    """Have an agent tell its group when a turn of it begins and ends, when it is reset, and what its state is."""
    patches.expect("on_messages_stream", "on_reset", "save_state", "load_state")
    stream, reset, save, load = agent.on_messages_stream, agent.on_reset, agent.save_state, agent.load_state

    async def on_messages_stream(
        messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> AsyncGenerator[Any, None]:
        await group.enter(member, messages)
        done: BaseChatMessage | None = None
        try:
            async with ending(in_turn(member, stream(messages, cancellation_token))) as items:
                async for item in items:
                    if isinstance(item, Response):
                        done = item.chat_message
                        group.leave(member, done)
                    yield item
        except Exception as error:
            without_ours(error)
            raise
        finally:
            if done is None:
                group.leave(member, None)

    async def on_reset(cancellation_token: CancellationToken) -> None:
        await reset(cancellation_token)
        try:
            member.reset(alone=True)
            group.let_go()
            await group.reset_tools(member)
        except Exception as error:
            member.broken = True
            group.session.failed("reset", error)

    async def save_state() -> Mapping[str, Any]:
        # Without our part it is a state that was saved without us.
        return {**await save(), **group.session.attempt("save state", lambda: saved_member(member, group), {})}

    async def load_state(state: Mapping[str, Any]) -> None:
        await load({name: value for name, value in state.items() if name != STATE})
        try:
            load_member(member, group, state.get(STATE))
        except Exception as error:
            # The agent has loaded its own part; its requests keep their own layout until it is reset.
            member.broken = member.unread = True
            group.session.failed("load state", error)
            # Privacy: what was decided and told belongs to the conversation that stood here before.
            if not group.team:
                group.let_go()
        group.said_of[member] = state.get(STATE)
        if not group.team:
            hold(group, None)

    patches.set("on_messages_stream", on_messages_stream)
    patches.set("on_reset", on_reset)
    patches.set("save_state", save_state)
    patches.set("load_state", load_state)


def clients_of(agent: Any) -> dict[str, ChatCompletionClient]:
    """The model clients that an agent holds, by the attributes' names, whatever these are."""
    return {name: one for name, one in vars(agent).items() if isinstance(one, ChatCompletionClient)}


def tools_of(agent: Any) -> list[Any]:
    """The tools an agent was built with, hand-offs last; those of a server are not known before its first turn."""
    found: list[Any] = []
    for workbench in getattr(agent, "_workbench", None) or []:
        found += getattr(workbench, "_tools", [])
    return [*found, *(getattr(agent, "_handoff_tools", None) or [])]


def runners_of(agent: Any) -> list[Any]:
    """Agents and teams that an agent calls as its tools."""
    return [tool._task_runner for tool in tools_of(agent) if isinstance(tool, (AgentTool, TeamTool))]
