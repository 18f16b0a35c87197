"""A planner, a critic and a writer in the framework's own workflows; each request extends the one before it.

``--layout unmodified`` only observes; ``--layout shared`` makes the agents forks of one prefix. With
``OPENAI_API_KEY`` or ``OPENAI_BASE_URL`` set, that provider is asked (``ANTHROPIC_API_KEY`` or
``ANTHROPIC_BASE_URL`` with ``--api anthropic``); without, a simulated one answers, and nothing leaves the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from contextlib import ExitStack
from typing import Any

import anthropic
import openai
from agent_framework import Agent, Workflow
from agent_framework.anthropic import AnthropicClient
from agent_framework.openai import OpenAIChatCompletionClient
from agent_framework.orchestrations import ConcurrentBuilder, GroupChatBuilder, SequentialBuilder

from cacheprefix import Session
from cacheprefix.server import SimulatedProvider
from cacheprefix_maf import wrap

TASK = "Write a page on why our release notes should name the reason of every change."
HANDBOOK = "The handbook of the house.\n" + "\n".join(
    f"{number}. {rule}"
    for number, rule in enumerate(
        (
            "Keep every claim next to the place it comes from.",
            "Name the file, the line and the reason before you change anything.",
            "Say what you ruled out, so that nobody has to rule it out again.",
            "When two sources disagree, show both and say which one you follow and why.",
        )
        * 20,
        1,
    )
)
DUTIES = {
    "planner": "Break the task into steps and say who does what.",
    "critic": "Find what is missing or wrong in the plan.",
    "writer": "Write the text that the plan asks for.",
}


def built(pattern: str, client: Any) -> Workflow:
    """Agents as the framework's documentation writes them: the role first, then what all have in common."""
    agents = [
        Agent(client, f"You are the {name}. {duty}\n\n{HANDBOOK}", name=name, description=duty)
        for name, duty in DUTIES.items()
    ]
    if pattern == "sequential":
        return SequentialBuilder(participants=agents).build()
    if pattern == "concurrent":
        return ConcurrentBuilder(participants=agents).build()
    names = list(DUTIES)
    return GroupChatBuilder(
        participants=agents, selection_func=lambda state: names[state.current_round % len(names)], max_rounds=6
    ).build()


async def run(options: argparse.Namespace, base_url: str | None, key: str | None, session: Session) -> None:
    """Run the workflow, streaming, and close the client."""
    sdk: Any = (openai.AsyncOpenAI if options.api == "openai" else anthropic.AsyncAnthropic)(
        base_url=base_url, api_key=key
    )
    client: Any = (
        OpenAIChatCompletionClient(model=os.environ.get("MODEL") or "gpt-4.1", async_client=sdk)
        if options.api == "openai"
        else AnthropicClient(model=os.environ.get("MODEL") or "claude-sonnet-4-6", anthropic_client=sdk)
    )
    workflow = wrap(built(options.pattern, client), session)
    async for _ in workflow.run(TASK, stream=True):
        pass
    await sdk.close()


def main() -> None:
    """Parse arguments, run the example, print what its input cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=("unmodified", "shared"), default="shared")
    parser.add_argument("--pattern", choices=("sequential", "concurrent", "group_chat"), default="group_chat")
    parser.add_argument("--api", choices=("openai", "anthropic"), default="openai")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args()
    base_url, key = (os.environ.get(f"{options.api.upper()}_{name}") for name in ("BASE_URL", "API_KEY"))
    offline = not base_url and not key
    session = Session(mode="fork" if options.layout == "shared" else "observe")
    with ExitStack() as stack:
        if offline:
            provider = stack.enter_context(SimulatedProvider(options.api))
            base_url = provider.openai_base_url if options.api == "openai" else provider.anthropic_base_url
        asyncio.run(run(options, base_url, key or "offline", session))
    if options.json:
        report = {"layout": options.layout, "api": options.api, "simulated": offline}
        print(json.dumps({**report, "report": session.report().as_dict()}, indent=1))
    else:
        print(session.report())


if __name__ == "__main__":
    main()
