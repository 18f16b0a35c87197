"""ag2 agents, unmodified and wrapped: what their input costs under a provider's cache rules.

``python -m benchmarks.bench_ag2`` prints a table and writes ``benchmarks/results/ag2.json``;
``--markdown`` prints the table as Markdown. No model is called: a simulated provider serves every request.
The texts are synthetic: a handbook of about 1,750 tokens, role texts of 130, replies of 200, tool results of 700.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import warnings
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import httpx2
from ag2 import Agent, MemoryStream, tool
from ag2.config import AnthropicConfig, ModelConfig, OpenAIConfig
from ag2.knowledge import MemoryKnowledgeStore
from ag2.network import Hub, HubClient, LocalLink, Passport
from pydantic import BaseModel

from benchmarks import _table
from cacheprefix import Gate, Session
from cacheprefix.server import Record, Reply, Request, SimulatedProvider, ToolCall, fill
from cacheprefix.testing.driver import HANDBOOK
from cacheprefix_ag2 import wrap

RULES = (
    ("openai", "gpt-5-2025-08-07", 0.1),
    ("openai", "gpt-4o-2024-08-06", 0.5),
    ("anthropic", "claude-sonnet-4-5-20250929", 0.1),
)
NAMES = ("planner", "critic", "writer")
_CERTIFICATES = ssl.create_default_context()


class Verdict(BaseModel):
    """A reviewer's answer."""

    good: bool
    why: str


def search(query: str) -> str:
    """Search the archive for a phrase and give the passages back."""
    return fill(f"found for {query}:", 700)


def own_tool(name: str) -> Any:
    """A tool that only one role has."""

    def run(text: str) -> str:
        return fill(text, 300)

    return tool(run, name=f"{name}_notes", description=fill(f"Keeps the notes of the {name}.", 60))


def team(config: ModelConfig, *, role_first: bool = True, tools: bool = False, **options: Any) -> list[Agent[Any]]:
    """Three agents of one handbook."""
    made = []
    for name in NAMES:
        texts = [fill(f"You are the {name}.", 130), HANDBOOK]
        prompt = "\n\n".join(texts if role_first else texts[::-1])
        own = [search, own_tool(name)] if tools else []
        made.append(Agent(name, prompt, config=config, tools=own, **options))
    return made


def question(at: int, *, look: int = 0) -> str:
    """What the user asks; with ``look``, the model calls a tool so many times first."""
    return fill(f"Question {at}: " + (f"look {look} times." if look else "what do you think?"), 100)


async def stream(agents: Sequence[Agent[Any]], rounds: int = 3, look: int = 0) -> None:
    """All take turns on one stream."""
    shared = MemoryStream()
    for at in range(rounds):
        for agent in agents:
            await agent.ask(question(at, look=look), stream=shared)


async def fan_out(agents: Sequence[Agent[Any]], rounds: int = 1, look: int = 0) -> None:
    """All answer the same questions side by side, each on a stream of its own."""

    async def one(agent: Agent[Any]) -> None:
        own = MemoryStream()
        for at in range(rounds):
            await agent.ask(question(at, look=look), stream=own)

    await asyncio.gather(*(one(agent) for agent in agents))


async def channel(agents: Sequence[Agent[Any]], rounds: int = 2, look: int = 0) -> None:
    """A discussion on ag2's network: a person asks, the agents answer in turn."""
    hub = await Hub.open(MemoryKnowledgeStore())
    client = HubClient(LocalLink(hub))
    for agent in agents:
        await client.register(agent, attach_plugin=False)
    person = await client.register_human(Passport(name="user"))
    opened = await person.open(type="discussion", target=[agent.name for agent in agents])
    for at in range(rounds):
        await person.send(opened.channel_id, question(at, look=look))
        while True:
            state = await client.adapter_state(opened.channel_id)
            if getattr(state, "turn_count", 0) >= (at + 1) * (len(agents) + 1):
                break
            await asyncio.sleep(0.01)
    await client.close()
    await hub.close()


