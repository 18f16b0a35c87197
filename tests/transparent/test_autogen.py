"""AutoGen: agents, teams and clients, unmodified, observed and forked."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import io
import json
import logging
import pickle
import re
import socket
import sys
from pathlib import Path

import pytest

pytest.importorskip("autogen_agentchat", reason="AutoGen's tests run in its own environment (make test-autogen)")

import openai
import tiktoken
from autogen_agentchat.agents import (
    AssistantAgent,
    BaseChatAgent,
    MessageFilterAgent,
    MessageFilterConfig,
    PerSourceFilter,
    SocietyOfMindAgent,
    UserProxyAgent,
)
from autogen_agentchat.base import Response, Team
from autogen_agentchat.conditions import (
    ExternalTermination,
    MaxMessageTermination,
    TextMentionTermination,
    TokenUsageTermination,
)
from autogen_agentchat.messages import MultiModalMessage, TextMessage
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_agentchat.ui import Console
from autogen_core import (
    EVENT_LOGGER_NAME,
    AgentId,
    CancellationToken,
    Image,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    message_handler,
    try_get_known_serializers_for_type,
)
from autogen_core.memory import ListMemory, MemoryContent, MemoryMimeType
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    ModelFamily,
    ModelInfo,
    RequestUsage,
    SystemMessage,
    UserMessage,
)
from autogen_core.tools import FunctionTool
from autogen_ext.models.anthropic import AnthropicChatCompletionClient
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_ext.models.replay import ReplayChatCompletionClient
from autogen_ext.runtimes.grpc import GrpcWorkerAgentRuntime, GrpcWorkerAgentRuntimeHost
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams
from PIL import Image as Pictures
from pydantic import BaseModel

from cacheprefix import Session, SharedPrefix
from cacheprefix.server import Fault, Reply, ToolCall
from cacheprefix_autogen import unwrap, wrap
from cacheprefix_autogen.settings import forget_sessions
from tests.transparent.compare import allowed_in
from tests.transparent.harness import Constructs, Stage

HANDBOOK = "The handbook. " + "Everyone keeps to these rules of the house and cites them by number. " * 120
TASK = "The task. " + "Compare the two proposals and say which one should be built first. " * 60
NAMES = ("planner", "critic", "writer")
MODELS = {"openai": "gpt-4o-2024-08-06", "anthropic": "claude-sonnet-4-5-20250929"}
BOTH = tuple(MODELS)
MCP_SERVER = Path(__file__).parents[1] / "autogen" / "mcp_tools.py"


class Log(logging.Handler):
    """What AutoGen writes to its event log, as data."""

    def __init__(self):
        super().__init__()
        self.events, self.passed = [], []

    def emit(self, record):
        event = json.loads(record.getMessage())
        # What the runtime passes round, it passes round in an order that the network decides.
        order = self.passed if event["type"].startswith("Message") else self.events
        order.append(event)

    def seen(self, *, ordered=True):
        """Calls of models and tools in their order, and what was passed round without it."""
        passed = sorted(f"{one['type']} {one.get('kind')} {one.get('delivery_stage')}" for one in self.passed)
        return [self.events if ordered else sorted(self.events, key=lambda one: str(one["agent_id"])), passed]


class Characters:
    """An encoding of four characters a token."""

    def encode(self, text, **_):
        return list(range(len(text) // 4))


class Teams(Stage):
    """AutoGen's own clients; agents whose system messages end with a common handbook."""

    rules = "openai"

    def __init__(self, mode, provider):
        super().__init__(mode, provider)
        self.made = []
        self.log = Log()
        logger = logging.getLogger(EVENT_LOGGER_NAME)
        logger.setLevel(logging.INFO)
        logger.addHandler(self.log)
        # AutoGen's clients count by encodings that tiktoken fetches from the net.
        self._encodings = pytest.MonkeyPatch()
        for name in ("encoding_for_model", "get_encoding"):
            self._encodings.setattr(tiktoken, name, lambda _: Characters())

    def client(self, api="openai", **options):
        """A client of its own."""
        openai = api == "openai"
        info = ModelInfo(
            vision=True,
            function_calling=True,
            json_output=True,
            family=ModelFamily.GPT_4O if openai else ModelFamily.CLAUDE_4_SONNET,
            structured_output=openai,
            multiple_system_messages=openai,
        )
        kind = OpenAIChatCompletionClient if openai else AnthropicChatCompletionClient
        url = self.provider.openai_base_url if openai else self.provider.anthropic_base_url
        made = kind(model=MODELS[api], base_url=url, api_key="any", model_info=info, max_retries=0, **options)
        self.made.append(made)
        return made

    def agent(self, name, client, **options):
        """An agent as it is."""
        text = options.pop("system_message", f"You are the {name}. Mind the duty of a {name}.\n\n{HANDBOOK}")
        return AssistantAgent(name, client, system_message=text, description=f"The {name}.", **options)

    def agents(self, client, names=NAMES, **options):
        """One of each."""
        return [self.agent(name, client, **options) for name in names]

    def wrapped(self, target, session="", **options):
        """As it is, or wrapped."""
        return target if self.unmodified else wrap(target, self.session(session), **options)

    def new_session(self, **options):
        if self._declared:
            options = {"prefix": SharedPrefix(system=HANDBOOK), **options}
        return Session(**options)

    _declared = False

    def declared(self):
        """Sessions have the handbook from the beginning, so that agents share that were not wrapped together."""
        self._declared = True

    def close(self):
        logging.getLogger(EVENT_LOGGER_NAME).removeHandler(self.log)
        self._encodings.undo()
        forget_sessions()


