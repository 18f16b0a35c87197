"""Whatever fails in the cache, the tool runs and its own outcome reaches the caller."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from cacheprefix.errors import SHOW, StoreError
from cacheprefix.stores import MemoryStore, SqliteStore, Store
from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec
from cacheprefix.toolcache.codec import JsonCodec, keep, seal


class Failing(MemoryStore):
    """A store whose named operations raise."""

    shared = True

    def __init__(self, *broken: str, error: type[Exception] = StoreError) -> None:
        super().__init__()
        self.broken = broken

        def fail(*_: Any, **__: Any) -> Any:
            raise error("the store failed")

        for name in broken:
            setattr(self, name, fail)

    def mend(self) -> None:
        """Let every operation work again."""
        for name in self.broken:
            delattr(self, name)


@pytest.mark.parametrize("error", [StoreError, OSError, ValueError, StopIteration])
@pytest.mark.parametrize(
    "broken",
    [
        *(["read"], ["set"], ["acquire"], ["release"], ["generations"], ["bump"], ["delete"]),
        ["read", "set", "acquire", "release", "generations", "bump", "delete", "sizes"],
    ],
)
async def test_a_broken_store_never_changes_the_outcome(read, make, broken: list[str], error: type[Exception]) -> None:
    """Each operation may raise anything: results and exceptions are the tool's own."""
    cache, tool = ToolResultCache(Failing(*broken, error=error)), make()

    async def run() -> Any:
        return tool()

    for i in range(2):
        assert cache.call(read, {"sync": i}, tool) == "content"
        assert await cache.acall(read, {"async": i}, run) == "content"
        assert cache.call(ToolSpec("write"), {}, tool) == "content"
        attempt = cache.begin(read, {"in two halves": i})
        attempt.finish("content")
        assert (attempt.outcome, attempt.result) == ("miss", "content")
    tool.failures = [KeyError("own"), KeyError("own")]
    with pytest.raises(KeyError, match="own"):
        cache.call(read, {"other": 1}, tool)
    with pytest.raises(KeyError, match="own"):
        await cache.acall(read, {"other": 1}, run)
    cache.stats()


@pytest.mark.parametrize("lie", [None, "text", 42, ()])
async def test_a_store_that_answers_nonsense_never_changes_the_outcome(read, make, lie: Any) -> None:
    """Generations that are no bytes prove nothing: the tool runs each time, and that is counted."""
    store = Failing()
    store.read, store.generations = (lambda *_: (None, lie)), (lambda *_: lie)
    cache, tool = ToolResultCache(store), make()

    async def run() -> Any:
        return tool()

    assert [cache.call(read, {}, tool, conversation="c") for _ in range(2)] == ["content"] * 2
    assert await cache.acall(read, {}, run) == "content"
    assert not cache.begin(read, {}).answered
    assert tool.runs == 3
    assert cache.stats().store_errors


def test_a_failure_is_counted_and_told_once(read, tool, caplog: pytest.LogCaptureFixture) -> None:
    """One warning, however often the store fails."""
    cache = ToolResultCache(Failing("read"))
    with caplog.at_level(logging.WARNING, logger="cacheprefix"):
        for _ in range(5):
            cache.call(read, {}, tool)
    assert len(caplog.records) == 1
    assert "the store failed" in caplog.text
    assert cache.stats().store_errors == 5


def test_a_failure_is_told_without_its_text(read, tool, caplog: pytest.LogCaptureFixture, monkeypatch) -> None:
    """What a store of somebody else's raises may quote what it was to keep."""
    monkeypatch.delenv(SHOW, raising=False)
    with caplog.at_level(logging.WARNING, logger="cacheprefix"):
        ToolResultCache(Failing("read", error=ValueError)).call(read, {}, tool)
    assert "ValueError at" in caplog.text
    assert "the store failed" not in caplog.text


def test_a_store_that_recovers_is_used_again(read, tool) -> None:
    """Nothing has to be reset."""
    store = Failing("read")
    cache = ToolResultCache(store)
    cache.call(read, {}, tool)
    store.mend()
    cache.call(read, {}, tool)
    cache.call(read, {}, tool)
    assert tool.runs == 2


@pytest.mark.parametrize(
    "error", [StopIteration("own"), StopAsyncIteration(), GeneratorExit("own"), KeyboardInterrupt(), SystemExit(3)]
)
def test_any_exception_of_the_tool_arrives_as_it_is(read, error: BaseException) -> None:
    """Also those that mean something to generators and to the interpreter; nothing is kept."""
    cache = ToolResultCache()

    def tool() -> str:
        raise error

    with pytest.raises(type(error)) as caught:
        cache.call(read, {}, tool)
    assert caught.value is error
    assert cache.call(read, {}, lambda: "content") == "content"


def poisons(good: bytes) -> dict[str, bytes]:
    """Ways in which the bytes of an entry may be broken."""
    return {
        "empty": b"",
        "short": good[:9],
        "cut": good[:-1],
        "longer": good + b"x",
        "one bit": good[:-3] + bytes([good[-3] ^ 1]) + good[-2:],
        "zeros": bytes(len(good)),
        "text": b"content",
        "pickle": b"cos\nsystem\n(S'exit 1'\ntR.",
    }


