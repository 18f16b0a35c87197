"""A write outdates what it may have changed, and nothing else when it says what that is."""

from __future__ import annotations

import itertools
import random
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix.stores import Store
from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec
from tests.drawn import examples

READ = ToolSpec("read", cacheable=True, version="1", reads=("path",))
LIST = ToolSpec("list_files", cacheable=True, reads=("path",))
SEARCH = ToolSpec("search_code", cacheable=True, version="1")
WRITE = ToolSpec("write", mutates=("path",))
MOVE = ToolSpec("move", mutates=("source", "target"))


def eventually(holds: Any) -> None:
    """Wait, generously, for what another thread or process brings about."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


class World:
    """Files behind a cache; every read tells the version of what it read."""

    def __init__(self, store: Store | None = None, **options: Any) -> None:
        self.cache = ToolResultCache(store, ToolCacheOptions(**options))
        self.version = itertools.count()
        self.state = next(self.version)

    def read(self, spec: ToolSpec, scope: str | None = None, **arguments: Any) -> int:
        """Read the present state through the cache."""
        return self.cache.call(spec, arguments, lambda: self.state, scope=scope)

    def write(self, spec: ToolSpec, scope: str | None = None, **arguments: Any) -> None:
        """Change the state through the cache."""

        def change() -> str:
            self.state = next(self.version)
            return "ok"

        self.cache.call(spec, arguments, change, scope=scope)

    def fresh(self, spec: ToolSpec, scope: str | None = None, **arguments: Any) -> bool:
        """Whether a read sees the present state."""
        return self.read(spec, scope, **arguments) == self.state


def test_a_read_after_a_write_sees_the_write() -> None:
    """Read, write, read: the second read runs."""
    world = World()
    world.read(READ, path="/a")
    world.write(WRITE, path="/a", text="new")
    assert world.fresh(READ, path="/a")


def test_a_read_after_a_write_sees_the_write_on_shared_stores(shared: Store) -> None:
    """Also when another cache on the same store wrote."""
    world, other = World(store=shared), World(store=shared)
    world.read(READ, path="/a")
    other.write(WRITE, path="/a")
    world.state = -1
    assert world.fresh(READ, path="/a")


def test_an_edit_runs_every_time() -> None:
    """Two identical edits are two edits, in one turn and in the next."""
    cache, runs = ToolResultCache(), []
    for _ in range(2):
        cache.call(ToolSpec("edit"), {"path": "/a"}, lambda: runs.append(1))
        cache.new_turn("c")
    assert len(runs) == 2


def test_a_write_elsewhere_keeps_the_result() -> None:
    """Only what the writer names is outdated, where the reader says all that it reads."""
    world = World()
    before = world.read(READ, path="/a")
    world.write(WRITE, path="/b")
    assert world.read(READ, path="/a") == before


def test_a_reader_that_does_not_say_what_it_reads_depends_on_everything() -> None:
    """A search is outdated by any write."""
    world = World()
    world.read(SEARCH, query="needle")
    world.write(WRITE, path="/b")
    assert world.fresh(SEARCH, query="needle")


@pytest.mark.parametrize(
    "spec", [ToolSpec("bash"), ToolSpec("edit"), ToolSpec("unknown"), ToolSpec("tool", origin="mcp")]
)
def test_a_tool_that_does_not_say_what_it_changes_outdates_everything(spec: ToolSpec) -> None:
    """Denied and unknown tools count as writers of anything."""
    world = World()
    world.read(READ, path="/a")
    world.write(spec)
    assert world.fresh(READ, path="/a")


@pytest.mark.parametrize(
    "spec",
    [ToolSpec("clock", mutates=False), ToolSpec("memory_search"), ToolSpec("web_scrape", cacheable=True, version="1")],
)
def test_a_tool_that_changes_nothing_outdates_nothing(spec: ToolSpec) -> None:
    """Declared harmless, known to be harmless, or cached itself."""
    world = World()
    before = world.read(READ, path="/a")
    world.write(spec)
    assert world.read(READ, path="/a") == before


def test_the_assumption_about_unknown_tools_can_be_lifted() -> None:
    """Whoever knows his tools may trade safety for hits; declared writers still count."""
    world = World(assume_writes=False)
    before = world.read(READ, path="/a")
    world.write(ToolSpec("unknown"))
    assert world.read(READ, path="/a") == before
    world.write(ToolSpec("unknown", mutates=True))
    assert world.fresh(READ, path="/a")


def test_a_folder_is_outdated_by_what_happens_in_it() -> None:
    """A listing sees a new file at any depth below."""
    world = World()
    world.read(LIST, path="/src")
    world.write(WRITE, path="/src/deep/new.py")
    assert world.fresh(LIST, path="/src")


def test_a_file_is_outdated_by_what_happens_to_its_folders() -> None:
    """Moving or deleting a folder changes what stood in it, and where it goes."""
    world = World()
    world.read(READ, path="/src/deep/a.py")
    world.read(READ, path="/new/deep/a.py")
    world.write(MOVE, source="/src", target="/new")
    assert world.fresh(READ, path="/src/deep/a.py")
    assert world.fresh(READ, path="/new/deep/a.py")


def test_a_neighbour_with_a_longer_name_is_not_below() -> None:
    """/src2 does not stand in /src."""
    world = World()
    before = world.read(READ, path="/src2/a.py")
    world.write(WRITE, path="/src")
    assert world.read(READ, path="/src2/a.py") == before


@pytest.mark.parametrize(
    ("read", "write"),
    [
        ("/w/a.txt", "/w/./b/../a.txt"),
        ("a.txt", "/w/a.txt"),
        ("./a.txt", "a.txt"),
        ("/w/a.txt", "//w//a.txt"),
        ("/w/A.txt", "/w/a.TXT"),
        ("/w/\u00e4.txt", "/w/a\u0308.txt"),
        ("C:\\w\\a.txt", "c:/w/a.txt"),
        ("https://x/y/z", "https://x/y"),
    ],
)
def test_one_file_under_two_names_is_one(read: str, write: str) -> None:
    """Relative paths, dots, doubled slashes, case, composition and backslashes."""
    world = World(environment={"cwd": "/w"})
    world.read(READ, path=read)
    world.write(WRITE, path=write)
    assert world.fresh(READ, path=read)


@pytest.mark.parametrize("path", ["a.txt", "~/a.txt", None, 1.5, ["/b", "rel"], {}, True])
def test_a_path_that_cannot_be_placed_may_be_any(path: Any) -> None:
    """A relative path without a working directory, a home, or no path at all: everything is outdated."""
    world = World()
    world.read(READ, path="/w/a.txt")
    world.write(WRITE, path=path)
    assert world.fresh(READ, path="/w/a.txt")
    world.read(READ, path=path)
    world.write(WRITE, path="/w/a.txt")
    assert world.fresh(READ, path=path)


def test_a_missing_argument_may_be_any() -> None:
    """A writer that was called without its path outdates everything."""
    world = World()
    world.read(READ, path="/a")
    world.write(WRITE)
    assert world.fresh(READ, path="/a")


def test_several_paths_in_one_argument_all_count() -> None:
    """A list of paths names each of them."""
    world = World()
    before = {p: world.read(READ, path=p) for p in ("/a", "/b", "/c")}
    world.write(WRITE, path=["/a", "/b"])
    assert world.fresh(READ, path="/a")
    assert world.fresh(READ, path="/b")
    assert world.read(READ, path="/c") == before["/c"]


def test_other_resources_have_a_kind() -> None:
    """A table is no path: only writers of that table outdate its readers."""
    query = ToolSpec("query", cacheable=True, reads=("db:table",))
    insert = ToolSpec("insert", mutates=("db:table",))
    world = World()
    before = world.read(query, table="users")
    world.write(insert, table="orders")
    world.write(WRITE, path="/users")
    assert world.read(query, table="users") == before
    world.write(insert, table="users")
    assert world.fresh(query, table="users")
    world.read(query, table=7)
    world.write(insert, table=7)
    assert world.fresh(query, table=7)


def test_symbolic_links_are_resolved_when_asked(tmp_path) -> None:
    """With realpath a write through a link outdates the file itself."""
    import os

    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    world = World(resolve=os.path.realpath)
    world.read(READ, path=str(tmp_path / "real" / "a"))
    world.write(WRITE, path=str(tmp_path / "link" / "a"))
    assert world.fresh(READ, path=str(tmp_path / "real" / "a"))


def test_a_write_in_one_scope_outdates_all_scopes() -> None:
    """Two sessions on one file system see each other's writes."""
    world = World()
    world.read(READ, "a", path="/a")
    world.write(WRITE, "b", path="/a")
    assert world.fresh(READ, "a", path="/a")


