"""LangGraph applications of the kinds people build, with a scripted model: the rows of the LangGraph benchmark.

A system prompt of about 1,100 tokens of rules and 300 of role text, a user's digest of 3,000, five tools of about
320 in all, answers of 350 and tool results of 400, four characters a token. Each workload is built twice from the
same code: as it stands in LangGraph's documentation, and with cacheprefix's front doors around it.
"""

from __future__ import annotations

import json
import operator
import re
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_anthropic.middleware import AnthropicPromptCachingMiddleware
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send
from langgraph_supervisor import create_supervisor
from langgraph_swarm import create_handoff_tool, create_swarm
from pydantic import BaseModel

from cacheprefix import Caching, Gate, Session, SharedPrefix, ToolResultBudget
from cacheprefix.server import Reply, Request, ToolCall, fill
from cacheprefix_langgraph import PrefixMiddleware, forked, subgraph, wrap_model

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
    while sum(map(len, parts)) + len(parts) < tokens * 4:
        parts.append(f"({topic} {len(parts)}) {_SENTENCES[len(parts) % len(_SENTENCES)]}")
    return " ".join(parts)[: tokens * 4]


RULES_TEXT = prose("rules", 1100)
DIGEST = prose("digest", 3000)


def duty(role: str) -> str:
    """A role's own text, which the scripted model knows it by."""
    return f"You are the {role}. {prose(f'duty of {role}', 295)}"


def system_text(role: str) -> str:
    """The system prompt of a role as applications write it: who it is, then the rules all roles share."""
    return f"{duty(role)}\n\n{RULES_TEXT}"


@tool
def search_notes(query: str) -> str:
    """Search the notes of all earlier reviews and give the passages that fit best, the newest first."""
    return prose(f"notes on {query}", 400)


@tool
def read_source(path: str) -> str:
    """Read one source file of the repository and give its text with line numbers, at most a thousand lines."""
    return prose(f"source {path}", 400)


@tool
def run_checks(selection: str) -> str:
    """Run the checks of a part of the project and give their output with the names of what failed."""
    return prose(f"checks {selection}", 400)


@tool
def look_up_owner(path: str) -> str:
    """Look up which team owns a file, who reviewed it last, and whom to ask about it."""
    return prose(f"owner {path}", 400)


@tool
def measure_speed(case: str) -> str:
    """Measure how long a case takes before and after the change, as a table of medians and spreads."""
    return prose(f"speed {case}", 400)


TOOLS: tuple[BaseTool, ...] = (search_notes, read_source, run_checks, look_up_owner, measure_speed)
ROLES = ("planner", "critic", "writer")


class Script:
    """The scripted model: what a role does depends on the role and how often it was asked, not on the layout."""

    def __init__(self, plan: Mapping[str, Sequence[str]]) -> None:
        self._plan = plan
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Reply:
        """Answer as the role that the prompt names last."""
        named = re.findall(r"You are the (\w+)\.", request.text)
        role = named[-1] if named else "assistant"
        with self._lock:
            turn = self._asked[role]
            self._asked[role] += 1
        steps = self._plan.get(role, ("text",))
        step = steps[turn % len(steps)]
        if step == "schema":
            made = _JUDGED if role == "judge" else _FOUND
            if request.asked.schema is not None:
                return Reply(json.dumps(made))
            return Reply(tool_calls=(ToolCall("Verdict" if role == "judge" else "Finding", made),))
        if step == "text":
            return Reply(fill(f"The {role} says, for the time {turn}:", 350))
        calls = []
        for number, each in enumerate(step.split(" + ")):
            name, _, rest = each.partition(" ")
            arguments = dict(part.split("=", 1) for part in rest.split(";") if part)
            calls.append(ToolCall(name, arguments, id=f"call_{role}_{turn}_{number}"))
        return Reply(tool_calls=tuple(calls))