CONSTRUCTS = Constructs("autogen", Teams)


def construct(name=None, *, ordered=True, **options):
    """Registers a coroutine function of a stage; what AutoGen logged is part of what is seen."""

    def register(run):
        @CONSTRUCTS.add(name or run.__name__, **options)
        def within(stage):
            async def main():
                try:
                    return {"gave": await asyncio.wait_for(run(stage), 30), "log": stage.log.seen(ordered=ordered)}
                finally:
                    for client in stage.made:
                        await client.close()

            return asyncio.run(main())

        return run

    return register


def everywhere(run):
    """Registers a construct for both providers, streamed and not: it takes ``api`` and ``stream``."""
    for api in BOTH:
        for stream in (False, True):

            def one(stage, api=api, stream=stream):
                return run(stage, api, stream)

            construct(f"{run.__name__}_{api}{'_streamed' if stream else ''}", rules=api)(one)
    return run


async def outcome(target, task=TASK, **options):
    """All that one run shows: events in order, then what can be asked of the team or agent."""
    events = []
    error = None
    try:
        async for event in target.run_stream(task=task, **options):
            events.append(event)  # noqa: PERF401 - those before an error count
    except Exception as raised:
        error = raised
    return {"events": events, "error": error}


async def asked(target, client):
    """What an application can ask afterwards."""
    agents = list(getattr(target, "_participants", [target]))
    return {
        "component": _dumped(target),
        "contexts": [
            await agent.model_context.get_messages() if hasattr(agent, "model_context") else None for agent in agents
        ],
        "total": client.total_usage(),
        "actual": client.actual_usage(),
        "kinds": [type(agent) for agent in agents],
        "names": [(agent.name, agent.description) for agent in agents],
    }


def _dumped(target):
    try:
        return target.dump_component().model_dump()
    except NotImplementedError as error:
        return error


async def saved(target):
    """The state that an application would store."""
    return json.loads(json.dumps(await target.save_state()))


def look(query: str) -> str:
    """Looks something up."""
    return f"Found for {query}: " + "a passage of text. " * 20


def fails(query: str) -> str:
    """Looks something up in vain."""
    raise ValueError(f"nothing about {query}")


def call(name="look", **arguments):
    """A call of a tool whose id is always the same."""
    return Reply(tool_calls=(ToolCall(name, arguments or {"query": "x"}, id=f"call_{name}_123456"),))


# ---------------------------------------------------------------------------------------------------- agents


@everywhere
async def agent_with_tools(stage, api, stream):
    """One agent, two tasks, a tool loop."""
    stage.declared()
    stage.script(call(), Reply("It is so."), Reply("And that is all."))
    client = stage.client(api)
    agent = stage.wrapped(
        stage.agent("planner", client, tools=[look], max_tool_iterations=3, model_client_stream=stream)
    )
    first, second = await outcome(agent), await outcome(agent, "And now?")
    return [first, second, await asked(agent, client)]


@everywhere
async def agent_reflecting(stage, api, stream):
    """AutoGen leaves the tools out where it reflects on their results."""
    stage.declared()
    stage.script(call(), Reply("It is so."), call("fails"), Reply("There is nothing."))
    client = stage.client(api)
    agent = stage.wrapped(
        stage.agent("planner", client, tools=[look, fails], reflect_on_tool_use=True, model_client_stream=stream)
    )
    return [await outcome(agent), await outcome(agent, "And now?"), await asked(agent, client)]


@construct()
async def agent_with_structured_output(stage):
    """The answer is parsed into a model."""
    stage.declared()

    class Verdict(BaseModel):
        built: str

    stage.script(Reply('{"built": "the first"}'))
    client = stage.client()
    agent = stage.wrapped(stage.agent("planner", client, output_content_type=Verdict))
    return [await outcome(agent)]


@construct()
async def agent_with_memory(stage):
    """Memory is asked once a turn, and said in an event."""
    stage.declared()
    memory = ListMemory()
    await memory.add(MemoryContent(content="The user likes short answers.", mime_type=MemoryMimeType.TEXT))
    stage.script(call(), Reply("Short."))
    client = stage.client()
    agent = stage.wrapped(stage.agent("planner", client, memory=[memory], tools=[look], max_tool_iterations=2))
    return [await outcome(agent), await asked(agent, client)]


