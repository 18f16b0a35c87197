"""A real engine: time to the first token of forks, and how far expectations are from the engine's own counters.

``python -m benchmarks.bench_engine`` starts llama.cpp's server with a small model of random weights (packages
``xllamacpp`` and ``gguf``), prints a table and writes ``benchmarks/results/engine.json``. Four forks of one context of
2,000 and 8,000 tokens: role in front (unmodified) against role last (shared), one after the other; and all at once,
cold against leader first. Then the requests of LMCache's recorded sessions, with the engine's tokenizer.

``--url URL --model NAME`` measures a server that runs already, such as vLLM's, instead: its tokenizer is not ours, so
the context is sized by characters and expectations are scaled by its own input counts. llama.cpp keeps one line of
prompts a slot where an expectation assumes a tree, so interleaved agents leave it an error that vLLM need not have.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks import _table
from benchmarks.context_replay import traces_folder
from benchmarks.local_engine import COUNTER, MODEL, LocalEngine, Size, missing, write_model
from benchmarks.trace_replay import Ask, Run, lmcache
from cacheprefix import Session

ROLES = ("planner", "critic", "writer", "tester")
BENCH = Size(width=128, layers=2, inner=256)
_SENTENCE = "The pump of hall {} runs at {} bar and was last checked by {} in week {}. "


@dataclass(frozen=True)
class Target:
    """A server and what to call its model."""

    url: str
    model: str
    ours: bool
    """Whether it is our own model, whose tokens we count exactly."""


@dataclass
class Answer:
    """What came of one request: seconds to the first token, and tokens as the engine reports them."""

    first: float
    cached: int
    total: int


def ask(client: httpx.Client, target: Target, messages: Sequence[dict[str, Any]]) -> Answer:
    """Stream a short answer."""
    body = {
        "model": target.model,
        "messages": list(messages),
        "max_tokens": 4,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start = time.perf_counter()
    first = 0.0
    usage: dict[str, Any] = {}
    with client.stream("POST", f"{target.url}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = httpx.Response(200, text=line[6:]).json()
            # The first event that says something; a role alone is sent before anything is computed.
            if not first and any(choice["delta"].get("content") for choice in event.get("choices", ())):
                first = time.perf_counter() - start
            usage = event.get("usage") or usage
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Answer(first or time.perf_counter() - start, cached, usage.get("prompt_tokens", 0))


def context(tokens: int, *, exact: bool) -> str:
    """A text that no cache has seen, of about so many tokens."""
    text = f"{uuid.uuid4()} "
    number = 0
    while len(text) < (tokens if exact else tokens * 4):
        number += 1
        text += _SENTENCE.format(number, number % 17, "Ada" if number % 2 else "Alan", number % 52)
    return text


def requests(handbook: str, layout: str) -> list[list[dict[str, Any]]]:
    """One request a role, laid out."""
    task = {"role": "user", "content": "Look at hall 3."}
    if layout == "unmodified":
        return [[{"role": "system", "content": f"You are the {role}.\n\n{handbook}"}, task] for role in ROLES]
    tail = [{"role": "user", "content": f"You are the {role}."} for role in ROLES]
    return [[{"role": "system", "content": handbook}, task, one] for one in tail]


def in_turn(client: httpx.Client, target: Target, asked: Sequence[Any]) -> list[Answer]:
    """One after the other."""
    return [ask(client, target, messages) for messages in asked]


def at_once(client: httpx.Client, target: Target, asked: Sequence[Any]) -> list[Answer]:
    """All at the same moment."""
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda m=m: answers.append(ask(client, target, m))) for m in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def leader_first(client: httpx.Client, target: Target, asked: Sequence[Any]) -> list[Answer]:
    """The first alone, and the others at once when its answer has begun."""
    return [ask(client, target, asked[0]), *at_once(client, target, asked[1:])]


def wall(work: Callable[[], list[Answer]]) -> tuple[float, list[Answer]]:
    """Seconds until all have answered, and the answers."""
    start = time.perf_counter()
    answers = work()
    return time.perf_counter() - start, answers


def first_tokens(client: httpx.Client, target: Target, tokens: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Forks after the first: the time to the first token, unmodified and shared, in one run."""
    times: dict[str, list[float]] = {"unmodified": [], "shared": []}
    shares: dict[str, list[float]] = {"unmodified": [], "shared": []}
    for repeat in range(repeats):
        _table.progress(f"time to the first token, {tokens:,} tokens", repeat + 1, repeats)
        for layout in times:
            asked = requests(context(tokens, exact=target.ours), layout)
            _, *others = in_turn(client, target, asked)
            times[layout] += [answer.first for answer in others]
            shares[layout] += [answer.cached / max(1, answer.total) for answer in others]
    plain, shared = (statistics.median(times[layout]) for layout in ("unmodified", "shared"))
    name = f"forks of {tokens:,} tokens in turn"
    yield _table.topic(f"{name}, time to the first token", shared / plain, "of unmodified", {"unmodified": 1.0})
    medians = {layout: statistics.median(found) for layout, found in shares.items()}
    yield _table.topic(
        f"{name}, input read from the cache", medians["shared"], "share", {"unmodified": medians["unmodified"]}
    )


