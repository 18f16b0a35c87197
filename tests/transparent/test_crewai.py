"""CrewAI: crews, agents, flows and models, unmodified, observed and forked."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import io
import pickle
import re
import tempfile
import warnings
from pathlib import Path

import pytest

pytest.importorskip("crewai", reason="CrewAI's tests run in its own environment (make test-crewai-apart)")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from crewai import Agent, Task
    from crewai.events.event_bus import CrewAIEventsBus
    from crewai.flow.flow import Flow, FlowState, listen, start
    from crewai.flow.persistence import persist
    from crewai.flow.persistence.sqlite import SQLiteFlowPersistence
    from crewai.hooks import (
        register_after_llm_call_hook,
        register_before_llm_call_hook,
        unregister_after_llm_call_hook,
        unregister_before_llm_call_hook,
    )
    from crewai.llm_overlay import llm_overlay
    from crewai.llms.base_llm import BaseLLM
    from crewai.llms.providers.openai.completion import OpenAICompletion
    from crewai.memory.unified_memory import Memory
    from pydantic import BaseModel

    from benchmarks import crewai_workloads as work
    from tests.crewai.conftest import ANTHROPIC_MODEL, OPENAI_MODEL

from cacheprefix.server import Fault, Reply, SimulatedProvider, ToolCall
from cacheprefix_crewai import install
from tests.transparent.compare import allowed_in
from tests.transparent.harness import Constructs, Stage

# What CrewAI and the libraries under it warn of is theirs; ours is compared by the harness.
pytestmark = [pytest.mark.filterwarnings("ignore:::")]

KINDS = ("openai", "anthropic", "litellm", "responses")
RULES = {"anthropic": "anthropic"}


class Crews(Stage):
    """CrewAI's own models; crews of three roles that share a brief."""

    rules = "openai"
    opaque = ("crewai.", "openai", "anthropic", "litellm")

    def __init__(self, mode, provider):
        super().__init__(mode, provider)
        self.events, self.installed = [], []
        self._patches = pytest.MonkeyPatch()
        emit = CrewAIEventsBus.emit

        def noted(bus, source, event):
            self.events.append((type(source).__name__, event))
            return emit(bus, source, event)

        self._patches.setattr(CrewAIEventsBus, "emit", noted)
        self.script(work.CrewModel())

    def llm(self, kind="openai", **options):
        """A model of a kind."""
        if kind == "anthropic":
            return work.new_llm(ANTHROPIC_MODEL, self.provider.anthropic_base_url, **options)
        if kind == "litellm-anthropic":
            return work.new_llm(f"anthropic/{ANTHROPIC_MODEL}", self.provider.anthropic_base_url, litellm=True)
        options |= {"api": "responses"} if kind == "responses" else {}
        name = f"openai/{OPENAI_MODEL}" if kind == "litellm" else OPENAI_MODEL
        return work.new_llm(name, self.provider.openai_base_url, litellm=kind == "litellm", **options)

    def install(self, target, session="", **options):
        """As it is, or installed until the construct has run."""
        if not self.unmodified:
            self.installed.append(install(target, self.session(session), **options))
        return target

    def seen(self):
        """Events in the order of their emission."""
        return [{"source": source, "event": _event(event)} for source, event in self.events]

    def requests(self):
        """The messages and tools of each request as CrewAI's events of its start and end show them."""
        told = (event for _, event in self.events if event.type.startswith("llm_call"))
        return [_bare([getattr(event, name, None) for name in ("messages", "tools")]) for event in told]

    def close(self):
        self._patches.undo()
        for one in reversed(self.installed):
            one.undo()


def _event(event):
    """An event's own values; of what it refers to, the kind."""
    shown = {"type": event.type, "kind": type(event).__name__}
    for name, value in vars(event).items():
        simple = value is None or isinstance(value, (str, int, float, bool, dict, list))
        shown[name] = _bare(value) if simple else type(value).__name__
    apart = ["timestamp", "emission_sequence", "duration_ms"]
    apart += ["messages", "tools"] if event.type.startswith("llm_call") else []
    return {name: value for name, value in shown.items() if name not in apart}