@construct(rules="anthropic")
async def memory_that_a_client_refuses(stage):
    """AutoGen says a memory in a system message behind others, which its client for Anthropic takes nowhere."""
    stage.declared()
    memory = ListMemory()
    await memory.add(MemoryContent(content="The user likes short answers.", mime_type=MemoryMimeType.TEXT))
    stage.script("Short.")
    client = stage.client("anthropic")
    agent = stage.wrapped(stage.agent("planner", client, memory=[memory]))
    return await outcome(agent)


@everywhere
async def agent_whose_provider_refuses(stage, api, stream):
    """The error of the SDK reaches the application, and the agent goes on."""
    stage.declared()
    stage.script(Reply(fault=Fault(status=400, message="no")), Reply("Yes."))
    client = stage.client(api)
    agent = stage.wrapped(stage.agent("planner", client, model_client_stream=stream))
    return [await outcome(agent), await outcome(agent, "Again."), await asked(agent, client)]


@construct()
async def agent_with_pictures(stage):
    """A message with an image in it."""
    stage.declared()
    stage.script(Reply("A square."))
    client = stage.client()
    agent = stage.wrapped(stage.agent("planner", client))
    picture = Image(Pictures.new("RGB", (2, 2)))
    task = MultiModalMessage(content=["What is this?", TASK, picture], source="alice")
    return [await outcome(agent, task), await asked(agent, client)]


@construct()
async def agent_asked_by_messages(stage):
    """``on_messages`` and ``on_messages_stream`` without a team."""
    stage.declared()
    stage.script(Reply("One."), Reply("Two."))
    agent = stage.wrapped(stage.agent("planner", stage.client()))
    token = CancellationToken()
    one = await agent.on_messages([TextMessage(content=TASK, source="alice")], token)
    streamed = agent.on_messages_stream([TextMessage(content="More.", source="bob")], token)
    return [one, [event async for event in streamed], await saved(agent)]


@construct(forks=False)
async def agent_that_is_cancelled(stage):
    """A cancelled token and a cancelled task end as they do without us."""
    stage.declared()
    stage.slow(5)
    stage.script(Reply("Late."), Reply("Late."), Reply("At last."))
    client = stage.client()
    agent = stage.wrapped(stage.agent("planner", client))
    ends = []
    token = CancellationToken()
    running = asyncio.ensure_future(agent.run(task=TASK, cancellation_token=token))
    await stage.asked(1)
    token.cancel()
    try:
        await running
    except asyncio.CancelledError as error:
        ends.append(type(error))
    running = asyncio.ensure_future(agent.run(task="Again."))
    await stage.asked(2)
    try:
        await asyncio.wait_for(running, 0)
    except asyncio.TimeoutError as error:
        ends.append(type(error))
    return ends


class Closing(AssistantAgent):
    """Says when its stream is closed."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.ends = []

    async def on_messages_stream(self, messages, cancellation_token):
        try:
            async for event in super().on_messages_stream(messages, cancellation_token):
                yield event
        finally:
            self.ends.append("closed")


@construct()
async def agent_whose_stream_is_left(stage):
    """What a subclass does at the end of its stream has happened when ``aclose`` returns."""
    stage.declared()
    stage.script(Reply("A long answer. " * 20))
    system = f"You are the planner.\n\n{HANDBOOK}"
    agent = Closing("planner", stage.client(), system_message=system, model_client_stream=True)
    agent = stage.wrapped(agent)
    events = agent.on_messages_stream([TextMessage(content=TASK, source="alice")], CancellationToken())
    first = await events.__anext__()
    await events.aclose()
    return [first, agent.ends]


@construct()
async def client_whose_stream_is_left(stage):
    """A generator of the application's client has ended when ``aclose`` returns."""
    stage.declared()
    stage.script(Reply("A long answer. " * 20))
    ends = []

    class Noting(OpenAIChatCompletionClient):
        async def create_stream(self, *given, **options):
            try:
                async for piece in super().create_stream(*given, **options):
                    yield piece
            finally:
                ends.append("closed")

    native = stage.client()
    native.__class__ = Noting
    client = stage.wrapped(native)
    pieces = client.create_stream([SystemMessage(content=HANDBOOK), UserMessage(content=TASK, source="alice")])
    first = await pieces.__anext__()
    await pieces.aclose()
    return [first, ends]


# ----------------------------------------------------------------------------------------------------- teams


@everywhere
async def round_robin(stage, api, stream):
    """Three roles with tools of their own, twice around, saved."""
    stage.script(call("plan"), Reply("Planned."), Reply("No."), Reply("Written."), Reply("Better."), Reply("Fine."))

    def plan(query: str) -> str:
        """Makes a plan."""
        return f"A plan of {query}."

    client = stage.client(api)
    options = {"model_client_stream": stream, "max_tool_iterations": 2}
    agents = [
        stage.agent("planner", client, tools=[plan], **options),
        stage.agent("critic", client, tools=[look], **options),
        stage.agent("writer", client, **options),
    ]
    team = stage.wrapped(RoundRobinGroupChat(agents, max_turns=5, emit_team_events=True))
    return [await outcome(team, TextMessage(content=TASK, source="alice")), await asked(team, client)]


