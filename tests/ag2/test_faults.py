"""A small matrix of faults: whatever fails, the application's result is that of the unmodified one."""

from __future__ import annotations

import asyncio

import pytest
from ag2 import Agent, MemoryStream, TaskConfig, tool
from ag2.events import ModelRequest
from ag2.knowledge import MemoryKnowledgeStore
from ag2.network import EV_PACKET, EV_TEXT, Hub, HubClient, LocalLink, Passport, TransitionGraph
from ag2_driver import RULES, configured
from test_layout import named

from cacheprefix.server import Queue, Reply, SimulatedProvider, ToolCall
from cacheprefix_ag2 import wrap
from tests.fault_matrix import FOUND, HANDBOOK, PROVIDER, Case, check, check_event_loop, check_fork, check_stall, names

STEPS = (
    "cacheprefix_ag2.layout._united",
    "cacheprefix_ag2.layout._texts",
    "cacheprefix_ag2.client.tap",
    "cacheprefix_ag2.policy.conversation_id",
    "cacheprefix_ag2.policy.instruction_of",
    "cacheprefix_ag2.state.Talk.load",
    "cacheprefix_ag2.state.Talk.unsaved",
    "cacheprefix_ag2.sending.Sending._settled",
    "cacheprefix.calls.history_runner.apply",
    "cacheprefix_ag2.team.Team.seated",
    "cacheprefix.layout.role_position.RolePositions.choose",
    "cacheprefix.cache.CacheModel.finish",
    "cacheprefix.cache.CacheModel.first_token",
    "cacheprefix.calls.begin.Requests.gate_key",
)
CASES = [
    *(Case(f"step {step.split('.', 1)[-1]} raises", break_=step) for step in STEPS),
    *(
        Case(f"provider: {name}, call {at + 1}", provider=PROVIDER[name], at=at)
        for name in ("400", "429", "500", "cut", "usage omitted")
        for at in (0, 2)
    ),
]
KNOWN: dict[str, list[str]] = {}
LONG = "This role keeps to one more rule of its own list. " * 20
PLACE = {"type": "object", "properties": {"at": {"type": "string"}}}


def look(at: str) -> str:
    """What the tool gives back."""
    return f"{at}: {FOUND}"


FINDS = tool(look, name="look", description="Looks at a place.", schema=PLACE)


@pytest.fixture(scope="module")
def application(servers):
    """Two agents on one stream; the first calls a tool."""
    provider = servers["openai-chat"]
    kept = provider.simulator.script

    async def run(session, replies):
        provider.reset()
        provider.simulator.script = replies
        tools = {
            "finder": FINDS,
            "writer": named("write"),
        }
        stream = MemoryStream()
        async with configured("openai-chat", provider, streaming=True) as config:
            agents = [Agent(n, f"{HANDBOOK}\n\n{LONG} {n}.", config=config, tools=[tools[n]]) for n in tools]
            try:
                if session is not None:
                    wrap(agents, session)
                return [(await each.ask("Find it and write it down.", stream=stream)).body for each in agents]
            except Exception as error:
                return [type(error).__name__]

    yield lambda session, replies: asyncio.run(run(session, replies))
    provider.simulator.script = kept


@pytest.mark.parametrize("case", CASES, ids=names(CASES))
def test_the_result_is_that_of_the_unmodified_application(case, application, monkeypatch):
    """Each of these steps is taken, and that it raised is counted."""
    check(case, application, monkeypatch, KNOWN, every=True)


QUESTION = "Find it and write it down."


async def _asked(finder, writer):
    stream = MemoryStream()
    return [(await each.ask(QUESTION, stream=stream)).body for each in (finder, writer)]


async def _run(finder, writer):
    stream, said = MemoryStream(), []
    for each in (finder, writer):
        async with each.run(QUESTION, stream=stream) as run:
            run.start()
            said.append((await run.result()).body)
    return said


async def _replied(finder, _):
    first = await finder.ask(QUESTION)
    async with first.run("Write it down.") as run:
        second = await run.result()
    return [first.body, second.body, (await second.ask("Again.")).body]


