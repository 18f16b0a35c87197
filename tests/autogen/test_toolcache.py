"""Tool calls of workbenches and tools answered from the session's tool cache, in AutoGen's own agents."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import TextMessage, ToolCallExecutionEvent, ToolCallRequestEvent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_agentchat.tools import AgentTool
from autogen_core import EVENT_LOGGER_NAME, AgentId, CancellationToken, FunctionCall, SingleThreadedAgentRuntime
from autogen_core import Image as AutoGenImage
from autogen_core.tool_agent import ToolAgent
from autogen_core.tools import FunctionTool, StaticStreamWorkbench, StaticWorkbench, Workbench
from autogen_teams import Says, role

from cacheprefix import Caching, Session
from cacheprefix.errors import SetupError, StoreError
from cacheprefix.server import Reply, ToolCall
from cacheprefix.stores import MemoryStore
from cacheprefix.toolcache import DEFAULT_ALLOW, ToolCacheOptions, ToolResultCache, ToolSpec
from cacheprefix_autogen import cached, unwrap, wrap


class World:
    """One file, and how often it was looked at."""

    def __init__(self) -> None:
        self.text = "old"
        self.reads: list[str] = []
        self.pause = 0.0

    async def read(self, path: str) -> str:
        """Read a file."""
        await asyncio.sleep(self.pause)
        self.reads.append(path)
        if path == "missing":
            raise FileNotFoundError(path)
        return f"{path}: {self.text}"

    async def write(self, path: str, text: str) -> str:
        """Write a file."""
        self.text = text
        return "written"

    @property
    def tools(self) -> list[FunctionTool]:
        return [FunctionTool(self.read, "Read a file."), FunctionTool(self.write, "Write a file.")]


@pytest.fixture
def world() -> World:
    """A fresh file."""
    return World()


READ = {"path": "a"}


async def call(bench: Workbench, name: str, arguments: Any, call_id: str = "c") -> Any:
    """The text of a call, streamed where the workbench streams, and whether it is an error."""
    if isinstance(bench, StaticStreamWorkbench):
        results = [each async for each in bench.call_tool_stream(name, arguments, CancellationToken(), call_id)]
        result = results[-1]
    else:
        result = await bench.call_tool(name, arguments, CancellationToken(), call_id)
    return result.to_text(), result.is_error


@pytest.mark.parametrize("kind", [StaticWorkbench, StaticStreamWorkbench])
async def test_a_workbench_answers_a_known_call_without_the_tool(world, kind):
    """A hit looks as the miss did, other arguments run, and the original stays as it is."""
    original = kind(world.tools)
    bench = cached(original, session := Session(tool_cache=DEFAULT_ALLOW))
    assert isinstance(bench, kind)
    assert await bench.list_tools() == await original.list_tools()
    found = [await call(bench, "read", READ), await call(bench, "read", {"path": "b"}), await call(bench, "read", READ)]
    assert found == [("a: old", False), ("b: old", False), ("a: old", False)]
    assert world.reads == ["a", "b"]
    await call(original, "read", READ)
    assert world.reads == ["a", "b", "a"]
    total = session.report().tool_cache.total
    assert (total.hits, total.misses) == (1, 2)


async def test_a_write_outdates_what_was_read(world):
    """Read, write, read again gives the new text."""
    bench = cached(StaticWorkbench(world.tools), Session(tool_cache=DEFAULT_ALLOW))
    await call(bench, "read", READ)
    await call(bench, "write", {"path": "a", "text": "new"})
    assert await call(bench, "read", READ) == ("a: new", False)


async def test_identical_calls_in_parallel_run_once(world):
    """AutoGen executes an answer's calls together; one reads and the others join it."""
    world.pause = 0.02
    bench = cached(StaticStreamWorkbench(world.tools), session := Session(tool_cache=DEFAULT_ALLOW))
    found = await asyncio.gather(*(call(bench, "read", READ, f"c{i}") for i in range(8)))
    assert found == [("a: old", False)] * 8
    assert world.reads == ["a"]
    assert session.report().tool_cache.total.joined == 7


async def test_errors_are_never_kept(world):
    """The framework words them as results; the next call runs again."""
    bench = cached(StaticWorkbench(world.tools), Session(tool_cache=DEFAULT_ALLOW))
    for _ in range(2):
        assert await call(bench, "read", {"path": "missing"}) == ("missing", True)
    for _ in range(2):
        assert (await call(bench, "no such", {}))[1]
    assert world.reads == ["missing"] * 2


