"""ag2's event-stream API: agents, streams, channels and what is saved, unmodified, observed and forked."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import re
import ssl

import pytest

pytest.importorskip("cacheprefix_ag2", reason="this adapter is tested in its own environment (make test-ag2)")

import httpx2
import openai
from ag2 import Agent, AgentSpec, Context, KnowledgeConfig, MemoryStream, Middleware, Plugin, PromptedSchema, TaskConfig
from ag2 import observer as observing
from ag2 import tool as as_tool
from ag2.compact import CompactTrigger, TailWindowCompact
from ag2.events import (
    BaseEvent,
    HumanMessage,
    ModelMessage,
    ModelMessageChunk,
    ModelRequest,
    ModelResponse,
    ToolResult,
    ToolResultEvent,
    ToolResultsEvent,
)
from ag2.knowledge import EventLogWriter, MemoryKnowledgeStore
from ag2.middleware import BaseMiddleware, HistoryLimiter, LoggingMiddleware, RetryMiddleware
from ag2.middleware.builtin.tools.approval import ApprovalRequired
from ag2.network import Hub, HubClient, LocalLink, Passport
from ag2.policies import ConversationPolicy, SlidingWindowPolicy
from pydantic import BaseModel

from cacheprefix import Session, SharedPrefix
from cacheprefix.server import Fault, Reply, ToolCall
from cacheprefix_ag2 import unwrap, wrap
from tests.ag2.ag2_driver import CONFIGS, MODELS, RULES
from tests.transparent.compare import allowed_in
from tests.transparent.harness import ApiStage, Constructs

HANDBOOK = "The handbook. " + "Everyone keeps to these rules of the house and cites them by number. " * 120
TASK = "The task. " + "Compare the two proposals and say which one should be built first. " * 40
NAMES = ("planner", "critic", "writer")
# Reading them takes longer than all the calls that a client of these tests makes.
CERTIFICATES = ssl.create_default_context()


class Agents(ApiStage):
    """The framework's own configs; agents whose prompts end with a common handbook."""

    apis = RULES
    random = (("subtask", re.compile(r"subtask-[0-9a-f]{8}")),)
    opaque = ("ag2.config.", "ag2.network.", "fast_depends.", "openai.Async", "anthropic.Async")

    def __init__(self, mode, provider):
        super().__init__(mode, provider)
        self.opened, self.streaming = [], False

    def new_session(self, **options):
        return Session(SharedPrefix(system=HANDBOOK), **options)

    async def aclose(self):
        for client in self.opened:
            await client.aclose()

    def config(self, **options):
        """A config of its own for the API."""
        anthropic = self.api == "anthropic"
        base = self.provider.anthropic_base_url if anthropic else self.provider.openai_base_url
        self.opened.append(httpx2.AsyncClient(verify=CERTIFICATES))
        made = {"model": MODELS[self.api], "api_key": "k", "base_url": base, "max_retries": 0}
        if self.api == "openai-responses":
            made["store"] = False
        return CONFIGS[self.api](**{**made, "streaming": self.streaming, "http_client": self.opened[-1], **options})

    def agent(self, name, config=None, **options):
        """An agent as it is."""
        return Agent(name, f"You are the {name}.\n\n{HANDBOOK}", config=config or self.config(), **options)

    def wrapped(self, target, **options):
        """As it is, or wrapped."""
        return target if self.unmodified else wrap(target, self.session(), **options)


CONSTRUCTS = Constructs("ag2", Agents)
construct, everywhere = CONSTRUCTS.later, CONSTRUCTS.everywhere


def look(query: str) -> str:
    """Looks something up."""
    return f"Found for {query}. " * 9


def call(name="look", **arguments):
    """A call of a tool."""
    return Reply(tool_calls=(ToolCall(name, arguments or {"query": "x"}, id=f"call_{name}_123456"),))


def noted(stream):
    """All that is sent on a stream, as it is sent."""
    seen = []

    def note(event):
        seen.append(event)

    stream.where(BaseEvent).subscribe(note, sync_to_thread=False)
    return seen