async def _resumed(finder, writer):
    stream = MemoryStream()
    first = await finder.ask(QUESTION, stream=stream)
    events = await stream.history.get_events()
    return [first.body, (await writer.resume(*events, ModelRequest.ensure_request([QUESTION]))).body]


async def _delegated(finder, writer):
    writer.add_tool(finder.as_tool(name="delegate", description="Asks the finder."))
    return [(await writer.ask(QUESTION)).body]


async def _sub_task(finder, _):
    return [(await finder.ask(QUESTION)).body]


async def _on_a_channel(kind, agents):
    """What a person hears of those that speak there, each once."""
    hub = await Hub.open(MemoryKnowledgeStore())
    client = HubClient(LocalLink(hub))
    try:
        ids = [(await client.register(each, attach_plugin=False)).agent_id for each in agents]
        person = await client.register_human(Passport(name="user"))
        steps = TransitionGraph.sequence([person.agent_id, *ids]).to_dict()
        knobs = {"graph": steps} if kind == "workflow" else None
        channel = await person.open(type=kind, target=[each.name for each in agents], knobs=knobs)
        await person.send(channel.channel_id, QUESTION)
        said = []
        while len(said) < len(agents):
            # A turn that raises says nothing there.
            heard = await person.next_envelope(predicate=lambda one: one.event_type in (EV_TEXT, EV_PACKET), timeout=60)
            said.append(str(heard.event_data))
        return said
    finally:
        await client.close()
        await hub.close()


def _channel(kind, speakers):
    return lambda *agents: _on_a_channel(kind, agents[:speakers])


DOORS = {
    "ask": _asked,
    "run": _run,
    "reply": _replied,
    "resume": _resumed,
    "as_tool": _delegated,
    "sub-task": _sub_task,
    "discussion": _channel("discussion", 2),
    "workflow": _channel("workflow", 2),
    "conversation": _channel("conversation", 1),
    "consulting": _channel("consulting", 1),
}
CALLS = {
    "as_tool": [ToolCall("delegate", {"objective": "Find it."}), ToolCall("look", {"at": "here"})],
    "sub-task": [ToolCall("run_subtask", {"task": "Find it."}), ToolCall("look", {"at": "here"})],
}
"""The tools that are called; ``look`` alone where nothing else is said."""
WAYS = [(door, "openai-chat", False) for door in DOORS]
WAYS += [("ask", api, streaming) for api in RULES for streaming in (False, True) if (api, streaming) != WAYS[0][1:]]
SHOWN = [" ".join([door, api, *["streamed"] * streaming]) for door, api, streaming in WAYS]


@pytest.fixture(params=WAYS, ids=SHOWN)
def doors(request):
    """Two agents, asked in one of the ways that ag2 has."""
    door, api, streaming = request.param

    async def go(session, provider):
        async with configured(api, provider, streaming=streaming) as config:
            tasks = TaskConfig() if door == "sub-task" else False
            finder = Agent("finder", f"{HANDBOOK}\n\n{LONG} finder.", config=config, tools=[FINDS], tasks=tasks)
            writer = Agent("writer", f"{HANDBOOK}\n\n{LONG} writer.", config=config, tools=[named("write")])
            if session is not None:
                wrap([finder, writer], session)
            said = await DOORS[door](finder, writer)
        if session is not None:
            assert len(session.calls) == len(provider.requests) >= 2
        return said

    def run(session, _):
        calls = [Reply(tool_calls=(call,)) for call in CALLS.get(door, [ToolCall("look", {"at": "here"})])]
        with SimulatedProvider(RULES[api], Queue([*calls, *(f"Answer {number}." for number in range(4))])) as provider:
            return asyncio.run(go(session, provider))

    return run


def test_a_store_that_hangs_never_holds_the_event_loop(doors):
    """Full texts and the gate, in a store that takes its time for each call, however an agent is asked."""
    check_event_loop(doors)


@pytest.mark.slow
def test_the_event_loop_goes_on_while_a_store_takes_its_time(doors):
    """A second and a half for each call, longer than the gate waits for one: no event loop stands still for it."""
    check_stall(doors)


def test_a_child_that_is_forked_off_from_a_busy_process_runs_it(application):
    """Prefork servers and pools: no lock of the parent's holds it, and nothing of the parent's is waited for."""
    check_fork(application)
