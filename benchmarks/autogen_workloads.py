"""AutoGen teams with scripted models: the rows of the benchmark, and the model that answers them.

Every workload is built from AutoGen's own classes. The texts are synthetic: a handbook of about 1,200 tokens,
a task of 1,500, a role text of 130, replies of 200 and tool results of 700, four characters a token.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_agentchat.tools import AgentTool
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import ChatCompletionClient

from cacheprefix import Session, ToolResultBudget
from cacheprefix.prompt import make_message, make_result
from cacheprefix.server import Reply, Request, ToolCall, fill

System = Literal["role_first", "handbook_first", "role_only"]
NewClient = Callable[[], ChatCompletionClient]

_SENTENCES = (
    "Keep every claim next to the place it comes from.",
    "Name the file, the line and the reason before you change anything.",
    "Ask for a second opinion when two sources disagree.",
    "Write down what you ruled out, so that nobody has to rule it out again.",
    "Prefer the smaller change, and say what it leaves undone.",
    "A number without a unit is not a number.",
)


def prose(topic: str, tokens: int) -> str:
    """Text of a length, different for every topic; four characters a token."""
    parts = [f"{topic}:"]
    index = 0
    while sum(map(len, parts)) + len(parts) < tokens * 4:
        parts.append(f"({topic} {index}) {_SENTENCES[index % len(_SENTENCES)]}")
        index += 1
    return " ".join(parts)[: tokens * 4]


HANDBOOK = prose("handbook", 1204)
TASK = prose("task", 1507)


def system_text(name: str, order: System) -> str:
    """A role's system message, the role's text before or behind the common handbook."""
    role = f"You are the {name}. {prose(f'duty of {name}', 125)}"
    if order == "role_only":
        return role
    return f"{role}\n\n{HANDBOOK}" if order == "role_first" else f"{HANDBOOK}\n\n{role}"


class Model:
    """The scripted model: what a role says depends on the role and how often it has spoken, not on the layout."""

    def __init__(self, plan: Mapping[str, tuple[str, ...]] | None = None, order: tuple[str, ...] = ()) -> None:
        self._plan = dict(plan or {})
        self._order = order
        self._said: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Reply:
        """Answer as the role that the prompt names last."""
        if request.asked.schema is not None or "is_request_satisfied" in request.tail:
            return self._ledger()
        if "Only return the role" in request.tail:
            return Reply(self._order[self._next("selector") % len(self._order)])
        named = re.findall(r"You are the (\w+)\.", request.text)
        role = named[-1] if named else "orchestrator"
        steps = self._plan.get(role, ("text",))
        step = steps[self._next(role) % len(steps)]
        if step != "text":
            name, _, argument = step.partition(" ")
            arguments = json.loads(argument) if argument else {"query": f"{role} asks"}
            return Reply(tool_calls=(ToolCall(name, arguments),))
        return Reply(fill(f"The {role} says, for the time {self._said[role]}:", 200))

    def _next(self, role: str) -> int:
        with self._lock:
            self._said[role] += 1
            return self._said[role] - 1

    def _ledger(self) -> Reply:
        turn = self._next("ledger")
        done = turn >= len(self._order)
        speaker = self._order[turn % len(self._order)]
        entry = {
            "is_request_satisfied": {"reason": "counted", "answer": done},
            "is_in_loop": {"reason": "no", "answer": False},
            "is_progress_being_made": {"reason": "yes", "answer": True},
            "next_speaker": {"reason": "its turn", "answer": speaker},
            "instruction_or_question": {"reason": "next step", "answer": f"Step {turn}: go on, {speaker}."},
        }
        return Reply(json.dumps(entry))


BUDGET = ToolResultBudget(max_tokens=300)


def cut(tool: str, text: str) -> str:
    """What stands for a tool's result under ``BUDGET``, for an application that shortens its results itself."""
    session = Session(budget=BUDGET)
    view = make_message(
        "tool", (), session.adapter.count, results=(make_result("", tool, text, session.adapter.count),)
    )
    decisions = session.adapter.histories.shorten(session.conversation(), (view,))
    return decisions[0].text if decisions else text


def tool(name: str, owner: str, *, shortened: bool = False) -> Callable[..., Awaitable[str]]:
    """A tool whose results are 700 tokens long, or that keeps to ``BUDGET`` itself."""

    async def run(query: str) -> str:
        text = prose(f"{name} found for {query}", 700)
        return cut(name, text) if shortened else text

    run.__name__ = name
    run.__doc__ = f"{name} of the {owner}. {prose(f'about {name}', 60)}"
    return run


