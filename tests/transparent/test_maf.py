"""Microsoft Agent Framework: agents and workflows, unmodified, observed and forked."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("cacheprefix_maf", reason="this adapter is tested in its own environment (make test-maf)")

from agent_framework import Agent, ChatMiddleware, FunctionMiddleware, Message
from agent_framework.orchestrations import ConcurrentBuilder, GroupChatBuilder, HandoffBuilder, SequentialBuilder
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
        self.seen.append([before, sorted(context.options or {}), type(context.client), told(context.result)])


class Tools(FunctionMiddleware):
    """What a middleware of the application sees of a tool's call."""

    def __init__(self):
        self.seen = []

    async def process(self, context, call_next):
        await call_next()
        self.seen.append([context.function.name, str(context.arguments), str(context.result), sorted(context.metadata)])


@construct()
async def middleware_of_the_applications(stage):
    """It sees the application's own request, and the answer."""
    stage.script(call(), "It is so.")
    chat, tools = Noting(), Tools()
    agent = stage.agent(stage.client(), "planner", tools=[look], middleware=[chat, tools])
    stage.wrapped(agent, conversation="one")
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