Build = Callable[[ModelConfig], list[Agent[Any]]]
WORKLOADS: dict[str, tuple[Build, Callable[[Sequence[Agent[Any]]], Awaitable[None]]]] = {
    "discussion channel, 3 roles x2": (team, channel),
    "discussion channel, own tools": (lambda c: team(c, tools=True), lambda a: channel(a, look=1)),
    "one stream, 3 roles x3, role first": (team, stream),
    "one stream, 3 roles x3, handbook first": (lambda c: team(c, role_first=False), stream),
    "one stream, own tools, 2 tool rounds": (lambda c: team(c, tools=True), lambda a: stream(a, look=2)),
    "fan-out, 3 roles": (team, fan_out),
    "fan-out, handbook first": (lambda c: team(c, role_first=False), fan_out),
    "fan-out, own tools, 3 tool rounds, x2": (lambda c: team(c, tools=True), lambda a: fan_out(a, 2, 3)),
    "fan-out, response schema": (lambda c: team(c, response_schema=Verdict), fan_out),
    "1 agent x4, tools": (lambda c: team(c, tools=True)[:1], lambda a: fan_out(a, 4, 1)),
    "1 of 3 wrapped agents asked, x4, tools": (lambda c: team(c, tools=True), lambda a: fan_out(a[:1], 4, 1)),
}
DEARER = "1 of 3 wrapped agents asked, x4, tools"
"""What a team costs whose others never speak: nobody can know that at the first one's first request."""


def model(request: Request) -> Reply:
    """What the model says: it searches as often as the newest question says, then answers.

    What it says depends on the prompt alone, and not on which of several came first.
    """
    number = len(request.prompt.sections)
    for times in (1, 2, 3):
        if f"look {times} times" in request.tail and request.rounds < times:
            return Reply(tool_calls=(ToolCall("search", {"query": f"phrase {number}"}),))
    if "response_format" in request.body or "output_config" in request.body:
        return Reply('{"good": true, "why": "it holds"}')
    return Reply(fill(f"Answer {number}:", 200))


def run(
    name: str, rules: str, of: str, *, shared: bool, gated: bool = True, tokenizer: float = 1.0
) -> tuple[list[Record], Session | None]:
    """Run a workload once on an empty cache; the requests as the provider saw them."""
    build, play = WORKLOADS[name]
    session = Session(gate=Gate(price=0.0) if gated else None) if shared else None

    async def go(provider: SimulatedProvider) -> None:
        async with httpx2.AsyncClient(verify=_CERTIFICATES) as http:
            options: dict[str, Any] = {"api_key": "any", "http_client": http, "model": of}
            if rules == "anthropic":
                agents = build(AnthropicConfig(base_url=provider.anthropic_base_url, **options))
            else:
                agents = build(OpenAIConfig(base_url=provider.openai_base_url, **options))
            await play(agents if session is None else wrap(agents, session))

    latency = _table.OVERLAP if name.startswith("fan-out") else None
    with SimulatedProvider(rules, model, latency=latency, count=_table.counter(tokenizer)) as provider:
        asyncio.run(go(provider))
        return list(provider.requests), session


def main() -> int:
    """Measure, print, write."""
    options = _table.options(__doc__, names=True).parse_args()
    warnings.simplefilter("ignore")
    rows = _table.measured("ag2", RULES, WORKLOADS, options.names, partial(run, tokenizer=options.tokenizer))
    _table.finish(
        "ag2",
        rows,
        options,
        packages=("ag2", "openai", "anthropic"),
        lines=lambda found: _table.grid(found, ["workload"], lambda row: [row["workload"]]),
        whole=not options.names,
    )
    return 1 if any(row["ratio"] > 1 for row in rows if row["workload"] != DEARER) else 0


if __name__ == "__main__":
    sys.exit(main())