async def test_a_mapping_that_tells_of_an_error_is_not_kept():
    """AutoGen's workbench hands it on as Python writes it."""
    answers = iter([{"error": "the service is down"}, {"found": "it"}])

    def read(path: str) -> dict[str, str]:
        return next(answers)

    bench = cached(StaticWorkbench([FunctionTool(read, "Read a file.")]), Session(tool_cache=["read"]))
    said = [(await call(bench, "read", READ))[0] for _ in range(3)]
    assert said == ["{'error': 'the service is down'}", "{'found': 'it'}", "{'found': 'it'}"]


async def test_images_come_back_whole(world):
    """A result that is more than text is kept as the object it was, and handed out as a copy."""
    from autogen_core.tools import ImageResultContent, ToolResult
    from PIL import Image

    picture = AutoGenImage(Image.new("RGB", (2, 2), "red"))
    runs = []

    class Bench(StaticWorkbench):
        async def call_tool(self, name, arguments=None, cancellation_token=None, call_id=None):
            runs.append(name)
            return ToolResult(name=name, result=[ImageResultContent(content=picture)])

    bench = cached(Bench([]), Session(tool_cache=DEFAULT_ALLOW))
    first = await bench.call_tool("read", READ)
    second = await bench.call_tool("read", READ)
    assert first.result[0].content is picture
    assert second.result[0].content.image.tobytes() == picture.image.tobytes()
    assert runs == ["read"]


async def test_tenants_do_not_see_each_other(world):
    """One cache behind two sessions of different scope keeps their results apart."""
    shared = ToolResultCache(options=ToolCacheOptions(allow=DEFAULT_ALLOW))
    benches = {
        tenant: cached(StaticWorkbench(world.tools), Session(tool_cache=shared, caching=Caching(scope=tenant)))
        for tenant in "AB"
    }
    await call(benches["A"], "read", READ)
    world.text = "of B"
    assert await call(benches["B"], "read", READ) == ("a: of B", False)
    assert await call(benches["A"], "read", READ) == ("a: old", False)


async def test_off_by_default_and_inert_in_observe_mode(world):
    """Without the option, and where nothing may change, every call runs and a wrapped agent keeps its workbench."""
    for session in (Session(), Session(tool_cache=DEFAULT_ALLOW, mode="observe")):
        bench = cached(StaticWorkbench(world.tools), session)
        before = len(world.reads)
        for _ in range(4):
            assert await call(bench, "read", READ) == ("a: old", False)
        assert len(world.reads) - before == 4
    with pytest.raises(SetupError, match="workbench or tool"):
        cached(world, Session())


class Broken(MemoryStore):
    """A store that always fails."""

    def read(self, key, names):
        raise StoreError("down")


async def test_a_store_that_fails_leaves_the_tools_as_they_were(world):
    """Every call runs and answers."""
    session = Session(tool_cache=ToolResultCache(Broken(), ToolCacheOptions(allow=DEFAULT_ALLOW)))
    bench = cached(StaticWorkbench(world.tools), session)
    for _ in range(3):
        assert await call(bench, "read", READ) == ("a: old", False)
    assert len(world.reads) == 3
    assert session.tool_cache.stats().store_errors >= 3


async def test_a_tool_agent_of_the_core_runs_a_known_call_once(world, caplog):
    """FunctionTool.run_json on the core runtime; AutoGen's event log shows every call, hits too."""
    session = Session(tool_cache=DEFAULT_ALLOW)
    tools = [cached(tool, session) for tool in world.tools]
    assert all(isinstance(tool, FunctionTool) for tool in tools)
    runtime = SingleThreadedAgentRuntime()
    await ToolAgent.register(runtime, "tools", lambda: ToolAgent("Runs tools.", tools))
    runtime.start()
    with caplog.at_level(logging.INFO, EVENT_LOGGER_NAME):
        found = [
            await runtime.send_message(FunctionCall(f"c{i}", '{"path": "a"}', "read"), AgentId("tools", "default"))
            for i in range(2)
        ]
    await runtime.stop()
    assert [(each.content, each.call_id) for each in found] == [("a: old", "c0"), ("a: old", "c1")]
    assert world.reads == ["a"]
    told = [kwargs for r in caplog.records if (kwargs := getattr(r.msg, "kwargs", {})).get("type") == "ToolCall"]
    assert [(each["tool_name"], each["arguments"], each["result"]) for each in told] == [("read", READ, "a: old")] * 2


