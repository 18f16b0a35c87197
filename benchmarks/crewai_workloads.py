"""Crews of the kinds people build, with a scripted model: the scenarios that CrewAI's requests were measured on.

Three agents (researcher, analyst, writer), three tasks with 2, 2 and 1 tool calls, three tools of about 280
tokens, and a brief of about 1,050 tokens that is interpolated into every task, unless a scenario says otherwise.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cacheprefix import Gate
from cacheprefix.server import Reply, Request, ToolCall

os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")
os.environ.setdefault("CREWAI_DISABLE_VERSION_CHECK", "true")
os.environ.setdefault("CREWAI_TRACING_ENABLED", "false")
os.environ.setdefault("CREWAI_TESTING", "true")
os.environ.setdefault("OTEL_SDK_DISABLED", "true")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("CREWAI_STORAGE_DIR", tempfile.mkdtemp(prefix="crewai-"))

from crewai import LLM, Agent, Crew, Process, Task
from crewai.hooks import register_before_llm_call_hook, unregister_before_llm_call_hook
from crewai.tools import BaseTool
from pydantic import BaseModel, Field

# The manager that CrewAI makes counts its window at every request, and says so where the server cannot count.
logging.getLogger("crewai.llms.base_llm").setLevel(logging.ERROR)

NewLLM = Callable[..., Any]
Build = Callable[[NewLLM], tuple[Any, Callable[[], Any]]]

_SENTENCES = (
    "The product line covers pumps, valves and heat exchangers for district heating networks of medium towns.",
    "Customers are public utilities that plan in five year budgets and buy through tenders with long lead times.",
    "Last year the service business grew twice as fast as the sale of new equipment, from a small base.",
    "Two competitors from abroad entered the market with lower prices and a weaker network of service partners.",
    "The board expects a view on whether to build a second service hub in the north before the next winter.",
    "Energy prices, subsidies for renovation and a shortage of fitters shape what utilities can order at all.",
    "All figures must be traceable to a source, and every recommendation needs an estimate of what it costs.",
)


def prose(tokens: int, seed: int = 0) -> str:
    """Readable filler of about ``tokens`` tokens of four characters."""
    words: list[str] = []
    length, at = 0, seed
    while length < tokens * 4:
        sentence = f"{at + 1}. {_SENTENCES[(at * 3 + seed) % len(_SENTENCES)]}"
        words.append(sentence)
        length += len(sentence) + 1
        at += 1
    return " ".join(words)[: tokens * 4]


BRIEF = prose(1_050)
LONG_BRIEF = prose(6_900)


class SearchInput(BaseModel):
    """Arguments of the search."""

    query: str = Field(description="What to look for, in a few precise words.")
    region: str = Field(default="all", description="Region to limit the search to, or 'all' for every region.")


class SearchTool(BaseTool):
    """Finds market figures."""

    name: str = "search_market_data"
    description: str = (
        "Search the archive of market studies, tenders and annual reports. Gives the most relevant passages "
        "with their sources, newest first."
    )
    args_schema: type[BaseModel] = SearchInput

    def _run(self, query: str, region: str = "all") -> str:
        return f"Passages on {query!r} ({region}): {prose(90, len(query))}"


class TableInput(BaseModel):
    """Arguments of the table."""

    metric: str = Field(description="Name of the metric, for example 'service revenue'.")
    years: int = Field(default=5, description="How many years back the table goes.")


class TableTool(BaseTool):
    """Gives a table of figures."""

    name: str = "metric_table"
    description: str = "Give a table of one metric by year and segment, with the change against the year before."
    args_schema: type[BaseModel] = TableInput

    def _run(self, metric: str, years: int = 5) -> str:
        return f"{metric} over {years} years: {prose(70, years)}"


class StyleInput(BaseModel):
    """Arguments of the style guide."""

    kind: str = Field(description="Kind of document: memo, report or summary.")


class StyleTool(BaseTool):
    """Gives the style rules."""

    name: str = "style_guide"
    description: str = "Give the house rules of style and structure for a kind of document that goes to the board."
    args_schema: type[BaseModel] = StyleInput

    def _run(self, kind: str) -> str:
        return f"Rules for a {kind}: {prose(60, len(kind))}"


class DumpInput(BaseModel):
    """Arguments of the dump."""

    name: str = Field(description="Name of the document.")


class DumpTool(BaseTool):
    """Gives a whole document, far too long for a prompt."""

    name: str = "whole_document"
    description: str = "Give the whole text of a document from the archive."
    args_schema: type[BaseModel] = DumpInput
    size: int = 60_000

    def _run(self, name: str) -> str:
        return f"{name}: {prose(self.size, len(name))}"


TOOLS = (SearchTool, TableTool, StyleTool)

PLANS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "research": (
        ("search_market_data", {"query": "service growth of district heating suppliers"}),
        ("search_market_data", {"query": "tenders of utilities in the north", "region": "north"}),
    ),
    "analysis": (
        ("metric_table", {"metric": "service revenue"}),
        ("metric_table", {"metric": "orders", "years": 3}),
    ),
    "writing": (("style_guide", {"kind": "memo"}),),
    "dump": (("whole_document", {"name": "annual report"}),),
    "none": (),
}
COWORKERS = {
    "research": "Senior Market Researcher",
    "analysis": "Financial Analyst",
    "writing": "Report Writer",
}


class CrewModel:
    """Plays the model: tool calls by the plan that a task names, then a final answer of about 150 tokens.

    A plan is named as ``(plan research)``. Answers depend on the task's own words and on nothing of the layout.
    """

    def __init__(self, *, obstinate: bool = False, tools: bool = True, tokens: int = 150) -> None:
        self._obstinate = obstinate
        self._tools = tools
        self._tokens = tokens

    def __call__(self, request: Request, /) -> Reply:
        """The answer to a request."""
        text = request.text
        if request.asked.schema is not None:
            return Reply(json.dumps(_sample(request)))
        plans = re.findall(r"\(plan ([a-z]+)\)", text)
        if not plans:
            return Reply(prose(30, len(text) % 7))
        plan = plans[-1]
        if '"coworker"' in text or "delegate_work_to_coworker" in request.asked.tools:
            plan = plans[0] if "Crew Manager" in text else plan
        forced = "Now it's time you MUST give" in request.tail or request.asked.choice == "none"
        react = "Action Input: the input to the action" in text
        rounds = request.rounds if not react else text.count("\nObservation: ") + text.count("\nObservation:\n")
        rounds = rounds - 1 if react and rounds else rounds
        step = None if forced or not self._tools else self._step(plan, rounds, request, react=react)
        if step is not None and react:
            name, arguments = step
            return Reply(f"Thought: I need data.\nAction: {name}\nAction Input: {json.dumps(arguments)}")
        if step is not None:
            return Reply(tool_calls=(ToolCall(step[0], step[1]),))
        item = re.findall(r"\(item ([a-z ]+)\)", text)
        name = f"{plan} {item[-1]}" if item else plan
        answer = f"Result of {name}: {prose(self._tokens, sum(map(ord, name)))}"
        return Reply(f"Thought: I now know the final answer\nFinal Answer: {answer}" if react else answer)

    def _step(self, plan: str, rounds: int, request: Request, *, react: bool) -> tuple[str, dict[str, Any]] | None:
        if "Crew Manager" in request.text and "delegate_work_to_coworker" in request.asked.tools:
            if rounds:
                return None
            task = f"Do your part of the work for the board (plan {plan})."
            context = f"The board needs this soon. {prose(60, len(plan))}"
            return "delegate_work_to_coworker", {
                "task": task,
                "context": context,
                "coworker": COWORKERS[plan],
            }
        steps = PLANS[plan]
        if self._obstinate:
            return steps[rounds % len(steps)] if steps else None
        offered = request.asked.tools or react
        return steps[rounds] if rounds < len(steps) and offered else None


def _sample(request: Request) -> Any:
    from cacheprefix.server.schema_values import sample  # noqa: PLC0415 - only for structured answers

    return sample(request.asked.schema)


def agents(
    llm: NewLLM,
    *,
    tools: bool = True,
    own_tools: bool = False,
    one_llm: bool = False,
    **options: Any,
) -> list[Agent]:
    """The three specialists. ``own_tools`` gives each only what it needs, ``one_llm`` one model object to all."""
    shared = llm() if one_llm else None
    rows = (
        (
            "Senior Market Researcher",
            "Find reliable facts on the market",
            "You have read every study in the trade.",
            0,
        ),
        ("Financial Analyst", "Turn facts into figures that hold", "You audited utilities for ten years.", 1),
        ("Report Writer", "Write what the board reads to the end", "You were a journalist before.", 2),
    )
    made = []
    for role, goal, backstory, index in rows:
        kinds = () if not tools else (TOOLS[index],) if own_tools else TOOLS
        made.append(
            Agent(
                role=role,
                goal=goal,
                backstory=backstory,
                llm=shared or llm(),
                tools=[kind() for kind in kinds],
                **{
                    "allow_delegation": False,
                    "verbose": False,
                    "respect_context_window": False,
                    "use_better_compaction": False,
                    **options,
                },
            )
        )
    return made


def tasks(who: Sequence[Agent | None], *, brief: bool = True, item: bool = False, **options: Any) -> list[Task]:
    """The three tasks."""
    about = "\n\nThe brief:\n{brief}\n\nKeep to the brief." if brief else ""
    about += "\nThe region is (item {item})." if item else ""
    rows = (
        (
            "research",
            "Collect the facts that the question needs, with sources.",
            "A list of facts with sources.",
        ),
        ("analysis", "Work out what the facts mean in figures.", "A table of figures with one line on each."),
        ("writing", "Write the memo for the board.", "A memo of one page."),
    )
    return [
        Task(
            name=name,
            description=f"{words} (plan {name}){about}",
            expected_output=expected,
            agent=agent,
            **options,
        )
        for (name, words, expected), agent in zip(rows, who, strict=True)
    ]


def crew(who: Sequence[Agent], what: Sequence[Task], **options: Any) -> Crew:
    """A crew without output on the terminal."""
    return Crew(
        **{
            "agents": list(who),
            "tasks": list(what),
            "process": Process.sequential,
            "verbose": False,
            **options,
        }
    )


def _sequential(brief: str = BRIEF, **options: Any) -> Build:
    def build(llm: NewLLM) -> tuple[Any, Callable[[], Any]]:
        who = agents(llm, **options)
        made = crew(who, tasks(who))
        return made, lambda: made.kickoff(inputs={"brief": brief})

    return build


def _asynchronous(llm: NewLLM) -> tuple[Any, Callable[[], Any]]:
    who = agents(llm)
    writer = Agent(
        role="Chief Editor",
        goal="Join the parts",
        backstory="You edit the board papers.",
        llm=llm(),
        tools=[kind() for kind in TOOLS],
        respect_context_window=False,
        use_better_compaction=False,
    )
    parts = tasks(who, async_execution=True)
    last = Task(
        name="joining",
        description="Join the parts to one paper. (plan writing)\n\nThe brief:\n{brief}",
        expected_output="One paper.",
        agent=writer,
        context=parts,
    )
    made = crew([*who, writer], [*parts, last])
    return made, lambda: made.kickoff(inputs={"brief": BRIEF})


def _for_each(*, same: bool) -> Build:
    def build(llm: NewLLM) -> tuple[Any, Callable[[], Any]]:
        who = agents(llm)
        made = crew(who, tasks(who, item=True))
        items = ["north"] * 3 if same else ["north", "south", "coast"]
        return made, lambda: made.kickoff_for_each(inputs=[{"brief": BRIEF, "item": item} for item in items])

    return build


def _hierarchical(llm: NewLLM) -> tuple[Any, Callable[[], Any]]:
    who = agents(llm)
    parts = tasks([None, None, None])
    made = crew(who, parts, process=Process.hierarchical, manager_llm=llm())
    return made, lambda: made.kickoff(inputs={"brief": BRIEF})


def _flow(*, brief: bool = True) -> Build:
    def build(llm: NewLLM) -> tuple[Any, Callable[[], Any]]:
        who = agents(llm)

        def run() -> None:
            before = ""
            for agent, name in zip(who, ("research", "analysis", "writing"), strict=True):
                about = f"\n\nThe brief:\n{BRIEF}" if brief else ""
                text = f"Do your part of the work. (plan {name}){about}\n\nBefore: {before}"
                before = agent.kickoff(text).raw

        return who, run

    return build


_IMAGE = "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAA" * 6_250
"""300 kB, of which no provider counts the bytes."""


def _pictured(llm: NewLLM) -> tuple[Any, Callable[[], Any]]:
    """A crew whose application puts one picture beside each task, by CrewAI's hook before a model is called."""
    who = agents(llm)
    made = crew(who, tasks(who))

    def show(context: Any) -> None:
        asked = next(message for message in context.messages if message["role"] == "user")
        if isinstance(asked["content"], str):
            picture = {"type": "image_url", "image_url": {"url": _IMAGE}}
            asked["content"] = [{"type": "text", "text": asked["content"]}, picture]

    def go() -> Any:
        register_before_llm_call_hook(show)
        try:
            return made.kickoff(inputs={"brief": BRIEF})
        finally:
            unregister_before_llm_call_hook(show)

    return made, go


