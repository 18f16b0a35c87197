"""``create_agent`` with ``PrefixMiddleware``, last in the list: two agents that share a thread and a prefix."""

from __future__ import annotations

from _run import Example, main, role, task
from _workers import DUTIES, TOOLS, Steps
from langchain.agents import create_agent

from cacheprefix.server import ToolCall
from cacheprefix_langgraph import PrefixMiddleware, wrap_model


def agent_middleware(example: Example) -> str:
    """The second agent goes on where the first one stopped, and reads all of it from the cache."""
    agents = [
        create_agent(
            wrap_model(example.model, example.session),
            TOOLS,
            system_prompt=role(name, DUTIES[name]),
            middleware=[PrefixMiddleware(example.session, role=name)],
        )
        for name in ("analyst", "critic")
    ]
    state = task()
    for agent in agents:
        state = {"messages": agent.invoke(state)["messages"]}
    return str(state["messages"][-1].text)


def script() -> Steps:
    """Who does what, offline."""
    work = (ToolCall("search_notes", {"query": "lift"}), ToolCall("read_offer", {"number": 2}), "that is my part.")
    return Steps({"analyst": work, "critic": work})


if __name__ == "__main__":
    main(agent_middleware, script)