async def test_a_tool_and_its_workbench_keep_results_of_their_own(world):
    """One keeps what the function returned and the other texts: neither takes the other's for its own."""

    def diagnostics(path: str) -> dict[str, int]:
        world.reads.append(path)
        return {"errors": 3}

    session = Session(tool_cache=DEFAULT_ALLOW)
    original = FunctionTool(diagnostics, "Look.")
    tool, bench = cached(original, session), cached(cached(StaticWorkbench([original]), session), session)
    for _ in range(2):
        assert await tool.run_json(READ, CancellationToken()) == {"errors": 3}
        assert await call(bench, "diagnostics", READ) == ("{'errors': 3}", False)
    assert world.reads == ["a", "a"]


async def test_a_wrapped_team_shares_results_and_emits_its_events(world, provide, new_client):
    """Two agents read the same file: one runs, both see request and execution events, and unwrap gives all back."""
    steps = {name: (ToolCall("read", READ), f"{name} is done") for name in ("planner", "critic")}
    provider = provide("openai", Says(steps))
    agents = [
        role(name, new_client(provider), tools=world.tools, reflect_on_tool_use=True) for name in ("planner", "critic")
    ]
    benches = [agent._workbench for agent in agents]
    team = wrap(RoundRobinGroupChat(agents, max_turns=2), session := Session(tool_cache=DEFAULT_ALLOW))
    events = [event async for event in team.run_stream(task="Read the file.")]
    results = [result for e in events if isinstance(e, ToolCallExecutionEvent) for result in e.content]
    assert [(r.content, r.is_error) for r in results] == [("a: old", False)] * 2
    assert sum(isinstance(e, ToolCallRequestEvent) for e in events) == 2
    assert world.reads == ["a"]
    assert session.report().tool_cache.total.hits == 1
    assert agents[0].dump_component().config["workbench"][0]["provider"] == "autogen_core.tools.StaticStreamWorkbench"
    await team.reset()
    assert session.report().tool_cache.total.entries == 0
    unwrap(team)
    assert [agent._workbench for agent in agents] == benches


async def test_a_loop_is_told_so_until_the_user_speaks(world, provide, new_client):
    """The third identical call of a turn is refused as an error; the next task is heard again."""
    provider = provide("openai", lambda request: Reply(tool_calls=(ToolCall("read", READ),)))
    agent = wrap(
        AssistantAgent("planner", new_client(provider), tools=world.tools, max_tool_iterations=4),
        Session(tool_cache=DEFAULT_ALLOW),
    )

    async def flags():
        done = await agent.run(task="Read the file.")
        return [r.is_error for e in done.messages if isinstance(e, ToolCallExecutionEvent) for r in e.content]

    assert await flags() == [False, False, True, True]
    assert await flags() == [False, False, True, True]
    assert world.reads == ["a"]


async def test_an_agent_as_a_tool_still_streams_and_counts_as_a_write(world, provide, new_client):
    """Its inner events pass through while it runs, and what was read before is looked up again."""
    asks, reads = ToolCall("helper", {"task": "Help."}), ToolCall("read", READ)
    steps = {"planner": (reads, "first", asks, reads, "end"), "helper": ("I helped.",)}
    provider = provide("openai", Says(steps))
    helper = AgentTool(role("helper", new_client(provider)))
    agent = role("planner", new_client(provider), tools=[*world.tools, helper], max_tool_iterations=3)
    wrapped = wrap(agent, Session(tool_cache=DEFAULT_ALLOW))
    await wrapped.run(task="Read.")
    events = [event async for event in wrapped.run_stream(task="And again.")]
    assert any(isinstance(event, TextMessage) and event.source == "helper" for event in events)
    assert world.reads == ["a", "a"]


async def test_mcp_tools_are_known_by_origin_and_denied_until_allowed():
    """A server's tool runs every time until a pattern for servers allows it; both wraps share one connection."""
    mcp = pytest.importorskip("autogen_ext.tools.mcp", reason="needs the extra mcp, which make test installs")
    server = mcp.StdioServerParams(
        command=sys.executable, args=[str(Path(__file__).parent / "mcp_tools.py")], read_timeout_seconds=60
    )
    async with mcp.McpWorkbench(server) as workbench:
        for cache, hits in (
            (ToolResultCache(options=ToolCacheOptions(allow=["z_lookup"])), 0),
            (ToolResultCache(options=ToolCacheOptions(tools=[ToolSpec("z_lookup", cacheable=True)])), 0),
            (ToolResultCache(options=ToolCacheOptions(allow=["mcp:z_*"])), 1),
        ):
            session = Session(tool_cache=cache)
            bench = cached(workbench, session)
            found = [await call(bench, "z_lookup", {"query": "q"}) for _ in range(2)]
            assert found == [("looked up q on the server", False)] * 2
            assert session.report().tool_cache.total.hits == hits
            del bench