async def kept(stream):
    """What a stream's history holds."""
    return list(await stream.history.get_events())


async def told(reply):
    """All that an answer holds."""
    context = reply.context
    beside = [context.prompt, context.variables, context.dependencies, context.pending_messages]
    return [reply.response, reply.body, await reply.content(), reply.files, await reply.usage(), beside]


def made_of(agent):
    """What an agent is made of, as it tells the application."""
    own = (agent.name, agent.config, agent.system_prompt, agent.dynamic_prompt, agent.middleware, agent.assembly)
    more = (agent.tools, agent.observers, agent.tasks, agent.has_hitl_hook, agent.dependencies, agent.variables)
    return [*own, *more, type(agent)]


@everywhere
async def agent_with_tools(stage):
    """A tool loop, and two more turns: the reply's own and one on the same stream."""
    stage.script(call(), "It is so.", "And that is all.", "Really.")
    config = stage.config()
    agent = stage.wrapped(stage.agent("planner", config, tools=[look]))
    stream = MemoryStream()
    seen = noted(stream)
    first = await agent.ask(TASK, stream=stream)
    second = await first.ask("And now?")
    third = await agent.ask("Sure?", stream=stream)
    gave = [await told(one) for one in (first, second, third)]
    return [gave, seen, await kept(stream), made_of(agent), agent.config is config]


@construct()
async def refused_for_one_message(stage):
    """A result that answers no call, behind what a long role was answered: the provider names its place."""
    stage.script("So it is.")
    role = f"You plan. {'You plan what others build, and say why. ' * 240}\n\n{HANDBOOK}"
    agent = stage.wrapped(Agent("planner", role, config=stage.config()))
    stream = MemoryStream()
    first = await agent.ask(TASK, stream=stream)
    stray = ToolResultEvent(parent_id="none", name="look", result=ToolResult("x"))
    await stream.history.replace([*await kept(stream), ToolResultsEvent([stray])])
    with pytest.raises(openai.BadRequestError) as refused:
        await agent.ask("And now?", stream=stream)
    return [await told(first), str(refused.value)]


@construct(api="anthropic")
async def what_the_framework_logs(stage):
    """A call whose result is lost, as of a turn that was cancelled: ag2 leaves it out of each request, and says so."""
    stage.script(call(), "It is so.", "No.", "Yes.")
    agents = stage.wrapped([stage.agent(name, tools=[look]) for name in NAMES[:2]])
    stream, lines, log = MemoryStream(), logging.Handler(), logging.getLogger("ag2")
    said = []
    lines.emit = lambda record: said.append([record.name, record.levelname, record.getMessage()])
    log.addHandler(lines)
    try:
        await agents[0].ask(TASK, stream=stream)
        lost = (ToolResultEvent, ToolResultsEvent)
        await stream.history.replace([event for event in await kept(stream) if not isinstance(event, lost)])
        return [[await told(await each.ask("And now?", stream=stream)) for each in agents], said]
    finally:
        log.removeHandler(lines)


@everywhere
async def agent_streamed(stage):
    """Chunks of a tool loop, in their order among the other events."""
    stage.streaming = True
    stage.script(call(), "It is so. " * 9)
    agent = stage.wrapped(stage.agent("planner", tools=[look]))
    stream = MemoryStream()
    seen = noted(stream)
    reply = await agent.ask(TASK, stream=stream)
    return [await told(reply), seen, await kept(stream)]


@everywhere
async def agent_that_is_refused(stage):
    """The SDK's own error, and the agent goes on."""
    stage.script(Reply(fault=Fault(status=400, message="no")), "Yes.")
    agent, stream = stage.wrapped(stage.agent("planner")), MemoryStream()
    try:
        first = await told(await agent.ask(TASK, stream=stream))
    except Exception as error:
        first = [type(error), str(error), type(error).__mro__]
    return [first, await told(await agent.ask(TASK, stream=stream)), await kept(stream)]


