"""Workflows of Microsoft Agent Framework, unmodified and wrapped: what their input costs under a provider's rules.

``python -m benchmarks.bench_maf`` prints a table and writes ``benchmarks/results/maf.json``; ``--markdown`` prints
the table as Markdown. No model is called: a simulated provider serves every request. The texts are synthetic: a
handbook of about 1,200 tokens, a task of 1,500, a role text of 130, replies of 200 and tool results of 700.
"""

from __future__ import annotations

import asyncio
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anthropic
import openai
from agent_framework import Agent, AgentSession, FunctionTool
from agent_framework.anthropic import AnthropicClient
from agent_framework.openai import OpenAIChatCompletionClient
from agent_framework.orchestrations import ConcurrentBuilder, GroupChatBuilder, HandoffBuilder, SequentialBuilder

from benchmarks import _table
from cacheprefix import Gate, Session
from cacheprefix.server import Record, Reply, Request, SimulatedProvider, ToolCall, fill
from cacheprefix_maf import wrap

RULES = (("openai", "gpt-5", 0.1), ("openai", "gpt-4o", 0.5), ("anthropic", "claude-sonnet-4-6", 0.1))
NAMES = ("planner", "critic", "writer")
HANDBOOK, TASK = fill("The handbook.", 1_204), fill("The task.", 1_507)


class Model:
    """Answers as the role that the prompt names last; the turns of a role in ``plan`` that call a tool name it."""

    def __init__(self, plan: Callable[[str, int], str]) -> None:
        self._plan = plan
        self._said: Counter[str] = Counter()

    def __call__(self, request: Request) -> Reply:
        """One answer, which depends on the role and how often it has spoken, not on the layout."""
        named = re.findall(r"You are the (\w+)\.", request.text)
        role = named[-1] if named else "nobody"
        turn = self._said[role]
        self._said[role] += 1
        if request.asked.schema is not None:
            speaker = "null" if turn >= 4 else f'"{NAMES[turn % 3]}"'
            return Reply(f'{{"terminate": {str(turn >= 4).lower()}, "reason": "its turn", "next_speaker": {speaker}, '
                         '"final_message": "done"}')  # fmt: skip
        step = self._plan(role, turn)
        arguments = {} if step.startswith("handoff") else {"query": f"{role} {turn}"}
        return Reply(tool_calls=(ToolCall(step, arguments),)) if step else Reply(fill(f"The {role} says:", 200))


def agent(client: Any, name: str, *, tools: bool = False, first: str = "role", stepwise: bool = False) -> Agent:
    """One role; ``first`` says whether its own text or the common handbook begins its instructions."""
    role = f"You are the {name}. {fill(f'The duty of a {name}:', 125)}"
    text = f"{role}\n\n{HANDBOOK}" if first == "role" else f"{HANDBOOK}\n\n{role}"
    query = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}

    def look(query: str) -> str:
        return fill(f"Found for {query}:", 700)

    own = [FunctionTool(name=f"search_{name}", description=fill("Search:", 60), func=look, input_model=query)]
    return Agent(
        client,
        text,
        name=name,
        description=f"The {name}.",
        tools=own if tools else None,
        require_per_service_call_history_persistence=stepwise,
    )


def team(client: Any, **options: Any) -> list[Agent]:
    """The three roles."""
    return [agent(client, name, **options) for name in NAMES]


def chat(client: Any, *, rounds: int, **options: Any) -> Any:
    """A group chat whose speakers take turns."""
    return GroupChatBuilder(
        participants=team(client, **options),
        selection_func=lambda state: NAMES[state.current_round % 3],
        max_rounds=rounds,
    ).build()


def handoffs(client: Any) -> Any:
    """Three agents that hand the conversation on to each other."""
    agents = team(client, stepwise=True)
    built = HandoffBuilder(participants=agents, termination_condition=lambda said: len(said) > 3)
    return built.with_start_agent(agents[0]).build()


