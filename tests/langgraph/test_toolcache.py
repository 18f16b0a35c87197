"""Tool calls of ToolNode and create_agent answered from the session's tool cache, in real graphs."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from contextvars import ContextVar
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, Tool, ToolException, tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode
from langgraph.types import Command, interrupt
from pydantic import create_model

from cacheprefix import Caching, Session
from cacheprefix.errors import SetupError, StoreError
from cacheprefix.server import Queue, Reply, SimulatedProvider, ToolCall
from cacheprefix.stores import MemoryStore, RedisStore
from cacheprefix.toolcache import DEFAULT_ALLOW, ToolCacheOptions, ToolResultCache, ToolSpec
from cacheprefix_langgraph import PrefixMiddleware, cached_tools, wrap_model
from cacheprefix_langgraph.tool_cache import origin


class World:
    """One file, and how often it was looked at."""

    def __init__(self) -> None:
        self.text = "old"
        self.reads: list[str] = []
        self.pause = 0.0

    @property
    def tools(self) -> list[Any]:
        @tool
        def read(path: str) -> str:
            """Read a file."""
            time.sleep(self.pause)
            self.reads.append(path)
            return f"{path}: {self.text}"

        @tool
        def write(path: str, text: str) -> str:
            """Write a file."""
            self.text = text
            return "written"

        return [read, write]


@pytest.fixture
def world() -> World:
    """A fresh file."""
    return World()


def node(tools, session, checkpointer=None, **options):
    """A graph of one ToolNode with the session's cache around it."""
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=True, **cached_tools(session, **options)))
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    return graph.compile(checkpointer=checkpointer)


def asks(*calls, author=None, user="go"):
    """A state whose last message makes the given calls."""
    made = [{"name": name, "args": arguments, "id": f"call_{i}"} for i, (name, arguments) in enumerate(calls)]
    return {"messages": [HumanMessage(user, id=f"u-{user}"), AIMessage("", tool_calls=made, name=author)]}


def answers(graph, *calls, thread="t", config=None, **state):
    """What the tools answered, sync."""
    config = {"configurable": {"thread_id": thread, **(config or {})}}
    done = graph.invoke(asks(*calls, **state), config)
    return [message for message in done["messages"] if isinstance(message, ToolMessage)]


async def aanswers(graph, *calls, thread="t", **state):
    """What the tools answered, async."""
    done = await graph.ainvoke(asks(*calls, **state), {"configurable": {"thread_id": thread}})
    return [message for message in done["messages"] if isinstance(message, ToolMessage)]


READ = ("read", {"path": "a"})


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_known_call_is_answered_without_the_tool(world, later):
    """The second run of the node gets the same message under its own call id, and a call elsewhere runs."""
    graph = node(world.tools, session := Session(tool_cache=DEFAULT_ALLOW))

    def go(*calls):
        return asyncio.run(aanswers(graph, *calls)) if later else answers(graph, *calls)

    (first,) = go(READ)
    other, again = go(("read", {"path": "b"}), READ)
    assert (again.content, again.tool_call_id, again.status, again.name) == ("a: old", "call_1", "success", "read")
    assert (first.content, other.content, world.reads) == ("a: old", "b: old", ["a", "b"])
    total = session.report().tool_cache.total
    assert (total.hits, total.misses) == (1, 2)
    assert "Hits: 1" in str(session.report())


def test_a_write_outdates_what_was_read(world):
    """Read, write, read again gives the new text."""
    graph = node(world.tools, Session(tool_cache=DEFAULT_ALLOW))
    answers(graph, READ)
    answers(graph, ("write", {"path": "a", "text": "new"}))
    assert answers(graph, READ)[0].content == "a: new"


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_identical_calls_of_one_answer_run_once(world, later):
    """ToolNode runs them in parallel; one reads and the others join it."""
    world.pause = 0.5  # a thread may begin late on a busy machine
    graph = node(world.tools, session := Session(tool_cache=DEFAULT_ALLOW))
    got = asyncio.run(aanswers(graph, *[READ] * 6)) if later else answers(graph, *[READ] * 6)
    assert [m.content for m in got] == ["a: old"] * 6
    assert sorted(m.tool_call_id for m in got) == [f"call_{i}" for i in range(6)]
    assert world.reads == ["a"]
    assert session.report().tool_cache.total.joined == 5


