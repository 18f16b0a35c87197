"""Tool calls of installed crews answered from the session's tool cache, in CrewAI's own executors."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from crewai import Agent, Crew, Task
from crewai.events.event_bus import crewai_event_bus
from crewai.events.types.tool_usage_events import ToolUsageFinishedEvent, ToolUsageStartedEvent
from crewai.hooks.tool_hooks import (
    get_after_tool_call_hooks,
    get_before_tool_call_hooks,
    register_before_tool_call_hook,
    unregister_before_tool_call_hook,
)
from crewai.tools import BaseTool
from crewai.tools.mcp_native_tool import MCPNativeTool
from pydantic import BaseModel, create_model

from cacheprefix import Caching, Session
from cacheprefix.errors import StoreError
from cacheprefix.server import Queue, Reply, ToolCall
from cacheprefix.stores import MemoryStore
from cacheprefix.toolcache import DEFAULT_ALLOW, ToolCacheOptions, ToolResultCache, ToolSpec
from cacheprefix_crewai import install
from cacheprefix_crewai.tool_cache import _origin

DISK = {"text": "old"}
READS: list[str] = []
PAUSE = [0.0]


class Read(BaseTool):
    """Reads the one file there is."""

    name: str = "read"
    description: str = "Read a file."

    def _run(self, path: str) -> str:
        time.sleep(PAUSE[0])
        READS.append(path)
        if path == "missing":
            raise FileNotFoundError(path)
        return f"{path}: {DISK['text']}"


class Write(BaseTool):
    """Writes it."""

    name: str = "write"
    description: str = "Write a file."

    def _run(self, path: str, text: str) -> str:
        DISK["text"] = text
        return "written"


@pytest.fixture(autouse=True)
def fresh_disk():
    """Every test begins with the old text."""
    DISK["text"], PAUSE[0] = "old", 0.0
    READS.clear()


def calls(*arguments: Any, name: str = "read") -> Reply:
    """An answer that calls a tool, once for each path."""
    given = [{"path": each} if isinstance(each, str) else each for each in arguments]
    return Reply(tool_calls=tuple(ToolCall(name, each) for each in given))


DONE = Reply("Thought: I know.\nFinal Answer: done.")


class Bench:
    """A provider, a crew on it, and what the tools answered on the wire."""

    def __init__(self, provide: Any, new_llm: Any) -> None:
        self._provide, self._new_llm = provide, new_llm
        self.provider: Any = None

    def crew(self, *replies: Reply, tasks: int = 1, kind: str = "openai", **options: Any) -> Any:
        self.provider = self._provide("openai", Queue(replies))
        agent = Agent(
            role="Reader", goal="Read", backstory="Reads.", llm=self._new_llm(self.provider, kind),
            tools=options.pop("tools", None) or [Read(), Write()], allow_delegation=False,
        )  # fmt: skip
        made = [
            Task(description=f"Read the file {{part}}, step {i}.", expected_output="Text.", agent=agent)
            for i in range(tasks)
        ]
        return Crew(agents=[agent], tasks=made, verbose=False, **options)

    def results(self) -> list[str]:
        """Contents of all tool messages, each once, in the order in which they were first sent."""
        found = [
            m["content"] for record in self.provider.requests for m in record.json["messages"] if m["role"] == "tool"
        ]
        return list(dict.fromkeys(found))


@pytest.fixture
def bench(provide, new_llm) -> Bench:
    """A bench of its own for every test."""
    return Bench(provide, new_llm)


def kick(crew: Any, session: Session) -> Session:
    """One installed run."""
    with install(crew, session):
        crew.kickoff(inputs={"part": "one"})
    return session


def test_a_known_call_is_answered_without_the_tool(bench):
    """The second task reads what the first did; both see the text, and CrewAI tells of start and end twice."""
    started, finished = [], []
    with crewai_event_bus.scoped_handlers():
        crewai_event_bus.on(ToolUsageStartedEvent)(lambda _, e: started.append(e.tool_name))
        crewai_event_bus.on(ToolUsageFinishedEvent)(lambda _, e: finished.append((e.tool_name, e.output)))
        session = kick(bench.crew(calls("a"), DONE, calls("a"), DONE, tasks=2), Session(tool_cache=DEFAULT_ALLOW))
        crewai_event_bus.flush()
    assert READS == ["a"]
    assert started == ["read", "read"]
    assert finished == [("read", "a: old")] * 2
    assert [m["content"] for r in bench.provider.requests for m in r.json["messages"][-3:] if m["role"] == "tool"] == [
        "a: old"
    ] * 2
    assert session.report().tool_cache.total.hits == 1


def test_a_write_outdates_what_was_read_also_for_crewais_own_cache(bench):
    """Read, write, read again gives the new text, where CrewAI's cache alone would give the old one."""
    crew = bench.crew(calls("a"), calls({"path": "a", "text": "new"}, name="write"), calls("a"), DONE, cache=True)
    kick(crew, Session(tool_cache=DEFAULT_ALLOW))
    assert bench.results() == ["a: old", "written", "a: new"]


