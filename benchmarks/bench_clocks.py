"""Time to the first token and whole runs of four LangGraph nodes on a real engine: see ``benchmarks/_clocks.py``.

``python -m benchmarks.bench_clocks`` prints a table and writes ``benchmarks/results/clocks.json``.
"""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import SecretStr

from benchmarks import _clocks
from benchmarks.local_engine import MODEL, LocalEngine
from cacheprefix import Session
from cacheprefix_langgraph import forked, wrap_model


def graph(engine: LocalEngine, session: Session, handbook: str, *, together: bool) -> Any:
    """The four roles as nodes, one after the other or side by side."""
    chat = ChatOpenAI(
        model=MODEL,
        base_url=engine.openai_base_url,
        api_key=SecretStr("any"),
        max_retries=0,
        max_completion_tokens=1,
        timeout=900,
    )
    model = wrap_model(chat, session)

    def node(role: str, text: str) -> Any:
        def ask(state: MessagesState) -> dict[str, Any]:
            said = model.invoke([SystemMessage(f"{text}\n\n{handbook}"), *state["messages"]])
            return {"messages": [HumanMessage(f"{role}: {said.content}")]}

        return forked(session, role=role)(ask)

    made = StateGraph(MessagesState)
    previous = START
    for role, text in _clocks.ROLES.items():
        made.add_node(role, node(role, text))
        made.add_edge(START if together else previous, role)
        previous = role
    made.add_edge(previous, END)
    return made.compile()


def in_turn(engine: LocalEngine, session: Session, handbook: str) -> None:
    """One after the other."""
    graph(engine, session, handbook, together=False).invoke({"messages": [HumanMessage(_clocks.TASK)]})


def at_once(engine: LocalEngine, session: Session, handbook: str) -> None:
    """Four at the same moment."""
    graph(engine, session, handbook, together=True).invoke({"messages": [HumanMessage(_clocks.TASK)]})


if __name__ == "__main__":
    _clocks.main("clocks", "LangGraph", {"in turn": in_turn, "four together": at_once}, __doc__)
