"""How a session's own work and memory grow with the turns of a conversation and with the number of conversations.

``python -m benchmarks.bench_scaling`` prints a table and writes ``benchmarks/results/scaling.json``. A request a turn
with one kilobyte messages, through ``begin`` and ``finish`` with the history as wire bodies; CPU time of the
whole conversation, and its exponent over the turns (1 is linear). No model is called.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from typing import Any

from benchmarks import _table
from benchmarks.bench_context import exponent
from cacheprefix import Session, SharedPrefix
from cacheprefix.adapter import Request
from cacheprefix.profiles import Usage

WORDS = "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut " * 11
SIZES = (60, 120, 240, 480, 960)
GOAL = 1.15


def conversation(session: Session, turns: int, name: str, api: Any = "openai-chat") -> None:
    """One conversation: the history grows by two messages a turn and is sent whole."""
    model = "gpt-5" if api == "openai-chat" else "claude-opus-4-1"
    head = [{"role": "system", "content": session.prefix.text}] if api == "openai-chat" else []
    beside = {} if api == "openai-chat" else {"system": session.prefix.text, "max_tokens": 100}
    history: list[dict[str, Any]] = []
    read = 0
    for turn in range(turns):
        history.append({"role": "user", "content": f"{name} {turn} {WORDS}"})
        body = {"model": model, **beside, "messages": [*head, *history]}
        sent = session.adapter.begin(Request(body, api, agent="agent", conversation=name, boundary=len(history)))
        total = 1_000 + 250 * len(history)
        sent.finish(Usage(total, read, None, 250))
        read = total
        history.append({"role": "assistant", "content": f"answer {turn} {WORDS}"})


def seconds(turns: int, api: str) -> float:
    """CPU seconds of the session's part of one conversation, the copying of lists included."""
    session = Session(SharedPrefix(system=WORDS * 4), gate=None)
    gc.collect()
    start = time.process_time()
    conversation(session, turns, "one", api)
    return time.process_time() - start


def memory(conversations: int, turns: int) -> float:
    """Bytes a session holds in the end beyond the application's own messages."""
    gc.collect()
    tracemalloc.start()
    session = Session(SharedPrefix(system=WORDS * 4), gate=None)
    for number in range(conversations):
        conversation(session, turns, f"c{number}")
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return float(held)


def main() -> None:
    """Measure, print, write."""
    parser = _table.options(__doc__)
    parser.add_argument("--turns", type=int, nargs="+", default=list(SIZES))
    options = parser.parse_args()
    sizes = sorted(options.turns)
    seconds(20, "openai-chat")
    rows: list[dict[str, Any]] = []
    for api in ("openai-chat", "anthropic"):
        times = []
        for size in sizes:
            _table.progress(f"{api}, {size:,} turns")
            times.append(min(seconds(size, api) for _ in range(2)))
            name = f"{api}: CPU time a turn, conversation of {size:,} turns"
            rows.append(_table.topic(name, 1_000 * times[-1] / size, "ms"))
        span = f"{sizes[0]} to {sizes[-1]:,} turns"
        rows.append(
            _table.topic(f"{api}: exponent of the total over {span}", exponent(sizes, times), "exponent", goal=GOAL)
        )
    held = []
    for count in (5, 20, 80):
        _table.progress(f"memory, {count} conversations")
        held.append(memory(count, 10) / count)
        rows.append(_table.topic(f"memory a conversation of 10 turns, {count} of them", held[-1] / 1e3, "kB", digits=1))
    for turns in (50, 200):
        _table.progress(f"memory, {turns} turns")
        rows.append(
            _table.topic(f"memory a turn, one conversation of {turns} turns", memory(1, turns) / turns / 1e3, "kB")
        )
    _table.finish("scaling", rows, options, whole=sizes == list(SIZES))


if __name__ == "__main__":
    main()
