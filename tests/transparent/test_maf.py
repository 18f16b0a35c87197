"""Microsoft Agent Framework: agents and workflows, unmodified, observed and forked."""

from __future__ import annotations

import copy
import json
import logging

import pytest

pytest.importorskip("cacheprefix_maf", reason="this adapter is tested in its own environment (make test-maf)")

from agent_framework import (
    Agent,
    AgentExecutor,
    AgentExecutorRequest,
    AgentResponse,
    ChatMiddleware,
    Content,
    FunctionMiddleware,
    InMemoryCheckpointStorage,
    Message,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
)
from agent_framework.exceptions import ChatClientException
from agent_framework.orchestrations import (
    ConcurrentBuilder,
    GroupChatBuilder,
    HandoffBuilder,
    MagenticBuilder,
    SequentialBuilder,
)
from pydantic import BaseModel

from cacheprefix import Session, SharedPrefix
from cacheprefix.server import Fault, Reply, ToolCall
from cacheprefix_maf import unwrap, wrap
from tests.maf.maf_driver import RULES, close, make_client
from tests.transparent.compare import allowed_in
from tests.transparent.harness import ApiStage, Constructs

HANDBOOK = "The handbook. " + "Everyone keeps to these rules of the house and cites them by number. " * 120
TASK = "The task. " + "Compare the two proposals and say which one should be built first. " * 40
NAMES = ("planner", "critic", "writer")


def look(query: str) -> str:
    """Looks something up."""
    return f"Found for {query}. " * 9


def judge(query: str) -> str:
    """Judges something."""
    return f"Judged {query}."


class Agents(ApiStage):
    """The framework's own clients; agents whose instructions end with a common handbook."""

    apis = RULES
    opaque = ("agent_framework.openai", "agent_framework.anthropic", "openai.Async", "anthropic.Async")

    def __init__(self, mode, provider):
        super().__init__(mode, provider)
        self.made = []

    def new_session(self, **options):
        return Session(SharedPrefix(system=HANDBOOK), **options)

    async def aclose(self):
        for client in self.made:
            await close(client)

    def client(self):
        """A client of its own."""
        self.made.append(make_client(self.api, self.provider))
        return self.made[-1]

    def agent(self, client, name, **options):
        """An agent as it is."""
        text = f"You are the {name}.\n\n{HANDBOOK}"
        if self.api == "openai-responses":
            options = {"default_options": {"store": False}, **options}
        return Agent(client, text, name=name, description=f"The {name}.", **options)

    def wrapped(self, target, **options):
        """As it is, or wrapped."""
        return target if self.unmodified else wrap(target, self.session(), **options)


CONSTRUCTS = Constructs("maf", Agents)


construct, everywhere = CONSTRUCTS.later, CONSTRUCTS.everywhere


def call(name="look", **arguments):
    """A call of a tool."""
    return Reply(tool_calls=(ToolCall(name, arguments or {"query": "x"}, id=f"call_{name}_123456"),))


def held(update):
    """All that an answer or a piece of one holds; whether two are of one second, the clock decides."""
    return {name: value if name != "created_at" else type(value) for name, value in update.to_dict().items()}


def told(response):
    """An answer, and what it is asked for by name."""
    return [held(response), response.text, type(response), type(response.usage_details)]


async def streamed(stream):
    """Updates as they come, and the answer behind them."""
    updates = [held(update) async for update in stream]
    return [updates, told(await stream.get_final_response())]


@everywhere
async def agent_with_tools(stage):
    """A tool loop, and a second turn in the same session."""
    stage.script(call(), "It is so.", "And that is all.")
    agent = stage.wrapped(stage.agent(stage.client(), "planner", tools=[look]), conversation="one")
    session = agent.create_session()
    gave = [told(await agent.run(TASK, session=session)), told(await agent.run("And now?", session=session))]
    return [gave, agent.name, agent.description, sorted(agent.default_options)]


@everywhere
async def agent_streamed(stage):
    """Updates of a tool loop."""
    stage.script(call(), "It is so. " * 9)
    agent = stage.wrapped(stage.agent(stage.client(), "planner", tools=[look]), conversation="one")
    return await streamed(agent.run(TASK, stream=True))


