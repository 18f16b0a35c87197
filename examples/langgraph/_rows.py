"""A graph of roles in a row on a thread of its own, for the examples that ask, remember or wait beside it."""

from __future__ import annotations

from typing import Any

from _run import Example, role
from langchain_core.messages import AIMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix_langgraph import PrefixState, forked

CONFIG: Any = {"configurable": {"thread_id": "archive"}}
ROLES = {"author": "Draft the answer.", "editor": "Cut what is not needed."}


class State(MessagesState, PrefixState):
    """The conversation, and what was decided on it."""


def speaker(example: Example, name: str, duty: str, **options: Any) -> Any:
    """A node of one role."""
    llm = example.llm()

    @forked(example.session, role=name, **options)
    def speak(state: State) -> dict[str, Any]:
        return {"messages": [AIMessage(llm.invoke([SystemMessage(role(name, duty)), *state["messages"]]).text)]}

    return speak


def row(example: Example, **nodes: Any) -> Any:
    """The two roles, then ``nodes``, one after the other."""
    graph = StateGraph(State)
    previous = START
    for name, node in {**{name: speaker(example, name, duty) for name, duty in ROLES.items()}, **nodes}.items():
        graph.add_node(name, node)
        graph.add_edge(previous, name)
        previous = name
    return graph.compile(checkpointer=InMemorySaver())
