"""Teams of the OpenAI Agents SDK, unmodified and wrapped: what their input costs under a provider's rules, and waits.

``python -m benchmarks.bench_openai_agents`` prints a table and writes ``benchmarks/results/openai_agents.json``;
``--markdown`` prints the table as Markdown. No model is called: a simulated provider serves every request. The
texts are synthetic: a handbook of about 1,750 tokens, role texts of 130, replies of 200.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from agents import Agent, OpenAIProvider, RunConfig, Runner, set_tracing_disabled
from openai import AsyncOpenAI

from benchmarks import _table
from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix.server import Record, Reply, Request, SimulatedProvider, ToolCall, fill
from cacheprefix.testing.driver import HANDBOOK
from cacheprefix_openai_agents import wrap

RULES = (
    ("openai", "gpt-5-2025-08-07", 0.1),
    ("openai", "gpt-4o-2024-08-06", 0.5),
    ("openai-5.6", "gpt-5.6", 0.1),
)
NAMES = ("planner", "critic", "writer")
ROUNDS = 2
WORKLOADS = ("handoffs, 3 agents x2", "agents as tools, 3 agents x2", "fan-out of 3")


def team(name: str) -> list[Agent]:
    """Three agents of one handbook; the first one reaches the others where the workload says so."""
    made = [Agent(one, instructions=f"{fill(f'You are the {one}.', 130)}\n\n{HANDBOOK}") for one in NAMES]
    if name.startswith("handoffs"):
        made[0].handoffs, made[1].handoffs = [made[1]], [made[2]]
    elif name.startswith("agents"):
        made[0].tools = [one.as_tool(f"ask_{one.name}", f"Ask the {one.name}.") for one in made[1:]]
    return made


def model(request: Request) -> Reply:
    """It passes a question on once where its agent can, and else answers; by the prompt alone."""
    may = () if request.asked.choice == "none" else request.asked.allowed or request.asked.tools
    passing = [name for name in ("transfer_to_critic", "transfer_to_writer", "ask_critic", "ask_writer") if name in may]
    if passing and not request.rounds:
        return Reply(tool_calls=tuple(ToolCall(one, {"input": "?"} if "ask" in one else {}) for one in passing))
    return Reply(fill(f"Answer {len(request.prompt.sections)}:", 200))


async def play(name: str, of: str, client: AsyncOpenAI, session: Session | None) -> None:
    """Two questions, the second to who spoke last; or one to all side by side."""
    provider, agents = OpenAIProvider(openai_client=client), team(name)
    config = RunConfig(model_provider=provider)
    for agent in agents:
        agent.model = of
    if session is not None:
        for agent in agents if name.startswith("fan-out") else agents[:1]:
            wrap(agent, session, provider=provider)
    if name.startswith("fan-out"):
        await asyncio.gather(*(Runner.run(agent, fill("Question:", 100), run_config=config) for agent in agents))
        return
    agent, said = agents[0], list[Any]()
    for at in range(ROUNDS):
        said.append({"role": "user", "content": fill(f"Question {at}:", 100)})
        result = await Runner.run(agent, said, run_config=config)
        said, agent = result.to_input_list(), result.last_agent


def run(name: str, rules: str, of: str, *, shared: bool, gated: bool = True) -> tuple[list[Record], Session | None]:
    """Run a workload once on an empty cache; the requests as the provider saw them."""
    # Agents that know nothing of one another are wrapped one by one: what they have in common is said.
    prefix = SharedPrefix(system=HANDBOOK) if name.startswith("fan-out") else None
    session = Session(prefix, gate=Gate(price=0.0) if gated else None) if shared else None

    async def go(provider: SimulatedProvider) -> None:
        async with AsyncOpenAI(base_url=provider.openai_base_url, api_key="any") as client:
            await play(name, of, client, session)

    latency = None if name.startswith("handoffs") else _table.OVERLAP
    with SimulatedProvider(rules, model, latency=latency) as provider:
        asyncio.run(go(provider))
        return list(provider.requests), session


def main() -> int:
    """Measure, print, write."""
    options = _table.options(__doc__, names=True).parse_args()
    set_tracing_disabled(True)
    rows = _table.measured("openai_agents", RULES, WORKLOADS, options.names, run)
    _table.finish(
        "openai_agents",
        rows,
        options,
        packages=("openai-agents", "openai"),
        lines=lambda found: _table.grid(found, ["workload"], lambda row: [row["workload"]]),
        whole=not options.names,
    )
    return 1 if any(row["ratio"] > 1 for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