@construct()
async def refused_for_one_message(stage):
    """A result that answers no call, behind what a long role was answered: the provider names its place."""
    stage.script("So it is.")
    agent = stage.agent(stage.client(), "planner")
    role = f"You plan. {'You plan what others build, and say why. ' * 240}\n\n{HANDBOOK}"
    agent.default_options["instructions"] = role
    agent, _ = stage.wrapped([agent, stage.agent(stage.client(), "critic")], conversation="one")
    session = agent.create_session()
    first = await agent.run(TASK, session=session)
    stray = Message("tool", [Content.from_function_result("none", result="x")])
    with pytest.raises(ChatClientException) as refused:
        await agent.run([stray], session=session)
    return [told(first), type(refused.value), str(refused.value)]


@everywhere
async def agent_that_is_refused(stage):
    """The framework's own error, and the agent goes on."""
    stage.script(Reply(fault=Fault(status=400, message="no")), "Yes.")
    agent = stage.wrapped(stage.agent(stage.client(), "planner"), conversation="one")
    try:
        first = told(await agent.run(TASK))
    except Exception as error:
        first = [type(error), str(error)]
    return [first, told(await agent.run(TASK))]


@construct(api="anthropic")
async def what_the_framework_logs(stage):
    """An option that Claude takes no more: one line a request."""
    stage.script("One.", "Two.")
    client, lines, log = stage.client(), logging.Handler(), logging.getLogger("agent_framework")
    said = []
    lines.emit = lambda record: said.append([record.name, record.levelname, record.getMessage()])
    agents = [stage.agent(client, name, default_options={"temperature": 0.5}) for name in NAMES[:2]]
    stage.wrapped(agents, conversation="one")
    log.addHandler(lines)
    try:
        return [[told(await agent.run(TASK)) for agent in agents], said]
    finally:
        log.removeHandler(lines)


@everywhere
async def requests_that_ask_nothing(stage):
    """Without a message, and with nothing or white space to ask: what a provider refuses, it refuses."""
    stage.script(lambda _: Reply("Yes."))
    gave, client = [], stage.client()
    for number, said in enumerate((None, [], "", " \n", [Message("user", ["", " "])], "Go on.")):
        agent = stage.wrapped(stage.agent(client, "planner"), conversation=str(number))
        for stream in (False, True):
            try:
                answer = agent.run(said, stream=stream)
                gave.append(await streamed(answer) if stream else told(await answer))
            except Exception as error:  # noqa: PERF203 - some of them
                gave.append([type(error), str(error)])
    return gave


@construct(api="openai-responses")
async def answers_as_the_sdk_gave_them(stage):
    """Of agents with a tool of their own each."""
    stage.script("One.", call("judge"), "Two.")
    client = stage.client()
    agents = [stage.agent(client, "planner", tools=[look]), stage.agent(client, "critic", tools=[judge])]
    stage.wrapped(agents, conversation="one")
    return [(await agent.run(TASK)).raw_representation for agent in agents]


class Verdict(BaseModel):
    """A form of answer."""

    built: str


@construct()
async def structured_answer(stage):
    """The answer is parsed into a model."""
    stage.script('{"built": "the first"}')
    agent = stage.wrapped(stage.agent(stage.client(), "planner"), conversation="one")
    answer = await agent.run(TASK, options={"response_format": Verdict})
    return [told(answer), answer.value]


class Noting(ChatMiddleware):
    """What a middleware of the application sees of a request and its answer."""

    def __init__(self):
        self.seen = []

    async def process(self, context, call_next):
        before = [[message.role, message.text] for message in context.messages]
        await call_next()
        options = context.options or {}
        has = [[tool.name, type(tool)] for tool in options.get("tools") or ()]
        self.seen.append([before, sorted(options), has, type(context.client), told(context.result)])


class Tools(FunctionMiddleware):
    """What a middleware of the application sees of a tool's call."""

    def __init__(self):
        self.seen = []

    async def process(self, context, call_next):
        await call_next()
        self.seen.append([context.function.name, str(context.arguments), str(context.result), sorted(context.metadata)])


@construct()
async def middleware_of_the_applications(stage):
    """It sees the application's own request, and the answer; another agent has a tool of its own."""
    stage.script(call(), "It is so.")
    chat, tools, client = Noting(), Tools(), stage.client()
    agent = stage.agent(client, "planner", tools=[look], middleware=[chat, tools])
    stage.wrapped([agent, stage.agent(client, "critic", tools=[judge])], conversation="one")
    return [told(await agent.run(TASK)), chat.seen, tools.seen]


