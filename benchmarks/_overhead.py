"""What a layout costs in time: the same calls unmodified and shared, in turns, against a server that only answers.

The server is a process of its own and looks at nothing but a request's length and its number of tool results, so
what is measured is the framework, its SDK client and loopback. The two sides take turns within one run, each growing
its own conversation at its end. Each turn's median is set against that of the turn beside it, and the row is the median
of these ratios: a machine that goes slower for some turns slows both. The ratio of the medians over all turns stands
beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from multiprocessing.connection import Connection
from typing import Any

from benchmarks import _table

SIZES = (10, 100, 1_000, 5_000)
Side = Callable[[], list[float]]
"""Makes some calls at the end of a conversation and gives the seconds that each took."""


def filler(number: int) -> str:
    """A message of one kilobyte; no two alike."""
    return f"{number} ".ljust(1024, "abcdefgh "[number % 9])


@contextlib.contextmanager
def answering(tool_rounds: int = 0) -> Iterator[str]:
    """The base URL of a server that answers every chat completion at once.

    With ``tool_rounds`` it calls the request's first tool until the conversation holds that many results.
    """
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, tool_rounds), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        process.terminate()
        process.join()


def _serve(started: Connection, tool_rounds: int) -> None:
    async def main() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = next(int(h[15:]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length:"))
                    body = await reader.readexactly(length)
                    answer, kind = _answer(body, tool_rounds), "application/json"
                    if b'"stream":true' in body:
                        answer, kind = _streamed(answer), "text/event-stream"
                    writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n".encode())
                    writer.write(f"content-length: {len(answer)}\r\n\r\n".encode() + answer)
                    await writer.drain()

        server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=2**16)
        started.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def _answer(body: bytes, tool_rounds: int) -> bytes:
    done = body.count(b'"role":"tool"') + body.count(b'"role": "tool"')
    message: dict[str, Any] = {"role": "assistant", "content": "Noted; nothing else stands out here."}
    reason = "stop"
    if done < tool_rounds and b'"tools"' in body:
        function = {"name": "look", "arguments": json.dumps({"at": done})}
        call = {"index": 0, "id": f"call_{done}", "type": "function", "function": function}
        message, reason = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    tokens = len(body) // 4
    usage = {
        "prompt_tokens": tokens,
        "completion_tokens": 8,
        "total_tokens": tokens + 8,
        "prompt_tokens_details": {"cached_tokens": tokens // 128 * 128},
    }
    shown = {"id": "c", "created": 0, "model": "gpt-5.2"}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return json.dumps({**shown, "object": "chat.completion", "choices": [choice], "usage": usage}).encode()


def _streamed(answer: bytes) -> bytes:
    """The same answer as server-sent events, all at once."""
    whole = json.loads(answer)
    choice, usage = whole["choices"][0], whole.pop("usage")
    whole["object"] = "chat.completion.chunk"
    text = {**whole, "choices": [{"index": 0, "delta": choice["message"], "finish_reason": None}]}
    end = {**whole, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}], "usage": usage}
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in (text, end)) + b"data: [DONE]\n\n"


def measured(framework: str, build: Callable[[int, bool], Side], sizes: Sequence[int], rounds: int) -> list[_table.Row]:
    """A row a size: how many times as long a call takes with cacheprefix.

    ``build(messages, shared)`` makes one side with a conversation of that many one-kilobyte messages.
    """
    rows = []
    for size in sizes:
        sides = {shared: build(size, shared) for shared in (False, True)}
        for side in sides.values():
            side()
        turns: dict[bool, list[list[float]]] = {shared: [] for shared in sides}
        for number in range(rounds):
            _table.progress(f"{framework}, {size:,} messages", number + 1, rounds)
            for shared in (bool(number % 2), not number % 2):
                turns[shared].append(sides[shared]())
        paired = statistics.median(_ratio(plain, ours) for plain, ours in zip(turns[False], turns[True], strict=True))
        pooled = _ratio(*(list(chain.from_iterable(turns[shared])) for shared in (False, True)))
        name = f"{framework}: time a call, {size:,} messages of 1 kB"
        rows.append(_table.topic(name, paired, "x", {"unmodified": 1.0, "by all medians": pooled}, digits=3))
    return rows


def _ratio(plain: Sequence[float], ours: Sequence[float]) -> float:
    return statistics.median(ours) / statistics.median(plain)


def main(about: str | None, framework: str, build: Callable[[str], Callable[[int, bool], Side]], **run: Any) -> int:
    """Run the benchmark ``FRAMEWORK_overhead``: options, table, result file."""
    parser = _table.options(about)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="messages in the conversation")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each side")
    given = parser.parse_args()
    with answering(run.get("tool_rounds", 0)) as url:
        rows = measured(framework, build(url), given.sizes, given.rounds)
    packages = run.get("packages", ())
    whole = given.sizes == list(SIZES)
    _table.finish(f"{framework.lower()}_overhead", rows, given, packages=packages, whole=whole)
    return 0
