"""One process of a team: makes calls through a cache on a shared store and reports as JSON.

Run as ``python worker.py STORE LOG OPTIONS``; OPTIONS is JSON. Every run of the tool appends a
line to LOG. Lines on standard input are commands, one JSON answer each.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from cacheprefix.stores import RedisStore, SqliteStore, Store
from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec


def main() -> None:
    """Answer commands until standard input ends."""
    where, log, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    store: Store = RedisStore(where, cooldown=0.2) if where.startswith("redis") else SqliteStore(where)
    cache = ToolResultCache(store, ToolCacheOptions(lease=options.get("lease", 30.0)))
    seconds = options.get("seconds", 0.0)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        if "at" in command:
            time.sleep(max(0.0, command["at"] - time.time()))

        def tool(command: dict[str, Any] = command) -> Any:
            with log.open("a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(seconds)
            if command.get("fail"):
                raise ValueError("the tool failed")
            return {"content": command.get("content", "content"), "by": os.getpid()}

        began = time.monotonic()
        try:
            spec = ToolSpec(
                command.get("tool", "read"),
                cacheable=True,
                version=command.get("version", "1"),
            )
            answer = cache.call(spec, command.get("arguments", {}), tool, scope=command.get("scope"))
        except ValueError as error:
            answer = str(error)
        stats = cache.stats()
        print(
            json.dumps(
                {
                    "answer": answer,
                    "seconds": time.monotonic() - began,
                    "hits": stats.total.hits,
                    "joined": stats.total.joined,
                    "misses": stats.total.misses,
                    "errors": stats.store_errors,
                }
            ),
            flush=True,
        )
    store.close()


if __name__ == "__main__":
    main()