@everywhere
async def agents_on_one_stream(stage):
    """One after the other, twice, with a tool."""
    stage.script("Planned.", call(), "No.", "Written.", "Again.", "Still no.", "Rewritten.")
    agents = stage.wrapped([stage.agent(name, tools=[look] if name == "critic" else []) for name in NAMES])
    stream = MemoryStream()
    seen = noted(stream)
    gave = [await told(await each.ask(f"{each.name}: {TASK}", stream=stream)) for each in [*agents, *agents]]
    return [gave, seen, await kept(stream)]


@construct()
async def agents_side_by_side(stage):
    """All at once, on streams of their own."""

    def by_role(request):
        return Reply(next(f"{name} speaks." for name in NAMES if f"You are the {name}." in request.text))

    stage.script(by_role)
    agents = stage.wrapped([stage.agent(name) for name in NAMES])
    streams = [MemoryStream() for _ in agents]
    replies = await asyncio.gather(*(each.ask(TASK, stream=s) for each, s in zip(agents, streams, strict=True)))
    return [[reply.body, [type(event) for event in await kept(s)]] for reply, s in zip(replies, streams, strict=True)]


@construct()
async def run_that_is_watched(stage):
    """``run``: driven in the background, its events pulled one by one, and a message put into its inbox."""
    stage.script(call(), "It is so.", "And that.")
    agent, pulled = stage.wrapped(stage.agent("planner", tools=[look])), []
    async with agent.run(TASK) as run:
        run.enqueue("One more thing.")
        with run.stream.where(ModelResponse).join(max_events=2) as events:
            run.start()
            pulled += [event async for event in events]
        reply = await run.result()
    async with reply.run("And now?") as run:
        again = await run.result()
    return [pulled, await told(reply), await told(again), await kept(reply.context.stream)]


@everywhere
async def run_left_early(stage):
    """A turn given up at its first chunk, and one that was never begun; the stream goes on."""
    stage.streaming = True
    stage.script("One. " * 60, "Two.")
    agent, stream = stage.wrapped(stage.agent("planner")), MemoryStream()
    async with agent.run(TASK, stream=stream) as run, run.stream.get(ModelMessageChunk) as first:
        run.start()
        begun = await first
    async with agent.run("Never.", stream=stream):
        pass
    held = [type(event) for event in await kept(stream)]
    return [begun, held, await told(await agent.ask("And now?", stream=stream))]


class Verdict(BaseModel):
    """A form of answer."""

    built: str


@everywhere
async def structured_answers(stage):
    """In the provider's own form, asked again where it does not fit, and in words."""
    stage.script('{"built": "the first"}', "no json", '{"built": "the second"}', '{"built": "the third"}')
    agents = stage.wrapped([stage.agent(name, response_schema=Verdict) for name in ("critic", "judge")])
    gave = []
    for each in agents:
        reply = await each.ask(TASK)
        gave += [reply.response, await reply.content(retries=1), await kept(reply.context.stream)]
    reply = await agents[0].ask(TASK, response_schema=PromptedSchema(Verdict))
    return [*gave, await told(reply)]


class Noting(BaseMiddleware):
    """What a middleware of the application sees of a turn, its requests and its tools."""

    def __init__(self, event, context, seen):
        super().__init__(event, context)
        self.seen = seen

    async def on_turn(self, call_next, event, context):
        self.seen.append(["turn", event, list(context.prompt)])
        return await call_next(event, context)

    async def on_llm_call(self, call_next, events, context):
        self.seen.append(["call", list(events), type(events), list(context.prompt), context.dependencies])
        answer = await call_next(events, context)
        self.seen.append(["answer", answer, list(context.prompt), list(events)])
        return answer

    async def on_tool_execution(self, call_next, event, context):
        found = await call_next(event, context)
        self.seen.append(["tool", event, found, list(context.prompt), sorted(map(str, context.dependencies))])
        return found


@everywhere
async def prompts_that_listeners_see(stage):
    """In the context of each event of a streamed tool loop, what the model says among them."""
    stage.script(call(), "It is so.")
    stage.streaming = True
    agent, stream = stage.wrapped(stage.agent("planner", tools=[look])), MemoryStream()
    seen = []

    def note(event, context: Context):
        seen.append([type(event).__name__, list(context.prompt)])

    kinds = (ModelMessageChunk, ModelRequest, ModelResponse)
    for kind in kinds:
        stream.where(kind).subscribe(note, sync_to_thread=False)
    return [await told(await agent.ask(TASK, stream=stream)), seen]


