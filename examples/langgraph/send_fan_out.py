"""Map-reduce: a plan, one worker a part by ``Send``, and a closing node that joins their reports."""

from __future__ import annotations

import operator
from typing import Annotated, Any

from _run import Example, main, role, task
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send

from cacheprefix_langgraph import PrefixState, forked

PARTS = ("cost", "risk", "time", "law")


class State(MessagesState, PrefixState):
    """The conversation, and what the workers found."""

    reports: Annotated[list[str], operator.add]


def send_fan_out(example: Example) -> str:
    """Four workers start together: one of them writes the shared part to the cache, the others read it."""
    llm = example.llm()

    @forked(example.session, role="planner")
    def plan(state: State) -> dict[str, Any]:
        answer = llm.invoke([SystemMessage(role("planner", "Say what must be known.")), *state["messages"]])
        return {"messages": [AIMessage(answer.text)]}

    @forked(example.session, role="worker")
    def work(state: dict[str, Any]) -> dict[str, Any]:
        system = role(f"expert for {state['part']}", f"Look at the {state['part']} alone.")
        return {"reports": [llm.invoke([SystemMessage(system), *state["messages"]]).text]}

    @forked(example.session, role="editor")
    def close(state: State) -> dict[str, Any]:
        order = HumanMessage("Join the reports:\n\n" + "\n\n".join(state["reports"]))
        answer = llm.invoke([SystemMessage(role("editor", "Write the answer.")), *state["messages"], order])
        return {"messages": [AIMessage(answer.text)]}

    def spread(state: State) -> list[Send]:
        return [Send("work", {"messages": state["messages"], "part": part}) for part in PARTS]

    graph = StateGraph(State)
    graph.add_node("plan", plan)
    graph.add_node("work", work)
    graph.add_node("close", close)
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", spread, ["work"])
    graph.add_edge("work", "close")
    graph.add_edge("close", END)
    return str(graph.compile().invoke({**task(), "reports": []})["messages"][-1].text)


if __name__ == "__main__":
    main(send_fan_out)
