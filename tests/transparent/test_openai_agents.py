"""Agents, handoffs and agents as tools of the OpenAI Agents SDK, unmodified, observed and forked."""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import pickle
import warnings

import pytest

pytest.importorskip("cacheprefix_openai_agents", reason="tested in an environment of its own (make test-openai_agents)")
pytest.importorskip("agents", reason="tested in an environment of its own (make test-openai_agents)")

import agents
import openai
from agents import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    ModelProvider,
    RunConfig,
    RunHooks,
    Runner,
    SQLiteSession,
    function_tool,
)
from agents.tracing import TracingProcessor
from pydantic import BaseModel

from cacheprefix import Session, SharedPrefix
from cacheprefix.server import Fault, Reply, ToolCall
from cacheprefix_openai_agents import unwrap, wrap
from tests.openai_agents.agents_driver import model_for
from tests.transparent.compare import allowed_in
from tests.transparent.harness import ApiStage, Constructs

RULES = {"openai-responses": "openai-5.6", "openai-chat": "openai-5.6"}
HANDBOOK = "The handbook. " + "Everyone keeps to these rules of the house and cites them by number. " * 120
TASK = "Compare the two proposals and say which one should be built first."


@function_tool
def look(at: str) -> str:
    """Looks something up."""
    return f"Found at {at}."


class Agents(ApiStage):
    """The SDK's own models; agents whose instructions end with a common handbook."""

    apis = RULES
    opaque = ("agents.models.", "openai.Async", "agents.tool.", "agents.tracing.")

    def __init__(self, mode, provider):
        super().__init__(mode, provider)
        self.made = []

    def new_session(self, **options):
        return Session(SharedPrefix(system=HANDBOOK), **options)

    async def aclose(self):
        for model in self.made:
            await model._client.close()

    def agent(self, name, **options):
        """An agent with a model of its own, as it is."""
        self.made.append(model_for(self.api, self.provider))
        return Agent(name, instructions=f"You are the {name}.\n\n{HANDBOOK}", model=self.made[-1], **options)

    def wrapped(self, first, **options):
        """As it is, or wrapped with all that it reaches."""
        return first if self.unmodified else wrap(first, self.session(), **options)


CONSTRUCTS = Constructs("openai_agents", Agents)
construct, everywhere = CONSTRUCTS.later, CONSTRUCTS.everywhere


def call(name="look", **arguments):
    """A call of a tool."""
    return Reply(tool_calls=(ToolCall(name, arguments or {"at": "x"}, id=f"call_{name}_123456"),))


def told(result):
    """What a run gave."""
    return {
        "is": type(result),
        "final": result.final_output,
        "items": result.new_items,
        "raw": result.raw_responses,
        "said": result.to_input_list(),
        "last": result.last_agent.name,
        "usage": result.context_wrapper.usage,
        "guardrails": result.input_guardrail_results,
    }


async def streamed(first, said, **options):
    """A run's events as they come, and what it gave."""
    result = Runner.run_streamed(first, said, **options)
    events = [event async for event in result.stream_events()]
    return [events, told(result)]


@everywhere
async def agent_with_tools(stage):
    """A tool loop, and a second turn in a session of the SDK's."""
    stage.script(call(), "It is so.", "And that is all.")
    agent = stage.wrapped(stage.agent("planner", tools=[look]), conversation="one")
    kept = SQLiteSession("one")
    gave = [told(await Runner.run(agent, text, session=kept)) for text in (TASK, "And now?")]
    return [gave, await kept.get_items(), agent.name, [tool.name for tool in agent.tools]]


@everywhere
async def agent_streamed(stage):
    """Events of a tool loop."""
    stage.script(call(), "It is so. " * 9)
    return await streamed(stage.wrapped(stage.agent("planner", tools=[look]), conversation="one"), TASK)


@everywhere
async def hand_offs(stage):
    """One hands over to another, streamed and not; who was not wrapped by itself is by the first."""
    stage.script(call("transfer_to_critic", reason="x"), "No.", call("transfer_to_critic", reason="x"), "No. " * 9)
    critic = stage.agent("critic", tools=[look])
    planner = stage.wrapped(stage.agent("planner", handoffs=[critic]), conversation="one")
    return [told(await Runner.run(planner, TASK)), await streamed(planner, TASK)]


@construct()
async def hand_over_to_one_without_tools(stage):
    """It may call none of the team's, which its streamed response says."""
    stage.script(call("transfer_to_critic", reason="x"), "No. " * 9)
    planner = stage.agent("planner", handoffs=[stage.agent("critic")])
    return await streamed(stage.wrapped(planner, conversation="one"), TASK)