def _bare(value):
    if isinstance(value, dict):
        return {str(key): _bare(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_bare(one) for one in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else type(value).__name__


def output(result):
    """All that a crew's, a task's or an agent's output holds."""
    if isinstance(result, list):
        return [output(one) for one in result]
    dumped = result.model_dump() if isinstance(result, BaseModel) else result
    return {"kind": type(result), "says": str(result), "holds": _bare(dumped), "raw": getattr(result, "raw", None)}


def crew_seen(crew):
    """What a crew can be asked afterwards."""
    return {
        "usage": _bare(crew.usage_metrics.model_dump()) if crew.usage_metrics else None,
        "tasks": [output(task.output) if task.output else None for task in crew.tasks],
        "models": [
            [type(agent.llm), agent.llm.get_token_usage_summary().model_dump()]
            for agent in crew.agents
            if hasattr(agent.llm, "get_token_usage_summary")
        ],
        "kind": [type(crew).__name__, type(crew).__module__, isinstance(crew, work.Crew)],
    }


CONSTRUCTS = Constructs("crewai", Crews)


@pytest.fixture(scope="module", autouse=True)
def first_kickoff():
    """CrewAI's first kickoff of a process tells more, and asks more, than the others."""
    with SimulatedProvider("openai", work.CrewModel()) as provider:
        for kind in ("openai", "anthropic"):
            url = provider.anthropic_base_url if kind == "anthropic" else provider.openai_base_url
            model = ANTHROPIC_MODEL if kind == "anthropic" else OPENAI_MODEL
            who = work.agents(lambda model=model, url=url: work.new_llm(model, url))
            work.crew(who, work.tasks(who)).kickoff(inputs=BRIEF)


def construct(name=None, *, ordered=True, **options):
    """Registers a function of a stage; the event bus is part of what is seen."""

    def register(run):
        @CONSTRUCTS.add(name or run.__name__, **options)
        def within(stage):
            # CrewAI's own, of which it says some in threads, whenever those come to it.
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            # What our code reads in the application's place.
            warnings.filterwarnings("always", category=DeprecationWarning, module="cacheprefix")
            gave = run(stage)
            events = stage.seen()
            if not ordered:
                return {"gave": gave, "events": sorted(one["event"]["kind"] for one in events)}
            return {"gave": gave, "events": events, "requests": stage.requests()}

        return run

    return register


def everywhere(run):
    """Registers a construct for every model class, streamed and not."""
    for kind in KINDS:
        for stream in (False, True):

            def one(stage, kind=kind, stream=stream):
                return run(stage, kind, stream)

            name = f"{run.__name__}_{kind}{'_streamed' if stream else ''}"
            construct(name, rules=RULES.get(kind, "openai"))(one)
    return run


def trio(stage, kind="openai", *, stream=False, crew=None, task=None, **options):
    """The crew of three with a brief."""
    who = work.agents(lambda: stage.llm(kind, **({"stream": True} if stream else {})), **options)
    return work.crew(who, work.tasks(who, **(task or {})), **(crew or {}))


BRIEF = {"brief": work.BRIEF}


@everywhere
def sequential(stage, kind, stream):
    """Three tasks with tools."""
    # In streams CrewAI loses the ids of LiteLLM's calls, and finds no calls in those of the Responses API.
    tools = not stream or kind in ("openai", "anthropic")
    crew = stage.install(trio(stage, kind, stream=stream, tools=tools))
    return [output(crew.kickoff(inputs=BRIEF)), crew_seen(crew)]


def _tempted(stage, kind, *, said="", stream=False):
    """A role with tools of its own, and one without any, call a tool that their forks show them: once, and always."""
    model, silent, theirs = work.CrewModel(), work.CrewModel(tools=False), work.SearchTool().name
    gave = []
    for number, obeys in enumerate((True, False)):

        def answers(request, obeys=obeys):
            plan, told = re.findall(r"\(plan ([a-z]+)\)", request.text)[-1], "one of your calls was run" in request.tail
            tempted = plan != "research" and theirs in request.asked.tools and request.asked.choice != "none"
            if tempted and not (told and obeys):
                return Reply(said, tool_calls=(ToolCall(theirs, {"query": "q"}),))
            return (silent if plan == "writing" else model)(request)

        stage.script(answers)
        options = {"stream": True} if stream else {}
        who = work.agents(lambda options=options: stage.llm(kind, **options), own_tools=True)
        who[2].tools = []
        crew = stage.install(work.crew(who, work.tasks(who)), str(number))
        gave.append([output(crew.kickoff(inputs=BRIEF)), crew_seen(crew)])
    return gave


@construct(rules="anthropic")
def tools_of_another_role(stage):
    """Where ``tool_choice`` cannot keep a role to its own."""
    return _tempted(stage, "anthropic", said="Let me see.")


@construct()
def tools_of_another_role_by_litellm(stage):
    """LiteLLM takes no list of allowed tools."""
    return _tempted(stage, "litellm", said="Let me see.")


@construct(rules="anthropic")
def tools_of_another_role_streamed(stage):
    """Pieces of the calls are seen by nobody."""
    return _tempted(stage, "anthropic", stream=True)


@construct(rules="anthropic")
def text_before_tools_of_another_role_streamed(stage):
    """What was said before the call is out already."""
    return _tempted(stage, "anthropic", said="Let me see.", stream=True)


@construct()
def without_tools(stage):
    """Text answers alone."""
    crew = stage.install(trio(stage, tools=False))
    return [output(crew.kickoff(inputs=BRIEF)), crew_seen(crew)]


@construct()
def tools_in_text(stage):
    """A model without native calls."""
    who = work.agents(lambda: stage.llm(react=True))
    crew = stage.install(work.crew(who, work.tasks(who)))
    return [output(crew.kickoff(inputs=BRIEF)), crew_seen(crew)]


@construct(ordered=False)
def kickoffs(stage):
    """Each way to kick a crew off, one after the other."""
    crew = stage.install(trio(stage, tools=False))
    gave = [output(crew.kickoff(inputs=BRIEF)), output(asyncio.run(crew.kickoff_async(inputs=BRIEF)))]
    gave.append(output(asyncio.run(crew.akickoff(inputs=BRIEF))))
    return [gave, crew_seen(crew)]


@construct(ordered=False)
def kickoffs_for_each(stage):
    """Several runs known beforehand."""
    who = work.agents(stage.llm, tools=False)
    crew = stage.install(work.crew(who, work.tasks(who, item=True)))
    inputs = [{**BRIEF, "item": item} for item in ("north", "south")]
    gave = crew.kickoff_for_each(inputs=inputs)
    gave += asyncio.run(crew.kickoff_for_each_async(inputs=inputs))
    gave += asyncio.run(crew.akickoff_for_each(inputs=inputs))
    # Runs side by side on the same models count one another's tokens, as it comes.
    told = [[type(one), one.raw, [output(task) for task in one.tasks_output]] for one in gave]
    return [told, [output(task.output) if task.output else None for task in crew.tasks]]


@construct()
def hierarchical(stage):
    """A manager that delegates."""
    who = work.agents(stage.llm)
    parts = work.tasks([None, None, None])
    crew = work.crew(who, parts, process=work.Process.hierarchical, manager_llm=stage.llm())
    stage.install(crew)
    return [output(crew.kickoff(inputs=BRIEF)), crew_seen(crew)]


@construct()
def delegation_to_a_role_with_an_input(stage):
    """A model takes a coworker's name from the tool: a placeholder where the tool is everybody's."""
    model = work.CrewModel(tools=False)

    def answers(request):
        if "(plan research)" not in request.text or request.rounds:
            return model(request)
        said = next(
            one["function"]["description"]
            for one in request.body["tools"]
            if one["function"]["name"] == "delegate_work_to_coworker"
        )
        writer = next(one for one in said.partition("coworkers: ")[2].splitlines()[0].split(", ") if "Writer" in one)
        asked = {"task": "Write it. (plan writing)", "context": "Soon.", "coworker": writer}
        return Reply(tool_calls=(ToolCall("delegate_work_to_coworker", asked),))

    stage.script(answers)
    who = work.agents(stage.llm, tools=False, allow_delegation=True)
    for one in who:
        one.role += " for {customer}"
    crew = stage.install(work.crew(who, work.tasks(who)))
    gave = [output(crew.kickoff(inputs={**BRIEF, "customer": name})) for name in ("Ann", "Bob")]
    delegated = [[task.delegations, sorted(task.processed_by_agents)] for task in crew.tasks]
    return [gave, crew_seen(crew), delegated]


@construct(ordered=False)
def models_by_an_overlay(stage):
    """A role that a kickoff's input makes one of the overlay's gets a model like its own, with its key and address."""
    gave = []
    for kind in ("openai", "litellm"):
        who = work.agents(lambda kind=kind: stage.llm(kind), tools=False)
        for one in who:
            one.role += " for {customer}"
        crew = stage.install(work.crew(who, work.tasks(who)), kind)
        with llm_overlay({"Financial Analyst for Ann": "openai/gpt-4.1-2025-04-14"}):
            for name in ("Ann", "Bob"):
                gave.append(output(crew.kickoff(inputs={**BRIEF, "customer": name})))
                gave.append([[type(one.llm).__name__, one.llm.model, one.llm.base_url] for one in who])
    return gave


@construct(ordered=False)
def tasks_side_by_side(stage):
    """Asynchronous tasks, and one that joins them."""
    who = work.agents(stage.llm, tools=False)
    parts = work.tasks(who, async_execution=True)
    last = Task(name="joining", description="Join. (plan writing)", expected_output="One.", agent=who[2], context=parts)
    crew = stage.install(work.crew(who, [*parts, last]))
    return [output(crew.kickoff(inputs=BRIEF)), [output(task.output) for task in crew.tasks]]


@construct()
def callbacks_and_hooks(stage):
    """Callbacks before and after, of steps and tasks, and hooks around each call of a model."""
    called = []

    def before(context):
        called.append(["before", type(context.llm).__name__, len(context.messages), context.iterations])

    def after(context):
        called.append(["after", context.response])

    crew = stage.install(
        trio(
            stage,
            tools=False,
            crew={
                "before_kickoff_callbacks": [lambda inputs: called.append(sorted(inputs or {})) or inputs],
                "after_kickoff_callbacks": [lambda result: called.append(result.raw) or result],
                "step_callback": lambda step: called.append([type(step).__name__, str(step)]),
                "task_callback": lambda done: called.append(output(done)),
            },
        )
    )
    register_before_llm_call_hook(before)
    register_after_llm_call_hook(after)
    try:
        return [output(crew.kickoff(inputs=BRIEF)), called]
    finally:
        unregister_before_llm_call_hook(before)
        unregister_after_llm_call_hook(after)


@construct()
def structured_and_guarded(stage):
    """Outputs as models and JSON, and a guardrail that wants a second try."""
    tried = []

    def check(result):
        tried.append(result.raw)
        return (len(tried) > 1, result.raw if len(tried) > 1 else "name a source")

    who = work.agents(stage.llm, tools=False)
    first, second, third = work.tasks(who)
    first.output_pydantic, second.output_json = work.Finding, work.Finding
    third.guardrail = check
    third = Task(
        name="writing",
        description=third.description,
        expected_output="A memo.",
        agent=who[2],
        guardrail=check,
        guardrail_max_retries=2,
    )
    crew = stage.install(work.crew(who, [first, second, third]))
    return [output(crew.kickoff(inputs=BRIEF)), [output(task.output) for task in crew.tasks], tried]


@construct()
def prompts_of_the_applications(stage):
    """Without a system message, and by templates of the application's own."""
    system = {"use_system_prompt": False}
    templates = {"system_template": "<s>{{ .System }}", "prompt_template": "<u>{{ .Prompt }}"}
    gave = []
    for number, options in enumerate((system, templates)):
        crew = stage.install(trio(stage, tools=False, **options), str(number))
        gave.append(output(crew.kickoff(inputs=BRIEF)))
    return [gave, output(stage.install(trio(stage, tools=False), "last").kickoff(inputs=BRIEF))]


@construct()
def streamed_crew(stage):
    """``Crew(stream=True)``: chunks as they come, and the result behind them."""
    crew = stage.install(trio(stage, tools=False, stream=True, crew={"stream": True}))
    streaming = crew.kickoff(inputs=BRIEF)
    chunks = [[chunk.content, chunk.chunk_type, chunk.task_name, chunk.agent_role] for chunk in streaming]
    return [chunks, output(streaming.result), streaming.get_full_text()]


@construct()
def agents_by_themselves(stage):
    """``Agent.kickoff``, with and without a form of answer, synchronous and not."""

    class Answer(BaseModel):
        """A form."""

        headline: str

    who = stage.install(work.agents(stage.llm))
    asked = [f"Do your part of the work. (plan {plan})\n\nThe brief:\n{work.BRIEF}" for plan in work.COWORKERS]
    gave = [output(agent.kickoff(text)) for agent, text in zip(who, asked, strict=True)]
    gave.append(output(who[0].kickoff(asked[0], response_format=Answer)))
    gave.append(output(asyncio.run(who[1].kickoff_async(asked[1]))))
    return [gave, [agent.llm.get_token_usage_summary().model_dump() for agent in who]]


@construct(ordered=False)
def flow_of_crews(stage):
    """A flow with an agent and a crew in it."""
    lead, *_ = who = work.agents(stage.llm, tools=False)
    crew = work.crew(who, work.tasks(who))
    stage.install(crew)

    class Board(Flow):
        """Two steps."""

        @start()
        def first(self):
            return lead.kickoff(f"Do your part. (plan research)\n\nThe brief:\n{work.BRIEF}").raw

        @listen(first)
        def second(self, before):
            return [before, crew.kickoff(inputs=BRIEF).raw]

    flow = Board(suppress_flow_events=True)
    return [flow.kickoff(), _bare(flow.state), flow.method_outputs]


def embedded(texts):
    """An embedding that needs no network."""
    return [[byte / 255 for byte in hashlib.blake2b(text.encode(), digest_size=16).digest()] for text in texts]


@construct(ordered=False)
def planned(stage):
    """A planner writes steps before the first task; each kickoff plans anew."""
    who = work.agents(stage.llm, tools=False)
    crew = stage.install(work.crew(who, work.tasks(who), planning=True, planning_llm=stage.llm()))
    gave = [output(crew.kickoff(inputs=BRIEF)), output(asyncio.run(crew.kickoff_async(inputs=BRIEF)))]
    return [gave, crew_seen(crew), [re.sub("0x[0-9a-f]+", "0x", task.description) for task in crew.tasks]]


@construct(ordered=False)
def remembering(stage):
    """A memory that a model analyses: what is kept, what is recalled by the next kickoff, and what is forgotten."""
    who = work.agents(stage.llm, tools=False)
    with tempfile.TemporaryDirectory() as folder:
        memory = Memory(llm=stage.llm(), embedder=embedded, storage=folder)
        crew = stage.install(work.crew(who, work.tasks(who), memory=memory))
        gave = [output(crew.kickoff(inputs=BRIEF)), output(crew.kickoff(inputs=BRIEF))]
        memory.drain_writes()
        kept = sorted(record.content for record in memory.list_records(limit=100))
        found = len(memory.recall("service revenue", depth="shallow"))
        crew.reset_memories("memory")
        return [gave, kept, found, len(memory.list_records(limit=100)), crew_seen(crew)]


@construct()
def replayed(stage):
    """From a task of the last kickoff on, with other inputs too."""
    crew = stage.install(trio(stage))
    gave = [output(crew.kickoff(inputs=BRIEF))]
    second = str(crew.tasks[1].id)
    gave.append(output(crew.replay(second)))
    gave.append(output(crew.replay(second, inputs={"brief": f"Another one. {work.BRIEF}"})))
    try:
        crew.replay("nobody")
    except Exception as error:
        gave.append(error)
    return [gave, crew_seen(crew)]


@construct(ordered=False)
def trained(stage):
    """One iteration with a person's feedback, what is written of it, and a kickoff that heeds it."""
    answers = []

    def feedback(*_, **__):
        answers.append(1)
        return "Name a source for every figure."

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setattr("builtins.input", feedback)
        crew = stage.install(trio(stage, tools=False))
        crew.train(n_iterations=1, filename="trained.pkl", inputs=BRIEF)
        files = sorted(file.name for file in Path(folder).iterdir())
        kept = _bare(pickle.loads(Path("trained.pkl").read_bytes()))
        patched.setattr("crewai.agent.core.TRAINED_AGENTS_DATA_FILE", "trained.pkl", raising=False)
        return [files, kept, len(answers), output(crew.kickoff(inputs=BRIEF)), crew_seen(crew)]


@construct(ordered=False)
def evaluated(stage):
    """``Crew.test``: an evaluator scores each task, and prints a table of it, but for seconds."""
    crew = stage.install(trio(stage, tools=False))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        crew.test(n_iterations=1, eval_llm=stage.llm(), inputs=BRIEF)
    return [re.sub(r"\d+ *│", "│", printed.getvalue()), crew_seen(crew)]


@construct(ordered=False)
def persisted_flow(stage):
    """A flow that keeps its state, and another one that goes on from it."""
    lead, other, _ = who = work.agents(stage.llm, tools=False)
    stage.install(who)

    class Kept(FlowState):
        """Two answers."""

        first: str = ""
        second: str = ""
        runs: int = 0

    with tempfile.TemporaryDirectory() as folder:

        @persist(SQLiteFlowPersistence(f"{folder}/flow.db"))
        class Board(Flow[Kept]):
            """Two steps, of which the first is done once."""

            @start()
            def begin(self):
                self.state.runs += 1
                asked = f"Do your part. (plan research)\n\nThe brief:\n{work.BRIEF}"
                self.state.first = self.state.first or lead.kickoff(asked).raw

            @listen(begin)
            def go_on(self):
                asked = f"Do your part. (plan analysis)\n\nThe brief:\n{work.BRIEF}\n\nBefore: {self.state.first}"
                self.state.second = other.kickoff(asked).raw
                return self.state.second

        flow = Board(suppress_flow_events=True)
        gave = flow.kickoff()
        again = Board(suppress_flow_events=True)
        gone_on = again.kickoff(inputs={"id": flow.state.id})
        kept = SQLiteFlowPersistence(f"{folder}/flow.db").load_state(flow.state.id)
        return [gave, gone_on, kept, again.state.runs, flow.state.model_dump() == again.state.model_dump()]


@construct(ordered=False)
def models_asked_in_a_run(stage):
    """A flow's methods ask models, one that was there and one made there, with a schema and streamed; tools do too."""

    class Answer(BaseModel):
        """A form."""

        headline: str

    outside = stage.llm()

    class Word(work.SearchTool):
        """Asks a model of its own."""

        def _run(self, **_):
            return outside.call("Say it in a word. (plan none)")

    who = work.agents(stage.llm, tools=False)
    who[0].tools = [Word()]
    crew = work.crew(who, work.tasks(who))

    class Board(Flow):
        """A question, a crew, and two more."""

        @start()
        def first(self):
            return outside.call(f"What is it about? (plan none)\n\n{work.BRIEF}")

        @listen(first)
        def second(self, before):
            return [before, crew.kickoff(inputs=BRIEF).raw]

        @listen(second)
        async def third(self, before):
            streamed = stage.llm(stream=True)
            said = await streamed.acall([{"role": "user", "content": "And in short? (plan none)"}])
            return [*before, said, streamed.get_token_usage_summary().model_dump()]

        @listen(third)
        def fourth(self, before):
            form = outside.call([{"role": "user", "content": "In this form."}], response_model=Answer)
            return [*before, output(form), type(outside).__name__, _bare(outside.model_dump())]

    flow = stage.install(Board(suppress_flow_events=True))
    return [flow.kickoff(), flow.method_outputs, outside.get_token_usage_summary().model_dump()]


class Mine(OpenAICompletion):
    """An application's own class, whose ``call`` takes less than CrewAI's."""

    def call(self, messages, tools=None, callbacks=None, available_functions=None, **more):
        asked.append([len(messages), tools, sorted(more)])
        return "Thought: I now can give a great answer\nFinal Answer: 42"


class Other(BaseLLM):
    """A model of the application's, from CrewAI's base."""

    def call(self, messages, tools=None, callbacks=None, functions=None, from_task=None, from_agent=None, **_):
        asked.append([len(messages), tools, type(from_task).__name__, type(from_agent).__name__])
        return "Thought: I now can give a great answer\nFinal Answer: 43"

    def supports_function_calling(self):
        return False


asked: list = []


@construct(forks=False)
def models_of_the_applications(stage):
    """What came is passed on as it came."""
    gave = []
    for number, made in enumerate((Mine(model="gpt-4.1", api_key="k"), Other(model="other"))):
        asked.clear()
        agent = Agent(role="One", goal="g", backstory="b", llm=made)
        crew = work.crew([agent], [Task(description="d", expected_output="e", agent=agent)])
        stage.install(crew, str(number))
        gave.append([output(crew.kickoff()), list(asked)])
    return gave


@construct(forks=False)
def model_by_itself(stage):
    """A model of an installed crew, asked by the application."""
    crew = stage.install(trio(stage))
    llm = crew.agents[0].llm
    said = [llm.call("Hello."), llm.call([{"role": "user", "content": "Hello again."}])]
    said.append(asyncio.run(llm.acall(messages="And again.")))
    asked_of = [llm.get_token_usage_summary().model_dump(), _bare(llm.model_dump()), isinstance(llm, OpenAICompletion)]
    return [said, asked_of]


@construct()
def provider_that_refuses(stage):
    """The error ends the crew as it does without us; the next kickoff goes on."""
    model = work.CrewModel()
    refused = []

    def once(request):
        if len(refused) < 1 and "(plan analysis)" in request.text:
            refused.append(1)
            return Reply(fault=Fault(status=400, message="no"))
        return model(request)

    stage.script(once)
    crew = stage.install(trio(stage, tools=False))
    try:
        first = output(crew.kickoff(inputs=BRIEF))
    except Exception as error:
        first = [type(error), str(error)]
    return [first, output(crew.kickoff(inputs=BRIEF))]


@construct(rules="anthropic", ordered=False)
def requests_that_ask_nothing(stage):
    """Agents and models asked by themselves, with nothing or white space: what a provider refuses, it refuses."""
    stage.script(lambda _: Reply("Yes."))
    gave = []
    for kind in ("anthropic", "litellm-anthropic"):
        llm = stage.llm(kind)
        one = Agent(role="One", goal="g", backstory=work.BRIEF, llm=llm)
        other = Agent(role="Two", goal="g", backstory=work.BRIEF, llm=llm)
        stage.install([one, other], kind, shared_context=work.BRIEF)
        blank = [{"role": "user", "content": " "}]
        for said in ("", " \n", blank, "Go on."):
            try:
                gave.append(output(one.kickoff(said)))
            except Exception as error:  # noqa: PERF203 - some of them
                gave.append([type(error), str(error)])
        for said in (" ", blank, [{"role": "system", "content": work.BRIEF}], "Go on."):
            try:
                gave.append(one.llm.call(said))
            except Exception as error:  # noqa: PERF203 - some of them
                gave.append([type(error), str(error)])
    return gave


@construct()
def copies(stage):
    """Copies of a crew, an agent and a model; what can be pickled without us, can be."""
    crew = stage.install(trio(stage, tools=False))
    crew.kickoff(inputs=BRIEF)
    other = crew.copy()
    ends = [output(other.kickoff(inputs=BRIEF)), crew.agents[0].copy().role]
    for thing in (crew, crew.agents[0], crew.agents[0].llm, crew.tasks[0], crew.tasks[0].output):
        for make in (copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
            try:
                made = make(thing)
                ends.append([type(made).__name__, isinstance(made, type(thing).__mro__[-3])])
            except Exception as error:  # noqa: PERF203 - which of them can be, is what is compared
                ends.append([type(error), str(error)])
    ends.append([sorted(crew.model_dump()), sorted(crew.agents[0].model_dump()), crew.agents[0] == crew.agents[0]])
    return [ends, repr(crew.agents[0].role)]


@construct()
def taken_back(stage):
    """Afterwards every object is as it was."""
    crew = trio(stage, tools=False)
    before = [type(one) for one in (crew, *crew.agents, *(agent.llm for agent in crew.agents))]
    stage.install(crew)
    crew.kickoff(inputs=BRIEF)
    for one in stage.installed:
        one.undo()
    after = [crew, *crew.agents, *(agent.llm for agent in crew.agents)]
    same = [type(one) is kind for one, kind in zip(after, before, strict=True)]
    return [same, ["__cacheprefix__" in vars(one) for one in after], output(crew.kickoff(inputs=BRIEF))]


@pytest.mark.parametrize("mode", ["observed", "forked"])
@pytest.mark.parametrize("name", CONSTRUCTS.names)
def test_the_application_sees_the_same(name, mode):
    """Without us, observed and forked, but for what is listed."""
    CONSTRUCTS.check(name, mode)


@pytest.mark.parametrize("entry", allowed_in("crewai"), ids=str)
def test_each_listed_difference_is_there(entry):
    """What no construct shows any more is taken out of the list."""
    CONSTRUCTS.check_used(entry)