def agent(name: str, client: NewClient, order: System, **options: Any) -> AssistantAgent:
    """One role."""
    return AssistantAgent(
        name, client(), system_message=system_text(name, order), description=f"The {name}.", **options
    )


Runner = Callable[[], Awaitable[TaskResult]]
Built = tuple[Any, Runner]
"""What is wrapped, and the run."""


@dataclass(frozen=True)
class Workload:
    """One row: how it is built, and how its model answers."""

    name: str
    build: Callable[[NewClient], Built]
    model: Callable[[], Model]
    calls: int
    best_stock: str = ""
    """The row that shows the best a user reaches with AutoGen's own options; empty for none."""
    budget: ToolResultBudget | None = None
    unmodified: Callable[[NewClient], Built] | None = None
    """How the unmodified side is built, where a budget has to be the application's own."""
    tool_memory: Literal["keep", "drop"] = "keep"
    """``drop`` shows agents less than without us; what that saves stands in a row of its own."""
    policy: str = ""
    """What a row's name ends with that shows the model less than the row of the rest of that name; empty for none."""
    overlaps: bool = False
    """Whether requests are sent side by side, so that answers take their time."""


ROLES = ("planner", "critic", "writer")


def _team_run(team: Any) -> Built:
    return team, lambda: team.run(task=TASK)


def _round_robin(turns: int, order: System) -> Callable[[NewClient], Built]:
    def build(client: NewClient) -> Built:
        return _team_run(RoundRobinGroupChat([agent(name, client, order) for name in ROLES], max_turns=3 * turns))

    return build


def _tool_team(*, shortened: bool = False, **options: Any) -> Callable[[NewClient], Built]:
    def build(client: NewClient) -> Built:
        tools = {name: tool(f"search_{name}", name, shortened=shortened) for name in ROLES}
        members = [agent(name, client, "role_first", tools=[tools[name]], **options) for name in ROLES]
        return _team_run(RoundRobinGroupChat(members, max_turns=6))

    return build


def _distinct(roles: int, tokens: int) -> Callable[[NewClient], Built]:
    """Agents that have nothing in common but what is said, each with a long system text of its own."""

    def build(client: NewClient) -> Built:
        names = [f"expert{n}" for n in range(roles)]
        members = [
            AssistantAgent(n, client(), system_message=f"You are the {n}. {prose(f'duty of {n}', tokens)}")
            for n in names
        ]
        return _team_run(RoundRobinGroupChat(members, max_turns=3 * roles))

    return build


def _outlier(client: NewClient) -> Built:
    """Four roles with the handbook, and one that never had it."""
    members = [agent(name, client, "role_first") for name in (*ROLES, "editor")]
    members.insert(2, agent("translator", client, "role_only"))
    return _team_run(RoundRobinGroupChat(members, max_turns=15))


def _reflecting(order: System, tools: int) -> Callable[[NewClient], Built]:
    """Three roles that reflect on what their tools gave, with or without a text in common."""

    def build(client: NewClient) -> Built:
        kits = {
            name: [tool(f"search_{name}_{n}" if n else f"search_{name}", name) for n in range(tools)] for name in ROLES
        }
        members = [agent(name, client, order, tools=kits[name], reflect_on_tool_use=True) for name in ROLES]
        return _team_run(RoundRobinGroupChat(members, max_turns=6))

    return build


def _one_agent(*, shortened: bool = False, **options: Any) -> Callable[[NewClient], Built]:
    def build(client: NewClient) -> Built:
        search = tool("search_planner", "planner", shortened=shortened)
        only = agent("planner", client, "role_first", tools=[search], **options)

        async def run() -> TaskResult:
            result = await only.run(task=TASK)
            for number in (2, 3):
                result = await only.run(task=prose(f"task {number}", 200))
            return result

        return only, run

    return build


def _selector(*, repeat: bool = False, bounded: int = 0, **options: Any) -> Callable[[NewClient], Built]:
    def build(client: NewClient) -> Built:
        members = [agent(name, client, "role_first") for name in ROLES]
        context = BufferedChatCompletionContext(bounded) if bounded else None
        team = SelectorGroupChat(
            members, client(), max_turns=6, allow_repeated_speaker=repeat, model_context=context, **options
        )
        return _team_run(team)

    return build


