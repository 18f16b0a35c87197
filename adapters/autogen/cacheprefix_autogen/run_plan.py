"""What is known beforehand of a team's run: how often its agents speak, and whether one of them will speak again."""

from __future__ import annotations

from typing import Any

from autogen_agentchat.teams import BaseGroupChat, GraphFlow, RoundRobinGroupChat
from autogen_core import AgentId


class RunPlan:
    """A team's plan: known where the number and the order of its turns are fixed before the first one.

    A round robin with ``max_turns`` and no other stop, and a graph without cycles, in which each agent speaks once at
    most. Of other teams only the last turn that ``max_turns`` allows is known. A team that runs a second time may run a
    third, so that nothing is known of it any more.
    """

    def __init__(self, team: BaseGroupChat) -> None:
        self._team: Any = team

    @property
    def rounds(self) -> float | None:
        """Turns of each agent in a run; None where nobody knows."""
        team = self._team
        if isinstance(team, GraphFlow):
            return 1.0 if _acyclic(team) else None
        most = self._most
        if most is None or not isinstance(team, RoundRobinGroupChat) or team._termination_condition is not None:
            return None
        return most / max(1, len(team._participants))

    def ends(self, rank: int, turns: int) -> bool:
        """Whether the turn under way is the last one of the participant of this rank, which has had so many before."""
        team, most = self._team, self._most
        if isinstance(team, GraphFlow) and _acyclic(team):
            return turns == 0
        manager = instance_of(team, getattr(team, "_group_chat_manager_topic_type", ""))
        now = getattr(manager, "_current_turn", None)
        if most is None:
            return False
        if isinstance(team, RoundRobinGroupChat):
            each = max(1, len(team._participants))
            # In a later run it has had more turns than this one began.
            first = not isinstance(now, int) or turns == now // each
            return first and (turns + 1) * each + rank >= most
        return isinstance(now, int) and turns <= now and now + 1 >= most

    @property
    def _most(self) -> int | None:
        found = getattr(self._team, "_max_turns", None)
        return found if isinstance(found, int) else None


def _acyclic(team: Any) -> bool:
    graph = getattr(team, "_graph", None)
    return graph is not None and not graph.get_has_cycles()


def instance_of(team: BaseGroupChat, topic_type: str) -> Any:
    """The runtime's object for a topic type of a team; None when the team has not run yet."""
    instances = getattr(team._runtime, "_instantiated_agents", None)
    return None if instances is None else instances.get(AgentId(topic_type, team._team_id))
