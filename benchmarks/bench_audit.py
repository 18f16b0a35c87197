"""How fast ``cacheprefix audit`` reads logs, smooth and ragged, and how much memory it needs.

Time is also told as a multiple of what orjson and SHA-256 need for the same bytes in the same process, each the median
of five passes in turns, and by call. What a run needs whatever it reads (importing, the price library's tables) comes
before all clocks; the library's is a row of its own.

``python -m benchmarks.bench_audit`` prints a table and writes ``benchmarks/results/audit.json``. ``--megabytes``
sets the size of each log (default 100), ``--rows`` chooses logs. Each log is audited in a process of its own.
"""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import _table
from benchmarks.traces_at_hand import say_missing, traces_folder

WORDS = [
    "order",
    "refund",
    "ticket",
    "flight",
    "seat",
    "price",
    "ledger",
    "agent",
    "cache",
    "prefix",
    "token",
    "prompt",
    "window",
    "answer",
    "result",
    "search",
    "please",
    "could",
    "would",
    "because",
    "therefore",
    "first",
    "second",
    "third",
    "customer",
    "account",
    "policy",
    "change",
    "booking",
    "number",
]

WORKLOADS = {
    "anthropic, 1 kB messages": ("anthropic", 160, 1, 1),
    "openai, 1 kB messages": ("openai", 160, 1, 1),
    "openai, 250 B messages": ("openai", 40, 1, 1),
    "anthropic team of 5, 1 kB messages": ("anthropic", 160, 5, 1),
    "openai without usage": ("openai", 160, 1, 0),
    "ragged": ("ragged", 160, 1, 1),
    "recorded": ("recorded", 0, 0, 0),
    "application's log, JSON": ("application", 1, 0, 0),
    "application's log, text": ("application", 0, 0, 0),
}
"""Name: wire, words a message, agents a session, 1 where the log has usage.

``ragged``: many short conversations of all sizes side by side, each with a system prompt and tools of its own, JSON in
the results, edits, other scripts. ``recorded``: LMCache's agent traces as they are, where they are at hand
(``CACHEPREFIX_TRACES``): 13 MB whose every request is mostly new text. ``application``: short lines that hold no
request, of four forms in turns where they are JSON.
"""

_CHILD = """
import json, resource, sys, time
from contextlib import suppress
from statistics import median
from cacheprefix.audit import audit, write_json
from cacheprefix.report import write_page
from cacheprefix.profiles import default_registry
from cacheprefix.profiles.prices import load_price_library
import hashlib, orjson
path, out = sys.argv[1:3]
start = time.process_time()
load_price_library(), default_registry()
loaded = time.process_time() - start
bases, audits = [], []
for number in range(5):
    start = time.process_time()
    with open(path, "rb") as stream:
        for count, line in enumerate(stream, 1):
            with suppress(orjson.JSONDecodeError):
                orjson.loads(line)
            hashlib.sha256(line).digest()
    bases.append(time.process_time() - start)
    start = time.process_time()
    result = audit([path])
    audits.append(time.process_time() - start)
    if number < 4:
        result.rows.close()
with result:
    with open(out + "/a.json", "wb") as stream:
        write_json(result, stream)
    with open(out + "/a.html", "w", encoding="utf-8") as stream:
        write_page(result, stream)
    told = {"calls": result.calls, "lines": count, "seconds": median(audits), "base": median(bases), "loaded": loaded,
            "all_seconds": time.process_time() - start, "breaks": sum(group.count for group in result.totals.breaks),
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
print(json.dumps(told))
"""


def text(words: int, draw: random.Random) -> str:
    """Words that look like prose to a counter."""
    return " ".join(draw.choices(WORDS, k=words))


