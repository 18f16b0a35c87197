"""Works out before a team's run how often its agents will speak, and whether a turn is an agent's last one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import BaseGroupChat, GraphFlow, RoundRobinGroupChat
from autogen_core import AgentId


class TurnAhead(NamedTuple):
    """A turn that is known to come."""

    rank: int
    """The index of its agent among the participants."""
    beside: bool = False
    """Whether it runs at the same time as the one before it, whose answer it does not see."""


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
        """How many turns each agent has in a run; None where that is not known."""
        team = self._team
        if isinstance(team, GraphFlow):
            return 1.0 if _acyclic(team) else None
        most = self._most
        if most is None or not isinstance(team, RoundRobinGroupChat) or team._termination_condition is not None:
            return None
        return most / max(1, len(team._participants))

    @property
    def speakers(self) -> int | None:
        """How many agents speak in one run at most; None where the team sets no limit."""
        return self._most

    def ahead(self, rank: int, had: int, asked: Callable[[int], bool]) -> list[TurnAhead] | None:
        """The turns from the current one to the end of the first run; None where not all of them are known.

        ``rank`` is the current agent's, ``had`` the number of turns of all agents before it; ``asked`` tells whether
        the agent of a rank has begun its turn.
        """
        team = self._team
        if isinstance(team, GraphFlow):
            sure = team._termination_condition is None and self._most is None and had < len(team._participants)
            return _waves_ahead(team, rank, asked) if sure else None
        if not isinstance(team, RoundRobinGroupChat):
            return None
        many, left = len(team._participants), self._left(had)
        return None if left is None else [TurnAhead((rank + at) % many) for at in range(left)]

    def _left(self, had: int) -> int | None:
        """Turns to the end of a round robin's first run, of agents that say one message each; None if nobody knows."""
        team, ends = self._team, self._team._termination_condition
        manager = instance_of(team, getattr(team, "_group_chat_manager_topic_type", ""))
        if getattr(manager, "_current_turn", None) != had:
            return None
        found = [] if self._most is None else [self._most - had]
        if type(ends) is MaxMessageTermination and not ends._include_agent_event:
            found.append(ends._max_messages - ends._message_count)
        elif ends is not None:
            return None
        return min(found, default=None)

    def ends(self, rank: int, turns: int) -> bool:
        """Whether the current turn is the last one of the agent of this ``rank``, which had ``turns`` turns before."""
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
        """How many turns the team takes at most; None where it sets no limit."""
        found = getattr(self._team, "_max_turns", None)
        return found if isinstance(found, int) else None


def _acyclic(team: Any) -> bool:
    """Whether a team is a graph without circles."""
    graph = getattr(team, "_graph", None)
    return graph is not None and not graph.get_has_cycles()


def _waves_ahead(team: Any, rank: int, asked: Callable[[int], bool]) -> list[TurnAhead] | None:
    """The turns of a graph in which each agent speaks once, and those of one depth at once."""
    names, nodes = [one.name for one in team._participants], team._graph.nodes
    edges = [edge for node in nodes.values() for edge in node.edges]
    # On a condition, or with the first of several, an agent speaks twice or never.
    sure = all(edge.condition is None and edge.activation_group == edge.target for edge in edges)
    if not (sure and _acyclic(team) and {edge.activation_condition for edge in edges} <= {"all"}):
        return None
    depths = dict.fromkeys(nodes, 0)
    for _ in nodes:
        for name, node in nodes.items():
            for edge in node.edges:
                depths[edge.target] = max(depths[edge.target], depths[name] + 1)
    here = names[rank]
    later = [one for one in nodes if one != here and not asked(names.index(one)) and depths[one] >= depths[here]]
    later.sort(key=lambda one: depths[one])
    before = [here, *later]
    beside = [False, *(depths[one] == depths[last] for last, one in zip(before, later, strict=False))]
    return [TurnAhead(names.index(one), with_last) for one, with_last in zip(before, beside, strict=True)]


def instance_of(team: BaseGroupChat, topic_type: str) -> Any:
    """The runtime's object for a topic type of a team; None when the team has not run yet."""
    instances = getattr(team._runtime, "_instantiated_agents", None)
    return None if instances is None else instances.get(AgentId(topic_type, team._team_id))
