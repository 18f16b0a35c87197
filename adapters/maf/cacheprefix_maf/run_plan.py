"""Works out before a workflow's run which agents will be asked, where that is once each in a fixed order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_framework import Agent, AgentExecutor, FanInEdgeGroup, FanOutEdgeGroup, SingleEdgeGroup

from cacheprefix.adapter import AdapterSession, RunAhead, RunCall, instruction_of

_PASSING = {"_InputToConversation", "_DispatchToAllParticipants", "_AggregateAgentConversations", "_CallbackAggregator"}
"""Executors of the framework's own sequential and concurrent workflows, which ask no model and let everything pass."""


@dataclass(slots=True)
class WorkflowRun:
    """The first run of a workflow without cycles and conditions, whose agents have no tools and see all messages.

    For a second run nothing is predicted: each agent then also holds what it saw in the first one.
    """

    depths: Mapping[str, int]
    """Each role's depth, the longest path to it in the workflow; agents of one depth are asked side by side."""
    texts: Mapping[str, str]
    """Their instructions."""
    asked: set[str] = field(default_factory=set)
    over: bool = False

    def ahead(self, role: str, session: AdapterSession, model: str) -> RunAhead | None:
        """The run's calls from this role's, which is due now; None once it is no longer the first run."""
        decides = session.histories
        self.over = self.over or role in self.asked or role not in self.depths
        if self.over or decides.compaction or decides.request_budget:
            return None
        self.asked.add(role)
        shared, here = session.prefix.system.strip(), self.depths[role]
        later = [one for one, depth in self.depths.items() if depth >= here and one not in self.asked]
        order = [role, *sorted(later, key=lambda one: self.depths[one])]
        calls = [
            RunCall(
                one,
                session.count(instruction_of([self.texts[one]], shared), model),
                beside=at > 0 and self.depths[one] == self.depths[order[at - 1]],
                holds=session.holds_shared([self.texts[one]]),
            )
            for at, one in enumerate(order)
        ]
        return RunAhead(tuple(calls))

    def alike(self, shared: str) -> bool:
        """Whether the agents' own requests all begin with the shared text."""
        return bool(shared) and all(text.lstrip().startswith(shared) for text in self.texts.values())


def run_of(workflow: Any, roles: Mapping[int, str]) -> WorkflowRun | None:
    """What is known beforehand of a workflow's run; None where its order depends on what agents say.

    ``roles`` gives the role of each agent, by the agent's ``id``.
    """
    executors, edges = dict(getattr(workflow, "executors", {})), []
    for group in getattr(workflow, "edge_groups", ()):
        single = type(group) in (SingleEdgeGroup, FanInEdgeGroup)
        if single or (type(group) is FanOutEdgeGroup and group._selection_func is None):
            edges += group.edges
        elif any(edge.source_id in executors for edge in group.edges):
            return None
    agents: dict[str, Any] = {name: one._agent for name, one in executors.items() if type(one) is AgentExecutor}
    full = all(executors[name]._context_mode == "full" for name in agents)
    passing = all(type(one).__name__ in _PASSING for name, one in executors.items() if name not in agents)
    if any(edge._condition is not None for edge in edges) or not (full and passing and len(agents) > 1):
        return None
    models = {str(one.default_options.get("model")) for one in agents.values() if _asks_once(one)}
    known = {roles.get(id(one), "") for one in agents.values() if _asks_once(one)}
    depths = _depths(executors, [(edge.source_id, edge.target_id) for edge in edges])
    if depths is None or len(models) != 1 or "" in known or len(known) != len(agents):
        return None
    return WorkflowRun(
        {roles[id(one)]: depths[name] for name, one in agents.items()},
        {roles[id(one)]: str(one.default_options.get("instructions") or "") for one in agents.values()},
    )


def _asks_once(agent: Any) -> bool:
    """Whether an agent sends one request a turn, with nothing but the messages that it was sent."""
    if not isinstance(agent, Agent):
        return False
    options = agent.default_options
    brings = options.get("tools") or agent.mcp_tools or agent.context_providers
    return not (brings or options.get("response_format") or options.get("store"))


def _depths(executors: Mapping[str, Any], edges: list[tuple[str, str]]) -> dict[str, int] | None:
    """The longest path from the start to each executor, in edges; None where there is a cycle."""
    found = dict.fromkeys(executors, 0)
    for _ in found:
        for source, target in edges:
            found[target] = max(found[target], found[source] + 1)
    settled = all(found[target] > found[source] for source, target in edges)
    return found if settled else None