HISTORY_LAST = "{roles}\n\nChoose one of {participants}. Only return the role.\n\n{history}\n\nOnly return the role."
NO_HISTORY = "{roles}\n\nChoose one of {participants}. Only return the role."


def _swarm(client: NewClient) -> Built:
    members = [
        agent(
            name,
            client,
            "role_first",
            tools=[tool(f"search_{name}", name)],
            handoffs=[other for other in ROLES if other != name],
            reflect_on_tool_use=True,
        )
        for name in ROLES
    ]
    return _team_run(Swarm(members, termination_condition=MaxMessageTermination(100), max_turns=5))


def _graph(order: System) -> Callable[[NewClient], Built]:
    def build(client: NewClient) -> Built:
        lead, join = agent("lead", client, order), agent("join", client, order)
        branches = [agent(name, client, order) for name in ("alpha", "beta", "gamma")]
        builder = DiGraphBuilder()
        for node in (lead, *branches, join):
            builder.add_node(node)
        for branch in branches:
            builder.add_edge(lead, branch).add_edge(branch, join)
        return _team_run(GraphFlow([lead, *branches, join], builder.build()))

    return build


def _magentic(client: NewClient) -> Built:
    members = [agent(name, client, "role_first") for name in ("searcher", "coder")]
    return _team_run(MagenticOneGroupChat(members, client()))


def _agent_tool(client: NewClient) -> Built:
    subs = [agent(name, client, "role_first") for name in ("reader", "checker")]
    lead = agent("lead", client, "role_first", tools=[AgentTool(sub) for sub in subs], max_tool_iterations=6)
    return lead, lambda: lead.run(task=TASK)


def _society(client: NewClient) -> Built:
    inner = RoundRobinGroupChat([agent(name, client, "role_first") for name in ("planner", "writer")], max_turns=2)
    society = SocietyOfMindAgent("society", team=inner, model_client=client())
    return _team_run(RoundRobinGroupChat([society, agent("critic", client, "role_first")], max_turns=6))


def _plan(*steps: str) -> dict[str, tuple[str, ...]]:
    return {role: tuple(step.replace("ROLE", role) for step in steps) for role in ROLES}


def _subtask(name: str, number: int) -> str:
    return f"{name} {json.dumps({'task': prose(f'sub-task {number}', 150)})}"