def _one_agent(llm: NewLLM) -> tuple[Any, Callable[[], Any]]:
    who = agents(llm)[:1]
    made = crew(who, tasks([who[0]] * 3))
    return made, lambda: made.kickoff(inputs={"brief": BRIEF})


def _lonely(llm: NewLLM) -> tuple[Any, Callable[[], Any]]:
    who = agents(llm)[:1]
    made = crew(who, tasks(who * 3)[:1])
    return made, lambda: made.kickoff(inputs={"brief": BRIEF})


def _guardrail(llm: NewLLM) -> tuple[Any, Callable[[], Any]]:
    who = agents(llm)
    tried: set[str] = set()

    def check(output: Any):  # noqa: ANN202 - CrewAI takes no return type but its own spelling
        name = output.raw[:40]
        first = name not in tried
        tried.add(name)
        return (False, "name a source for every figure") if first else (True, output.raw)

    made = crew(who, tasks(who, guardrail=check, guardrail_max_retries=2))
    return made, lambda: made.kickoff(inputs={"brief": BRIEF})


class Finding(BaseModel):
    """A structured task output."""

    title: str
    confidence: float


def _documents(llm: NewLLM) -> tuple[Any, Callable[[], Any]]:
    """Each task brings documents that no other one reads."""
    who = agents(llm)
    made = crew(who, tasks(who))
    for number, task in enumerate(made.tasks):
        task.description += f"\n\nDocuments for this task:\n{prose(800, 50 * (number + 1))}"
    return made, lambda: made.kickoff(inputs={"brief": BRIEF})