def events_of(result):
    """A workflow's events, by kind and what they carry."""
    return [[type(event), getattr(event, "type", None), getattr(event, "executor_id", None)] for event in result]


def outputs_of(result):
    """What a workflow gave."""
    return [held(one) if hasattr(one, "to_dict") else str(one) for one in _flat(result.get_outputs())]


def _flat(values):
    for value in values:
        if isinstance(value, list):
            yield from _flat(value)
        else:
            yield value


@everywhere
async def sequence(stage):
    """One after the other."""
    stage.script("Planned.", "No.", "Written.")
    client = stage.client()
    workflow = stage.wrapped(SequentialBuilder(participants=[stage.agent(client, n) for n in NAMES]).build())
    result = await workflow.run(TASK)
    return [events_of(result), outputs_of(result), workflow.to_dict()]


@construct()
async def side_by_side(stage):
    """All at once; what they gave has no order."""

    def by_role(request):
        return Reply(next(f"{name} speaks." for name in NAMES if f"You are the {name}." in request.text))

    stage.script(by_role)
    client = stage.client()
    workflow = stage.wrapped(ConcurrentBuilder(participants=[stage.agent(client, n) for n in NAMES]).build())
    result = await workflow.run(TASK)
    said = sorted(str(getattr(one, "text", one)) for one in _flat(result.get_outputs()))
    return [sorted(map(str, events_of(result))), said]


@construct()
async def group_chat(stage):
    """A function chooses who speaks."""
    stage.script("Planned.", "No.", "Written.", "Better.")
    client = stage.client()
    chat = GroupChatBuilder(
        participants=[stage.agent(client, n) for n in NAMES],
        selection_func=lambda state: NAMES[state.current_round % 3],
        max_rounds=4,
    )
    result = await stage.wrapped(chat.build()).run(TASK)
    return [events_of(result), outputs_of(result)]


@construct()
async def hand_offs(stage):
    """One hands over to another."""
    stage.script(call("handoff_to_critic", context="x"), "No. TERMINATE")
    client = stage.client()
    agents = [stage.agent(client, n, require_per_service_call_history_persistence=True) for n in NAMES]
    made = HandoffBuilder(participants=agents, termination_condition=lambda said: len(said) > 2)
    workflow = stage.wrapped(made.with_start_agent(agents[0]).build())
    result = await workflow.run(TASK)
    return [events_of(result), outputs_of(result)]


def ledger(speaker, *, done=False):
    """A Magentic manager's view of the progress."""
    told = {"is_request_satisfied": done, "is_in_loop": False, "is_progress_being_made": True}
    told |= {"next_speaker": speaker, "instruction_or_question": f"Go on, {speaker}."}
    return json.dumps({name: {"reason": "r", "answer": answer} for name, answer in told.items()})


@everywhere
async def magentic(stage):
    """A manager plans, says who speaks next, and sums up."""
    rounds = (ledger("planner"), "Planned.", ledger("critic"), "No.", ledger("", done=True))
    stage.script("Facts.", "A plan.", *rounds, "So.")
    client = stage.client()
    team = [stage.agent(client, name) for name in NAMES[:2]]
    built = MagenticBuilder(participants=team, manager_agent=stage.agent(client, "manager"), max_round_count=5).build()
    result = await stage.wrapped(built).run(TASK)
    return [events_of(result), outputs_of(result), [agent.name for agent in team]]


@construct()
async def magentic_whose_plan_is_reviewed(stage):
    """It stops for a person, who lets the plan pass."""
    stage.script("Facts.", "A plan.", ledger("planner"), "Planned.", ledger("", done=True), "So.")
    client = stage.client()
    manager = stage.agent(client, "manager")
    built = MagenticBuilder(
        participants=[stage.agent(client, name) for name in NAMES[:2]], manager_agent=manager, enable_plan_review=True
    ).build()
    workflow = stage.wrapped(built)
    first = await workflow.run(TASK)
    asked = first.get_request_info_events()
    second = await workflow.run(responses={asked[0].request_id: asked[0].data.approve()})
    return [events_of(first), [type(one.data) for one in asked], events_of(second), outputs_of(second)]