def lines(wire: str, words: int, agents: int, reported: int, seed: int = 0) -> Iterator[str]:
    """Append-only conversations of 60 turns, one after another without end, as native JSONL."""
    draw = random.Random(seed)
    now = 1_760_000_000.0
    tools = [
        {
            "name": f"tool_{n}",
            "description": text(30, draw),
            "input_schema": {"type": "object", "properties": {}},
        }
        for n in range(12)
    ]
    if wire == "openai":
        tools = [
            {"name": one["name"], "type": "function", "function": {"name": one["name"], "parameters": {}}}
            for one in tools
        ]
    system = text(1_500, draw)
    session = 0
    while True:
        session += 1
        histories = [[{"role": "user", "content": text(words, draw)}] for _ in range(agents)]
        before = [0] * agents
        # Nothing is shared between sessions or agents, so every reported count below is what a cache would say.
        own = [[{**tools[0], "name": f"tool_{session}_{agent}"}, *tools[1:]] for agent in range(agents)]
        for turn in range(60):
            agent = turn % agents
            history = histories[agent]
            if turn >= agents:
                history.append({"role": "assistant", "content": text(words, draw)})
                history.append({"role": "user", "content": text(words, draw)})
            body = _body(wire, system, own[agent], history)
            record: dict[str, Any] = {
                "ts": now,
                "provider": wire,
                "session": f"s{session}",
                "agent": f"a{agent}",
                "request": body,
                "response_started_ts": now + 1,
                "response_ended_ts": now + 4,
            }
            if reported:
                total = len(json.dumps(body)) // 4
                read, before[agent] = before[agent], total
                record["usage"] = _usage(wire, total, read)
            now += 9
            yield json.dumps(record) + "\n"


def ragged(seed: int = 0) -> Iterator[str]:
    """Conversations as they come: ten side by side, of two to thirty turns, one message in ten edited afterwards."""
    draw = random.Random(seed)
    now, number = 1_760_000_000.0, 0
    open_talks: list[dict[str, Any]] = []
    while True:
        if len(open_talks) < 10:
            number += 1
            functions = [
                {"name": f"t{number}_{at}", "description": text(25, draw), "parameters": {"type": "object"}}
                for at in range(draw.randint(0, 6))
            ]
            own = [{"type": "function", "function": one} for one in functions]
            system = text(draw.randint(200, 2_500), draw)
            first = {"role": "user", "content": text(draw.randint(5, 300), draw)}
            open_talks.append({"tools": own, "messages": [{"role": "system", "content": system}, first],
                               "left": draw.randint(2, 30), "before": 0, "name": f"s{number}"})  # fmt: skip
        talk = draw.choice(open_talks)
        messages = talk["messages"]
        if draw.random() < 0.1 and len(messages) > 3:
            edited = draw.randrange(1, len(messages) - 2)
            talk["before"] = sum(len(str(one)) for one in messages[:edited]) // 4
            messages[edited]["content"] += " (edited)"
        total = sum(len(str(one)) for one in messages) // 4
        details = {"cached_tokens": talk["before"] // 128 * 128}
        usage = {"prompt_tokens": total, "completion_tokens": 9, "prompt_tokens_details": details}
        body = {"model": "gpt-4.1", "messages": messages, **({"tools": talk["tools"]} if talk["tools"] else {})}
        line = {"ts": now, "provider": "openai", "session": talk["name"], "request": body, "usage": usage}
        yield json.dumps(line, ensure_ascii=False) + "\n"
        talk["before"], talk["left"], now = total, talk["left"] - 1, now + draw.expovariate(1)
        messages.append({"role": "assistant", "content": text(draw.randint(3, 400), draw)})
        rows = [
            {"id": draw.randint(0, 99_999), "name": draw.choice(WORDS), "größe": draw.random()}
            for _ in range(draw.randint(1, 60))
        ]
        messages.append({"role": "user", "content": json.dumps(rows, ensure_ascii=False)})
        if not talk["left"]:
            open_talks.remove(talk)


def application(*, as_json: bool, seed: int = 0) -> Iterator[str]:
    """The lines of an application's log, none of which is a request of a model."""
    draw = random.Random(seed)
    now = 1_760_000_000.0
    while True:
        now += draw.expovariate(1)
        said = text(8, draw)
        if not as_json:
            yield f"2026-11-22 12:00:{now % 60:06.3f} INFO app.server: {said}\n"
            continue
        yield json.dumps({"ts": now, "level": "info", "logger": "app", "msg": said}) + "\n"
        yield json.dumps({"timestamp": "2026-11-22T12:00:00Z", "level": "INFO", "message": said, "line": 17}) + "\n"
        yield json.dumps({"time": now, "event": "handled", "data": {"path": "/orders", "ms": 23, "user": said}}) + "\n"
        ids = {"trace_id": f"{draw.getrandbits(128):032x}", "span_id": f"{draw.getrandbits(64):016x}"}
        asked = {"http.method": "GET", "http.status_code": 200, "http.route": said}
        yield json.dumps({"name": "GET /", "context": ids, "parent_id": None, "attributes": asked}) + "\n"


def _body(wire: str, system: str, tools: list[Any], history: list[dict[str, Any]]) -> dict[str, Any]:
    if wire == "openai":
        return {
            "model": "gpt-4.1",
            "tools": tools,
            "messages": [{"role": "system", "content": system}, *history],
        }
    mark = {"type": "ephemeral"}
    last = {
        "role": "user",
        "content": [{"type": "text", "text": history[-1]["content"], "cache_control": mark}],
    }
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 4096,
        "tools": tools,
        "system": [{"type": "text", "text": system, "cache_control": mark}],
        "messages": [*history[:-1], last],
    }