def test_a_loop_is_told_so_until_the_user_speaks(world):
    """The third identical call of one turn is refused as an error; another author or a new message is heard."""
    graph = node(world.tools, Session(tool_cache=DEFAULT_ALLOW))

    def ask(round_, **state):
        history = asks(READ, **state)
        # The history grows with every round, as in a real loop.
        more = [AIMessage(f"step {i}") for i in range(round_)]
        given = {"messages": [history["messages"][0], *more, history["messages"][1]]}
        return graph.invoke(given, {"configurable": {"thread_id": "t"}})["messages"][-1]

    assert [ask(i).status for i in range(3)] == ["success", "success", "error"]
    assert "Repeated identical call to read" in ask(3).content
    assert ask(4, author="critic").status == "success"
    assert ask(5, user="and now?").status == "success"


def test_without_a_thread_and_a_message_nobody_is_counted(world):
    """Runs that cannot be told apart are never refused for one another."""
    graph = node(world.tools, Session(tool_cache=DEFAULT_ALLOW))
    made = AIMessage("", tool_calls=[{"name": "read", "args": {"path": "a"}, "id": "c"}])
    for _ in range(5):
        assert graph.invoke({"messages": [made]})["messages"][-1].status == "success"


def test_a_call_that_the_node_makes_again_is_no_repeat(world):
    """A node resumed after interrupts runs the same call anew, which is not the model's doing."""

    @tool
    def read(path: str) -> str:
        """Read a file after three questions."""
        return ", ".join(interrupt(f"question {i}") for i in range(3))

    graph = node([read], Session(tool_cache=DEFAULT_ALLOW), InMemorySaver())
    config = {"configurable": {"thread_id": "t"}}
    done = graph.invoke(asks(READ), config)
    for answer in ("yes", "no", "maybe"):
        assert done["__interrupt__"]
        done = graph.invoke(Command(resume=answer), config)
    assert done["messages"][-1].content == "yes, no, maybe"


def test_tenants_do_not_see_each_other(world):
    """A scope found in the request's configuration is part of the key, and one that cannot be found is no scope."""
    session = Session(tool_cache=DEFAULT_ALLOW, caching=Caching(scope="house"))
    graph = node(world.tools, session, scope=lambda request: request.runtime.config["configurable"]["tenant"])
    answers(graph, READ, config={"tenant": "A"})
    world.text = "of B"
    assert answers(graph, READ, config={"tenant": "B"})[0].content == "a: of B"
    assert answers(graph, READ, config={"tenant": "A"})[0].content == "a: old"
    with pytest.warns(UserWarning, match="tool cache"):
        assert answers(graph, READ)[0].content == "a: of B"
    assert session.failures == {"tool cache": 1}
    assert world.reads == ["a"] * 3


def test_the_runs_own_tenant_is_the_default_scope(world):
    """``cacheprefix_scope`` in a run's configuration keeps its results apart, as it does its conversation."""
    graph = node(world.tools, Session(tool_cache=DEFAULT_ALLOW))
    for tenant in ("A", "B", "A", None):
        config = {} if tenant is None else {"cacheprefix_scope": tenant}
        world.text = f"of {tenant}"
        assert answers(graph, READ, config=config)[0].content == f"a: of {tenant}"
    assert world.reads == ["a"] * 3


def test_off_by_default_and_inert_in_observe_mode(world):
    """Without the option, and where nothing may change, every call runs."""
    for session in (Session(), Session(tool_cache=DEFAULT_ALLOW, mode="observe"), Session(tool_cache=False)):
        graph = node(world.tools, session)
        before = len(world.reads)
        for _ in range(4):
            assert answers(graph, READ)[0].status == "success"
        assert len(world.reads) - before == 4
    assert Session().report().tool_cache is None
    with pytest.raises(SetupError, match="takes a ToolResultCache"):
        Session(tool_cache="yes")


