"""Whose results they are: a tool is told apart by its version or its function, and not by its name."""

from __future__ import annotations

import functools
import gc
import itertools
from typing import Any

import pytest

from cacheprefix import Session
from cacheprefix.adapter import ToolUse
from cacheprefix.stores import MemoryStore, Store
from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec


def tool_for(user: str) -> Any:
    """A function called ``read``, made for one user."""

    def read(path: str) -> str:
        return f"{user}'s {path}"

    return read


class Box:
    """An object whose method is a tool, and that cannot be hashed."""

    __hash__ = None

    def __init__(self, user: str) -> None:
        self.user = user

    def read(self, path: str) -> str:
        return f"{self.user}'s {path}"

    def __eq__(self, other: object) -> bool:
        return True


def asked(session: Session, function: Any) -> str:
    """What a call of ``read`` gives through a session, as a front door makes it."""
    return session.adapter.tool_calls.run(ToolUse("read", {"path": "inbox"}, tool=function), lambda: function("inbox"))


@pytest.mark.parametrize(
    "tools",
    [
        [tool_for("alice"), tool_for("bob")],
        [Box("alice").read, Box("bob").read],
        [functools.partial("{}'s {}".format, user) for user in ("alice", "bob")],
    ],
    ids=["closures", "methods", "partials"],
)
@pytest.mark.parametrize("option", [["read"], ["*"], [ToolSpec("read", cacheable=True)]])
def test_two_tools_of_one_name_never_answer_for_each_other(tools: Any, option: Any) -> None:
    """Made for two users they keep two answers, and each its own: allowed by name, by pattern or by declaration."""
    session = Session(tool_cache=option)
    for _ in range(2):
        assert [asked(session, each) for each in tools] == ["alice's inbox", "bob's inbox"]
    total = session.tool_cache.stats().total
    assert (total.misses, total.hits) == (2, 2)


def test_a_declared_version_is_the_tool_whatever_runs(shared: Store) -> None:
    """Made anew for every request, in whatever process, it answers for itself; another version does not."""
    for version, expected in (("1", "alice's inbox"), ("1", "alice's inbox"), ("2", "bob's inbox")):
        options = ToolCacheOptions(tools=[ToolSpec("read", cacheable=True, version=version)])
        session = Session(tool_cache=ToolResultCache(shared, options))
        assert asked(session, tool_for("alice" if version == "1" else "bob")) == expected
        assert session.tool_cache.stats().total.entries == int(version)


def test_a_tool_without_a_version_stays_out_of_the_shared_store(shared: Store) -> None:
    """It is cached in this process; what another cache on the store writes outdates it all the same."""
    options = ToolCacheOptions(allow=["read"])
    session, other = (Session(tool_cache=ToolResultCache(shared, options)) for _ in range(2))
    alice = tool_for("alice")
    assert [asked(session, alice) for _ in range(2)] == ["alice's inbox"] * 2
    assert shared.sizes() == {}
    assert (session.tool_cache.stats().total.hits, session.tool_cache.stats().total.entries) == (1, 1)
    assert asked(other, alice) == "alice's inbox"
    assert other.tool_cache.stats().total.misses == 1
    other.tool_calls.run(ToolUse("write", {}), lambda: "written")
    asked(session, alice)
    assert session.tool_cache.stats().total.misses == 2


def test_a_name_alone_is_never_enough() -> None:
    """A front door that does not say what runs caches nothing by pattern, whatever a plugin says."""

    class Plugin:
        def cacheprefix_tool_cacheable(self, tool: str, arguments: Any) -> bool:
            return True

    for options in ({"tool_cache": ["read"]}, {"tool_cache": True, "plugins": [Plugin()]}):
        session = Session(**options)
        runs = itertools.count()
        assert [session.adapter.tool_calls.run(ToolUse("read", {}), runs.__next__) for _ in range(2)] == [0, 1]


def test_nothing_is_cached_by_its_name_unless_the_user_says_so() -> None:
    """``tool_cache=True`` names no tool: those that a plugin calls cacheable are, and no others."""

    class Plugin:
        def cacheprefix_tool_cacheable(self, tool: str, arguments: Any) -> bool | None:
            return True if tool == "look" else None

    session = Session(tool_cache=True, plugins=[Plugin()])
    for name, expected in (("read", [0, 1]), ("search_code", [0, 1]), ("look", [0, 0])):
        runs = itertools.count()
        assert [
            session.adapter.tool_calls.run(ToolUse(name, {}, tool=Plugin), runs.__next__) for _ in range(2)
        ] == expected


def test_a_tool_that_is_gone_leaves_its_place_to_nobody() -> None:
    """Functions come and go at the same address; none finds the answers of one before it."""
    session = Session(tool_cache=["read"])
    for number in range(300):
        function = tool_for(f"user {number}")
        assert asked(session, function) == f"user {number}'s inbox"
        del function
        gc.collect(0)


def test_what_cannot_be_told_apart_is_not_cached() -> None:
    """A function that leaves no trace of its identity runs each time."""
    runs: list[int] = []
    session = Session(tool_cache=["read"])
    for _ in range(2):
        session.adapter.tool_calls.run(ToolUse("read", {}, tool=(1, 2)), lambda: runs.append(1))
    assert len(runs) == 2


@pytest.mark.parametrize("option", ["read", b"read", 1, [1], [None], {"read": ToolSpec("read")}.values(), 0])
def test_what_the_option_takes_is_said(option: Any) -> None:
    """A cache, a list of tools, True or None; anything else is named at set-up."""
    from cacheprefix.errors import SetupError

    if isinstance(option, type({}.values())):
        assert Session(tool_cache=option).tool_cache.declares("read")
        return
    with pytest.raises(SetupError, match="a list of cacheable tools"):
        Session(tool_cache=option)


def test_two_caches_of_a_process_share_a_memory_store_by_function() -> None:
    """The identity is the process's and not the cache's."""
    store, options = MemoryStore(), ToolCacheOptions(allow=["read"])
    alice = tool_for("alice")
    sessions = [Session(tool_cache=ToolResultCache(store, options)) for _ in range(2)]
    assert [asked(each, alice) for each in sessions] == ["alice's inbox"] * 2
    assert sessions[1].tool_cache.stats().total.hits == 1