@everywhere
async def prompts_that_listeners_change(stage):
    """While the model answers, a tool runs: what they put into the context stays there, for the next request too."""
    stage.script(call("inquire"), "It is so.", "Really.")
    stage.streaming = True

    def add(event, context: Context):
        context.prompt = [*context.prompt, f"Said at a {type(event).__name__}."]

    @as_tool
    def inquire(query: str, context: Context) -> str:
        """Asks."""
        context.prompt = [*context.prompt, "Said in a tool."]
        return "Asked."

    agent, stream = stage.wrapped(stage.agent("planner", tools=[inquire])), MemoryStream()
    for kind in (ModelRequest, ModelMessage, ModelResponse):
        stream.where(kind).subscribe(add, sync_to_thread=False)
    first = await agent.ask(TASK, stream=stream)
    gave = [list(first.context.prompt)]
    return [*gave, await told(await first.ask("Sure?"))]


@construct()
async def middleware_of_the_applications(stage):
    """Of the agent and of one call: they see the application's own request, and the answer."""
    stage.script(call(), "It is so.")
    own, given, lines = [], [], []
    log = logging.getLogger("application")
    log.handle = lambda record: lines.append(re.sub(r"( in [\d.]+s|\w+_tokens=\w+)", "", record.getMessage()))
    log.setLevel(logging.DEBUG)
    ware = [Middleware(Noting, seen=own), HistoryLimiter(50), RetryMiddleware(2), LoggingMiddleware(log)]
    agent = stage.agent("planner", tools=[look], middleware=ware, assembly=[ConversationPolicy()])
    stage.wrapped(agent)
    reply = await agent.ask(TASK, middleware=[Middleware(Noting, seen=given)])
    return [await told(reply), own, given, lines, [repr(one) for one in agent.middleware]]


class Policy:
    """A policy of the application's, for one call."""

    name = "application"

    def __init__(self):
        self.seen = []

    async def apply(self, prompts, events, context):
        self.seen.append([list(prompts), list(events)])
        return prompts, events


@construct()
async def plugins_hooks_and_policies(stage):
    """A prompt hook, a policy that drops what is old, and a plugin given with the call."""
    stage.script("One.", call(), "Two.", "Three.")
    agent = stage.agent("planner", assembly=[ConversationPolicy(), SlidingWindowPolicy(6)])
    agent.prompt(lambda: "It is Monday.")
    stage.wrapped(agent)
    policy, stream = Policy(), MemoryStream()
    plugin = Plugin(prompt="Be brief.", tools=[look], variables={"who": "me"})
    plugin.add_policy(policy)
    gave = [await told(await agent.ask(TASK, stream=stream))]
    gave.append(await told(await agent.ask("And now?", stream=stream, plugins=[plugin])))
    gave.append(await told(await agent.ask("Sure?", stream=stream, prompt=["You are somebody else."])))
    return [gave, policy.seen, await kept(stream), made_of(agent)]


@construct()
async def observers_tools_and_what_they_are_given(stage):
    """Observers' events, and what a tool reads of its context; its error is the model's to read."""
    stage.script(call("inquire"), call("fails"), "Enough.")
    asked, seen = [], []

    @as_tool
    async def inquire(query: str, context: Context) -> str:
        """Asks."""
        asked.append([list(context.prompt), context.variables, sorted(map(str, context.dependencies))])
        asked.append([type(one) for one in context.dependencies.values()])
        context.variables["asked"] = query
        return "Asked."

    @as_tool
    def fails(query: str) -> str:
        """Fails."""
        raise ValueError(query)

    @observing(ModelRequest | ModelResponse)
    def watch(event: BaseEvent) -> None:
        seen.append(event)

    agent = stage.agent("planner", tools=[inquire, fails], observers=[watch], variables={"one": 1})
    stage.wrapped(agent)
    stream = MemoryStream()
    try:
        gave = await told(await agent.ask(TASK, stream=stream, dependencies={"store": "here"}))
    except Exception as error:
        gave = [type(error), str(error)]
    return [gave, asked, seen, await kept(stream)]