@everywhere
async def agent_as_a_tool(stage):
    """Its run is another's tool."""
    stage.script(call("ask_critic", input="Is it good?"), "No.", "So it is not.")
    critic = stage.agent("critic")
    tool = critic.as_tool("ask_critic", "Asks the critic.")
    return told(await Runner.run(stage.wrapped(stage.agent("planner", tools=[tool]), conversation="one"), TASK))


class Verdict(BaseModel):
    """A form of answer."""

    built: str


@everywhere
async def answer_in_a_form(stage):
    """Parsed into a model."""
    stage.script('{"built": "the first"}')
    agent = stage.wrapped(stage.agent("planner", output_type=Verdict), conversation="one")
    return told(await Runner.run(agent, TASK))


@everywhere
async def errors(stage):
    """The SDK's own, and the agent goes on."""
    stage.script(Reply(fault=Fault(status=400, message="no")), call("unknown"), "Yes.")
    agent = stage.wrapped(stage.agent("planner", tools=[look]), conversation="one")
    gave = []
    for _ in range(3):
        try:
            gave.append(told(await Runner.run(agent, TASK)))
        except Exception as error:  # noqa: PERF203 - of several packages
            gave.append([type(error), str(error)])
    return gave


@everywhere
async def requests_that_ask_nothing(stage):
    """Without an item, and with nothing or white space to ask: what a provider refuses, it refuses."""
    stage.script(lambda _: Reply("Yes."))
    gave = []
    for number, said in enumerate(([], "", " \n", [{"role": "user", "content": " "}], "Go on.")):
        agent = stage.wrapped(stage.agent("planner"), conversation=str(number))
        for ask in (Runner.run, streamed):
            try:
                answer = await ask(agent, said)
                gave.append(answer if ask is streamed else told(answer))
            except Exception as error:  # noqa: PERF203 - of several packages
                gave.append([type(error), str(error)])
    return gave


@construct()
async def refused_for_one_message(stage):
    """A result that answers no call, behind what a long role was answered: the provider names its place."""
    stage.script("So it is.")
    agent = stage.agent("planner")
    agent.instructions = f"You plan. {'You plan what others build, and say why. ' * 60}\n\n{HANDBOOK}"
    stage.wrapped(agent, conversation="one")
    first = await Runner.run(agent, TASK)
    stray = {"type": "function_call_output", "call_id": "none", "output": "x"}
    with pytest.raises(openai.BadRequestError) as refused:
        await Runner.run(agent, [*first.to_input_list(), stray])
    return [told(first), refused.type, str(refused.value)]


@construct()
async def guardrail(stage):
    """It stops a run, or lets it pass."""

    async def short(context, agent, said):
        return GuardrailFunctionOutput(output_info="seen", tripwire_triggered="stop" in str(said))

    stage.script("Yes.", "Never read.")
    agent = stage.agent("planner", input_guardrails=[InputGuardrail(guardrail_function=short)])
    stage.wrapped(agent, conversation="one")
    gave = [told(await Runner.run(agent, TASK))]
    try:
        await Runner.run(agent, "stop")
    except InputGuardrailTripwireTriggered as error:
        gave.append([type(error), error.guardrail_result.output.output_info])
    return gave


class Noting(RunHooks):
    """What hooks of a run are told."""

    def __init__(self):
        self.seen = []

    async def on_agent_start(self, context, agent):
        self.seen.append(["starts", agent.name])

    async def on_llm_start(self, context, agent, system_prompt, input_items):
        self.seen.append(["asks", agent.name, system_prompt, list(input_items)])

    async def on_llm_end(self, context, agent, response):
        self.seen.append(["answered", agent.name, response])

    async def on_handoff(self, context, from_agent, to_agent):
        self.seen.append(["hands over", from_agent.name, to_agent.name])

    async def on_tool_start(self, context, agent, tool):
        self.seen.append(["calls", agent.name, tool.name])

    async def on_tool_end(self, context, agent, tool, result):
        self.seen.append(["called", agent.name, tool.name, result])


class Own(AgentHooks):
    """What hooks of an agent are told."""

    def __init__(self):
        self.seen = []

    async def on_start(self, context, agent):
        self.seen.append(["starts", agent.name])

    async def on_end(self, context, agent, output):
        self.seen.append(["ends", agent.name, output])


@everywhere
async def hooks(stage):
    """Of the run and of an agent: they see the application's own request."""
    stage.script(call(), call("transfer_to_critic", reason="x"), "No.")
    of_run, own = Noting(), Own()
    critic = stage.agent("critic", hooks=own)
    planner = stage.wrapped(stage.agent("planner", tools=[look], handoffs=[critic]), conversation="one")
    result = await Runner.run(planner, TASK, hooks=of_run)
    return [told(result), of_run.seen, own.seen]