def parallel(client: httpx.Client, target: Target, tokens: int, repeats: int, note: str) -> dict[str, Any]:
    """All forks together: cold at once against leader first, time until all have answered."""
    ways = {"cold at once": at_once, "leader first": leader_first}
    times: dict[str, list[float]] = {name: [] for name in ways}
    cached: dict[str, list[int]] = {name: [] for name in ways}
    for repeat in range(repeats):
        _table.progress(f"{len(ROLES)} forks together{note}, {tokens:,} tokens", repeat + 1, repeats)
        for name, way in ways.items():
            asked = requests(context(tokens, exact=target.ours), "shared")
            taken, answers = wall(lambda: way(client, target, asked))  # noqa: B023 - runs at once
            times[name].append(taken)
            cached[name].append(sum(answer.cached > answer.total // 2 for answer in answers))
    return _table.topic(
        f"{len(ROLES)} forks of {tokens:,} tokens together{note}, leader first, time to the last answer",
        statistics.median(times["leader first"]) / statistics.median(times["cold at once"]),
        "of cold at once",
        {"cold at once": 1.0},
        forks_that_read={name: statistics.median(found) for name, found in cached.items()},
    )


def _characters(asked: Ask) -> int:
    return len(asked.system) + sum(len(message["content"]) for message in asked.messages)


def error(
    client: httpx.Client, target: Target, name: str, runs: Sequence[Run], longest: int
) -> Iterator[dict[str, Any]]:
    """Recorded sessions sent to the engine: what was expected to be read against its own counters, in points."""
    provider = "llama.cpp" if target.ours else "vllm"
    expected = reported = total = 0
    misses = equal = calls = 0
    kept: Counter[str] = Counter()
    short = [run for run in runs if max(map(_characters, run.asks)) <= longest]
    for number, run in enumerate(short):
        _table.progress(f"{name}, sessions", number + 1, len(short))
        session = Session(provider=provider, counter=COUNTER if target.ours else None, gate=None, mode="observe")
        salt = f"{uuid.uuid4()} "
        for one in run.asks:
            head = [{"role": "system", "content": one.system}] if one.system else []
            # The roles of a log's split text are guesses, and the server refuses some orders of them.
            messages = [*head, *({**message, "role": "user"} for message in one.messages)]
            messages[0] = {**messages[0], "content": salt + messages[0]["content"]}
            body = {"model": target.model, "messages": messages}
            turn = session.begin(body, "openai-chat")
            try:
                answer = ask(client, target, messages)
            except httpx.HTTPStatusError:
                turn.fail()
                misses += 1
                continue
            details = {"cached_tokens": answer.cached}
            verdict = turn.finish({"prompt_tokens": answer.total, "prompt_tokens_details": details})
            if verdict is None:
                continue
            calls += 1
            total += answer.total
            expected += verdict.expected_tokens
            reported += answer.cached
            equal += abs(verdict.expected_tokens - answer.cached) <= max(3, 0.001 * answer.total)
            if verdict.ancestor_index in (None, verdict.index - 1):
                kept.update(calls=1, total=answer.total, off=verdict.expected_tokens - answer.cached)
    if total:
        points = 100 * (expected - reported) / total
        more = {"calls": calls, "refused": misses, "sessions": len(short), "left_out": len(runs) - len(short)}
        yield _table.topic(f"{name}, error of the expected hit rate", points, "points", digits=3, **more)
        if kept["total"]:
            points, more = 100 * kept["off"] / kept["total"], {**more, "calls": kept["calls"]}
            yield _table.topic(
                f"{name}, error where the last request was the one to continue", points, "points", **more
            )
            more = {**more, "calls": calls}
        yield _table.topic(f"{name}, calls expected to the token or envelope", equal / calls, "share of calls", **more)
        yield _table.topic(f"{name}, hit rate of the engine", reported / total, "share of input", **more)


@contextmanager
def engines(options: argparse.Namespace, *, slots: int, size: Size) -> Iterator[Target]:
    """The server to measure: one that runs, or llama.cpp made here."""
    if options.url:
        yield Target(options.url.rstrip("/").removesuffix("/v1"), options.model, ours=False)
        return
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.gguf"
        write_model(model, size, context=262_144)
        window = 16_384 if size is BENCH else 163_840
        with LocalEngine(model, slots=slots, context=window, ram=2048, threads=1) as engine:
            yield Target(engine.url, MODEL, ours=True)


def main() -> None:
    """Measure, print, write."""
    parser = _table.options(__doc__)
    parser.add_argument("--url", default="", help="a server that runs already, instead of llama.cpp")
    parser.add_argument("--model", default="", help="the name of its model")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, nargs="*", default=[2_000, 8_000])
    parser.add_argument("--sessions", type=int, default=12, help="recorded sessions of each set, 0 for all")
    parser.add_argument("--longest", type=int, default=40_000, help="leave out sessions with longer requests (letters)")
    options = parser.parse_args()
    if options.url and not options.model:
        parser.error("--url needs --model")
    if not options.url and missing():
        print(f"bench-engine left out: {missing()}; --url measures a server that runs already")
        sys.exit(0)
    logging.getLogger("cacheprefix").setLevel(logging.ERROR)
    rows: list[dict[str, Any]] = []
    # No connection is kept: the server closes idle ones, and a request would run into that.
    with httpx.Client(timeout=600, limits=httpx.Limits(max_keepalive_connections=0)) as client:
        with engines(options, slots=1, size=BENCH) as target:
            for tokens in options.tokens:
                rows += first_tokens(client, target, tokens, options.repeats)
                rows.append(parallel(client, target, tokens, options.repeats, "" if options.url else ", 1 slot"))
        if not options.url:
            with engines(options, slots=len(ROLES), size=BENCH) as target:
                rows.append(parallel(client, target, options.tokens[0], options.repeats, f", {len(ROLES)} slots"))
        if traces_folder().exists():
            with engines(options, slots=1, size=Size()) as target:
                for title, folder in (("Magentic-One", "magagent"), ("mini-SWE", "miniswe"), ("tau-bench", "taubench")):
                    rows += error(
                        client, target, f"LMCache {title}", lmcache(folder, options.sessions or None), options.longest
                    )
    which = options.url or f"llama.cpp (xllamacpp), {BENCH.layers} layers of {BENCH.width}, random weights"
    times = "one run" if options.repeats == 1 else f"medians of {options.repeats} runs"
    for row in rows:
        row["engine"] = f"{which}; times are {times}"
    whole = not options.url and options.tokens == [2_000, 8_000]
    _table.finish("engine", rows, options, packages=("xllamacpp", "gguf", "httpx"), whole=whole)


if __name__ == "__main__":
    main()