@construct()
async def state_saved_and_loaded(stage):
    """A state goes into another team of the same make, which goes on; and into one that nobody wrapped."""
    stage.script(*[Reply(f"Said {n}.") for n in range(9)])
    client = stage.client()
    team = stage.wrapped(RoundRobinGroupChat(stage.agents(client), max_turns=3))
    await team.run(task=TASK)
    state = await saved(team)
    other = stage.wrapped(RoundRobinGroupChat(stage.agents(client), max_turns=3))
    await other.load_state(state)
    third = RoundRobinGroupChat(stage.agents(client), max_turns=3)
    await third.load_state(state)
    again = [await outcome(other, "And now?"), await outcome(third, "And now?")]
    return [state, await saved(stage.agent("planner", client)), again, await saved(third)]


@construct()
async def component_dumped_and_loaded(stage):
    """What was dumped loads and runs."""
    stage.script(*[Reply(f"Said {n}.") for n in range(9)])
    client = stage.client()
    team = stage.wrapped(RoundRobinGroupChat(stage.agents(client), max_turns=2))
    await team.run(task=TASK)
    config = team.dump_component().model_dump_json()
    loaded = Team.load_component(json.loads(config.replace("**********", "any")))
    for agent in loaded._participants:
        stage.made.append(agent._model_client)
    return [config, [type(agent._model_client) for agent in loaded._participants], await outcome(loaded)]


@everywhere
async def selector(stage, api, stream):
    """A model chooses who speaks; its first choice is no name."""
    stage.script(Reply("nobody"), Reply("critic"), Reply("No."), Reply("writer"), Reply("Written."))
    client = stage.client(api)
    team = SelectorGroupChat(
        stage.agents(client, model_client_stream=stream),
        client,
        max_turns=2,
        emit_team_events=True,
        model_client_streaming=stream,
    )
    return [await outcome(stage.wrapped(team)), await asked(team, client)]


@construct()
async def selector_with_functions(stage):
    """Selector and candidate functions see the thread as without us; what they give is theirs."""
    stage.script(Reply("One."), Reply("Two."), Reply("writer"), Reply("Three."))
    client = stage.client()
    seen = []

    def choose(thread):
        seen.append([type(message) for message in thread])
        return ("planner", "critic", None)[min(2, len(seen) - 1)]

    def candidates(thread):
        seen.append([message.source for message in thread])
        return ["critic", "writer"]

    team = SelectorGroupChat(stage.agents(client), client, max_turns=3, selector_func=choose, candidate_func=candidates)
    return [await outcome(stage.wrapped(team)), seen]


@construct()
async def selector_function_that_is_wrong(stage):
    """An unknown name and an error of the function end the run as they do without us."""
    ends = []
    client = stage.client()

    async def breaks(thread):
        raise LookupError("nobody is there")

    for function in (lambda thread: "nobody", lambda thread: 7, breaks):
        stage.script(Reply("One."), Reply("Two."))
        team = SelectorGroupChat(stage.agents(client), client, max_turns=2, selector_func=function)
        ends.append(await outcome(stage.wrapped(team, str(len(ends)))))
    team = stage.wrapped(RoundRobinGroupChat(stage.agents(client), max_turns=2), "last")
    return [ends, await outcome(team)]


@construct()
async def selector_with_a_context(stage):
    """A selector's own bounded context."""
    stage.script(Reply("critic"), Reply("No."), Reply("writer"), Reply("Written."), Reply("critic"), Reply("Still."))
    client = stage.client()
    context = BufferedChatCompletionContext(buffer_size=2)
    team = SelectorGroupChat(stage.agents(client), client, max_turns=3, model_context=context)
    return [await outcome(stage.wrapped(team)), await context.get_messages()]


@everywhere
async def swarm(stage, api, stream):
    """Hand-offs, with what they carry."""
    stage.script(
        call(),
        call("transfer_to_writer"),
        Reply("It is done. DONE"),
    )
    client = stage.client(api)
    options = {"model_client_stream": stream}
    agents = [
        stage.agent("planner", client, tools=[look], handoffs=["writer"], max_tool_iterations=3, **options),
        stage.agent("writer", client, handoffs=["planner"], **options),
    ]
    ends = TextMentionTermination("DONE") | MaxMessageTermination(12)
    team = stage.wrapped(Swarm(agents, termination_condition=ends))
    return [await outcome(team), await asked(team, client)]