class Broken(MemoryStore):
    """A store that always fails."""

    def read(self, key, names):
        raise StoreError("down")

    def bump(self, names):
        raise StoreError("down")


def test_a_store_that_fails_leaves_the_tools_as_they_were(world, caplog):
    """Broken and unreachable stores: every call runs and answers."""
    for store in (Broken(), RedisStore("redis://127.0.0.1:1/0", timeout=0.2)):
        session = Session(tool_cache=ToolResultCache(store, ToolCacheOptions(allow=DEFAULT_ALLOW)))
        graph = node(world.tools, session)
        assert answers(graph, READ)[0].content == "a: old"
        assert answers(graph, READ, ("write", {"path": "a", "text": "old"}))[1].content == "written"
        assert session.tool_cache.stats().store_errors > 0
        store.close()


def test_errors_and_commands_are_never_kept():
    """What raises, what says that it failed, and what changes the graph's state runs every time."""
    runs = []

    @tool
    def read(path: str) -> Any:
        """Read a file."""
        runs.append(path)
        if path == "raises":
            raise ToolException("no such file")
        if path == "says":
            return "[error] no such file"
        return Command(update={"messages": [ToolMessage("done", tool_call_id="call_0")]})

    graph = node([read], Session(tool_cache=DEFAULT_ALLOW))
    for path in ("raises", "says", "command"):
        runs.clear()
        answers(graph, ("read", {"path": path}), thread=path)
        answers(graph, ("read", {"path": path}), thread=path)
        assert runs == [path] * 2


def test_content_and_artifact_come_back_whole():
    """Lists of blocks and artifacts are kept too, and every caller has a copy of its own."""
    runs = []

    @tool(response_format="content_and_artifact")
    def read(path: str) -> Any:
        """Read a file."""
        runs.append(path)
        return [{"type": "text", "text": path}], {"rows": [1, 2]}

    graph = node([read], Session(tool_cache=DEFAULT_ALLOW))
    first, second = answers(graph, READ)[0], answers(graph, READ)[0]
    assert (second.content, second.artifact) == (first.content, first.artifact)
    assert second.artifact is not first.artifact
    assert len(runs) == 1


def test_a_tool_that_is_handed_more_than_its_arguments_is_kept_only_when_declared():
    """Injected state and the run's configuration make equal calls unequal."""

    @tool
    def read(path: str, state: Annotated[dict, InjectedState]) -> str:
        """Read with the state."""
        return f"{path} after {len(state['messages'])}"

    @tool
    def diagnostics(path: str, config: RunnableConfig) -> str:
        """Look with the configuration."""
        return config["configurable"]["tenant"]

    session = Session(tool_cache=DEFAULT_ALLOW)
    graph = node([read, diagnostics], session)
    for tenant in ("A", "B"):
        (found,) = answers(graph, ("diagnostics", {"path": "a"}), config={"tenant": tenant})
        assert found.content == tenant
    assert answers(graph, READ)[0].content == answers(graph, READ)[0].content
    assert session.report().tool_cache.total.hits == 0
    declared = Session(tool_cache=ToolResultCache(options=ToolCacheOptions(tools=[ToolSpec("read", cacheable=True)])))
    graph = node([read], declared)
    assert answers(graph, READ)[0].content == answers(graph, READ)[0].content == "a after 2"
    assert declared.report().tool_cache.total.hits == 1