@pytest.mark.parametrize("kind", sorted(poisons(b"0123456789")))
def test_a_poisoned_entry_is_a_miss(read, make, shared: Store, kind: str) -> None:
    """Broken bytes are dropped, the tool runs, and its result takes their place."""
    cache, tool = ToolResultCache(shared), make("the content of the file")
    cache.call(read, {}, tool)
    (key,) = shared.sizes()
    shared.set(key, poisons(shared.get(key) or b"")[kind])
    assert cache.call(read, {}, tool) == "the content of the file"
    assert cache.call(read, {}, tool) == "the content of the file"
    assert tool.runs == 2


def test_every_single_flipped_byte_is_a_miss(read, make) -> None:
    """No byte of an entry can change without being noticed."""
    store = MemoryStore()
    cache, tool = ToolResultCache(store), make({"a": "content"})
    cache.call(read, {}, tool)
    (key,) = store.sizes()
    good = store.get(key) or b""
    for i in range(len(good)):
        store.set(key, good[:i] + bytes([good[i] ^ 0x41]) + good[i + 1 :])
        assert cache.call(read, {}, tool) == {"a": "content"}
        assert tool.runs == i + 2


def test_an_entry_under_another_key_is_a_miss(read, make) -> None:
    """Whole entries that changed places are no answer, also between tenants."""
    store = MemoryStore()
    cache = ToolResultCache(store)
    cache.call(read, {}, lambda: "of a", scope="a")
    (of_a,) = store.sizes()
    cache.call(read, {}, lambda: "of b", scope="b")
    (of_b,) = set(store.sizes()) - {of_a}
    store.set(of_b, store.get(of_a) or b"")
    assert cache.call(read, {}, lambda: "of b", scope="b") == "of b"


def test_a_sound_entry_that_the_codec_cannot_read_is_a_miss(read, make) -> None:
    """Another version's or another codec's bytes run the tool instead of raising."""
    store = MemoryStore()
    cache, tool = ToolResultCache(store), make()
    cache.call(read, {}, tool)
    (key,) = store.sizes()
    plan = cache._plan(read, {}, None)
    kept = keep("x", 0.0, JsonCodec())
    assert kept is not None
    for payload in (b"", b"?what", b"j{not json", b"s\xff\xfe"):
        kept.payload = payload
        store.set(key, seal(plan.check, store.generations(plan.names), kept))
        tool.runs = 0
        assert cache.call(read, {}, tool) == "content"
        assert tool.runs == 1


class Odd:
    """A result that raises wherever it is touched."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("no copies")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def test_a_result_that_resists_is_returned_and_not_kept(read) -> None:
    """Objects that raise on every attribute are the caller's business."""
    cache, odd = ToolResultCache(), Odd()
    assert cache.call(read, {}, lambda: odd) is odd
    assert cache.stats().total.entries == 0


def test_a_codec_that_raises_costs_the_entry_only(read, tool) -> None:
    """The tool's result is returned."""

    class Broken:
        def encode(self, result: Any) -> bytes | None:
            raise RuntimeError("codec")

        def decode(self, data: bytes) -> Any:
            raise RuntimeError("codec")

    cache = ToolResultCache(options=ToolCacheOptions(codec=Broken()))
    for _ in range(2):
        assert cache.call(read, {}, tool) == "content"
    assert tool.runs == 2


def test_arguments_that_are_no_mapping_run_the_tool(read, tool) -> None:
    """A framework that hands over something strange loses the cache and nothing else."""
    cache = ToolResultCache()
    for arguments in (None, 5, ["a"]):
        assert cache.call(read, arguments, tool) == "content"  # type: ignore[arg-type]


def test_a_full_disk_runs_the_tool(read, make, tmp_path) -> None:
    """Results that no longer fit are not kept; those from before still are."""
    store = SqliteStore(tmp_path / "store.db")
    cache, tool = ToolResultCache(store), make("x" * 500_000)
    cache.call(read, {"path": "first"}, tool)
    store._query(f"PRAGMA max_page_count = {store._query('PRAGMA page_count')[0][0]}")
    for _ in range(2):
        assert cache.call(read, {"path": "second"}, tool) == "x" * 500_000
    cache.call(read, {"path": "first"}, tool)
    assert tool.runs == 3
    assert cache.stats().store_errors == 2
    store.close()


def test_a_clock_that_goes_back_serves_and_blocks_nothing(read, make, clock) -> None:
    """Results from the clock's future are made again, and calls in flight end."""
    cache, tool = ToolResultCache(options=ToolCacheOptions(clock=clock)), make()
    cache.call(read, {}, tool)
    clock.seconds -= 500
    assert cache.call(read, {}, tool) == "content"
    assert tool.runs == 2
    assert cache.call(read, {}, tool) == "content"
    assert tool.runs == 2
    assert cache.stats().total.saved_seconds >= 0


def test_an_expired_result_stays_expired_when_the_wall_clock_goes_back(read, make, tmp_path, clock) -> None:
    """On a file, whose entries know both clocks."""
    wall = [1_700_000_000.0]
    store = SqliteStore(tmp_path / "store.db", clock=clock, wall=lambda: wall[0])
    cache, tool = ToolResultCache(store, ToolCacheOptions(ttl=60, clock=clock)), make()
    cache.call(read, {}, tool)
    clock.seconds += 61
    wall[0] -= 3_600
    cache.call(read, {}, tool)
    assert tool.runs == 2
    store.close()