@construct(ordered=False)
async def graph(stage):
    """One leads, two work side by side, one joins."""

    def by_role(request):
        names = [name for name in (*NAMES, "joiner") if f"You are the {name}." in request.text]
        return Reply(f"{names[-1]} speaks.")

    stage.script(by_role)
    client = stage.client()
    agents = stage.agents(client, (*NAMES, "joiner"))
    lead, one, two, join = agents
    made = DiGraphBuilder()
    for agent in agents:
        made.add_node(agent)
    made.add_edge(lead, one).add_edge(lead, two).add_edge(one, join).add_edge(two, join)
    team = stage.wrapped(GraphFlow(agents, made.build()))
    result = await team.run(task=TASK)
    told = sorted(result.messages, key=lambda message: message.source)
    return [[(type(m), m.source, m.content, m.models_usage) for m in told], result.stop_reason, _dumped(team)]


@construct()
async def magentic(stage):
    """Facts, plan, ledgers, and the agents."""
    ledger = {
        key: {"answer": answer, "reason": "so"}
        for key, answer in {
            "is_request_satisfied": False,
            "is_in_loop": False,
            "is_progress_being_made": True,
            "next_speaker": "critic",
            "instruction_or_question": "Criticise it.",
        }.items()
    }
    done = {**ledger, "is_request_satisfied": {"answer": True, "reason": "so"}}
    stage.script(
        Reply("Facts."), Reply("Plan."), Reply(json.dumps(ledger)), Reply("No."), Reply(json.dumps(done)), Reply("So.")
    )
    client = stage.client()
    team = stage.wrapped(MagenticOneGroupChat(stage.agents(client), client, max_turns=4))
    return [await outcome(team), await asked(team, client)]


@construct()
async def teams_in_teams(stage):
    """An inner team as a participant, one behind an agent, and an agent as a tool."""
    said = [Reply(text) for text in ("Inner one.", "Inner two.", "Mind one.", "Mind's sum.")]
    stage.script(*said, call("helper", task="Help."), Reply("Helped."), Reply("Done."))
    client = stage.client()
    inner = RoundRobinGroupChat(stage.agents(client, ("i_one", "i_two")), name="inner", max_turns=2)
    mind = SocietyOfMindAgent(
        "mind", RoundRobinGroupChat(stage.agents(client, ("m_one",)), name="within", max_turns=1), client
    )
    helper = AgentTool(stage.agent("helper", client))
    lead = stage.agent("lead", client, tools=[helper], max_tool_iterations=2)
    team = stage.wrapped(RoundRobinGroupChat([inner, mind, lead], max_turns=3))
    return [await outcome(team), await saved(mind)]


@construct()
async def team_as_a_tool(stage):
    """A team that another agent calls."""
    stage.declared()
    stage.script(call("pair", task="Help."), Reply("One."), Reply("Two."), Reply("Done."))
    client = stage.client()
    pair = RoundRobinGroupChat(stage.agents(client, ("one", "two")), name="pair", max_turns=2)
    tool = TeamTool(pair, name="pair", description="Two who help.")
    lead = stage.wrapped(stage.agent("lead", client, tools=[tool], max_tool_iterations=2))
    return [await outcome(lead)]


@construct()
async def filtered_agents(stage):
    """What a filter keeps from an agent."""
    stage.script(Reply("One."), Reply("Two."), Reply("Three."), Reply("Four."))
    client = stage.client()
    first, second = stage.agents(client, ("planner", "critic"))
    rules = MessageFilterConfig(per_source=[PerSourceFilter(source="planner", position="last", count=1)])
    filtered = MessageFilterAgent(name="critic", wrapped_agent=second, filter=rules)
    team = stage.wrapped(RoundRobinGroupChat([first, filtered], max_turns=4))
    return [await outcome(team), await saved(first)]


@construct()
async def termination_by_tokens(stage):
    """A condition that counts tokens adds up what messages carry."""
    stage.script(*[Reply("So many words. " * 5) for _ in range(9)])
    client = stage.client()
    stop = TokenUsageTermination(max_total_token=100_000)
    team = stage.wrapped(
        RoundRobinGroupChat(stage.agents(client), termination_condition=stop | MaxMessageTermination(6))
    )
    return [await outcome(team), stop._total_token_count > 0]


@construct()
async def team_controlled_from_outside(stage):
    """Stopped, reset, and run again."""
    stage.script(*[Reply(f"Said {n}.") for n in range(9)])
    client = stage.client()
    stop = ExternalTermination()
    team = stage.wrapped(RoundRobinGroupChat(stage.agents(client), max_turns=3, termination_condition=stop))
    first = await outcome(team)
    stop.set()
    second = await outcome(team, "Stopped.")
    await team.reset()
    return [first, second, await outcome(team), await asked(team, client)]


@construct()
async def team_on_a_runtime_of_the_applications(stage):
    """The application starts and stops the runtime, and pauses the team."""
    stage.script(*[Reply(f"Said {n}.") for n in range(9)])
    client = stage.client()
    runtime = SingleThreadedAgentRuntime()
    runtime.start()
    team = stage.wrapped(RoundRobinGroupChat(stage.agents(client), max_turns=3, runtime=runtime))
    seen = [await outcome(team)]
    await team.pause()
    await team.resume()
    seen.append(await outcome(team))
    await runtime.stop()
    return seen


