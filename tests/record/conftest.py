"""A provider of a few lines that says exactly what reached it, and a proxy in front of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from cacheprefix.audit import records
from cacheprefix.record import CallLog, Proxy, routes_of


@dataclass
class Upstream:
    """Answers each connection by ``answer(reader, writer)`` and keeps the bytes that came."""

    answer: Callable
    port: int = 0
    came: list[bytes] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)

    async def serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(row[15:]) for row in head.lower().split(b"\r\n") if row.startswith(b"content-length:")), 0)
        self.came.append(head + await reader.readexactly(length))
        await self.answer(self, reader, writer)
        writer.close()


@pytest.fixture
def loop():
    """An event loop in a thread of its own, so that tests may use blocking clients."""
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever, daemon=True)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


@pytest.fixture
def recording(loop, tmp_path):
    """``recording(answer=..., upstream=URL, text=..., limit=...)`` gives the proxy's address, its log and upstream."""
    with ExitStack() as held:

        def run(coroutine):
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

        def start(answer=None, upstream=None, **options):
            seen = None
            if upstream is None:
                seen = Upstream(answer)
                server = run(asyncio.start_server(seen.serve, "127.0.0.1", 0))
                held.callback(lambda: run(_closed(server)))
                seen.port = server.sockets[0].getsockname()[1]
                upstream = f"http://127.0.0.1:{seen.port}"
            log = CallLog(tmp_path / "calls.jsonl", **options)
            proxy = Proxy(routes_of({}, upstream=upstream), log)
            run(proxy.__aenter__())
            ended = []

            def end():
                if not ended:
                    ended.append(True)
                    run(proxy.__aexit__())
                    log.close()

            held.callback(end)
            return Recording(proxy, log, seen, end)

        yield start


@dataclass
class Recording:
    proxy: Proxy
    log: CallLog
    upstream: Upstream | None
    end: Callable[[], None]

    @property
    def openai(self):
        return f"http://127.0.0.1:{self.proxy.port}/openai_base_url/v1"

    @property
    def anthropic(self):
        return f"http://127.0.0.1:{self.proxy.port}/anthropic_base_url"

    def calls(self):
        """Ends the recording and gives its records, as the audit reads them."""
        self.end()
        return [placed.record for placed in records(str(self.log.path))]


async def _closed(server):
    server.close()
