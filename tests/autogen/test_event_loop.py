"""An event loop that runs wrapped agents: what the first call does in it, and that no store ever holds it."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from contextlib import aclosing

import pytest
from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_agentchat.tools import TeamTool
from autogen_core import AgentId, CancellationToken, FunctionCall, MessageContext, RoutedAgent, message_handler
from autogen_core import SingleThreadedAgentRuntime as Runtime
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    ModelFamily,
    ModelInfo,
    SystemMessage,
    UserMessage,
)
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel

from cacheprefix.server import Reply, SimulatedProvider, ToolCall
from cacheprefix_autogen import ForkContext, PrefixClient, ask, cached, wrap
from tests.fault_matrix import FOUND, HANDBOOK, check_event_loop, check_stall

PROGRAM = """
import asyncio, sys
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient
from cacheprefix import Session, SharedPrefix
from cacheprefix.server import SimulatedProvider
from cacheprefix_autogen import wrap

HANDBOOK = "The handbook, rule by rule. " * 400

async def run(client, team):
    before = set(sys.modules)
    await team.run(task="Go.")
    await client.close()
    return set(sys.modules) - before

with SimulatedProvider("openai") as provider:
    client = OpenAIChatCompletionClient(model="gpt-4o", base_url=provider.openai_base_url, api_key="k", max_retries=0)
    agents = [AssistantAgent(name, client, system_message=HANDBOOK + name) for name in ("a", "b")]
    team = wrap(RoundRobinGroupChat(agents, max_turns=2), Session(SharedPrefix(system=HANDBOOK)))
    new = asyncio.run(run(client, team))
OURS = ("cacheprefix", "genai_prices", "tiktoken", "importlib.metadata")
print(sorted(name for name in new if name.startswith(OURS)))
"""


@pytest.mark.slow
def test_the_first_wrapped_call_imports_nothing_of_ours() -> None:
    """What a call needs is there when the team is wrapped, price tables and vocabularies too."""
    shown = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"



TASK = "Find it and write it down."
SAYS = {"Find.": "It is found.", "Write.": "It is written.", "Lead.": "It is led."}
CALLS = {
    "Find.": [("look", {"at": "here"}, FOUND[:30]), ("transfer_to_writer", {}, "Transferred to writer")],
    "Lead.": [("pair", {"task": "Be a pair."}, SAYS["Write."])],
}
INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=True,
    family=ModelFamily.GPT_4O,
    structured_output=True,
    multiple_system_messages=True,
)


def answer(request):
    """What a model says: who finds looks, and hands over where it can; a selector names the finder, then the writer."""
    text, speaker = request.text, "writer" if SAYS["Find."] in request.text else "finder"
    if "is_request_satisfied" in text:
        told = {"is_request_satisfied": SAYS["Write."] in text, "is_in_loop": False, "is_progress_being_made": True}
        told |= {"next_speaker": speaker, "instruction_or_question": "Go on."}
        return Reply(json.dumps({name: {"answer": one, "reason": "so"} for name, one in told.items()}))
    if "Only return the role" in text:
        return Reply(speaker)
    role = ["", *re.findall("|".join(map(re.escape, SAYS)), text)][-1]
    for name, arguments, seen in CALLS.get(role, ()):
        if name in request.asked.tools and request.asked.choice != "none" and seen not in text:
            return Reply(tool_calls=(ToolCall(name, arguments),))
    return Reply(SAYS.get(role, "So it is."))


async def look(at: str) -> str:
    """Look at a place."""
    return f"{at}: {FOUND}"


class Ask(BaseModel):
    """A message of core agents."""

    text: str


class Routed(RoutedAgent):
    """An agent of AutoGen's core."""

    def __init__(self, client):
        super().__init__("Answers.")
        self.client = client

    @message_handler
    async def on_ask(self, message: Ask, ctx: MessageContext) -> Ask:
        """One answer."""
        return Ask(text=(await self.client.create(history(), cancellation_token=ctx.cancellation_token)).content)


def history():
    """What a client is asked that has seen a large result."""
    done = FunctionExecutionResult(content=f"here: {FOUND}", name="look", call_id="call_1", is_error=False)
    return [
        SystemMessage(content=f"{HANDBOOK} Find."),
        UserMessage(content=TASK, source="user"),
        AssistantMessage(content=[FunctionCall(id="call_1", name="look", arguments="{}")], source="finder"),
        FunctionExecutionResultMessage(content=[done]),
    ]


