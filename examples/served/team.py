"""The team that every server of this folder serves: a planner and a critic, who answer one after the other.

The session is made once, when the module is loaded; a server that forks its workers afterwards may do so (``gunicorn
--preload``). What processes share stands in ``TEAM_FOLDER``: the threads' checkpoints, and which worker is writing a
cold prefix right now. On several machines take a Redis (``cacheprefix.stores.RedisStore``) and LangGraph's Postgres
saver in their place.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

from langchain_core.messages import SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix.stores import SqliteStore
from cacheprefix_langgraph import PrefixState, forked, wrap_model

FOLDER = Path(os.environ.get("TEAM_FOLDER", "."))
HANDBOOK = "The handbook of the house.\n" + "\n".join(
    f"{number}. Keep claim {number} next to the place it comes from, and name the file, the line and the reason."
    for number in range(1, 121)
)

session = Session(SharedPrefix(system=HANDBOOK), gate=Gate(store=SqliteStore(FOLDER / "shared.db")))
model = wrap_model(ChatOpenAI(model=os.environ.get("MODEL", "gpt-5.6")), session)


class State(MessagesState, PrefixState):
    """A thread's messages, and what was decided on its prompts."""


@forked(session, role="planner")
def planner(state: State) -> dict[str, Any]:
    """Says what to do."""
    said = [SystemMessage("You are the planner. Plan in three steps."), *state["messages"]]
    return {"messages": [model.invoke(said)]}


@forked(session, role="critic")
def critic(state: State) -> dict[str, Any]:
    """Says what is wrong with it."""
    said = [SystemMessage("You are the critic. Name the weakest step."), *state["messages"]]
    return {"messages": [model.invoke(said)]}


team = StateGraph(State).add_sequence([planner, critic]).add_edge(START, "planner")

graph = team.compile()
"""For LangGraph's own server, which brings its checkpoints."""


def graph_of_this_process() -> Any:
    """The graph with checkpoints that all processes read; called in a worker, as a connection must not be forked."""
    connection = sqlite3.connect(FOLDER / "threads.db", check_same_thread=False, timeout=60)
    return team.compile(checkpointer=SqliteSaver(connection))