@construct()
async def team_with_agents_of_other_kinds(stage):
    """A user's proxy and an agent without a model, among others."""

    class Counting(BaseChatAgent):
        produced_message_types = (TextMessage,)

        async def on_messages(self, messages, cancellation_token):
            said = [(message.source, message.to_text()[:40]) for message in messages]
            return Response(chat_message=TextMessage(content=json.dumps(said), source=self.name))

        async def on_reset(self, cancellation_token):
            pass

    stage.script(Reply("One."), Reply("Two."))
    client = stage.client()
    proxy = UserProxyAgent("human", input_func=lambda prompt: f"I say this to {prompt!r}.")
    planner, critic = stage.agents(client, ("planner", "critic"))
    team = stage.wrapped(RoundRobinGroupChat([planner, proxy, Counting("counter", "Counts."), critic], max_turns=4))
    return [await outcome(team)]


@construct()
async def team_whose_agent_fails(stage):
    """An error of one agent ends the run; the team can be reset and run."""
    stage.script(Reply("One."), Reply(fault=Fault(status=400, message="no")), *[Reply("Then.")] * 3)
    client = stage.client()
    team = stage.wrapped(RoundRobinGroupChat(stage.agents(client), max_turns=3))
    first = await outcome(team)
    await team.reset()
    told = str(first["error"]).split("Traceback")[0]
    return [type(first["error"]), told, first["events"], await outcome(team)]


# -------------------------------------------------------------------------------------------------- copies


@construct()
async def copies_of_an_agent(stage):
    """A copy talks for itself; the original does not hear of it."""
    stage.declared()
    stage.script(*[Reply(f"Said {n}.") for n in range(9)])
    client = stage.client()
    agent = stage.wrapped(stage.agent("planner", client))
    await agent.run(task=TASK)
    deep, shallow = copy.deepcopy(agent), copy.copy(agent)
    stage.made.append(deep._model_client)
    to_deep = await outcome(deep, "To the deep copy.")
    told = [await one.model_context.get_messages() for one in (agent, deep, shallow)]
    to_shallow = await outcome(shallow, "To the shallow copy.")
    both = [await one.model_context.get_messages() for one in (agent, deep, shallow)]
    to_all = await outcome(agent, "To the original.")
    return [to_deep, told, to_shallow, both, to_all, type(deep), type(shallow), await saved(deep)]


@construct()
async def copies_of_a_team(stage):
    """A deep copy of a team that has not run."""
    stage.script(*[Reply(f"Said {n}.") for n in range(9)])
    client = stage.client()
    team = stage.wrapped(RoundRobinGroupChat(stage.agents(client), max_turns=2))
    ends = []
    try:
        other = copy.deepcopy(team)
        stage.made += [agent._model_client for agent in other._participants]
        ends.append(await outcome(other))
    except TypeError as error:
        ends.append(error)
    ends.append([await agent.model_context.get_messages() for agent in team._participants])
    ends.append(await outcome(team))
    return ends


@construct()
async def pickles_of_an_agent(stage):
    """An agent that can be pickled without us, can be."""
    stage.declared()
    stage.script(*[Reply(f"Said {n}.") for n in range(9)])
    agent = stage.wrapped(stage.agent("planner", stage.client()))
    await agent.run(task=TASK)
    try:
        other = pickle.loads(pickle.dumps(agent))
    except Exception as error:
        return [type(error), str(error)]
    stage.made.append(other._model_client)
    return [await outcome(other, "To the copy."), await agent.model_context.get_messages()]


# ------------------------------------------------------------------------------------------------- clients


@everywhere
async def client_by_itself(stage, api, stream):
    """A client without an agent: results, totals, counts, and what it is asked about itself."""
    stage.declared()
    stage.script(Reply("One."), call(), Reply('{"a": 1}'), Reply("Four."))
    native = stage.client(api)
    client = stage.wrapped(native)
    tool = FunctionTool(look, description="Looks something up.")
    messages = [
        SystemMessage(content=f"Be short.\n\n{HANDBOOK}"),
        UserMessage(content=TASK, source="alice"),
    ]
    told = [
        client.count_tokens(messages, tools=[tool]),
        client.remaining_tokens(messages),
        client.model_info,
        client.capabilities,
    ]

    async def ask(**options):
        if not stream:
            return await client.create(messages, **options)
        return [piece async for piece in client.create_stream(messages, **options)]

    told += [await ask(), await ask(tools=[tool])]
    told += [await ask(extra_create_args={"temperature": 0.2}), await ask(tools=[tool], tool_choice="none")]
    return [*told, client.total_usage(), client.actual_usage(), native.total_usage()]