def test_identical_calls_of_one_answer_run_once(bench):
    """CrewAI runs an answer's calls in threads; one reads and the others join it."""
    PAUSE[0] = 0.1
    session = kick(bench.crew(calls("a", "a", "a", "b"), DONE), Session(tool_cache=DEFAULT_ALLOW))
    assert sorted(READS) == ["a", "b"]
    assert session.report().tool_cache.total.joined == 2


def test_a_loop_is_told_so_until_the_next_kickoff(bench):
    """The third identical call of a task is refused; a new kickoff of the crew is heard again."""
    crew = bench.crew(*[calls("a")] * 3, DONE, *[calls("a")] * 2, DONE)
    session = Session(tool_cache=DEFAULT_ALLOW)
    with install(crew, session):
        crew.kickoff(inputs={"part": "one"})
        assert session.report().tool_cache.total.refused == 1
        crew.kickoff(inputs={"part": "two"})
        assert session.report().tool_cache.total.refused == 1
    assert any("Repeated identical call to read" in text for text in bench.results())
    assert READS == ["a"]


def test_copies_of_a_crew_share_the_cache(bench):
    """kickoff_for_each runs copies; their agents' calls are answered from what the first one read."""
    crew = bench.crew(*[calls("a"), DONE] * 3)
    with install(crew, session := Session(tool_cache=DEFAULT_ALLOW)):
        crew.kickoff_for_each(inputs=[{"part": name} for name in ("one", "two", "three")])
    assert READS == ["a"]
    assert session.report().tool_cache.total.hits == 2


def test_tenants_do_not_see_each_other(bench):
    """One cache behind two sessions of different scope keeps their results apart."""
    shared = ToolResultCache(options=ToolCacheOptions(tools=[ToolSpec("read", cacheable=True, version="1")]))
    for tenant in ("A", "B", "A"):
        DISK["text"] = f"of {tenant}"
        kick(bench.crew(calls("a"), DONE), Session(tool_cache=shared, caching=Caching(scope=tenant)))
        assert bench.results() == [f"a: of {tenant}"]
    assert READS == ["a", "a"]


def test_errors_are_never_kept(bench):
    """A tool that raised runs again, and nobody waits for it."""
    session = kick(bench.crew(calls("missing"), calls("missing"), DONE), Session(tool_cache=DEFAULT_ALLOW))
    assert READS == ["missing"] * 2
    total = session.report().tool_cache.total
    assert (total.hits, total.entries) == (0, 0)


class Broken(MemoryStore):
    """A store that always fails."""

    def read(self, key: Any, names: Any) -> Any:
        raise StoreError("down")


def test_off_by_default_and_open_when_the_store_fails(bench):
    """Without the option, in observe mode and on a broken store every call runs and answers."""
    broken = ToolResultCache(Broken(), ToolCacheOptions(allow=DEFAULT_ALLOW))
    for session in (Session(), Session(tool_cache=DEFAULT_ALLOW, mode="observe"), Session(tool_cache=broken)):
        READS.clear()
        kick(bench.crew(calls("a"), calls("a"), DONE), session)
        assert READS == ["a", "a"]
        assert bench.results() == ["a: old"]


def test_taking_it_back_leaves_no_hook_and_no_handler(bench):
    """After ``with`` CrewAI's own cache is in its place again, and its hooks are those from before."""
    hooks = (get_before_tool_call_hooks(), get_after_tool_call_hooks())
    crew = bench.crew(calls("a"), DONE, calls("a"), DONE, cache=True)
    own = crew.agents[0].tools_handler.cache
    with install(crew, Session(tool_cache=DEFAULT_ALLOW)):
        crew.kickoff(inputs={"part": "one"})
        assert crew.agents[0].tools_handler.cache is not own
    assert crew.agents[0].tools_handler.cache is own
    assert (get_before_tool_call_hooks(), get_after_tool_call_hooks()) == hooks
    crew.kickoff(inputs={"part": "two"})
    assert READS == ["a", "a"]


def test_the_key_has_the_arguments_as_other_hooks_left_them(bench):
    """A hook that comes after ours and changes the arguments changes what is looked up."""

    def elsewhere(context: Any) -> None:
        context.tool_input["path"] = "b" if len(READS) else "a"

    crew = bench.crew(calls("x"), calls("x"), DONE)
    with install(crew, Session(tool_cache=DEFAULT_ALLOW)):
        register_before_tool_call_hook(elsewhere)
        try:
            crew.kickoff(inputs={"part": "one"})
        finally:
            unregister_before_tool_call_hook(elsewhere)
    assert bench.results() == ["a: old", "b: old"]


def test_a_call_that_a_hook_blocks_blocks_nobody(bench):
    """A refused call never began, so the next identical one neither waits nor finds anything."""
    left = [True]

    def once(context: Any) -> Any:
        return False if left and left.pop() else None

    crew = bench.crew(calls("a"), calls("a"), DONE)
    with install(crew, Session(tool_cache=DEFAULT_ALLOW)):
        register_before_tool_call_hook(once)
        try:
            crew.kickoff(inputs={"part": "one"})
        finally:
            unregister_before_tool_call_hook(once)
    assert bench.results()[-1] == "a: old"
    assert READS == ["a"]


