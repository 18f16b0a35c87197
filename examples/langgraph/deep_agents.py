"""deepagents: a lead whose helpers go on from its conversation (``mode="fork"``), each with a role of its own.

deepagents puts a helper's role into its system prompt, in front of everything that the lead has sent: the helper reads
none of it. With a ``PrefixMiddleware`` of its own for each, all of them begin alike.
"""

from __future__ import annotations

import warnings

from _run import Example, main, role, task
from _workers import DUTIES, TOOLS, Steps
from deepagents import create_deep_agent

from cacheprefix.server import ToolCall
from cacheprefix_langgraph import PrefixMiddleware, wrap_model

HELPERS = ("analyst", "critic")


def deep_agents(example: Example) -> str:
    """The lead hands one task to each helper, and closes."""
    helpers = [
        {
            "name": name,
            "description": f"The {name}.",
            "mode": "fork",
            "system_prompt": role(name, DUTIES[name]),
            "middleware": [PrefixMiddleware(example.session, role=name)],
        }
        for name in HELPERS
    ]
    with warnings.catch_warnings():
        # deepagents calls its fork mode a preview.
        warnings.simplefilter("ignore")
        lead = create_deep_agent(
            model=wrap_model(example.model, example.session),
            tools=TOOLS,
            system_prompt=role("lead", "Hand tasks to your helpers, and close with a recommendation."),
            subagents=helpers,  # type: ignore[arg-type]
            middleware=[PrefixMiddleware(example.session, role="lead")],
        )
        return str(lead.invoke(task())["messages"][-1].text)  # type: ignore[arg-type]


def script() -> Steps:
    """Who does what, offline."""
    tasks = [
        ToolCall("task", {"subagent_type": name, "description": f"Do your part as the {name}."}) for name in HELPERS
    ]
    work = (ToolCall("search_notes", {"query": "lift"}), ToolCall("read_offer", {"number": 2}), "that is my part.")
    return Steps({"lead": (*tasks, "we move in March."), **dict.fromkeys(HELPERS, work)})


if __name__ == "__main__":
    main(deep_agents, script)