def _usage(wire: str, total: int, read: int) -> dict[str, Any]:
    if wire == "openai":
        details = {"cached_tokens": read // 128 * 128}
        return {"prompt_tokens": total, "completion_tokens": 200, "prompt_tokens_details": details}
    return {
        "input_tokens": 0,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": total - read,
        "output_tokens": 200,
    }


def recorded() -> list[Path]:
    """Recorded logs; none when the traces are not at hand."""
    return sorted(traces_folder().glob("lmcache_agent_trace/*/*.gz"))


def write_log(path: Path, size: int, wire: str, words: int, agents: int, reported: int) -> int:
    """Write about ``size`` bytes (all of what is recorded); returns how many."""
    if wire == "recorded":
        return path.write_bytes(b"".join(gzip.decompress(file.read_bytes()) for file in recorded()))
    written = 0
    made = {"ragged": ragged, "application": lambda: application(as_json=bool(words))}
    with path.open("w", encoding="utf-8") as stream:
        for line in made[wire]() if wire in made else lines(wire, words, agents, reported):
            written += stream.write(line)
            if written >= size:
                return written
    return written


def measure(name: str, megabytes: int) -> list[dict[str, Any]]:
    """The rows of one workload."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        size = write_log(path, megabytes * 1_000_000, *WORKLOADS[name])
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, str(path), folder], check=True, capture_output=True, text=True
        )
    told = json.loads(done.stdout.splitlines()[-1])
    base = {"workload": name, "calls": told["calls"], "megabytes": round(size / 1e6)}
    speed, whole = (size / 1e6 / told[part] for part in ("seconds", "all_seconds"))
    unit, each = "MB/s of CPU time, one core", "call" if told["calls"] else "line"
    return [
        _table.topic(f"audit speed, {name}", speed, unit, digits=2, **base),
        _table.topic(f"time of orjson and SHA-256, {name}", told["seconds"] / told["base"], "times", digits=1, **base),
        _table.topic(f"time a {each}, {name}", told["seconds"] / told[f"{each}s"] * 1e6, "µs", digits=0, **base),
        _table.topic(f"peak memory, {name}", told["peak_bytes"] / 1e6, "MB", digits=0, **base),
        _table.topic(f"audit, JSON and HTML, {name}", whole, unit, digits=2, **base),
        _table.topic(f"loading rules and prices, {name}", told["loaded"] * 1e3, "ms", digits=0, **base),
        _table.topic(f"breaks found, {name}", told["breaks"], "breaks", **base),
    ]


def main() -> None:
    """Measure and write down."""
    parser = _table.options(__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rows", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in chosen.rows:
        if name == "recorded" and not recorded():
            say_missing("the row of recorded logs")
            continue
        _table.progress(name)
        rows += measure(name, chosen.megabytes)
    whole = len(chosen.rows) == len(WORKLOADS)
    _table.finish("audit", rows, chosen, packages=("orjson",), whole=whole)


if __name__ == "__main__":
    main()