@construct()
async def people_who_are_asked(stage):
    """A tool that needs approval, and one that asks."""
    stage.script(call("look"), call("inquire"), "Done.")
    asked = []

    @as_tool
    async def inquire(query: str, context: Context) -> str:
        """Asks."""
        return await context.input(f"{query}?")

    def answer(event):
        asked.append(event)
        return HumanMessage("y", parent_id=event.id)

    approved = as_tool(look, middleware=[ApprovalRequired()])
    agent = stage.wrapped(stage.agent("planner", tools=[approved, inquire], hitl_hook=answer))
    stream = MemoryStream()
    reply = await agent.ask(TASK, stream=stream)
    return [await told(reply), asked, await kept(stream)]


@everywhere
async def agents_as_tools(stage):
    """One asks the other, whose stream is its own."""
    stage.script(call("ask_critic", objective="Look into it.", context=""), "No.", "So it is.")
    config = stage.config()
    critic = stage.agent("critic", config)
    planner = stage.agent("planner", config, tools=[critic.as_tool(name="ask_critic", description="Ask the critic.")])
    stage.wrapped([planner, critic])
    stream = MemoryStream()
    seen = noted(stream)
    reply = await planner.ask(TASK, stream=stream)
    return [await told(reply), seen, await kept(stream)]


@construct()
async def sub_tasks(stage):
    """Agents that ag2 makes for a task, with the agent's own tools and config."""
    stage.script(call("run_subtask", task="Look."), call(), "Looked.", "So it is.")
    given = []

    @as_tool
    def look(query: str, context: Context) -> str:
        """Looks something up."""
        given.append([list(context.prompt), [type(one) for one in context.dependencies.values()]])
        return f"Found for {query}."

    agent = stage.wrapped(stage.agent("planner", tools=[look], tasks=TaskConfig(max_concurrency=1)))
    stream = MemoryStream()
    reply = await agent.ask(TASK, stream=stream)
    return [await told(reply), given, await kept(stream), agent.tasks]


@construct()
async def saved_and_resumed(stage):
    """A stream's events written down, read again, and gone on with, here and by an agent that nobody wrapped."""
    stage.script(call(), "It is so.", "Still.", "Yes.", "Sure.")
    store = MemoryKnowledgeStore()
    knowledge = KnowledgeConfig(store, expose_tool=False)
    agent = stage.wrapped(stage.agent("planner", tools=[look], knowledge=knowledge))
    stream = MemoryStream()
    await agent.ask(TASK, stream=stream)
    text = await store.read(f"/log/{stream.id}.jsonl")
    loaded = await EventLogWriter(store).load(stream.id)
    again = MemoryStream(id=stream.id)
    await again.history.replace(loaded)
    gave = [await told(await agent.ask("And now?", stream=again))]
    gave.append(await told(await agent.resume(*loaded, ModelRequest.ensure_request(["Sure?"]))))
    plain = stage.agent("planner", tools=[look])
    gave.append(await told(await plain.resume(*loaded, ModelRequest.ensure_request(["Sure?"]))))
    lines = [json.loads(line) for line in text.splitlines()]
    written = [{"is": line["type"], **line["data"]} for line in lines]
    return [gave, written, [sorted(line) for line in lines if "Prefix" not in line["type"]], loaded]


@construct()
async def history_that_the_framework_compacts(stage):
    """ag2's own compaction keeps the last events."""
    stage.script(*(f"Answer {number}." for number in range(6)))
    compact = {"compact": TailWindowCompact(4), "compact_trigger": CompactTrigger(max_events=6)}
    knowledge = KnowledgeConfig(MemoryKnowledgeStore(), expose_tool=False, write_event_log=False, **compact)
    agent = stage.wrapped(stage.agent("planner", knowledge=knowledge))
    stream = MemoryStream()
    seen = noted(stream)
    gave = [await told(await agent.ask(f"Question {number}? {TASK}", stream=stream)) for number in range(6)]
    return [gave, [type(event) for event in seen], await kept(stream)]