class Application:
    """One of everything that asks: as it is, or on a session."""

    def __init__(self, client, session):
        self.client, self.session = client, session

    def agent(self, name, says, **options):
        """One with the handbook."""
        return AssistantAgent(name, self.client, system_message=f"{HANDBOOK} {says}", **options)

    def pair(self, **options):
        """A finder that reflects on its tool, and a writer that streams."""
        return [
            self.agent("finder", "Find.", tools=[look], reflect_on_tool_use=True, **options),
            self.agent("writer", "Write.", model_client_stream=True),
        ]

    def wrapped(self, target):
        """As it is without a session."""
        return target if self.session is None else wrap(target, self.session)

    def asks(self):
        """A client."""
        return self.client if self.session is None else PrefixClient(self.client, self.session, role="finder")

    def agents(self):
        """Agents by themselves."""
        led = TeamTool(RoundRobinGroupChat(self.pair(), max_turns=2, name="pair"), name="pair", description="Two.")
        inner = RoundRobinGroupChat(self.pair(), max_turns=2, name="inner")
        context = ForkContext(UnboundedChatCompletionContext()) if self.session else None
        alone = AssistantAgent(
            "finder", self.asks(), system_message=f"{HANDBOOK} Find.", tools=[look], model_context=context
        )
        return [
            alone,
            self.wrapped(self.pair()[0]),
            self.wrapped(self.agent("lead", "Lead.", tools=[led], reflect_on_tool_use=True)),
            self.wrapped(SocietyOfMindAgent("mind", inner, self.client)),
        ]

    def teams(self):
        """One of each kind."""
        graph = DiGraphBuilder()
        for agent in (branches := [*self.pair(), self.agent("scribe", "Write.")]):
            graph.add_node(agent)
        graph.add_edge(branches[0], branches[1]).add_edge(branches[0], branches[2])
        ends = TextMentionTermination(SAYS["Write."])
        return [
            self.wrapped(RoundRobinGroupChat(self.pair(), max_turns=2)),
            self.wrapped(SelectorGroupChat(self.pair(), self.client, max_turns=2)),
            self.wrapped(Swarm(self.pair(handoffs=["writer"], max_tool_iterations=3), termination_condition=ends)),
            self.wrapped(GraphFlow(branches, graph.build())),
            self.wrapped(MagenticOneGroupChat(self.pair(), self.client, max_turns=4)),
        ]


async def run(app):
    """Agents and teams."""
    return await asyncio.gather(*(ran(each) for each in (*app.agents(), *app.teams())))


async def run_stream(app):
    """Agents and teams, event by event."""
    return await asyncio.gather(*(streamed(each.run_stream(task=TASK)) for each in (*app.agents(), *app.teams())))


async def on_messages(app):
    """Agents."""
    said = [TextMessage(content=TASK, source="user")]
    answers = await asyncio.gather(*(each.on_messages(said, CancellationToken()) for each in app.agents()))
    return [one.chat_message.to_text() for one in answers]


async def on_messages_stream(app):
    """Agents, event by event."""
    said = [TextMessage(content=TASK, source="user")]
    streams = [each.on_messages_stream(said, CancellationToken()) for each in app.agents()]
    return await asyncio.gather(*map(streamed, streams))


async def reset(app):
    """Agents and teams, which begin anew."""

    async def again(target):
        await ran(target)
        await (target.reset() if hasattr(target, "reset") else target.on_reset(CancellationToken()))
        return await ran(target)

    return await asyncio.gather(*map(again, (*app.agents(), *app.teams())))


async def saved(app):
    """Agents and teams, which go on in others of their make."""

    async def goes_on(target, other):
        await ran(target)
        await other.load_state(json.loads(json.dumps(await target.save_state())))
        return await ran(other)

    first, second = ((*app.agents(), *app.teams()) for _ in range(2))
    return await asyncio.gather(*map(goes_on, first, second))


async def clients(app):
    """A client alone, an agent of AutoGen's core, a tool that no agent calls, and a side question."""
    client, runtime = app.asks(), Runtime()
    await Routed.register(runtime, "routed", lambda: app.wrapped(Routed(app.client)))
    runtime.start()
    tool = FunctionTool(look, "Looks.")
    tool = tool if app.session is None else cached(tool, app.session)
    gave = await asyncio.gather(
        client.create(history()),
        streamed(client.create_stream(history())),
        runtime.send_message(Ask(text=TASK), AgentId("routed", "default")),
        tool.run_json({"at": "there"}, CancellationToken()),
    )
    await runtime.stop_when_idle()
    if app.session is not None:
        asked = app.wrapped(app.pair()[0])
        await ran(asked)
        assert (await ask(asked, "Where are we?")).text
    return [gave[0].content, *gave[1:]]


async def ran(target):
    """What was said."""
    return sorted(one.to_text() for one in (await target.run(task=TASK)).messages if isinstance(one, BaseChatMessage))


async def streamed(stream):
    """What was said in a stream: the messages of an agent or team, or a client's answer."""
    async with aclosing(stream) as events:
        said = [getattr(one, "chat_message", one) async for one in events]
    return sorted(one.to_text() for one in said if isinstance(one, BaseChatMessage)) or said[-1].content


@pytest.fixture(scope="module")
def provider():
    """One provider for all."""
    with SimulatedProvider("openai", answer) as started:
        yield started


WAYS = (run, run_stream, on_messages, on_messages_stream, reset, saved, clients)


@pytest.fixture(params=WAYS, ids=[way.__name__ for way in WAYS])
def application(request, provider):
    """All that can be asked in one way, at the same time in one event loop."""

    async def go(client, session):
        try:
            return await request.param(Application(client, session))
        finally:
            await client.close()

    def start(session, _):
        provider.reset()
        # Outside of the event loop, which would stand still while the client loads its certificates.
        client = OpenAIChatCompletionClient(
            model="gpt-4o", base_url=provider.openai_base_url, api_key="k", max_retries=0, model_info=INFO
        )
        return asyncio.run(go(client, session))

    return start


# AutoGen dumps the SDK's parsed answer, which the SDK's own types do not foresee.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_no_store_is_called_in_an_event_loop_whoever_asks(application):
    """Full texts, kept tool results and the gate, in a store that takes its time for each call."""
    check_event_loop(application)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_an_event_loop_goes_on_while_a_store_takes_its_time_whoever_asks(application):
    """A second and a half for each call, longer than the gate waits for one: no event loop stands still for it."""
    check_stall(application)
