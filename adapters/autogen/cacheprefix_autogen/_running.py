"""Taking over a team or agent that has already run: its messages are in AutoGen's own objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from autogen_agentchat.messages import BaseChatMessage, HandoffMessage
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import AgentId, Image
from autogen_core.models import AssistantMessage, UserMessage

from cacheprefix_autogen._context import ForkContext

if TYPE_CHECKING:
    from cacheprefix_autogen._group import Group
    from cacheprefix_autogen._member import Member


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