def test_scopes_with_nothing_in_common_do_not_disturb_each_other() -> None:
    """One tenant's writes cost another one no hits when their worlds are apart."""
    world = World(one_world=False)
    before = world.read(READ, "a", path="/a")
    world.write(WRITE, "b", path="/a")
    world.write(ToolSpec("bash"), "b")
    assert world.read(READ, "a", path="/a") == before
    world.write(WRITE, "a", path="/a")
    assert world.fresh(READ, "a", path="/a")


def test_a_write_that_fails_outdates_too() -> None:
    """Half a write is a write."""
    world = World()
    world.read(READ, path="/a")

    def half() -> None:
        world.state = next(world.version)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        world.cache.call(WRITE, {"path": "/a"}, half)
    assert world.fresh(READ, path="/a")


def test_a_read_that_began_before_a_write_is_not_kept_after_it() -> None:
    """The slow reader gets its old answer; the next one reads anew."""
    world = World()
    reading, written = threading.Event(), threading.Event()

    def slow() -> int:
        seen = world.state
        reading.set()
        written.wait(10)
        return seen

    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(world.cache.call(READ, {"path": "/a"}, slow)))
    thread.start()
    reading.wait(10)
    world.write(WRITE, path="/a")
    written.set()
    thread.join(10)
    assert answers == [0]
    assert world.fresh(READ, path="/a")