@dataclass
class Kit:
    """The doors of one layout: nothing at all, LangChain's own caching, or cacheprefix."""

    model: Any
    session: Session | None = None
    stock: bool = False
    apart: bool = False
    """Whether Anthropic's caching middleware is left out, for the layout without any caching."""
    prewarm: bool = False
    """Whether the first of several siblings writes what they share by a request of its own, where the provider can."""

    def llm(self, role: str | None = None) -> Any:
        """The model, for all roles or bound to one."""
        if self.session is None:
            return self.model
        return wrap_model(self.model, self.session, role=role or None, prewarm=self.prewarm)

    def node(self, role: str, function: Callable[..., Any]) -> Any:
        """A graph node."""
        return function if self.session is None else forked(self.session, role=role)(function)

    def worker(self, graph: Any, role: str) -> Any:
        """A compiled graph used as a part of another."""
        return graph if self.session is None else subgraph(graph, self.session, role=role)

    def caching(self) -> list[Any]:
        """LangChain's own caching, where it has any for this model."""
        return [AnthropicPromptCachingMiddleware()] if self.stock and isinstance(self.model, ChatAnthropic) else []

    def middleware(self, role: str) -> list[Any]:
        """Middleware of an agent."""
        return [*self.caching(), *([] if self.session is None else [PrefixMiddleware(self.session, role=role)])]


Run = Callable[[Kit], Any]


@dataclass(frozen=True)
class Workload:
    """One row: what to run, what the model does, and how many requests that makes."""

    name: str
    run: Run
    calls: int
    plan: Mapping[str, Sequence[str]] = field(default_factory=dict)
    prefix: str = RULES_TEXT
    tools: tuple[BaseTool, ...] = ()
    budget: ToolResultBudget | None = None
    compaction: int | None = None
    """At how many tokens of input the session shortens what was said."""
    prewarm: bool = False
    """Whether what siblings share is written by a request of its own: one more on Anthropic."""
    overlaps: bool = False
    """Whether requests are sent side by side, so that answers take their time."""
    policy: str = ""
    """What a row's name ends with that shows the model less than the row of the rest of that name; empty for none."""


def _task() -> dict[str, Any]:
    return {"messages": [HumanMessage(DIGEST, id="digest")]}


def _role_nodes(kit: Kit, row: Sequence[str] = ROLES, tools: Mapping[str, Sequence[BaseTool]] | None = None) -> Any:
    """Roles one after the other, each a node; a role may come again."""
    model = kit.llm()
    bound = {role: model.bind_tools(list((tools or {})[role])) if tools else model for role in row}

    def speaker(role: str) -> Any:
        def speak(state: MessagesState) -> dict[str, Any]:
            answer = bound[role].invoke([SystemMessage(system_text(role)), *state["messages"]])
            return {"messages": [AIMessage(answer.text)]}

        return kit.node(role, speak)

    graph = StateGraph(MessagesState)
    previous = START
    for name in [f"{role}_{number}" for number, role in enumerate(row)]:
        graph.add_node(name, speaker(name.rsplit("_", 1)[0]))
        graph.add_edge(previous, name)
        previous = name
    graph.add_edge(previous, END)
    return graph.compile().invoke(_task())


OWN_TOOLS = {
    "planner": TOOLS[:2],
    "critic": TOOLS[1:4],
    "writer": TOOLS[3:],
}


class _Fan(MessagesState):
    reports: Annotated[list[str], operator.add]


