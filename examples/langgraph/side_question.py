"""A question beside a thread: it reads the thread's cached prefix and leaves no trace in its state."""

from __future__ import annotations

from _rows import CONFIG, row
from _run import Example, main, role, task
from langchain_core.messages import HumanMessage, SystemMessage

from cacheprefix_langgraph import ask

QUESTION = "In one sentence: what have the two agreed on so far?"


def side_question(example: Example) -> str:
    """Two roles work; in between someone wants to know where they are."""
    graph = row(example)
    graph.invoke(task(), CONFIG)
    if example.shared:
        said = ask(example.llm(), QUESTION, graph=graph, config=CONFIG).text
    else:
        history = graph.get_state(CONFIG).values["messages"]
        system = SystemMessage(role("helper", "Answer questions about the conversation."))
        said = example.llm().invoke([system, *history, HumanMessage(QUESTION)]).text
    graph.invoke({"messages": [HumanMessage("Go on.")]}, CONFIG)
    return f"Asked on the side: {said}"


if __name__ == "__main__":
    main(side_question)