def test_a_read_after_a_write_does_not_join_one_from_before() -> None:
    """An identical call still in flight is no answer when a write came between."""
    world = World()
    reading, go_on = threading.Event(), threading.Event()

    def slow() -> int:
        seen = world.state
        reading.set()
        go_on.wait(10)
        return seen

    thread = threading.Thread(target=world.cache.call, args=(READ, {"path": "/a"}, slow))
    thread.start()
    reading.wait(10)
    world.write(WRITE, path="/a")
    assert world.fresh(READ, path="/a")
    go_on.set()
    thread.join(10)
    assert world.fresh(READ, path="/a")


def test_a_read_during_a_write_is_not_kept() -> None:
    """What was read between the two halves of a write is read again."""
    world = World()

    def write() -> None:
        world.state = next(world.version)
        assert world.read(READ, path="/a") == world.state
        world.state = next(world.version)

    world.cache.call(WRITE, {"path": "/a"}, write)
    assert world.fresh(READ, path="/a")


def test_outdated_entries_are_counted(read, tool) -> None:
    """A lookup that found one is a miss that names its reason."""
    cache = ToolResultCache()
    cache.call(read, {}, tool)
    cache.call(ToolSpec("bash"), {}, tool)
    cache.call(read, {}, tool)
    total = cache.stats().total
    assert (total.hits, total.misses, total.outdated) == (0, 2, 1)


