"""A planner, a critic and a writer of ag2 on one prefix: on a channel of its network, on one stream, or side by side.

``--layout unmodified`` only observes; ``--layout shared`` makes the agents forks of one prefix. With
``OPENAI_API_KEY`` or ``OPENAI_BASE_URL`` set, that provider is asked (``ANTHROPIC_API_KEY`` or
``ANTHROPIC_BASE_URL`` with ``--api anthropic``); without, a simulated one answers, and nothing leaves the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import httpx2
from ag2 import Agent, MemoryStream
from ag2.config import AnthropicConfig, ModelConfig, OpenAIConfig
from ag2.knowledge import MemoryKnowledgeStore
from ag2.network import EV_TEXT, Envelope, Hub, HubClient, LocalLink, Passport

from cacheprefix import Session
from cacheprefix.server import SimulatedProvider
from cacheprefix_ag2 import wrap

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


def said(envelope: Envelope) -> bool:
    """Whether an envelope is somebody's words."""
    return envelope.event_type == EV_TEXT


async def channel(agents: Sequence[Agent[Any]]) -> None:
    """A discussion on ag2's network: a person asks twice, and each agent answers in turn."""
    hub = await Hub.open(MemoryKnowledgeStore())
    client = HubClient(LocalLink(hub))
    for agent in agents:
        await client.register(agent, attach_plugin=False)
    person = await client.register_human(Passport(name="user"))
    opened = await person.open(type="discussion", target=[agent.name for agent in agents])
    for text in (TASK, "Now shorten it."):
        await person.send(opened.channel_id, text)
        for _ in agents:
            await person.wait_for_channel_event(channel_id=opened.channel_id, predicate=said)
    await client.close()
    await hub.close()


async def stream(agents: Sequence[Agent[Any]]) -> None:
    """All speak on one stream, twice."""
    shared = MemoryStream()
    for text in (TASK, "Now shorten it."):
        for agent in agents:
            await agent.ask(text, stream=shared)


async def fan_out(agents: Sequence[Agent[Any]]) -> None:
    """All answer the same question side by side."""
    await asyncio.gather(*(agent.ask(TASK) for agent in agents))


PATTERNS = {"channel": channel, "stream": stream, "fan_out": fan_out}


async def run(options: argparse.Namespace, base_url: str | None, key: str | None, session: Session) -> None:
    """Build the agents as ag2's documentation does (the role first, then what all have in common), and run them."""
    model = os.environ.get("MODEL")
    async with httpx2.AsyncClient(timeout=600) as http:
        # Streaming, as an agent that streams lets those that wait for its prefix go at its first token.
        shared: dict[str, Any] = {"base_url": base_url, "api_key": key, "http_client": http, "streaming": True}
        config: ModelConfig
        if options.api == "openai":
            config = OpenAIConfig(model or "gpt-4.1", **shared)
        else:
            config = AnthropicConfig(model or "claude-sonnet-4-6", **shared)
        prompts = {name: f"You are the {name}. {duty}\n\n{HANDBOOK}" for name, duty in DUTIES.items()}
        team = [Agent(name, prompt, config=config) for name, prompt in prompts.items()]
        await PATTERNS[options.pattern](wrap(team, session))


def main() -> None:
    """Parse arguments, run the example, print what its input cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=("unmodified", "shared"), default="shared")
    parser.add_argument("--pattern", choices=tuple(PATTERNS), default="channel")
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
