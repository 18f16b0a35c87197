"""Real clocks: four roles on llama.cpp with SmolLM2, as a framework's adapter sends them, unmodified and shared.

Answers have one token, so that the time of a request is the time to its first token, and what the framework, its
client, cacheprefix and the engine take is all in it. Each run has a handbook that no cache has seen: the first role's
request is the cold one, those of the others are warm. ``ours`` is the CPU time that a session itself takes for a
request of that size, by the clock of its thread, so that a busy machine does not count.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks import _table
from benchmarks.bench_engine import context
from benchmarks.local_engine import COUNTER, MODEL, LocalEngine, missing, rules
from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.adapter import Request
from cacheprefix.server import idle_threads

ROLES = {
    "planner": "Plan the work.",
    "critic": "Criticise the plan.",
    "tester": "Find what may fail.",
    "writer": "Write it down.",
}
TASK = "Look at hall 3."
SIZES = (1_000, 7_000)
"""Tokens of the handbook: SmolLM2's window is 8,192."""
TOGETHER = (1_000, 4_000)
"""The same where all ask at once, and each unmodified request waits for the others."""
LAYOUTS = {"unmodified": "observe", "shared": "fork"}
OURS_MS = 5.0
"""The most that a session may take for a request of 8,000 tokens."""

Work = Callable[[LocalEngine, Session, str], None]
"""Lets all roles answer once: the engine, the session, and the handbook that each role's own prompt ends with."""
More = Callable[[Sequence[int], int, int], Iterator[dict[str, Any]]]
"""Further rows: the sizes, how often, and the engine's threads."""


def session_for(handbook: str, layout: str) -> Session:
    """A session that counts as the model does; ``handbook`` is empty where the framework's own inputs hold it."""
    mode: Any = LAYOUTS[layout]
    shared = SharedPrefix(system=handbook)
    return Session(
        shared, mode=mode, caching=Caching(provider="llama.cpp", profiles=rules(), counter=COUNTER), gate=None
    )


def engine_of(threads: int) -> LocalEngine:
    """An engine that has served nobody, so that nothing is read which the session has not seen."""
    return LocalEngine(threads=threads, ram=1024)


def ratios(
    name: str, work: Work, tokens: int, repeats: int, threads: int, *, inputs: bool = False, together: bool = False
) -> Iterator[dict[str, Any]]:
    """Rows of one way of asking; ``inputs`` where the framework's inputs hold the handbook, and not the session.

    Which of several that ask at one moment the engine serves first is its own choice: what was expected of them and
    what was counted are compared as sums, ``together``.
    """
    cold, warm, whole = ({layout: list[float]() for layout in LAYOUTS} for _ in range(3))
    off, read, total = (dict.fromkeys(LAYOUTS, 0) for _ in range(3))
    for repeat in range(repeats):
        for layout in LAYOUTS:
            _table.progress(f"{name}: {layout}", repeat + 1, repeats)
            handbook = context(tokens, COUNTER)
            session = session_for("" if inputs else handbook, layout)
            with engine_of(threads) as engine:
                began = time.perf_counter()
                work(engine, session, handbook)
                whole[layout].append(time.perf_counter() - began)
            calls = sorted(session.calls, key=lambda call: call.started_at)
            first, *others = (call.ended_at - call.started_at for call in calls)
            cold[layout].append(first)
            warm[layout] += others
            total[layout] += sum(call.usage.input_tokens or 0 for call in calls)
            read[layout] += sum(call.usage.cache_read_tokens or 0 for call in calls)
            differences = [call.verdict.expected_tokens - (call.usage.cache_read_tokens or 0) for call in calls]
            off[layout] += abs(sum(differences)) if together else sum(map(abs, differences))
    for what, times in (("first role, cold", cold), ("later roles, warm", warm)):
        yield _row(f"{name}: time to the first token, {what}", times)
    yield _row(f"{name}: whole run", whole)
    shares = {layout: read[layout] / max(1, total[layout]) for layout in LAYOUTS}
    unmodified = {"unmodified": shares["unmodified"]}
    yield _table.topic(f"{name}: input read from the cache", shares["shared"], "share", unmodified, digits=3)
    points = {layout: 100 * off[layout] / max(1, total[layout]) for layout in LAYOUTS}
    unmodified = {"unmodified": points["unmodified"]}
    yield _table.topic(f"{name}: expected against counted", points["shared"], "points", unmodified, digits=2)


