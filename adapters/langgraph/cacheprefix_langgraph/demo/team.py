"""The team: planner, three reviewers in parallel, synthesis. Three layouts of the same application.

``unmodified`` is how LangGraph's documentation builds it; ``stock`` adds the framework's own caching where it
has any; ``shared`` differs by one wrapped model, one middleware an agent and one decorator. These stand in the
other layouts too, with a session that only observes: it changes no byte and tells the agents apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import BaseTool
from langgraph.graph import END, START, MessagesState, StateGraph

from cacheprefix import Session
from cacheprefix_langgraph import PrefixMiddleware, forked
from cacheprefix_langgraph.demo.handbook import HANDBOOK, PLANNER, REVIEWERS, SYNTHESIS

Layout = Literal["unmodified", "stock", "shared"]


def build_team(model: BaseChatModel, tools: Sequence[BaseTool], layout: Layout, session: Session) -> Any:
    """The compiled graph. ``model`` is wrapped by the caller; ``session`` observes in all but the shared layout."""

    def agent(role: str, text: str, *, pinned: bool = False) -> Any:
        return create_agent(
            model,
            list(tools),
            system_prompt=_system(text),
            middleware=_middleware(layout, session, role, pinned=pinned),
        )

    planner = agent("planner", PLANNER)
    reviewers = {role: agent(role, text, pinned=True) for role, text in REVIEWERS.items()}

    def plan(state: MessagesState) -> dict[str, Any]:
        # The planner's reading is handed on, so that no reviewer has to open the same files again.
        return {"messages": planner.invoke({"messages": state["messages"]})["messages"][len(state["messages"]) :]}

    def review(role: str) -> Any:
        def node(state: MessagesState) -> dict[str, Any]:
            return {"messages": [reviewers[role].invoke({"messages": state["messages"]})["messages"][-1]]}

        return node

    def write(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke([SystemMessage(_system(SYNTHESIS)), *state["messages"]])]}

    synthesis = forked(session, role="synthesis")(write)
    graph = StateGraph(MessagesState)
    graph.add_node("planner", plan)
    graph.add_edge(START, "planner")
    graph.add_node("synthesis", synthesis)
    for role in REVIEWERS:
        graph.add_node(role, review(role))
        graph.add_edge("planner", role)
    graph.add_edge(list(REVIEWERS), "synthesis")
    graph.add_edge("synthesis", END)
    return graph.compile()


def first_message(task: str) -> dict[str, Any]:
    """The graph's input."""
    return {"messages": [HumanMessage(task)]}


def _system(role: str) -> str:
    return f"{role}\n\n{HANDBOOK}"


def _middleware(layout: Layout, session: Session, role: str, *, pinned: bool) -> list[AgentMiddleware[Any, Any]]:
    ours = PrefixMiddleware(session, role=role, pinned=pinned)
    if layout == "stock":
        from langchain_anthropic.middleware import AnthropicPromptCachingMiddleware  # noqa: PLC0415 - an extra

        return [AnthropicPromptCachingMiddleware(), ours]
    return [ours]