def test_every_kind_of_tool_is_kept_that_takes_its_arguments_alone():
    """Schemas given as JSON, as servers send them, tools of one input, tools of none, and classes."""
    runs = []

    class Class(BaseTool):
        name: str = "search_code"
        description: str = "Search."

        def _run(self, query: str) -> str:
            runs.append(query)
            return f"found {query} \U0001f600"

    def plain(**given):
        runs.append(given)
        return [{"type": "text", "text": "read"}], {"structured_content": {"a": 1}}

    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    form = "content_and_artifact"
    made = StructuredTool(name="read", description="d", args_schema=schema, func=plain, response_format=form)
    single = Tool.from_function(lambda text: runs.append(text) or "one", name="diagnostics", description="d")
    none = StructuredTool.from_function(lambda: runs.append(0) or "none", name="load_skill", description="d")
    given = ((made, {"path": "\u00fc\n"}), (single, {"__arg1": "z"}), (none, {}), (Class(), {"query": "q"}))
    for each, arguments in given:
        graph = node([each], session := Session(tool_cache=DEFAULT_ALLOW))
        first, second = (answers(graph, (each.name, arguments))[0] for _ in range(2))
        assert (second.content, second.artifact, second.status) == (first.content, first.artifact, "success")
        assert session.report().tool_cache.total.hits == 1, each.name
    assert len(runs) == 4


def test_mcp_tools_are_known_by_origin_and_denied_until_allowed(world):
    """A server's tool named read is nobody's read, whatever made the LangChain tool of it."""

    async def call_tool(path: str) -> str:
        return world.text

    call_tool.__module__ = "langchain_mcp_adapters.tools"
    foreign = StructuredTool.from_function(coroutine=call_tool, name="read", description="Read a file.")
    marked = world.tools[0].model_copy(update={"metadata": {"mcp": {"server": {"name": "files"}}}})
    assert [origin(each) for each in (foreign, marked, world.tools[0])] == ["mcp", "mcp", "local"]
    for made, hits in ((True, 0), (ToolResultCache(options=ToolCacheOptions(allow=["mcp:read"])), 1)):
        session = Session(tool_cache=made)
        graph = node([marked], session)
        answers(graph, READ)
        answers(graph, READ)
        assert session.report().tool_cache.total.hits == hits


class Heard(BaseCallbackHandler):
    """Writes down LangChain's tool events."""

    def __init__(self):
        self.events = []

    def on_tool_start(self, serialized, input_str, *, inputs=None, **kwargs):
        self.events.append(("start", serialized["name"], inputs))

    def on_tool_end(self, output, **kwargs):
        self.events.append(("end", output.content, output.tool_call_id))


def test_start_and_end_events_fire_on_a_hit_as_on_a_miss(world):
    """Callbacks and event streams see every call."""
    graph = node(world.tools, Session(tool_cache=DEFAULT_ALLOW))
    runs = []
    for _ in range(2):
        heard = Heard()
        graph.invoke(asks(READ), {"configurable": {"thread_id": "t"}, "callbacks": [heard]})
        runs.append(heard.events)
    assert runs[0] == runs[1] == [("start", "read", {"path": "a"}), ("end", "a: old", "call_0")]
    assert len(world.reads) == 1

    async def streamed():
        config = {"configurable": {"thread_id": "u"}}
        return [e["event"] async for e in graph.astream_events(asks(READ), config, version="v2")]

    events = asyncio.run(streamed())
    assert "on_tool_start" in events
    assert "on_tool_end" in events


def test_a_plugin_decides_which_calls_are_kept(world):
    """The hook tool_cacheable speaks for a single call; a deny pattern still wins."""

    class Plugin:
        def cacheprefix_tool_cacheable(self, tool, arguments):
            return arguments.get("path") != "clock" if tool in {"read", "write"} else None

    graph = node(world.tools, session := Session(tool_cache=DEFAULT_ALLOW, plugins=[Plugin()]))
    for path in ("clock", "clock", "a", "a"):
        answers(graph, ("read", {"path": path}))
        answers(graph, ("write", {"path": "b", "text": "old"}))
    assert world.reads == ["clock", "clock", "a", "a"]
    assert session.report().tool_cache.tools.keys() == {"read"}