async def test_leaving_a_stream_early_ends_the_call(world):
    """A consumer that stops listening cancels the tool and leaves no waiter behind."""
    world.pause = 30.0
    bench = cached(StaticStreamWorkbench(world.tools), Session(tool_cache=DEFAULT_ALLOW))

    async def listen():
        async for _ in bench.call_tool_stream("read", READ, CancellationToken()):
            pass

    task = asyncio.create_task(listen())
    await asyncio.sleep(0.05)
    task.cancel()
    # Well before the tool would have ended by itself.
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 3)
    world.pause = 0.0
    assert await asyncio.wait_for(call(bench, "read", READ), 3) == ("a: old", False)


async def test_two_users_tools_of_one_name_answer_each_their_own_question():
    """Workbenches and tools made for alice and for bob: nobody gets the other's inbox, and each a hit of its own."""

    def tool_for(user):
        def read(path: str) -> str:
            return f"{user}'s {path}"

        return FunctionTool(read, "Read a file of the user.")

    session = Session(tool_cache=DEFAULT_ALLOW)
    tools = {user: tool_for(user) for user in ("alice", "bob")}
    for user, tool in [*tools.items(), *tools.items()]:
        assert await cached(tool, session).run_json(READ, CancellationToken()) == f"{user}'s a"
        assert await call(cached(StaticWorkbench([tool]), session), "read", READ) == (f"{user}'s a", False)
    assert session.report().tool_cache.total.hits == 4


async def test_a_tool_of_an_own_class_answers_for_itself():
    """Its class does more than ask the function, which is the same for all users."""

    def read(path: str) -> str:
        return path

    class Signed(FunctionTool):
        def __init__(self, user):
            super().__init__(read, "Read a file of the user.")
            self.user = user

        async def run(self, args, cancellation_token):
            return f"{self.user}'s {await super().run(args, cancellation_token)}"

    session = Session(tool_cache=DEFAULT_ALLOW)
    tools = {user: Signed(user) for user in ("alice", "bob")}
    for user, tool in [*tools.items(), *tools.items()]:
        assert await cached(tool, session).run_json(READ, CancellationToken()) == f"{user}'s a"
        assert await call(cached(StaticWorkbench([tool]), session), "read", READ) == (f"{user}'s a", False)
    assert session.report().tool_cache.total.hits == 4


@pytest.mark.parametrize("kind", [StaticWorkbench, StaticStreamWorkbench])
async def test_a_workbench_of_an_own_class_answers_for_itself(world, kind):
    """It may show each user something else of what the tool says, which is the same for all."""

    class Signed(kind):
        def __init__(self, tools, user):
            super().__init__(tools)
            self.user = user

        def signed(self, result):
            return result.model_copy(update={"name": f"{result.name} of {self.user}"})

        async def call_tool(self, *given, **more):
            return self.signed(await super().call_tool(*given, **more))

        if kind is StaticStreamWorkbench:

            async def call_tool_stream(self, *given, **more):
                async for one in super().call_tool_stream(*given, **more):
                    yield self.signed(one)

    session, told = Session(tool_cache=DEFAULT_ALLOW), []
    tools = world.tools
    benches = [Signed(tools, user) for user in ("alice", "bob")]
    for bench in [*benches, *benches]:
        await call(cached(bench, session), "read", READ)
        told.append(len(world.reads))
    assert told == [1, 2, 2, 2]
    assert session.report().tool_cache.total.hits == 2


async def test_an_agent_that_polls_works_as_without_us(provide, new_client):
    """The same call five times, declared by nobody: five answers."""
    polls = iter(range(9))

    def state(job: str) -> str:
        """A job's state."""
        return f"{job}: {next(polls)}"

    provider = provide("openai", lambda request: Reply(tool_calls=(ToolCall("state", {"job": "a"}),)))
    agent = AssistantAgent("planner", new_client(provider), tools=[state], max_tool_iterations=5)
    done = await wrap(agent, Session(tool_cache=True)).run(task="Wait for it.")
    said = [r.content for e in done.messages if isinstance(e, ToolCallExecutionEvent) for r in e.content]
    assert said == [f"a: {number}" for number in range(5)]
