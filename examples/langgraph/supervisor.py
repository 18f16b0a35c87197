"""A supervisor and three agents (langgraph-supervisor): the agents are wrapped, the supervisor's model is bound."""

from __future__ import annotations

from _run import Example, main, role, task
from _workers import DUTIES, TOOLS, Steps
from langchain.agents import create_agent
from langgraph_supervisor import create_supervisor

from cacheprefix.server import ToolCall
from cacheprefix_langgraph import subgraph


def supervisor(example: Example) -> str:
    """The supervisor asks one agent after the other; each of them uses two tools."""
    agents = []
    for name, duty in DUTIES.items():
        agent = create_agent(example.llm(), TOOLS, name=name, system_prompt=role(name, duty))
        agents.append(subgraph(agent, example.session, role=name))
    graph = create_supervisor(
        agents, model=example.llm("supervisor"), prompt=role("supervisor", "Ask the agents, then answer.")
    )
    return str(graph.compile().invoke(task())["messages"][-1].text)


def script() -> Steps:
    """Who does what, offline."""
    work = (ToolCall("search_notes", {"query": "lift"}), ToolCall("read_offer", {"number": 1}), "that is my part.")
    calls = [ToolCall(f"transfer_to_{name}") for name in DUTIES]
    return Steps({"supervisor": (*calls, "that is all."), **dict.fromkeys(DUTIES, work)})


if __name__ == "__main__":
    main(supervisor, script)