def test_an_agent_answers_its_second_loop_from_the_cache(world):
    """create_agent with PrefixMiddleware: the tool runs once in two turns, and the wire shows its text twice."""
    script = Queue([
        Reply(tool_calls=(ToolCall("read", {"path": "a"}),)), "I read it.",
        Reply(tool_calls=(ToolCall("read", {"path": "a"}),)), "I read it again.",
    ])  # fmt: skip
    with SimulatedProvider("openai", script) as provider:
        session = Session(tool_cache=DEFAULT_ALLOW)
        model = wrap_model(
            ChatOpenAI(model="gpt-5.6", base_url=provider.openai_base_url, api_key="k", max_retries=0), session
        )
        agent = create_agent(model, world.tools, middleware=[PrefixMiddleware(session, role="coder")])
        for thread in ("one", "two"):
            agent.invoke({"messages": [HumanMessage("Read a.")]}, {"configurable": {"thread_id": thread}})
        sent = [json.loads(record.body)["messages"] for record in provider.requests]
    results = [m["content"] for body in sent for m in body if m["role"] == "tool"]
    assert results == ["a: old", "a: old"]
    assert world.reads == ["a"]


def test_an_agent_in_a_loop_is_told_so_and_heard_in_its_next_turn(world):
    """create_agent hands its tools to nodes of their own; the count is still one agent's, from message to message."""
    loop = [Reply(tool_calls=(ToolCall("read", {"path": "a"}),))] * 3
    with SimulatedProvider("openai", Queue([*loop, "I give up.", *loop[:1], "Now I know."])) as provider:
        session = Session(tool_cache=DEFAULT_ALLOW)
        model = ChatOpenAI(model="gpt-5.6", base_url=provider.openai_base_url, api_key="k", max_retries=0)
        agent = create_agent(
            wrap_model(model, session),
            world.tools,
            middleware=[PrefixMiddleware(session, role="coder")],
            checkpointer=InMemorySaver(),
        )
        config = {"configurable": {"thread_id": "t"}}
        for text in ("Read a.", "Again."):
            done = agent.invoke({"messages": [HumanMessage(text)]}, config)
    found = [message.status for message in done["messages"] if isinstance(message, ToolMessage)]
    assert found == ["success", "success", "error", "success"]
    assert world.reads == ["a"]


def test_a_reset_conversation_forgets_results_and_counts(world):
    """What the reset's scope held runs again; another tenant keeps its results."""
    session = Session(tool_cache=DEFAULT_ALLOW)
    graph = node(world.tools, session, scope=lambda request: request.runtime.config["configurable"]["tenant"])
    answers(graph, READ, config={"tenant": "A"})
    answers(graph, READ, config={"tenant": "B"})
    session.adapter.tool_calls.reset("t", scope="A")
    answers(graph, READ, config={"tenant": "A"})
    answers(graph, READ, config={"tenant": "B"})
    assert len(world.reads) == 3
    session.adapter.tool_calls.reset("t", scope="A")
    session.adapter.tool_calls.reset("t", scope="B")
    assert session.report().tool_cache.total.entries == 0


def test_many_threads_share_one_flight(world):
    """Sixteen graphs at once on one cold key read once."""
    world.pause = 0.1
    graph = node(world.tools, Session(tool_cache=DEFAULT_ALLOW))
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda i=i: found.append(answers(graph, READ, thread=f"t{i}")[0].content))
        for i in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["a: old"] * 16
    assert world.reads == ["a"]


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("option", [["read"], [ToolSpec("read", cacheable=True)]])
async def test_two_users_tools_of_one_name_answer_each_their_own_question(option, later):
    """Made for alice and for bob in one process, one session and one thread: nobody gets the other's inbox."""

    def tools_for(user):
        @tool
        def read(path: str) -> str:
            """Read a file of the user."""
            return f"{user}'s secret {path}"

        return [read]

    session = Session(tool_cache=option)
    graphs = {user: node(tools_for(user), session) for user in ("alice", "bob")}
    for user, graph in [*graphs.items(), *graphs.items()]:
        said = await aanswers(graph, READ) if later else answers(graph, READ)
        assert said[0].content == f"{user}'s secret a"
    assert session.report().tool_cache.total.hits == 2