def test_a_write_that_the_store_did_not_hear_of_is_made_good(read) -> None:
    """While a bump is owed nothing kept is trusted, and it is paid when the store is back, without another call."""
    from cacheprefix.errors import StoreError
    from cacheprefix.stores import MemoryStore

    class Deaf(MemoryStore):
        deaf = False

        def bump(self, names: Any, writer: str = "") -> None:
            if self.deaf:
                raise StoreError("gone")
            super().bump(names, writer)
            told.set()

    store, told = Deaf(), threading.Event()
    world = World(store=store)
    world.read(READ, path="/a")
    store.deaf = True
    world.write(WRITE, path="/a")
    assert world.fresh(READ, path="/a")
    store.deaf = False
    assert told.wait(60)
    eventually(lambda: not world.cache._engine._owed)
    assert world.fresh(READ, path="/a")
    other = World(store=store)
    other.state = -1
    before = world.state
    world.state = -2
    assert world.read(READ, path="/a") == before
    assert other.read(READ, path="/a") == before


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
def test_under_load_no_read_is_older_than_the_last_write_before_it(kind: str, request: pytest.FixtureRequest) -> None:
    """Two caches on one store, six readers and two writers: who begins after a write sees it or a later one."""
    from cacheprefix.stores import MemoryStore, RedisStore, SqliteStore

    if kind == "redis":
        store: Store = RedisStore(request.getfixturevalue("valkey").url)
        store.clear()
    else:
        store = MemoryStore() if kind == "memory" else SqliteStore(request.getfixturevalue("tmp_path") / "store.db")
    caches = [ToolResultCache(store) for _ in range(2)]
    paths = ["/a/x", "/a/y", "/b"]
    state = dict.fromkeys(paths, 0)
    committed = dict.fromkeys(paths, 0)
    lock = threading.Lock()
    stale: list[tuple[str, int, int]] = []

    def read(i: int) -> None:
        rng = random.Random(i)
        for _ in range(150):
            path, cache = rng.choice(paths), caches[i % 2]
            before = committed[path]
            seen = cache.call(READ, {"path": path}, lambda: state[path])  # noqa: B023 - called here
            if seen < before:
                stale.append((path, before, seen))

    def write(i: int) -> None:
        rng = random.Random(i)
        for _ in range(40):
            path, cache = rng.choice(paths), caches[i % 2]

            def change() -> int:
                with lock:
                    state[path] += 1  # noqa: B023 - called here
                    return state[path]  # noqa: B023 - called here

            made = cache.call(WRITE, {"path": path}, change)
            with lock:
                committed[path] = max(committed[path], made)
            time.sleep(0.001)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(6)]
    threads += [threading.Thread(target=write, args=(i,)) for i in range(6, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert stale == []
    assert sum(c.stats().total.hits for c in caches) > 0
    store.close()


PATHS = st.lists(st.sampled_from("ab"), min_size=0, max_size=3).map(lambda parts: "/" + "/".join(parts))
STEPS = st.lists(st.tuples(st.sampled_from(["read", "write", "bash"]), PATHS), max_size=25)


@settings(max_examples=examples(150), deadline=None)
@given(STEPS)
def test_no_sequence_of_calls_reads_stale(steps: list[tuple[str, str]]) -> None:
    """A tree of files where a write changes the path and all below: every read tells the true versions.

    A read of a path sees everything at and below it, so it depends on writes above and below.
    """
    cache, clock = ToolResultCache(), itertools.count(1)
    writes: list[tuple[str, int]] = []

    def seen(path: str) -> int:
        def related(other: str) -> bool:
            a, b = (p.rstrip("/") + "/" for p in (path, other))
            return a.startswith(b) or b.startswith(a)

        return max((when for other, when in writes if related(other)), default=0)

    for what, path in steps:
        if what == "read":
            assert cache.call(READ, {"path": path}, lambda: seen(path)) == seen(path)  # noqa: B023 - called here
        else:
            spec, target = (WRITE, path) if what == "write" else (ToolSpec("bash"), "/")
            cache.call(spec, {"path": path}, lambda: writes.append((target, next(clock))))  # noqa: B023 - called here
