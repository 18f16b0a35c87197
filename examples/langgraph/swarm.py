"""A swarm (langgraph-swarm): agents that hand over to one another, each a fork of one prefix."""

from __future__ import annotations

from _run import Example, main, role, task
from _workers import DUTIES, TOOLS, Steps
from langchain.agents import create_agent
from langgraph_swarm import create_handoff_tool, create_swarm

from cacheprefix.server import ToolCall
from cacheprefix_langgraph import subgraph

NEXT = {"analyst": "planner", "planner": "critic", "critic": "analyst"}


def swarm(example: Example) -> str:
    """Three agents, each of which uses a tool and hands over to the next one."""
    agents = []
    for name, duty in DUTIES.items():
        tools = [*TOOLS, create_handoff_tool(agent_name=NEXT[name])]
        agent = create_agent(example.llm(), tools, name=name, system_prompt=role(name, duty))
        agents.append(subgraph(agent, example.session, role=name))
    app = create_swarm(agents, default_active_agent="analyst").compile()
    return str(app.invoke(task())["messages"][-1].text)


def script() -> Steps:
    """Who does what, offline."""
    steps = {
        name: (ToolCall("search_notes", {"query": name}), ToolCall(f"transfer_to_{NEXT[name]}"), "that is all.")
        for name in DUTIES
    }
    return Steps(steps)


if __name__ == "__main__":
    main(swarm, script)
