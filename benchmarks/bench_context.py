"""Speed and scaling of the context room: one compaction of 10,000 messages, long sessions, the ledger.

``python -m benchmarks.bench_context`` prints a table and writes ``benchmarks/results/context.json``.
Times are CPU seconds, the least of a few runs; ``--peers`` runs llmbuffer on the same work where its
cost allows it.
"""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Callable
from typing import Any

from benchmarks import _table
from cacheprefix.history import (
    Compaction,
    Ledger,
    ToolResultBudget,
    append_message,
    budget_results,
    build_messages,
    compact,
    dumps,
    loads,
    new_state,
    plan_compaction,
    replay,
)
from cacheprefix.wire import apply, views_of

KILOBYTE = "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut " * 11


def messages(turns: int, first: int = 0) -> list[dict[str, Any]]:
    """Turns of user, tool call, result and answer, one kilobyte each; other texts from another ``first`` on."""
    out: list[dict[str, Any]] = []
    for turn in range(first, first + turns):
        name, arguments = "shell", json.dumps({"command": f"{turn} {KILOBYTE}"})
        call = {"id": f"c{turn}", "type": "function", "function": {"name": name, "arguments": arguments}}
        out += [
            {"role": "user", "content": f"{turn} {KILOBYTE}"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": f"result {turn} {KILOBYTE}"},
            {"role": "assistant", "content": f"answer {turn} {KILOBYTE}"},
        ]
    return out


def least(work: Callable[[], Any], runs: int = 5) -> float:
    """The least CPU time of a few runs, in seconds."""
    times = []
    for _ in range(runs):
        gc.collect()
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def cold(run: int) -> float:
    """CPU seconds to view, plan, replay and apply on 10,000 messages that no one has looked at before."""
    whole = messages(2_500, 1_000_000 * (run + 1))
    gc.collect()
    start = time.process_time()
    views = views_of(whole, "openai-chat")
    apply(whole, replay(views, plan_compaction(views, Ledger(), Compaction()).commit()).decisions, "openai-chat")
    return time.process_time() - start


def session(turns: int, rules: Compaction | None) -> float:
    """CPU seconds to append and build through a session, a prompt before every answer."""
    whole = messages(turns)
    gc.collect()
    start = time.process_time()
    state = new_state()
    for message in whole:
        if message["role"] == "assistant":
            build_messages(state, "system", "volatile")
        state = append_message(state, message)
        if rules is not None and message["role"] == "user":
            state = compact(state, rules)
    return time.process_time() - start


def llmbuffer_session(turns: int) -> float:
    """The same with llmbuffer's PromptManager, no limit."""
    from llmbuffer import PromptManager  # noqa: PLC0415

    whole = messages(turns)
    gc.collect()
    start = time.process_time()
    manager = PromptManager(static_system_prompt="system")
    for message in whole:
        if message["role"] == "assistant":
            manager.build_messages("volatile")
        manager.append(message)
    return time.process_time() - start


def llmbuffer_compaction(turns: int) -> float:
    """One triggered compaction by llmbuffer."""
    from llmbuffer import PromptManager  # noqa: PLC0415

    manager = PromptManager()
    for message in messages(turns):
        manager.append(message)
    start = time.process_time()
    from llmbuffer import functional  # noqa: PLC0415

    functional.compact(manager.state, max_tokens=180_000)
    return time.process_time() - start


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """The slope of log time over log size: 1 is linear."""
    xs, ys = [math.log(size) for size in sizes], [math.log(second) for second in seconds]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    top = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return top / sum((x - mean_x) ** 2 for x in xs)


def main() -> None:
    """Run, print, write."""
    parser = _table.options(__doc__)
    parser.add_argument("--peers", action="store_true", help="measure llmbuffer too (minutes)")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def row(name: str, value: float, unit: str, peers: dict[str, float] | None = None) -> None:
        rows.append(_table.topic(name, value, unit, peers))
        _table.progress(name)

    whole = messages(2_500)
    views = views_of(whole, "openai-chat")
    rules = Compaction()
    peers = {"llmbuffer": round(llmbuffer_compaction(250), 2)} if options.peers else {}
    row("compaction of 10,000 messages, plan", least(lambda: plan_compaction(views, Ledger(), rules)), "s")
    ledger = plan_compaction(views, Ledger(), rules).commit()
    done = replay(views, ledger)
    row("compaction of 10,000 messages, replay", least(lambda: replay(views, ledger)), "s")
    row("compaction of 10,000 messages, apply", least(lambda: apply(whole, done.decisions, "openai-chat")), "s")
    state = new_state()
    for message in whole:
        state = append_message(state, message)
    beside = {"json.dumps of the same messages": round(least(lambda: json.dumps(whole)), 4)}
    row("compaction of 10,000 messages, whole, in a running session", least(lambda: compact(state, rules)), "s", beside)
    row("compaction of 10,000 messages, whole, never seen before", min(map(cold, range(5))), "s", beside)
    if peers:
        row("compaction of 1,000 messages by llmbuffer", peers["llmbuffer"], "s")
    row("views of 10,000 messages, seen before", least(lambda: views_of(whole, "openai-chat")), "s")
    row("budget over 10,000 messages, decided before", _replay_budget(views), "s")
    sizes = [250, 500, 1_000, 2_000]
    for name, limit in (("append and build", None), ("append, compact at 180k and build", rules)):
        seconds = [min(session(size, limit) for _ in range(3)) for size in sizes]
        for size, second in zip(sizes, seconds, strict=True):
            peer = (
                {"llmbuffer": round(llmbuffer_session(size), 3)} if options.peers and size <= 500 and not limit else {}
            )
            row(f"{name}, {size} turns", second, "s", peer)
        row(f"{name}, exponent over 250 to 2,000 turns", exponent(sizes, seconds), "exponent")
        if limit is not None:
            # The first compaction comes at 180 turns: from 500 on as many turns bring as many compactions.
            row(f"{name}, exponent over 500 to 2,000 turns", exponent(sizes[1:], seconds[1:]), "exponent")
    text = dumps(state)
    row("dumps of 10,000 messages", least(lambda: dumps(state), 2), "s")
    row("loads of 10,000 messages", least(lambda: loads(text), 2), "s")
    _table.finish("context", rows, options, packages=("llmbuffer",) if options.peers else ())


def _replay_budget(views: Any) -> float:
    known = budget_results(views, Ledger(), ToolResultBudget(max_tokens=100)).ledger
    return least(lambda: budget_results(views, known, None))


if __name__ == "__main__":
    main()
