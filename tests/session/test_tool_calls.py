"""Tool calls through a session: whose results, whose repeats, and what a plugin or a reset decides."""

from __future__ import annotations

import asyncio
import re

import pytest

from cacheprefix import Caching, History, Session, ToolResultBudget
from cacheprefix.adapter import ToolUse
from cacheprefix.errors import StateError, StoreError
from cacheprefix.stores import MemoryStore, RedisStore, ResultStore
from cacheprefix.toolcache import (
    DEFAULT_ALLOW,
    AnswerForm,
    CacheStats,
    NotKeptError,
    ToolCacheOptions,
    ToolCall,
    ToolResultCache,
    ToolSpec,
)
from tests.blocking import Hanging


class Tool:
    """Counts its runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self) -> str:
        self.runs += 1
        return f"run {self.runs}"


@pytest.fixture
def tool() -> Tool:
    """A tool that says how often it ran."""
    return Tool()


def use(path: str = "a", **more) -> ToolUse:
    """A call of ``read``, always the same function."""
    return ToolUse("read", {"path": path}, **{"tool": use, **more})


def test_a_plugin_speaks_for_single_calls_and_deny_wins(tool):
    """True allows what no pattern names, False refuses what one does, None leaves it, and denied tools stay denied."""

    class Plugin:
        def cacheprefix_tool_cacheable(self, tool, arguments):
            return {"yes": True, "no": False}.get(arguments["path"])

    session = Session(tool_cache=DEFAULT_ALLOW, plugins=[Plugin()])
    for name, path, runs in (("quote", "yes", 1), ("read", "no", 2), ("read", "maybe", 1), ("bash", "yes", 2)):
        made = Tool()
        for _ in range(2):
            session.tool_calls.run(ToolUse(name, {"path": path}, tool=made), made)
        assert made.runs == runs, (name, path)


def test_a_refusal_by_a_plugin_is_no_write(tool):
    """What was read before is still known after a call that only was not to be kept."""

    class Plugin:
        def cacheprefix_tool_cacheable(self, tool, arguments):
            return arguments["path"] != "clock"

    session = Session(tool_cache=DEFAULT_ALLOW, plugins=[Plugin()])
    session.tool_calls.run(use(), tool)
    session.tool_calls.run(use("clock"), lambda: "noon")
    session.tool_calls.run(use(), tool)
    assert tool.runs == 1


@pytest.mark.filterwarnings("ignore:plugin")
def test_a_plugin_that_raises_changes_nothing(tool):
    """The patterns decide."""

    class Plugin:
        def cacheprefix_tool_cacheable(self, tool, arguments):
            raise ValueError("no")

    session = Session(tool_cache=DEFAULT_ALLOW, plugins=[Plugin()])
    with pytest.warns(UserWarning, match="tool_cacheable"):
        session.tool_calls.run(use(), tool)
    session.tool_calls.run(use(), tool)
    assert tool.runs == 1


def test_children_use_their_parents_cache(tool):
    """Nested teams share results, and the owner is the session that was made with the cache."""
    session = Session(tool_cache=DEFAULT_ALLOW)
    child = session.child("inner")
    session.tool_calls.run(use(), tool)
    child.tool_calls.run(use(), tool)
    assert tool.runs == 1
    assert child.tool_calls.owner == session.name != child.name


@pytest.mark.parametrize("made", ["child", "edition"])
def test_a_tenants_child_reads_its_own_results_alone(tool, made):
    """It was answered from the parent's, and emptied that by a reset."""
    session = Session(tool_cache=DEFAULT_ALLOW, caching=Caching(scope="alice"))
    adapter = session.adapter
    bob = adapter.child("team", scope="bob") if made == "child" else adapter.edition("bob")
    for calls in (session.tool_calls, bob.tool_calls, session.tool_calls, bob.tool_calls):
        calls.run(use(), tool)
    assert tool.runs == 2
    bob.tool_calls.run(use(scope="alice"), tool)
    bob.child("inner").tool_calls.run(use(), tool)
    assert tool.runs == 2
    bob.tool_calls.reset()
    session.tool_calls.run(use(), tool)
    assert tool.runs == 2
    bob.tool_calls.run(use(), tool)
    assert tool.runs == 3