@pytest.mark.parametrize("later", [False, True])
async def test_a_tool_that_is_made_once_for_all_answers_each_tenants_agent_its_own(later):
    """Tenants are children of one session: bob's requests held what the tool had said to alice."""
    who = ContextVar("who")

    @tool
    def read(path: str) -> str:
        """Read a file of whoever asks."""
        return f"{who.get()}'s secret {path}"

    users = ("alice", "bob")
    script = Queue([Reply(tool_calls=(ToolCall("read", {"path": "a"}),)), "I read it."] * 2 * len(users))
    with SimulatedProvider("openai", script) as provider:
        session = Session(tool_cache=["read"])
        llm = ChatOpenAI(model="gpt-5.6", base_url=provider.openai_base_url, api_key="k", max_retries=0)
        model = wrap_model(llm, session)
        for user in users * 2:
            who.set(user)
            own = PrefixMiddleware(session.child(user, scope=user), role="reader")
            agent, asked = create_agent(model, [read], middleware=[own]), {"messages": [HumanMessage("Read a.")]}
            await agent.ainvoke(asked) if later else agent.invoke(asked)
        told = [re.findall("(?:alice|bob)'s secret", record.body.decode()) for record in provider.requests[1::2]]
    assert told == [[f"{user}'s secret"] for user in users * 2]
    assert session.report().tool_cache.total.hits == len(users)


@pytest.mark.parametrize("made_of", ["a coroutine beside a function that all share", "a schema with defaults"])
async def test_what_differs_by_user_beside_a_tools_function_is_part_of_the_tool(made_of):
    """The function alone does not say whose answer it is; made again of the same parts, a tool is the same one."""

    def of_user(path: str, user: str = "") -> str:
        return f"{user}'s secret {path}"

    def only_later(path: str) -> str:
        raise NotImplementedError

    def parts_for(user):
        async def of_this_one(path: str) -> str:
            return f"{user}'s secret {path}"

        if made_of == "a schema with defaults":
            return {"func": of_user, "args_schema": create_model("Read", path=(str, ...), user=(str, user))}
        return {"func": only_later, "coroutine": of_this_one}

    session = Session(tool_cache=["read"])
    parts = {user: parts_for(user) for user in ("alice", "bob")}
    for user, of in [*parts.items(), *parts.items()]:
        read = StructuredTool.from_function(name="read", description="Read a file of the user.", **of)
        assert (await aanswers(node([read], session), READ))[0].content == f"{user}'s secret a"
    assert session.report().tool_cache.total.hits == 2


@pytest.mark.parametrize("name", ["next_page", "read", "diagnostics"])
def test_an_agent_that_pages_or_polls_works_as_without_us(name):
    """The same call again and again gives page after page: nobody said that the answer stays the same."""

    def run(session):
        pages = iter(range(1, 9))
        paging = StructuredTool.from_function(lambda query: f"page {next(pages)}", name=name, description="Next page.")
        call = Reply(tool_calls=(ToolCall(name, {"query": "x"}),))
        with SimulatedProvider("openai", Queue([call] * 4 + [Reply("done")])) as provider:
            model = ChatOpenAI(model="gpt-4o", base_url=provider.openai_base_url, api_key="k", max_retries=0)
            middleware = [PrefixMiddleware(session, role="r")] if session else []
            agent = create_agent(wrap_model(model, session) if session else model, [paging], middleware=middleware)
            said = agent.invoke({"messages": [HumanMessage("all")]}, {"configurable": {"thread_id": "t"}})
            return [m.content for m in said["messages"] if m.type == "tool"]

    assert run(Session("handbook " * 2_000, tool_cache=True)) == run(None) == [f"page {i}" for i in range(1, 5)]