@construct()
async def refused_for_one_message(stage):
    """A result that answers no call, behind what a long role was answered: the provider names its place."""
    stage.declared()
    stage.script("So it is.")
    client = stage.wrapped(stage.client())
    role = f"You plan. {'You plan what others build, and say why. ' * 60}\n\n{HANDBOOK}"
    first = [SystemMessage(content=role), UserMessage(content=TASK, source="alice")]
    answer = await client.create(first)
    stray = FunctionExecutionResult(content="x", call_id="none", name="look", is_error=False)
    said = [AssistantMessage(content="So it is.", source="planner"), FunctionExecutionResultMessage(content=[stray])]
    with pytest.raises(openai.BadRequestError) as refused:
        await client.create([*first, *said])
    return [answer, str(refused.value)]


class Own(ChatCompletionClient):
    """An application's own client, made before ``tool_choice`` was an argument."""

    component_type = "model"

    def __init__(self):
        self.asked = []

    async def create(self, messages, *, tools=(), json_output=None, extra_create_args=None, cancellation_token=None):
        self.asked.append((len(tools), json_output, extra_create_args, type(cancellation_token)))
        return CreateResult(finish_reason="stop", content="Mine.", usage=RequestUsage(1, 2), cached=False)

    async def create_stream(self, messages, *, tools=(), json_output=None, cancellation_token=None):
        yield "Mi"
        yield await self.create(messages, tools=tools, json_output=json_output, cancellation_token=cancellation_token)

    async def close(self):
        pass

    def actual_usage(self):
        return RequestUsage(1, 2)

    def total_usage(self):
        return RequestUsage(3, 4)

    def count_tokens(self, messages, *, tools=()):
        return 10

    def remaining_tokens(self, messages, *, tools=()):
        return 1000

    @property
    def capabilities(self):
        return self.model_info

    @property
    def model_info(self):
        return ModelInfo(
            vision=False, function_calling=True, json_output=True, family="unknown", structured_output=False
        )


@construct(forks=False)
async def clients_of_the_applications(stage):
    """One with narrower methods than AutoGen's, and AutoGen's own for replays."""
    seen = []
    for stream in (False, True):
        own = Own()
        options = {"tools": [look], "model_client_stream": stream}
        team = RoundRobinGroupChat([stage.agent(name, own, **options) for name in NAMES], max_turns=3)
        seen.append(await outcome(stage.wrapped(team, f"own {stream}")))
        seen.append([(tools, output, extra, token) for tools, output, extra, token in own.asked])
        replay = ReplayChatCompletionClient([f"Said {n}." for n in range(4)])
        team = RoundRobinGroupChat(stage.agents(replay, model_client_stream=stream), max_turns=3)
        seen.append(await outcome(stage.wrapped(team, f"replay {stream}")))
    return seen


class Ask(BaseModel):
    """A message of core agents."""

    text: str


class Routed(RoutedAgent):
    """A core agent with a client of its own."""

    def __init__(self, client):
        super().__init__("Answers.")
        self._client = client

    @message_handler
    async def on_ask(self, message: Ask, ctx: MessageContext) -> Ask:
        given = [SystemMessage(content=f"You are core.\n\n{HANDBOOK}"), UserMessage(content=message.text, source="al")]
        result = await self._client.create(given, cancellation_token=ctx.cancellation_token)
        return Ask(text=result.model_dump_json())


@construct()
async def core_agents(stage):
    """Agents of AutoGen's core, which ask a wrapped client."""
    stage.declared()
    stage.script(Reply("One."), Reply("Two."))
    client = stage.wrapped(stage.client())
    runtime = SingleThreadedAgentRuntime()
    await Routed.register(runtime, "routed", lambda: Routed(client))
    runtime.start()
    told = [await runtime.send_message(Ask(text=TASK), AgentId("routed", key)) for key in ("a", "b")]
    await runtime.stop_when_idle()
    return [[json.loads(one.text) for one in told]]


# ------------------------------------------------------------------------------- consoles, servers, processes


@everywhere
async def console(stage, api, stream):
    """What is printed of a run with its statistics, but for seconds and counts of tokens, and what is returned."""
    stage.script(call(), Reply("It is so."), Reply("No."))
    client = stage.client(api)
    options = {"model_client_stream": stream, "reflect_on_tool_use": True}
    agents = [stage.agent("planner", client, tools=[look], **options), stage.agent("critic", client, **options)]
    team = stage.wrapped(RoundRobinGroupChat(agents, max_turns=2))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        result = await Console(team.run_stream(task=TASK), output_stats=True)
    told = re.sub(r"(Duration|Total prompt tokens|Prompt tokens): [\d.]+", r"\1", printed.getvalue())
    return [re.sub(r"\[Prompt tokens: \d+", "[", told), result]


