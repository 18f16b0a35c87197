"""A planner, a critic and a writer of the OpenAI Agents SDK on one prefix, by hand-offs or as tools of the planner.

``python examples/openai_agents/team.py --pattern handoffs`` runs offline against the simulated provider, or against
whatever ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` name.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from contextlib import ExitStack
from typing import Any

from agents import Agent, OpenAIProvider, RunConfig, Runner, set_tracing_disabled
from openai import AsyncOpenAI

from cacheprefix import Session
from cacheprefix.server import Reply, Request, SimulatedProvider, ToolCall, fill
from cacheprefix_openai_agents import wrap

HANDBOOK = "Rule: every claim names its source, and a source is read before it is named. " * 120
QUESTIONS = ("Our nightly job became slow. How do we find out why?", "The log shows a lock. What now?")


DUTIES = {
    "planner": "Plan the work in three steps.",
    "critic": "Name the weakest point of what was said.",
    "writer": "Write down what was agreed.",
}


def script(request: Request) -> Reply:
    """The simulated model passes a question on once where its agent can, and else answers, alike in whatever order."""
    may = () if request.asked.choice == "none" else request.asked.allowed or request.asked.tools
    passing = [name for name in ("transfer_to_critic", "transfer_to_writer", "ask_critic", "ask_writer") if name in may]
    if passing and not request.rounds:
        return Reply(tool_calls=tuple(ToolCall(one, {"input": "?"} if "ask" in one else {}) for one in passing))
    told = " ".join(one.text for one in request.prompt.sections)
    who = next(name for name, duty in DUTIES.items() if duty in told)
    return Reply(fill(f"The {who}'s answer to {len(request.prompt.sections)} parts:", 60))


def team(pattern: str) -> Agent:
    """The agents as the SDK's documentation makes them; the first one, which reaches the others."""
    planner, critic, writer = (
        Agent(name, instructions=f"You are the {name}. {duty}\n\n{HANDBOOK}", model=os.environ.get("MODEL", "gpt-4.1"))
        for name, duty in DUTIES.items()
    )
    if pattern == "handoffs":
        planner.handoffs, critic.handoffs = [critic], [writer]
    else:
        planner.tools = [one.as_tool(f"ask_{one.name}", f"Ask the {one.name}.") for one in (critic, writer)]
    return planner


async def run(pattern: str, base_url: str | None, key: str, session: Session) -> None:
    """Two questions; the second goes to who spoke last."""
    async with AsyncOpenAI(base_url=base_url, api_key=key) as client:
        agent = wrap(team(pattern), session, provider=OpenAIProvider(openai_client=client))
        said: list[Any] = []
        for question in QUESTIONS:
            said.append({"role": "user", "content": question})
            result = await Runner.run(agent, said, run_config=RunConfig(group_id="review-1"))
            said, agent = result.to_input_list(), result.last_agent


def main() -> None:
    """Parse arguments, run the example, print what its input cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=("unmodified", "shared"), default="shared")
    parser.add_argument("--pattern", choices=("handoffs", "tools"), default="handoffs")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args()
    base_url, key = os.environ.get("OPENAI_BASE_URL"), os.environ.get("OPENAI_API_KEY")
    offline = not base_url and not key
    set_tracing_disabled(offline)
    session = Session(mode="fork" if options.layout == "shared" else "observe")
    with ExitStack() as stack:
        if offline:
            base_url = stack.enter_context(SimulatedProvider("openai", script)).openai_base_url
        asyncio.run(run(options.pattern, base_url, key or "offline", session))
    if options.json:
        report = {"layout": options.layout, "simulated": offline}
        print(json.dumps({**report, "report": session.report().as_dict()}, indent=1))
    else:
        print(session.report())


if __name__ == "__main__":
    main()