class Spans(TracingProcessor):
    """Spans as they end."""

    def __init__(self):
        self.seen = []

    def on_trace_start(self, trace):
        self.seen.append(["trace", trace.name])

    def on_trace_end(self, trace):
        """Nothing more is known."""

    def on_span_start(self, span):
        """It is told at its end."""

    def on_span_end(self, span):
        data = span.span_data
        self.seen.append([type(data), data.export(), span.error])

    def shutdown(self):
        """Nothing is open."""

    def force_flush(self):
        """Nothing waits."""


@everywhere
async def spans(stage):
    """What the SDK's tracing is told, with all data."""
    stage.script(call(), "It is so.")
    noted = Spans()
    agents.set_trace_processors([noted])
    agents.set_tracing_disabled(False)
    try:
        agent = stage.wrapped(stage.agent("planner", tools=[look]))
        given = RunConfig(group_id="one", workflow_name="flow", trace_include_sensitive_data=True)
        result = await Runner.run(agent, TASK, run_config=given)
    finally:
        agents.set_tracing_disabled(True)
        agents.set_trace_processors([])
    return [told(result), noted.seen]


class Provider(ModelProvider):
    """Knows one model by every name."""

    def __init__(self, model):
        self.model = model

    def get_model(self, model_name):
        return self.model


@construct()
async def agents_whose_model_is_a_name(stage):
    """Copies, clones and pickles of them, and what the SDK takes for granted by the name."""
    stage.script("Yes.", "It is so.", "And that is all.", "Good.")
    provider, out = Provider(model_for(stage.api, stage.provider)), []
    stage.made.append(provider.model)
    for name in ("gpt-5.6", None):
        agent = Agent("planner", instructions=f"You are the planner.\n\n{HANDBOOK}", model=name)
        if not stage.unmodified:
            wrap(agent, stage.session(), provider=provider)
        alike = [copy.deepcopy(agent), copy.copy(agent), dataclasses.replace(agent)]
        clone = agent.clone(instructions=f"You are another.\n\n{HANDBOOK}")
        out += [
            [one == agent for one in alike],
            [agent.model_settings, clone.model_settings, pickle.loads(pickle.dumps(agent)).model],
            [sorted(dataclasses.asdict(agent)), json.dumps(agent.model or "gpt-5.6")],
        ]
        given = RunConfig(model_provider=provider)
        out += [(await Runner.run(one, TASK, run_config=given)).final_output for one in (clone, alike[0])]
    return out


@construct(forks=False)
async def runs_that_name_another_model(stage):
    """The SDK sends the settings that it takes for granted for an agent's model to no other one."""
    stage.script("Yes.", "No.")
    provider = Provider(model_for(stage.api, stage.provider))
    provider.model.model = "gpt-4.1"
    stage.made.append(provider.model)
    agent = Agent("planner", instructions=f"You are the planner.\n\n{HANDBOOK}", model="gpt-5.6")
    if not stage.unmodified:
        wrap(agent, stage.session(), provider=provider)
    run = await Runner.run(agent, TASK, run_config=RunConfig(model="gpt-4.1", model_provider=provider))
    return [run.final_output, [one.json for one in stage.provider.requests]]


@construct()
async def agent_that_is_unwrapped(stage):
    """It is the very one that it was, and so is its model."""
    stage.script("Yes.")
    agent = stage.agent("planner")
    own = agent.model
    stage.wrapped(agent, conversation="one")
    kind = [type(agent.model).__name__, type(agent.model).__module__, isinstance(agent.model, type(own))]
    first = told(await Runner.run(agent, TASK))
    again = agent if stage.unmodified else unwrap(agent)
    return [kind, first, again is agent, agent.model is own, json.dumps(sorted(vars(agent)))]


@pytest.fixture(scope="module", autouse=True)
def left_behind():
    """Connections of loops that are gone end here; the harness keeps them from the garbage collector."""
    agents.set_tracing_disabled(True)  # its exporter asks the internet
    yield
    gc.unfreeze()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.parametrize("mode", ["observed", "forked"])
@pytest.mark.parametrize("name", CONSTRUCTS.names)
def test_the_application_sees_the_same(name, mode):
    """Without us, observed and forked, but for what is listed."""
    CONSTRUCTS.check(name, mode)


@pytest.mark.parametrize("entry", allowed_in("openai_agents"), ids=str)
def test_each_listed_difference_is_there(entry):
    """What no construct shows any more is taken out of the list."""
    CONSTRUCTS.check_used(entry)