@construct()
async def workbench_of_a_server(stage):
    """Tools of an MCP server: called, listed, and failing; the workbench is the application's own afterwards."""
    stage.declared()
    stage.script(call("z_lookup", query="x"), Reply("It is so."), call("nobody"), Reply("There is none."))
    server = StdioServerParams(command=sys.executable, args=[str(MCP_SERVER)], read_timeout_seconds=60)
    client = stage.client()
    async with McpWorkbench(server) as bench:
        agent = stage.wrapped(stage.agent("planner", client, workbench=bench, max_tool_iterations=3))
        runs = [await outcome(agent), await outcome(agent, "And now?")]
        tools = await bench.list_tools()
        config = _dumped(agent).get("config", {})
        config["workbench"] = type(config.get("workbench"))
        return [runs, tools, config, await agent.model_context.get_messages(), client.total_usage()]


@construct(ordered=False)
async def core_agents_of_a_grpc_runtime(stage):
    """Agents of AutoGen's core that a worker hosts and another one asks. AutoGen's teams do not run there."""
    stage.declared()
    stage.script(Reply("One."), Reply("Two."))
    client = stage.wrapped(stage.client())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    host = GrpcWorkerAgentRuntimeHost(address=address)
    host.start()
    worker, caller = GrpcWorkerAgentRuntime(host_address=address), GrpcWorkerAgentRuntime(host_address=address)
    for runtime in (worker, caller):
        runtime.add_message_serializer(try_get_known_serializers_for_type(Ask))
        await runtime.start()
    try:
        await Routed.register(worker, "routed", lambda: Routed(client))
        told = [await caller.send_message(Ask(text=TASK), AgentId("routed", key)) for key in ("a", "b")]
    finally:
        await caller.stop()
        await worker.stop()
        await host.stop()
    return [json.loads(one.text) for one in told]


@construct(rules="anthropic")
async def own_answers_that_end_in_white_space(stage):
    """AutoGen's client takes it off where an agent speaks twice running: its own answer then ends the request."""
    stage.script(*[Reply(f"Said {n}.  \n") for n in range(9)])
    client = stage.client("anthropic")
    speakers = iter([*NAMES, NAMES[0], NAMES[0], NAMES[1], NAMES[1]])
    chat = SelectorGroupChat(
        stage.agents(client),
        model_client=client,
        selector_func=lambda _: next(speakers),
        max_turns=7,
        allow_repeated_speaker=True,
    )
    team = stage.wrapped(chat)
    return [await outcome(team), await asked(team, client), await saved(team)]


@construct(rules="anthropic")
async def requests_that_ask_nothing(stage):
    """An agent that is told nothing, or white space, streamed and not: what Anthropic refuses, it refuses."""
    stage.script(lambda _: Reply("Yes."))
    client, gave = stage.client("anthropic"), []
    for stream in (False, True):
        for said in (None, [], "", "  \n", "Go on."):
            team = stage.wrapped(RoundRobinGroupChat(stage.agents(client, model_client_stream=stream), max_turns=2))
            messages = [TextMessage(content=said, source="user")] if isinstance(said, str) else said
            try:
                gave.append([one async for one in team.run_stream(task=messages)])
            except Exception as error:
                # What a team raises has the traceback in its text.
                gave.append([type(error), str(error).partition("\n")[0]])
    one = stage.wrapped(client)
    for said in ([], [""], ["  \n"], [[" "]], ["Go on."]):
        messages = [SystemMessage(content=f"You are the planner.\n\n{HANDBOOK}")]
        messages += [UserMessage(content=text, source="user") for text in said]
        try:
            gave.append(await one.create(messages))
        except Exception as error:
            gave.append(error)
        try:
            gave.append([piece async for piece in one.create_stream(messages)])
        except Exception as error:
            gave.append(error)
    return gave


@construct()
async def messages_as_json(stage):
    """What an application stores of a run."""
    stage.script(*[Reply(f"Said {n}.") for n in range(9)])
    client = stage.client()
    team = stage.wrapped(RoundRobinGroupChat(stage.agents(client), max_turns=3))
    result = await team.run(task=TASK)
    return [[json.loads(message.model_dump_json()) for message in result.messages], result.model_dump()]


@construct()
async def taken_back(stage):
    """Unwrapped, everything is as it was made."""
    stage.script(*[Reply(f"Said {n}.") for n in range(9)])
    client = stage.client()
    agents = stage.agents(client)
    before = [sorted(vars(agent)) for agent in agents]
    team = RoundRobinGroupChat(agents, max_turns=2)
    own = sorted(vars(team))
    stage.wrapped(team)
    await team.run(task=TASK)
    unwrap(team)
    same = [sorted(vars(agent)) == names for agent, names in zip(agents, before, strict=True)]
    return [same, sorted(vars(team)) == own, [agent._model_client is client for agent in agents], await outcome(team)]


@pytest.mark.parametrize("mode", ["observed", "forked"])
@pytest.mark.parametrize("name", CONSTRUCTS.names)
def test_the_application_sees_the_same(name, mode):
    """Without us, observed and forked, but for what is listed."""
    CONSTRUCTS.check(name, mode)


@pytest.mark.parametrize("entry", allowed_in("autogen"), ids=str)
def test_each_listed_difference_is_there(entry):
    """What no construct shows any more is taken out of the list."""
    CONSTRUCTS.check_used(entry)