def test_scopes_are_the_calls_the_sessions_or_the_caches(tool):
    """The narrowest that is named counts, and tenants with one conversation id have counts of their own."""
    session = Session(
        tool_cache=ToolResultCache(options=ToolCacheOptions(scope="cache", allow=DEFAULT_ALLOW)),
        caching=Caching(scope="session"),
    )
    session.tool_calls.run(use(), tool)
    session.tool_calls.run(use(scope="session"), tool)
    assert tool.runs == 1
    session.tool_calls.run(use(scope="cache"), tool)
    assert tool.runs == 2
    for tenant in "AB":
        answers = [session.tool_calls.run(use(scope=tenant, conversation="t"), tool) for _ in range(3)]
        assert answers[2].startswith("[error] Repeated")


def test_a_call_made_again_under_its_own_name_is_no_repeat(tool):
    """A framework's retry counts once; without a name every call counts."""
    calls = Session(tool_cache=DEFAULT_ALLOW).tool_calls
    for _ in range(5):
        assert not calls.run(use(conversation="t", call="c1"), tool).startswith("[error]")
    again = [calls.run(use(conversation="u"), tool) for _ in range(3)]
    assert again[2].startswith("[error]")
    calls.new_turn("u")
    assert not calls.run(use(conversation="u"), tool).startswith("[error]")


async def test_tasks_join_one_run():
    """The async form has single flight too."""
    runs = []

    async def run() -> str:
        runs.append(1)
        await asyncio.sleep(0.01)
        return "text"

    session = Session(tool_cache=DEFAULT_ALLOW)
    assert await asyncio.gather(*(session.tool_calls.arun(use(), run) for _ in range(20))) == ["text"] * 20
    assert len(runs) == 1


def test_a_reset_clears_a_scope_and_the_counts_of_a_lone_one(tool):
    """With one scope everything starts at zero; with two the other keeps results and counts."""
    session = Session(tool_cache=DEFAULT_ALLOW)
    session.tool_calls.run(use(), tool)
    session.tool_calls.reset("t")
    assert session.tool_calls.stats().total.misses == 0
    session.tool_calls.run(use(), tool)
    session.tool_calls.run(use(scope="B"), tool)
    session.tool_calls.reset("t", scope="B")
    session.tool_calls.run(use(), tool)
    assert tool.runs == 3
    assert session.tool_calls.stats().total.hits == 1


def test_a_reset_on_a_dead_store_is_counted_and_not_raised():
    """The application's reset goes through."""

    class Dead(MemoryStore):
        def clear(self, prefix=""):
            raise StoreError("down")

    session = Session(tool_cache=ToolResultCache(Dead(), ToolCacheOptions(allow=DEFAULT_ALLOW)))
    with pytest.warns(UserWarning, match="tool cache reset"):
        session.tool_calls.reset("t")
    assert session.failures == {"tool cache reset": 1}


def test_observers_hear_every_call_and_one_that_raises_silences_nobody(tool):
    """Telemetry subscribes to the session's cache, whoever made it."""
    session = Session(tool_cache=DEFAULT_ALLOW)
    heard: list[ToolCall] = []

    def deaf(call: ToolCall) -> None:
        raise ValueError("no")

    session.tool_cache.subscribe(deaf)
    session.tool_cache.subscribe(heard.append)
    for _ in range(2):
        session.tool_calls.run(use(), tool)
    assert [call.outcome for call in heard] == ["miss", "hit"]


def test_declared_tools_are_found_by_name_and_origin():
    """A local declaration says nothing about a server's tool of that name."""
    cache = ToolResultCache(options=ToolCacheOptions(tools=[ToolSpec("quote", cacheable=True, reads=("path",))]))
    assert cache.spec("quote").reads == ("path",)
    assert cache.spec("quote", "mcp").cacheable is None


def test_statistics_survive_json():
    """What was saved reads as what it was, and anything else is named."""
    session = Session(tool_cache=DEFAULT_ALLOW)
    session.tool_calls.run(use(), lambda: "text")
    stats = session.report().tool_cache
    assert CacheStats.from_dict(session.report().as_dict()["tool_cache"]) == stats
    for broken in (None, [], {"total": {}}, {**stats.as_dict(), "tools": {"read": 1}}):
        with pytest.raises(StateError, match="no statistics"):
            CacheStats.from_dict(broken)


