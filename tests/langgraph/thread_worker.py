"""One of several processes that serve the same threads: checkpoints in Postgres, tool results and gate in Valkey.

Loaded once by a fork server; every worker has its own session, with a budget of its own.
"""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from cacheprefix import Caching, Gate, Session, SharedPrefix, ToolResultBudget
from cacheprefix.prompt import ESTIMATE
from cacheprefix.stores import RedisStore
from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec
from cacheprefix_langgraph import PrefixState, cached_tools, forked, wrap_model

HANDBOOK = "The handbook says that every statement needs a source. " * 90
LONG = "\n".join(f"{number}: a line of a long tool result" for number in range(2000))


class State(MessagesState, PrefixState):
    """Messages and the ledger."""


def graph(url: str, store: RedisStore, log: Path, tokens: int, saver: Any) -> tuple[Any, Session]:
    """A tool node and a reader on one conversation; the tool leaves a line in ``log`` for each of its runs."""
    session = Session(
        SharedPrefix(system=HANDBOOK),
        caching=Caching(provider="openai-5.6", counter=ESTIMATE),
        budget=ToolResultBudget(max_tokens=tokens),
        tool_cache=ToolResultCache(store, ToolCacheOptions(tools=[ToolSpec("read", cacheable=True, version="1")])),
        gate=Gate(store=store),
    )
    model = wrap_model(ChatOpenAI(model="gpt-5.6", base_url=url, api_key="k", max_retries=0), session)

    @tool
    def read(path: str) -> str:
        """Read a file."""
        with log.open("a") as file:
            file.write(f"{path}\n")
        time.sleep(0.05)
        return LONG

    @forked(session, role="reader")
    def reader(state: State) -> dict[str, list[AnyMessage]]:
        answer = model.invoke([SystemMessage("You read."), *state["messages"]])
        return {"messages": [AIMessage(answer.text)]}

    made = StateGraph(State)
    made.add_node("tools", ToolNode([read], **cached_tools(session)))
    made.add_node("reader", reader)
    made.add_conditional_edges(
        START, lambda state: "tools" if getattr(state["messages"][-1], "tool_calls", None) else "reader"
    )
    made.add_edge("tools", "reader")
    made.add_edge("reader", END)
    return made.compile(checkpointer=saver), session


def serve(line: Connection, url: str, postgres: str, valkey: str, log: str, tokens: int) -> None:
    """Run turns of threads until the line is closed; each is answered by the session's own failures."""
    store = RedisStore(valkey)
    with PostgresSaver.from_conn_string(postgres) as saver:
        runs, session = graph(url, store, Path(log), tokens, saver)
        while True:
            try:
                thread, turn = line.recv()
            except EOFError:
                break
            said: list[AnyMessage] = [HumanMessage(f"{thread} asks {turn}", id=f"{thread}-{turn}")]
            if turn == 0:
                call = {"id": "c1", "name": "read", "args": {"path": "a"}}
                said.append(AIMessage("", tool_calls=[call], id=f"{thread}-call"))
            runs.invoke({"messages": said}, {"configurable": {"thread_id": thread}})
            line.send(dict(session.failures))
    store.close()