def _outlier(llm: NewLLM) -> tuple[Any, Callable[[], Any]]:
    """Three tasks on one brief, and a fourth agent whose task has none."""
    who = agents(llm)
    other = Agent(
        role="Translator",
        goal="Say it in Danish",
        backstory="You translate for the board.",
        llm=llm(),
        respect_context_window=False,
        use_better_compaction=False,
    )
    parts = tasks(who)
    last = Task(
        name="translation",
        description="Translate the memo. (plan none)",
        expected_output="The memo in Danish.",
        agent=other,
        context=[parts[-1]],
    )
    made = crew([*who, other], [*parts, last])
    return made, lambda: made.kickoff(inputs={"brief": BRIEF})


class Clock:
    """Seconds that a crew lets pass between its tasks; provider and session go by them."""

    def __init__(self) -> None:
        self.passed = 0.0

    def __call__(self) -> float:
        """The machine's time, and what has passed beside it."""
        return time.time() + self.passed


def _pausing(llm: NewLLM) -> tuple[Any, Callable[[], Any]]:
    """Ten minutes pass after each task, as where a person looks at it first."""
    who = agents(llm)
    made = crew(who, tasks(who))

    def go() -> None:
        CLOCK.passed = 0.0
        made.kickoff(inputs={"brief": BRIEF})

    def pause(_: Any) -> None:
        CLOCK.passed += 600.0

    made.task_callback = pause
    return made, go