async def discussed(stage, kind, names, questions):
    """A person's questions on a channel of ag2's network, and what everyone sees there."""
    hub = await Hub.open(MemoryKnowledgeStore())
    client = HubClient(LocalLink(hub))
    try:
        for each in stage.wrapped([stage.agent(name) for name in names]):
            await client.register(each, attach_plugin=False)
        person = await client.register_human(Passport(name="user"))
        channel = await person.open(type=kind, target=list(names))
        for at, question in enumerate(questions, 1):
            await person.send(channel.channel_id, question)
            for _ in range(1_000):
                state = await client.adapter_state(channel.channel_id)
                if state.turn_count >= at * (len(names) + 1):
                    break
                await asyncio.sleep(0.01)
        log = await hub.read_wal(channel.channel_id)
        return [state.turn_count, [envelope.to_dict() for envelope in log]]
    finally:
        await client.close()
        await hub.close()


@construct()
async def discussion(stage):
    """Three on a channel, two rounds."""
    stage.script("Planned.", "No.", "Written.", "Again.", "Still no.", "Rewritten.")
    return await discussed(stage, "discussion", NAMES, (TASK, "And now?"))


@construct(api="anthropic")
async def conversation(stage):
    """Two on a channel."""
    stage.script("Planned.", "Again.")
    return await discussed(stage, "conversation", NAMES[:1], (TASK, "And now?"))


@everywhere
async def requests_that_ask_nothing(stage):
    """Without a message, and with nothing or white space to ask: what a provider refuses, it refuses."""
    stage.script(lambda _: Reply("Yes."))
    gave = []
    for streaming in (False, True):
        stage.streaming = streaming
        for said in ((), ("",), (" \n",), ("", " "), ("Go on.",)):
            planner, critic = (stage.agent(name) for name in NAMES[:2])
            stage.wrapped([planner, critic])
            stream = MemoryStream()
            for agent in (planner, critic):
                try:
                    gave.append(await told(await agent.ask(*said, stream=stream)))
                except Exception as error:  # noqa: PERF203 - some of them
                    gave.append(error)
    return gave


@construct()
async def copies_and_specs(stage):
    """A copy is an agent of its own, a spec holds what the agent was made of, and unwrapping gives it back."""
    stage.script("One.", call(), "Two.", "Three.", "Four.")
    agent = stage.agent("planner", tools=[look])
    before = sorted(vars(agent))
    stage.wrapped(agent)
    gave = [await told(await agent.ask(TASK))]
    twin = copy.copy(agent)
    twin.config = stage.config(temperature=0.5)
    twin.prompt(lambda: "You are a copy.")
    gave.append([await told(await twin.ask(TASK)), made_of(twin), made_of(agent)])
    spec = AgentSpec.from_agent(agent)
    made = spec.to_agent(available_tools=[look], config=stage.config())
    gave.append([spec.model_dump(), await told(await made.ask(TASK))])
    unwrap(agent)
    return [*gave, await told(await agent.ask(TASK)), sorted(vars(agent)) == before]


@construct()
async def another_config_for_one_call(stage):
    """Given to ``ask`` and to a reply's own ``ask``."""
    stage.script("One.", "Two.", "Three.")
    agent = stage.wrapped(stage.agent("planner"))
    other = stage.config(model="gpt-5.6-mini")
    reply = await agent.ask(TASK, config=other)
    again = await reply.ask("And now?", config=stage.config())
    return [await told(reply), await told(again), await told(await again.ask("Sure?"))]


@pytest.mark.parametrize("mode", ["observed", "forked"])
@pytest.mark.parametrize("name", CONSTRUCTS.names)
def test_the_application_sees_the_same(name, mode):
    """Without us, observed and forked, but for what is listed."""
    CONSTRUCTS.check(name, mode)


@pytest.mark.parametrize("entry", allowed_in("ag2"), ids=str)
def test_each_listed_difference_is_there(entry):
    """What no construct shows any more is taken out of the list."""
    CONSTRUCTS.check_used(entry)