def test_the_text_form_of_tool_calls_is_cached_too(bench):
    """Models without native calls write actions; CrewAI's other path asks the same handler."""

    def action(path: str) -> Reply:
        return Reply(f'Thought: look.\nAction: read\nAction Input: {{"path": "{path}"}}')

    crew = bench.crew(action("a"), action("b"), action("a"), DONE)
    crew.agents[0].llm.supports_function_calling = lambda: False
    session = kick(crew, Session(tool_cache=DEFAULT_ALLOW))
    assert READS == ["a", "b"]
    assert session.report().tool_cache.total.hits == 1


def test_mcp_tools_are_known_by_origin(bench):
    """Tools that CrewAI makes for servers are foreign, whatever they are called."""
    foreign = MCPNativeTool(None, "read", {"description": "Read."}, "files")
    assert _origin(foreign) == "mcp"
    assert _origin(foreign.to_structured_tool()) == "mcp"
    assert _origin(Read().to_structured_tool()) == "local"


def test_resetting_a_crews_memories_forgets_its_results(bench):
    """The next run reads again."""
    crew = bench.crew(calls("a"), DONE, calls("a"), DONE)
    with install(crew, session := Session(tool_cache=DEFAULT_ALLOW)):
        crew.kickoff(inputs={"part": "one"})
        crew.reset_memories("kickoff_outputs")
        assert session.report().tool_cache.total.entries == 0
        crew.kickoff(inputs={"part": "two"})
    assert READS == ["a", "a"]


def test_crews_in_threads_share_one_flight(bench):
    """Four installed crews at once, each with a tool object of its own, read once by the version that they declare."""
    PAUSE[0] = 0.2
    session = Session(tool_cache=[ToolSpec("read", cacheable=True, version="1")])
    crews = [bench.crew(calls("a"), DONE) for _ in range(4)]
    installed = [install(crew, session) for crew in crews]
    threads = [threading.Thread(target=crew.kickoff, kwargs={"inputs": {"part": "one"}}) for crew in crews]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in installed:
        each.undo()
    assert READS == ["a"]


def test_two_users_tools_of_one_name_answer_each_their_own_question(bench):
    """Functions and tool objects made for alice and for bob: nobody gets the other's inbox."""
    from crewai.tools import tool

    class Inbox(BaseTool):
        name: str = "read"
        description: str = "Read a file of the user."
        user: str

        def _run(self, path: str) -> str:
            return f"{self.user}'s {path}"

    def function_for(user: str) -> Any:
        @tool("read")
        def read(path: str) -> str:
            """Read a file of the user."""
            return f"{user}'s {path}"

        return read

    session = Session(tool_cache=DEFAULT_ALLOW)
    for make in (function_for, lambda user: Inbox(user=user)):
        tools = {user: make(user) for user in ("alice", "bob")}
        for user, made in [*tools.items(), *tools.items()]:
            kick(bench.crew(calls("a"), DONE, tools=[made]), session)
            assert bench.results() == [f"{user}'s a"]
    assert session.report().tool_cache.total.hits == 4


def test_an_agent_that_pages_works_as_without_us(bench):
    """The same call again and again gives page after page: nobody said that the answer stays the same."""
    pages = iter(range(1, 9))

    class NextPage(BaseTool):
        name: str = "next_page"
        description: str = "The next page."

        def _run(self, query: str) -> str:
            return f"page {next(pages)}"

    asks = calls({"query": "x"}, name="next_page")
    kick(bench.crew(*[asks] * 4, DONE, tools=[NextPage()]), Session(tool_cache=True))
    assert bench.results() == [f"page {number}" for number in range(1, 5)]


@pytest.mark.parametrize("made_of", ["a schema with defaults", "an own class"])
def test_what_differs_by_user_beside_a_tools_function_is_part_of_the_tool(bench, made_of):
    """The function is the same for both: nobody gets the other's inbox."""
    from crewai.tools.base_tool import Tool

    def of_user(path: str, user: str = "") -> str:
        return f"{user}'s {path}"

    class Signed(Tool):
        user: str

        def _run(self, path: str) -> str:
            return self.func(path, self.user)

        run = _run

    class Path(BaseModel):
        path: str

    def made_for(user: str) -> Any:
        told = {"name": "read", "description": "Read a file of the user.", "func": of_user}
        if made_of == "an own class":
            return Signed(**told, user=user, args_schema=Path)
        return Tool(**told, args_schema=create_model("Read", path=(str, ...), user=(str, user)))

    session = Session(tool_cache=DEFAULT_ALLOW)
    tools = {user: made_for(user) for user in ("alice", "bob")}
    for user, made in [*tools.items(), *tools.items()]:
        kick(bench.crew(calls("a"), DONE, tools=[made]), session)
        assert bench.results() == [f"{user}'s a"]
    assert session.report().tool_cache.total.hits == 2