def _fan(kit: Kit, *, plan: bool, workers: int = 3) -> Any:
    model = kit.llm()

    def planner(state: _Fan) -> dict[str, Any]:
        return {"messages": [model.invoke([SystemMessage(system_text("planner")), *state["messages"]])]}

    def worker(state: dict[str, Any]) -> dict[str, Any]:
        role = state["role"]
        order = HumanMessage(f"Do your part as {role} and report.")
        return {"reports": [model.invoke([SystemMessage(system_text(role)), *state["messages"], order]).text]}

    def closing(state: _Fan) -> dict[str, Any]:
        order = HumanMessage("Reports:\n\n" + "\n\n".join(state["reports"]))
        return {"messages": [model.invoke([SystemMessage(system_text("editor")), *state["messages"], order])]}

    def spread(state: _Fan) -> list[Send]:
        return [Send("worker", {"messages": state["messages"], "role": f"worker{n}"}) for n in range(workers)]

    graph = StateGraph(_Fan)
    graph.add_node("worker", kit.node("worker", worker))
    graph.add_node("closing", kit.node("editor", closing))
    if plan:
        graph.add_node("planner", kit.node("planner", planner))
        graph.add_edge(START, "planner")
    graph.add_conditional_edges("planner" if plan else START, spread, ["worker"])
    graph.add_edge("worker", "closing")
    graph.add_edge("closing", END)
    return graph.compile().invoke({**_task(), "reports": []})


WORKERS = ("coder", "tester", "reviewer")


def _supervisor(kit: Kit, mode: Any) -> Any:
    agents = []
    for role in WORKERS:
        agent = create_agent(
            kit.llm(), list(TOOLS), name=role, system_prompt=system_text(role), middleware=kit.caching()
        )
        agents.append(kit.worker(agent, role))
    graph = create_supervisor(agents, model=kit.llm("supervisor"), prompt=system_text("supervisor"), output_mode=mode)
    return graph.compile().invoke(_task())


_SUPERVISOR = {
    "supervisor": (*(f"transfer_to_{role}" for role in WORKERS), "text"),
    **{role: (f"search_notes query={role}", f"read_source path={role}.py", "text") for role in WORKERS},
}


def _swarm(kit: Kit) -> Any:
    following = dict(zip(WORKERS, (*WORKERS[1:], WORKERS[0]), strict=True))
    agents = []
    for role in WORKERS:
        tools = [*TOOLS, create_handoff_tool(agent_name=following[role])]
        agent = create_agent(kit.llm(), tools, name=role, system_prompt=system_text(role), middleware=kit.caching())
        agents.append(kit.worker(agent, role))
    return create_swarm(agents, default_active_agent=WORKERS[0]).compile().invoke(_task())


def _swarm_plan() -> dict[str, Sequence[str]]:
    plan: dict[str, Sequence[str]] = {}
    for role, other in zip(WORKERS, (*WORKERS[1:], WORKERS[0]), strict=True):
        loop = (f"search_notes query={role}", f"read_source path={role}.py", f"transfer_to_{other}")
        plan[role] = (*loop, *loop[:2], "text") if role == WORKERS[0] else loop
    return plan


def _agent(kit: Kit) -> Any:
    agent = create_agent(
        kit.llm(), list(TOOLS), system_prompt=system_text("assistant"), middleware=kit.middleware("assistant")
    )
    state: dict[str, Any] = _task()
    for turn in ("first", "second"):
        state = agent.invoke(state)
        if turn == "first":
            state = {"messages": [*state["messages"], HumanMessage(prose("another question", 200))]}
    return state


_LOOP = tuple(f"search_notes query={word}" for word in ("one", "two", "three", "four"))


def _deep(kit: Kit, *, fork: bool, own: bool) -> Any:
    helpers: list[Any] = []
    for name in ("scout", "builder"):
        helper: dict[str, Any] = {"name": name, "description": f"The {name}: {duty(name)[:200]}"}
        if fork:
            helper["mode"] = "fork"
        if own or not fork:
            helper["system_prompt"] = duty(name)
        helpers.append(helper)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agent = create_deep_agent(
            model=kit.model,
            tools=list(TOOLS),
            system_prompt=system_text("lead"),
            subagents=helpers,
            middleware=[] if kit.session is None else [PrefixMiddleware(kit.session, role="lead")],
        )
        return agent.invoke(_task())


class Finding(BaseModel):
    """What one worker found."""

    claim: str
    sources: list[str]