ONE_ROUND = _plan("search_ROLE", "text")
TWO_ROUNDS = _plan("search_ROLE", "search_ROLE", "text")
HAND_OVER = {
    "planner": ("search_planner", "text", "transfer_to_critic {}"),
    "critic": ("search_critic", "text", "transfer_to_writer {}"),
    "writer": ("search_writer", "text"),
}
SUB_CALLS = {
    "lead": (*(_subtask(("reader", "checker")[n % 2], n) for n in range(4)), "text"),
}

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "RoundRobin 3 roles x3, text only, system=role_first",
        _round_robin(3, "role_first"),
        Model,
        9,
        "RoundRobin 3 roles x3, text only, system=handbook_first",
    ),
    Workload("RoundRobin 3 roles x3, text only, system=handbook_first", _round_robin(3, "handbook_first"), Model, 9),
    Workload("RoundRobin 3 roles x3, text only, system=role_only", _round_robin(3, "role_only"), Model, 9),
    Workload(
        "RoundRobin 3 roles x2, own tools, reflect_on_tool_use=True",
        _tool_team(reflect_on_tool_use=True),
        lambda: Model(ONE_ROUND),
        12,
    ),
    Workload(
        "RoundRobin 3 roles x2, own tools, summary (default)", _tool_team(), lambda: Model(_plan("search_ROLE")), 6
    ),
    Workload(
        "RoundRobin 3 roles x2, own tools, max_tool_iterations=4 (2 tool rounds)",
        _tool_team(max_tool_iterations=4),
        lambda: Model(TWO_ROUNDS),
        18,
    ),
    Workload(
        "RoundRobin 3 roles x2, own tools, max_tool_iterations=4 (1 tool round)",
        _tool_team(max_tool_iterations=4),
        lambda: Model(ONE_ROUND),
        12,
    ),
    Workload(
        "RoundRobin 3 roles x2, reflect_on_tool_use=True, no text in common",
        _reflecting("role_only", 1),
        lambda: Model(ONE_ROUND),
        12,
    ),
    Workload(
        "RoundRobin 3 roles x2, reflect_on_tool_use=True, 12 tools each, no text in common",
        _reflecting("role_only", 12),
        lambda: Model(ONE_ROUND),
        12,
    ),
    Workload("RoundRobin 3 agents x3, system texts of 2,000 tokens of their own", _distinct(3, 2000), Model, 9),
    Workload("RoundRobin 4 roles and one without the handbook, x3", _outlier, Model, 15),
    Workload(
        "RoundRobin 3 roles x2, own tools, reflect_on_tool_use=True, tool_memory=drop",
        _tool_team(reflect_on_tool_use=True),
        lambda: Model(ONE_ROUND),
        12,
        tool_memory="drop",
        policy="tool_memory=drop",
    ),
    Workload(
        "RoundRobin 3 roles x2, own tools, max_tool_iterations=4 (2 tool rounds), tool_memory=drop",
        _tool_team(max_tool_iterations=4),
        lambda: Model(TWO_ROUNDS),
        18,
        tool_memory="drop",
        policy="tool_memory=drop",
    ),
    Workload("1 agent x3 tasks, tools + reflect", _one_agent(reflect_on_tool_use=True), lambda: Model(ONE_ROUND), 6),
    Workload(
        "1 agent x3 tasks, tools, max_tool_iterations=5 (3 rounds)",
        _one_agent(max_tool_iterations=5),
        lambda: Model(_plan("search_ROLE", "search_ROLE", "search_ROLE", "text")),
        12,
    ),
    Workload(
        "SelectorGroupChat 3 roles, 6 turns (no repeat, default prompt)",
        _selector(repeat=False),
        lambda: Model(order=ROLES),
        12,
        "SelectorGroupChat, allow_repeated_speaker=True",
    ),
    Workload("SelectorGroupChat, bounded model_context", _selector(bounded=2), lambda: Model(order=ROLES), 12),
    Workload(
        "SelectorGroupChat, prompt with its history between blank lines",
        _selector(selector_prompt=HISTORY_LAST),
        lambda: Model(order=ROLES),
        12,
    ),
    Workload(
        "SelectorGroupChat, prompt without history",
        _selector(selector_prompt=NO_HISTORY),
        lambda: Model(order=ROLES),
        12,
    ),
    Workload("SelectorGroupChat, allow_repeated_speaker=True", _selector(repeat=True), lambda: Model(order=ROLES), 12),
    Workload("Swarm 3 agents, handoffs + tools + reflect", _swarm, lambda: Model(HAND_OVER), 8),
    Workload(
        "GraphFlow lead->3 parallel->join, role_first",
        _graph("role_first"),
        Model,
        5,
        "GraphFlow same, handbook_first",
        overlaps=True,
    ),
    Workload("GraphFlow same, handbook_first", _graph("handbook_first"), Model, 5, overlaps=True),
    Workload(
        "MagenticOne orchestrator + 2",
        _magentic,
        lambda: Model(order=("searcher", "coder", "searcher", "coder")),
        12,
    ),
    Workload("AgentTool lead + 2 sub-agents, 4 sub-calls", _agent_tool, lambda: Model(SUB_CALLS), 9),
    Workload("SocietyOfMind (inner RR of 2) + critic", _society, Model, 12),
    Workload(
        "RoundRobin 3 roles x2, own tools, reflect_on_tool_use=True, both with a budget of 300",
        _tool_team(reflect_on_tool_use=True),
        lambda: Model(ONE_ROUND),
        12,
        budget=BUDGET,
        policy="both with a budget of 300",
        unmodified=_tool_team(reflect_on_tool_use=True, shortened=True),
    ),
    Workload(
        "RoundRobin 3 roles x2, own tools, max_tool_iterations=4 (2 tool rounds), both with a budget of 300",
        _tool_team(max_tool_iterations=4),
        lambda: Model(TWO_ROUNDS),
        18,
        budget=BUDGET,
        policy="both with a budget of 300",
        unmodified=_tool_team(max_tool_iterations=4, shortened=True),
    ),
    Workload(
        "1 agent x3 tasks, tools, max_tool_iterations=5 (3 rounds), both with a budget of 300",
        _one_agent(max_tool_iterations=5),
        lambda: Model(_plan("search_ROLE", "search_ROLE", "search_ROLE", "text")),
        12,
        budget=BUDGET,
        policy="both with a budget of 300",
        unmodified=_one_agent(max_tool_iterations=5, shortened=True),
    ),
)