async def apart(agents: Sequence[Agent]) -> None:
    """Three tasks of each agent in a session of its own."""
    for each in agents:
        session = AgentSession(session_id=each.name)
        for number in range(3):
            await each.run(f"{TASK} Part {number}.", session=session)


def searches(role: str, turn: int) -> str:
    """Every role looks something up before it speaks."""
    return "" if turn % 2 else f"search_{role}"


def hands_on(role: str, turn: int) -> str:
    """Every role hands over when it is asked first."""
    following = {"planner": "critic", "critic": "writer"}.get(role)
    return f"handoff_to_{following}" if following and not turn else ""


Build = Callable[[Any], Any]
WORKLOADS: dict[str, tuple[Build, Callable[[str, int], str]]] = {
    "Sequential 3 roles, role_first": (lambda c: SequentialBuilder(participants=team(c)).build(), lambda *_: ""),
    "Sequential 3 roles, handbook_first": (
        lambda c: SequentialBuilder(participants=team(c, first="handbook")).build(),
        lambda *_: "",
    ),
    "Sequential 3 roles, own tools": (lambda c: SequentialBuilder(participants=team(c, tools=True)).build(), searches),
    "Concurrent 3 roles": (lambda c: ConcurrentBuilder(participants=team(c)).build(), lambda *_: ""),
    "Group chat 3 roles x2": (lambda c: chat(c, rounds=6), lambda *_: ""),
    "Group chat 3 roles x2, own tools": (lambda c: chat(c, rounds=6, tools=True), searches),
    "Group chat led by an agent": (
        lambda c: GroupChatBuilder(participants=team(c), orchestrator_agent=agent(c, "leader"), max_rounds=4).build(),
        lambda *_: "",
    ),
    "Handoff 3 agents": (handoffs, hands_on),
    "1 agent x3 tasks, tools": (lambda c: [agent(c, "planner", tools=True)], searches),
    "3 agents x3 tasks, sessions of their own": (team, lambda *_: ""),
    "3 agents x3 tasks, sessions of their own, tools": (lambda c: team(c, tools=True), searches),
}


def run(
    name: str, rules: str, model: str, *, shared: bool, gated: bool = True, tokenizer: float = 1.0
) -> tuple[Sequence[Record], Session | None]:
    """Run a workload once on an empty cache; the requests as the provider saw them."""
    build, plan = WORKLOADS[name]
    latency = _table.OVERLAP if name.startswith("Concurrent") else None
    with SimulatedProvider(rules, Model(plan), latency=latency, count=_table.counter(tokenizer)) as provider:

        async def go() -> Session | None:
            url = provider.anthropic_base_url if rules == "anthropic" else provider.openai_base_url
            sdk: Any = (anthropic.AsyncAnthropic if rules == "anthropic" else openai.AsyncOpenAI)(
                base_url=url, api_key="k", max_retries=0
            )
            client: Any = (
                AnthropicClient(model=model, anthropic_client=sdk)
                if rules == "anthropic"
                else OpenAIChatCompletionClient(model=model, async_client=sdk)
            )
            target = build(client)
            agents = target if isinstance(target, list) else []
            session = Session(HANDBOOK if agents else None, gate=Gate(price=0.0) if gated else None)
            for each in (agents or [target]) if shared else ():
                wrap(each, session)
            await (apart(agents) if agents else target.run(TASK))
            await sdk.close()
            return session

        session = asyncio.run(go())
        return list(provider.requests), session


def main() -> int:
    """Measure, print, write."""
    options = _table.options(__doc__, names=True).parse_args()
    warnings.simplefilter("ignore")
    rows = _table.measured("maf", RULES, WORKLOADS, options.names, partial(run, tokenizer=options.tokenizer))
    _table.finish(
        "maf",
        rows,
        options,
        packages=("agent-framework-core", "agent-framework-openai", "agent-framework-anthropic"),
        lines=lambda found: _table.grid(found, ["workload"], lambda row: [row["workload"]]),
        whole=not options.names,
    )
    return 1 if any(row["ratio"] > 1 for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