def _row(name: str, times: dict[str, list[float]]) -> dict[str, Any]:
    plain, shared = (statistics.median(times[layout]) for layout in LAYOUTS)
    return _table.topic(name, shared / plain, "of unmodified", {"unmodified": 1.0}, digits=3)


def ours(tokens: int = 8_000, requests: int = 40) -> dict[str, Any]:
    """CPU time that a session takes for a request of a growing conversation; the median, the first one apart."""
    handbook = context(tokens // 2, None)
    session = Session(SharedPrefix(system=handbook), caching=Caching(provider="llama.cpp"), gate=None)
    line = "The pump of hall 3 runs at 12 bar and was last checked by Ada in week 7. "
    history = [{"role": ("user", "assistant")[at % 2], "content": line * 4} for at in range(tokens // 2 // 75)]
    took = []
    for number in range(requests):
        role = {"role": "user", "content": session.adapter.tail_for(f"role {number % 4}", "Look at it.")}
        messages = [{"role": "system", "content": handbook}, *history, role]
        began = time.thread_time()
        turn = session.adapter.begin(
            Request({"model": MODEL, "messages": messages}, "openai-chat", agent=f"role {number % 4}")
        )
        turn.finish({"prompt_tokens": tokens, "completion_tokens": 1})
        took.append((time.thread_time() - began) * 1_000)
        history.append({"role": "user", "content": line})
    first, *others = took
    name = f"ours: CPU time of a session for a request of {tokens:,} tokens"
    return _table.topic(name, statistics.median(others), "ms", {f"{OURS_MS:g} ms": OURS_MS}, first_ms=round(first, 2))


def main(
    name: str,
    framework: str,
    ways: Mapping[str, Work],
    about: str | None,
    more: More | None = None,
    *,
    inputs: bool = False,
) -> None:
    """Measure, print, write; ``ways`` are how the roles are asked, the first one at all sizes."""
    parser = _table.options(about)
    parser.add_argument("--tokens", type=int, nargs="*", default=list(SIZES), help="of the handbook, in turn")
    parser.add_argument("--together", type=int, nargs="*", default=list(TOGETHER), help="of the handbook, at once")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=idle_threads(), help="of the engine; as many as cores are idle")
    parser.add_argument("--add", action="store_true", help="into the result file, beside the rows that it has")
    options = parser.parse_args()
    logging.getLogger("cacheprefix").setLevel(logging.ERROR)
    busy = _table.busy()
    rows = [ours()]
    if missing():
        print(f"bench-{name} leaves the engine out: {missing()}", file=sys.stderr)
    else:
        rows += more(options.tokens, options.repeats, options.threads) if more else ()
        for at, (way, work) in enumerate(ways.items()):
            for tokens in options.together if at else options.tokens:
                title = f"{framework}, {tokens:,} tokens, {way}"
                rows += ratios(title, work, tokens, options.repeats, options.threads, inputs=inputs, together=at > 0)
    taken = "one run" if options.repeats == 1 else f"medians of {options.repeats} runs"
    threads = f"{options.threads} thread{'s' * (options.threads > 1)}"
    made = f"llama.cpp (xllamacpp), one slot, {threads}, {MODEL}; times are {taken}{busy}"
    rows = [{**row, "engine": made} for row in rows]
    whole = tuple(options.tokens) == SIZES
    if options.add:
        rows, whole = _table.added(name, rows), True
    _table.finish(name, rows, options, packages=("xllamacpp",), whole=whole and not missing())
