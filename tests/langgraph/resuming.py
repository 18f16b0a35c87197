"""A two-node thread that is killed between its nodes; run as a script it waits there for the kill."""

import sys
import time
from contextlib import ExitStack

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from cacheprefix import Caching, Session, SharedPrefix, ToolResultBudget
from cacheprefix.prompt import ESTIMATE
from cacheprefix_langgraph import PrefixState, forked, wrap_model

HANDBOOK = "The handbook says that every statement needs a source. " * 90
LONG = "\n".join(f"{number}: a line of a long tool result" for number in range(2000))


class State(MessagesState, PrefixState):
    """Messages and the ledger."""


def history():
    """A conversation with one long tool result."""
    return [
        HumanMessage("Read it.", id="h"),
        AIMessage("", tool_calls=[{"id": "c1", "name": "read_file", "args": {"path": "a"}}], id="a"),
        ToolMessage(LONG, tool_call_id="c1", id="t"),
    ]


def build(url, saver, tokens, pause=lambda: None):
    """Reader, then writer; ``pause`` is called when the writer begins. ``tokens`` is the tool-result budget."""
    session = Session(
        SharedPrefix(system=HANDBOOK),
        caching=Caching(provider="openai-5.6", counter=ESTIMATE),
        budget=ToolResultBudget(max_tokens=tokens),
    )
    model = wrap_model(ChatOpenAI(model="gpt-5.6", base_url=url, api_key="k", max_retries=0), session)

    @forked(session, role="reader")
    def reader(state):
        return {"messages": [AIMessage(model.invoke([SystemMessage("You read."), *state["messages"]]).text, id="r")]}

    @forked(session, role="writer")
    def writer(state):
        pause()
        return {"messages": [AIMessage(model.invoke([SystemMessage("You write."), *state["messages"]]).text, id="w")]}

    graph = StateGraph(State)
    graph.add_node("reader", reader)
    graph.add_node("writer", writer)
    graph.add_edge(START, "reader")
    graph.add_edge("reader", "writer")
    graph.add_edge("writer", END)
    return graph.compile(checkpointer=saver)


def saver_for(kind, where):
    """The saver of a kind as a context: a file of SQLite's, or a connection string of Postgres'."""
    return (SqliteSaver if kind == "sqlite" else PostgresSaver).from_conn_string(where)


class Paused(BaseException):
    """Leaves a run as a kill would, but for the last one."""


def main():
    """Begin one thread for each saver; hold the last one inside its second node until the kill."""
    url, *rest = sys.argv[1:]
    given = list(zip(rest[::2], rest[1::2], strict=True))
    with ExitStack() as stack:
        for number, (kind, where) in enumerate(given):
            saver = stack.enter_context(saver_for(kind, where))
            saver.setup()

            def pause(number=number):
                if number < len(given) - 1:
                    raise Paused
                print("inside", flush=True)
                time.sleep(600)

            graph = build(url, saver, 200, pause)
            try:
                graph.invoke({"messages": history()}, {"configurable": {"thread_id": "killed"}}, durability="sync")
            except Paused:
                continue


if __name__ == "__main__":
    main()