CLOCK = Clock()


def _pydantic(llm: NewLLM) -> tuple[Any, Callable[[], Any]]:
    who = agents(llm)
    made = crew(who, tasks(who, output_pydantic=Finding))
    return made, lambda: made.kickoff(inputs={"brief": BRIEF})


def _awaited(llm: NewLLM) -> tuple[Any, Callable[[], Any]]:
    who = agents(llm)
    made = crew(who, tasks(who))
    return made, lambda: asyncio.run(made.akickoff(inputs={"brief": BRIEF}))


def _unrelated(llm: NewLLM) -> tuple[Any, Callable[[], Any]]:
    who = agents(llm, own_tools=True)
    made = crew(who, tasks(who, brief=False))
    return made, made.kickoff


@dataclass(frozen=True)
class Workload:
    """A crew to build and run. ``build(llm)`` gives what to install on and the function that runs it."""

    name: str
    build: Build
    model: Callable[[], CrewModel] = CrewModel
    goal: float | None = None
    """Cost units against unmodified that the project set itself, under the rules ``exact``."""
    latency: float = 0.0
    """Seconds to the first token, where requests run side by side."""
    react: bool = False
    """The model has no native tool calls."""
    gate: Gate = field(default_factory=Gate)
    """How long tasks that start together wait for the first of them."""
    bound: float = 1.0
    """Cost against unmodified that it may come to under the providers' rules: above 1 where what is written expires
    before it is read, which nobody knows beforehand."""
    lifetime: str | None = None
    """What the session is told to keep entries for; None for the provider's default."""