class Verdict(BaseModel):
    """Whether the findings suffice."""

    suffices: bool
    missing: list[str]


_FOUND = {"claim": prose("finding", 80), "sources": ["notes", "checks"]}
_JUDGED = {"suffices": True, "missing": ["nothing"]}


def _structured(kit: Kit, method: str) -> Any:
    """A fan-out whose workers, and the judge behind them, answer by a schema that their nodes bind."""
    model = kit.llm()

    def worker(state: dict[str, Any]) -> dict[str, Any]:
        order = HumanMessage(f"Do your part as {state['role']} and report.")
        said = [SystemMessage(system_text(state["role"])), *state["messages"], order]
        return {"reports": [str(model.with_structured_output(Finding, method=method).invoke(said))]}

    def judge(state: _Fan) -> dict[str, Any]:
        order = HumanMessage("Reports:\n\n" + "\n\n".join(sorted(state["reports"])))
        said = [SystemMessage(system_text("judge")), *state["messages"], order]
        return {"messages": [AIMessage(str(model.with_structured_output(Verdict, method=method).invoke(said)))]}

    def editor(state: _Fan) -> dict[str, Any]:
        return {"messages": [model.invoke([SystemMessage(system_text("editor")), *state["messages"]])]}

    def spread(state: _Fan) -> list[Send]:
        return [Send("worker", {"messages": state["messages"], "role": f"worker{n}"}) for n in range(4)]

    graph = StateGraph(_Fan)
    for name, node in (("worker", worker), ("judge", judge), ("editor", editor)):
        graph.add_node(name, kit.node(name, node))
    graph.add_conditional_edges(START, spread, ["worker"])
    graph.add_edge("worker", "judge")
    graph.add_edge("judge", "editor")
    graph.add_edge("editor", END)
    return graph.compile().invoke({**_task(), "reports": []})


def _as_held(kit: Kit, prompt: Callable[[str, Sequence[Any]], Any], turns: int = 1, task: Any = DIGEST) -> Any:
    """Roles one after the other, whose prompts hold the shared rules as ``prompt(role, messages)`` has them."""
    model = kit.llm()

    def speaker(role: str) -> Any:
        return kit.node(role, lambda state: {"messages": [model.invoke(prompt(role, state["messages"]))]})

    graph = StateGraph(MessagesState)
    previous = START
    for role in (*ROLES, "editor", "checker"):
        graph.add_node(role, speaker(role))
        graph.add_edge(previous, role)
        previous = role
    graph.add_edge(previous, END)
    app, state = graph.compile(), {"messages": [HumanMessage(task)]}
    for turn in range(turns):
        if turn:
            state = {"messages": [*state["messages"], HumanMessage(prose(f"question {turn}", 100))]}
        state = app.invoke(state)
    return state


def _otherwise(role: str, said: Sequence[Any]) -> list[Any]:
    """The rules in the white space of another editor, and of one role none at all."""
    indented = "\n".join(f"    {line}" for line in RULES_TEXT.replace(") ", ")\r\n").splitlines())
    return [SystemMessage(duty(role) if role == "checker" else f"{duty(role)}\n\n{indented}"), *said]


def _retrieved(role: str, said: Sequence[Any]) -> list[Any]:
    """Documents for the newest question, which no later request repeats."""
    found = prose(f"documents for {role} {len(said)}", 800)
    return [SystemMessage(system_text(role)), *said, HumanMessage(f"Documents:\n\n{found}")]


def _plainly(role: str, said: Sequence[Any]) -> list[Any]:
    """As most applications have it."""
    return [SystemMessage(system_text(role)), *said]


_SCHEMAS = {**{f"worker{n}": ("schema",) for n in range(4)}, "judge": ("schema",)}
_IMAGE = "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAA" * 6_250
"""300 kB, of which no provider counts the bytes."""
_SEEN = [{"type": "text", "text": DIGEST}, {"type": "image_url", "image_url": {"url": _IMAGE}}]