@everywhere
async def workflow_as_an_agent_of_another(stage):
    """A sequence within a sequence, also streamed."""
    stage.script("Planned.", "No.", "Written.", "Again.", "Still no.", "Rewritten.")
    client = stage.client()
    inner = SequentialBuilder(participants=[stage.agent(client, name) for name in NAMES[:2]]).build()
    outer = SequentialBuilder(participants=[inner.as_agent("inner"), stage.agent(client, "writer")]).build()
    stage.wrapped(outer)
    result = await outer.run(TASK)
    pieces = [type(event) async for event in outer.run("And now?", stream=True)]
    return [events_of(result), outputs_of(result), pieces, outer.to_dict()]


@construct()
async def workflow_as_an_executor_of_another(stage):
    """A sequence is a step of another one's graph."""
    stage.script("Planned.", "No.", "Written.")
    client = stage.client()
    inner = SequentialBuilder(participants=[stage.agent(client, name) for name in NAMES[:2]]).build()
    step = WorkflowExecutor(inner, id="step")
    last = AgentExecutor(stage.agent(client, "writer"))

    @executor(id="between")
    async def between(said: AgentResponse, context: WorkflowContext[AgentExecutorRequest]) -> None:
        await context.send_message(AgentExecutorRequest(messages=said.messages, should_respond=True))

    made = WorkflowBuilder(start_executor=step, output_from=[last]).add_edge(step, between).add_edge(between, last)
    result = await stage.wrapped(made.build()).run(TASK)
    return [events_of(result), outputs_of(result)]


@everywhere
async def checkpoints(stage):
    """What is saved at each step, and a run that goes on from one of them in a workflow built anew."""
    stage.script("Planned.", "No.", "Written.", "Objected again.", "Written again.")
    storage = InMemoryCheckpointStorage()

    def built():
        client = stage.client()
        return SequentialBuilder(
            participants=[stage.agent(client, name) for name in NAMES], checkpoint_storage=storage
        ).build()

    result = await stage.wrapped(built()).run(TASK)
    saved = sorted(await storage.list_checkpoints(workflow_name=built().name), key=lambda one: one.iteration_count)
    at = next(one for one in saved if "Planned." in str(one.to_dict()) and "'No.'" not in str(one.to_dict()))
    again = await stage.wrapped(built()).run(checkpoint_id=at.checkpoint_id)
    kept = [[one.iteration_count, one.state, one.messages, one.metadata] for one in saved]
    return [events_of(result), outputs_of(result), kept, events_of(again), outputs_of(again)]


@construct()
async def copies_and_dumps(stage):
    """What an agent and its session are saved as, and copies."""
    stage.script("One.", "Two.", "Three.")
    agent = stage.wrapped(stage.agent(stage.client(), "planner"), conversation="one")
    session = agent.create_session()
    gave = [told(await agent.run(TASK, session=session)), session.to_dict()]
    gave.append(told(await copy.copy(agent).run("And now?", session=session)))
    unwrap(agent)
    return [*gave, agent.middleware, told(await agent.run([Message("user", ["Free."])]))]


@construct()
async def client_of_ones_own(stage):
    """What a client shows of itself, before and after it was asked, and one with a method of the application's."""
    stage.script("One.", "Two.")
    client = stage.client()
    agent = stage.wrapped(stage.agent(client, "planner"), conversation="one")
    gave, kind = [], type(client)
    own = client._inner_get_response

    def heard(**request):
        gave.append(request["stream"])
        return own(**request)

    heard.mine = "mine"
    client._inner_get_response = heard
    gave += [told(await agent.run(TASK)), type(client) is kind, sorted(vars(client)), client._inner_get_response.mine]
    del client._inner_get_response
    return [*gave, told(await agent.run("And now?")), type(copy.copy(client)) is kind, client.to_dict()]


@construct()
async def stream_left_early(stage):
    """A stream that nobody reads to its end."""
    stage.script("One. " * 60, "Two.")
    agent = stage.wrapped(stage.agent(stage.client(), "planner"), conversation="one")
    gave = []
    async for update in agent.run(TASK, stream=True):
        gave.append(held(update))
        break
    return [gave, told(await agent.run(TASK))]


@pytest.mark.parametrize("mode", ["observed", "forked"])
@pytest.mark.parametrize("name", CONSTRUCTS.names)
def test_the_application_sees_the_same(name, mode):
    """Without us, observed and forked, but for what is listed."""
    CONSTRUCTS.check(name, mode)


@pytest.mark.parametrize("entry", allowed_in("maf"), ids=str)
def test_each_listed_difference_is_there(entry):
    """What no construct shows any more is taken out of the list."""
    CONSTRUCTS.check_used(entry)