def test_full_results_live_in_the_same_store_as_the_tool_cache(valkey, tool):
    """One Valkey server keeps tool results and the full texts behind shortened ones; a reset leaves the latter."""
    store = RedisStore(valkey.url)
    store._client.flushall()
    text = "\n".join(f"line {i} of the found text" for i in range(2_000))
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    declared = ToolCacheOptions(tools=[ToolSpec("read", cacheable=True, version="1")])
    session = Session(
        tool_cache=ToolResultCache(store, declared),
        history=History(results=ResultStore(store)),
        budget=ToolResultBudget(max_tokens=100),
    )
    conversation = session.conversation("t", api="openai-chat")
    conversation.append(
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": text},
    )
    shown = conversation.build_messages()[-1]["content"]
    (ref,) = {*re.findall(r"\b[a-z2-7]{16}\b", conversation.dumps())}
    assert len(shown) < len(text)
    session.tool_calls.run(use(), tool)
    # Another process, as far as these objects are concerned.
    other = RedisStore(valkey.url)
    elsewhere = Session(tool_cache=ToolResultCache(other, declared), history=History(results=ResultStore(other)))
    assert elsewhere.adapter.histories.results.get(ref).text == text
    assert elsewhere.tool_calls.run(use(), tool) == "run 1"
    elsewhere.tool_calls.reset()
    assert elsewhere.adapter.histories.results.get(ref).text == text
    assert session.tool_calls.run(use(), tool) == "run 2"
    store.close()
    other.close()


async def test_a_reset_in_an_event_loop_does_not_hold_it(tool):
    """The store is walked by a thread, and what it held is gone."""
    store = Hanging()
    declared = ToolCacheOptions(tools=[ToolSpec("read", cacheable=True, version="1")])
    session = Session(tool_cache=ToolResultCache(store, declared))
    await asyncio.to_thread(session.tool_calls.run, use(), tool)
    await session.tool_calls.areset()
    assert not store.in_a_loop
    assert await asyncio.to_thread(session.tool_calls.run, use(), tool) == "run 2"


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
async def test_a_call_that_cannot_be_described_simply_runs(later):
    """A framework's object that is not as expected costs the cache and not the call; the failure is counted."""
    session, tool = Session(tool_cache=DEFAULT_ALLOW), Tool()

    async def run():
        return tool()

    def described():
        raise AttributeError("no such field")

    for _ in range(2):
        await session.tool_calls.arun(described, run) if later else session.tool_calls.run(described, tool)
    assert tool.runs == 2
    assert session.failures == {"tool cache": 2}


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
async def test_a_frameworks_answers_are_kept_and_made_anew_in_its_own_form(later):
    """The first caller gets the framework's own object; what is kept of it makes the others' and the last refusal."""
    session, answers = Session(tool_cache=DEFAULT_ALLOW), []

    def run():
        answers.append({"text": "content"})
        return answers[-1]

    async def arun():
        return run()

    async def known(value):
        return ["known", value]

    async def refused(message):
        return ["refused", message[:7]]

    def keep(answer):
        return answer["text"]

    calls = session.tool_calls
    if later:
        form = AnswerForm(keep, known, refused)
        got = [await calls.arun(use(conversation="one"), arun, form) for _ in range(3)]
    else:
        form = AnswerForm(keep, lambda value: ["known", value], lambda message: ["refused", message[:7]])
        got = [calls.run(use(conversation="one"), run, form) for _ in range(3)]
    assert got[0] is answers[0]
    assert got[1:] == [["known", "content"], ["refused", "[error]"]]
    assert len(answers) == 1


def test_an_answer_that_is_its_callers_alone_is_not_kept():
    """Where a framework says so, the next identical call runs again, and each gets its own."""
    session, tool = Session(tool_cache=DEFAULT_ALLOW), Tool()

    def keep(answer):
        raise NotKeptError

    assert [session.tool_calls.run(use(), tool, AnswerForm(keep)) for _ in range(2)] == ["run 1", "run 2"]
    assert session.failures == {}
    assert session.report().tool_cache.store_errors == 0


@pytest.mark.parametrize("option", [["*"], ["read_*"], [ToolSpec("read_full_result", cacheable=True, version="1")]])
def test_reading_a_cut_result_again_is_never_answered_for_another_conversation(option):
    """Whether a result is the caller's is asked each time; and reading outdates nothing that others keep."""
    session = Session(tool_cache=[*option, "look"])
    reads, looks = Tool(), Tool()
    for conversation in ("alice", "bob"):
        said = session.tool_calls.run(
            ToolUse("read_full_result", {"ref": "a"}, conversation=conversation, tool=reads), reads
        )
        assert said == f"run {reads.runs}"
        assert session.tool_calls.run(ToolUse("look", {}, tool=looks), looks) == "run 1"
    assert (reads.runs, looks.runs) == (2, 1)