_TASKS = tuple(f"task subagent_type={name};description=Look into it as {name}." for name in ("scout", "builder"))
_HELP = tuple(f"search_notes query={word}" for word in ("one", "two", "three", "four"))
_DEEP = {"lead": (*_TASKS, "text"), "scout": (*_HELP, "text"), "builder": (*_HELP, "text")}
_DEEP_PLAIN = {"lead": (_TASKS[0], *_HELP, "text", _TASKS[1], *_HELP, "text", "text")}

WORKLOADS = (
    Workload("role nodes", _role_nodes, 3),
    Workload("role loop", lambda kit: _role_nodes(kit, ("planner", *ROLES, *ROLES)), 7),
    Workload("own tools", lambda kit: _role_nodes(kit, tools=OWN_TOOLS), 3, tools=TOOLS),
    Workload("Send after a plan", lambda kit: _fan(kit, plan=True), 5, overlaps=True),
    Workload("Send at START", lambda kit: _fan(kit, plan=False), 4, overlaps=True),
    Workload("Send at START, six workers", lambda kit: _fan(kit, plan=False, workers=6), 7, overlaps=True),
    Workload(
        "Send at START, six workers, prewarm=True",
        lambda kit: _fan(kit, plan=False, workers=6),
        7,
        overlaps=True,
        prewarm=True,
    ),
    Workload(
        "structured fan-out, function calling",
        lambda kit: _structured(kit, "function_calling"),
        6,
        _SCHEMAS,
        overlaps=True,
    ),
    Workload(
        "structured fan-out, JSON schema",
        lambda kit: _structured(kit, "json_schema"),
        6,
        _SCHEMAS,
        overlaps=True,
    ),
    Workload("rules in other white space, one without", lambda kit: _as_held(kit, _otherwise), 5),
    Workload("documents with each question", lambda kit: _as_held(kit, _retrieved, turns=2), 10),
    Workload("an image", lambda kit: _as_held(kit, _plainly, task=_SEEN), 5),
    Workload("supervisor, last_message", lambda kit: _supervisor(kit, "last_message"), 13, _SUPERVISOR),
    Workload("supervisor, full_history", lambda kit: _supervisor(kit, "full_history"), 13, _SUPERVISOR),
    Workload(
        "supervisor, full_history, budget of 150 a result",
        lambda kit: _supervisor(kit, "full_history"),
        13,
        _SUPERVISOR,
        budget=ToolResultBudget(max_tokens=150),
        policy="budget of 150 a result",
    ),
    Workload(
        "supervisor, full_history, compaction at 5,500 tokens",
        lambda kit: _supervisor(kit, "full_history"),
        13,
        _SUPERVISOR,
        compaction=5_500,
        policy="compaction at 5,500 tokens",
    ),
    Workload("swarm", _swarm, 12, _swarm_plan()),
    Workload("create_agent loop", _agent, 10, {"assistant": (*_LOOP, "text", *_LOOP, "text")}),
    Workload("deepagents, isolated", lambda kit: _deep(kit, fork=False, own=True), 13, _DEEP, prefix=""),
    Workload("deepagents, fork", lambda kit: _deep(kit, fork=True, own=False), 13, _DEEP_PLAIN, prefix=""),
    Workload("deepagents, fork with roles", lambda kit: _deep(kit, fork=True, own=True), 13, _DEEP, prefix=""),
)


def session_for(workload: Workload, provider: str, *, gated: bool = True) -> Session:
    """The session that a user of the workload would make; without ``gated`` nobody waits for a sibling."""
    return Session(
        SharedPrefix(system=workload.prefix, tools=workload.tools),
        budget=workload.budget,
        compaction=workload.compaction,
        # Whoever can wait does, however slow this machine is.
        gate=Gate(price=0.0) if gated else None,
        caching=Caching(provider=provider),
    )
