"""Time a call of a LangGraph application takes with forked nodes, as a multiple of the unmodified application's.

``python -m benchmarks.bench_langgraph_overhead`` prints a table and writes
``benchmarks/results/langgraph_overhead.json``. A compiled graph of two nodes, each asking ChatOpenAI once with the
thread's messages; no model is called.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

from benchmarks import _overhead
from cacheprefix import Session, SharedPrefix
from cacheprefix_langgraph import PrefixState, forked, wrap_model

RULES = "Keep every claim next to the place it comes from. " * 120


class State(MessagesState, PrefixState):
    """A thread's messages, and what cacheprefix keeps of it."""


def builder(url: str) -> Callable[[int, bool], _overhead.Side]:
    """Makes the two sides."""

    def build(size: int, shared: bool) -> _overhead.Side:  # noqa: FBT001 - one of two sides
        session = Session(SharedPrefix(system=RULES)) if shared else None
        model: Any = ChatOpenAI(model="gpt-5.2", base_url=url, api_key="none", max_retries=0)  # type: ignore[arg-type]
        if session is not None:
            model = wrap_model(model, session)
        graph: Any = StateGraph(State)
        for role in ("reader", "writer"):
            graph.add_node(role, node(role, model, session))
        graph.add_edge(START, "reader").add_edge("reader", "writer").add_edge("writer", END)
        app = graph.compile()
        messages: list[BaseMessage] = [
            (AIMessage if n % 2 else HumanMessage)(_overhead.filler(n), id=str(n)) for n in range(size)
        ]

        def run() -> list[float]:
            messages.append(HumanMessage(_overhead.filler(len(messages))))
            began = time.perf_counter()
            state = app.invoke({"messages": messages})
            took = (time.perf_counter() - began) / 2
            messages[:] = state["messages"]
            return [took]

        return run

    return build


def node(role: str, model: Any, session: Session | None) -> Any:
    """One role's node."""

    def ask(state: State) -> dict[str, Any]:
        system = SystemMessage(f"You are the {role}." if session else f"{RULES}\n\nYou are the {role}.")
        return {"messages": [model.invoke([system, *state["messages"]])]}

    return ask if session is None else forked(session, role=role)(ask)


if __name__ == "__main__":
    sys.exit(_overhead.main(__doc__, "LangGraph", builder, packages=("langgraph", "langchain-openai", "openai")))
