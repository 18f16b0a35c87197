"""What changes with every call (time, retrieval, UI state) stands behind everything, and is never stored."""

from __future__ import annotations

from itertools import count
from typing import Any

from _rows import State
from _run import HANDBOOK, Example, main, task
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.graph import START, StateGraph

from cacheprefix_langgraph import context_message, forked

_MINUTE = count()


def now() -> str:
    """A clock for the example: a minute later each time."""
    return f"2026-03-02 09:{next(_MINUTE) % 60:02d}"


def volatile_context(example: Example) -> str:
    """Six turns with a clock. The usual way puts it into the system prompt and loses everything behind it."""
    llm = example.llm()

    @forked(example.session, role="clerk", volatile=lambda _: {"now": now()} if example.shared else {})
    def speak(state: State) -> dict[str, Any]:
        clock = "" if example.shared else f"It is {now()}. "
        return {"messages": [AIMessage(llm.invoke([SystemMessage(clock + HANDBOOK), *state["messages"]]).text)]}

    example.session.adapter.join("colleague")
    graph = StateGraph(State)
    graph.add_node("speak", speak)
    graph.add_edge(START, "speak")
    app = graph.compile()
    # Durable context has a key and stays in the history; no compaction touches it.
    state: Any = {"messages": [context_message("The customer is the city's library.", "customer"), *task()["messages"]]}
    for turn in range(6):
        state = app.invoke(state)
        state = {**state, "messages": [*state["messages"], HumanMessage(f"Question {turn}: and what follows?")]}
    return str(state["messages"][-2].text)


if __name__ == "__main__":
    main(volatile_context)
