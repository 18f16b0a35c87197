"""Taking over a team or agent that has already run: its messages are in AutoGen's own objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autogen_agentchat.messages import BaseChatMessage
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import AgentId

if TYPE_CHECKING:
    from cacheprefix_autogen._group import Group


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