WORKLOADS: tuple[Workload, ...] = (
    Workload("sequential", _sequential(), goal=0.79),
    Workload("sequential, own tools", _sequential(own_tools=True), goal=0.79),
    Workload("sequential, one model object", _sequential(one_llm=True), goal=0.79),
    Workload("sequential, long brief", _sequential(LONG_BRIEF), goal=0.58),
    Workload("sequential, no tools", _sequential(tools=False), lambda: CrewModel(tools=False), goal=0.56),
    Workload("sequential, text tools", _sequential(), react=True),
    Workload("akickoff", _awaited, goal=0.79),
    Workload("async tasks", _asynchronous, latency=0.3),
    Workload("async tasks, always waiting", _asynchronous, goal=0.72, latency=0.3, gate=Gate(60.0, price=0.0)),
    Workload("max_iter", _sequential(max_iter=2), lambda: CrewModel(obstinate=True), goal=0.51),
    Workload("for each, other items", _for_each(same=False), goal=0.90),
    Workload("for each, replays", _for_each(same=True)),
    Workload("hierarchical", _hierarchical, goal=0.78),
    Workload("delegation", _sequential(allow_delegation=True)),
    Workload("guardrail", _guardrail),
    Workload("output_pydantic", _pydantic),
    Workload("documents with each task", _documents),
    Workload("an image with each task", _pictured),
    Workload("one agent without the brief", _outlier),
    Workload("ten minutes between tasks", _pausing, bound=1.02),
    Workload("ten minutes between tasks, 1-hour lifetime", _pausing, bound=1.02, lifetime="1h"),
    Workload("one agent", _one_agent),
    Workload("one task", _lonely, goal=1.0),
    Workload("nothing shared", _unrelated, goal=1.0),
    Workload("flow", _flow(), goal=1.0),
    Workload("flow, nothing shared", _flow(brief=False), goal=1.0),
)


def new_llm(model: str, base_url: str, *, litellm: bool = False, react: bool = False, **options: Any) -> Any:
    """A CrewAI model for a server."""
    llm = LLM(model=model, base_url=base_url, api_key="any", is_litellm=litellm, **options)
    if react:
        # A model without native tool calls, without leaving the class: CrewAI asks the object.
        vars(llm)["supports_function_calling"] = lambda: False
    return llm
