"""What importing the core costs beyond bare Python: time, memory, modules; and whether it touches the network.

``python -m benchmarks.bench_import`` prints a table and writes ``benchmarks/results/import.json``. Each measurement is
a process of its own; times are the best of several, because whatever else the machine does only adds to them.
``--against FOLDER``, another checkout, compares processor time to the first answer of a wrapped client of OpenAI, whose
provider answers at once in the same process: pairs of processes by turns, and the median of their ratios.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import _table

STATEMENTS = {
    "import cacheprefix": "import cacheprefix",
    "a session": "from cacheprefix import Session, SharedPrefix; Session(SharedPrefix(system='x'))",
    "a session and one call": (
        "from cacheprefix import Session; from cacheprefix.calls.begin import Request; "
        "Session().adapter.begin(Request({'model': 'gpt-5', 'messages': []}, 'openai-chat')).finish(None)"
    ),
}
GOALS = {"seconds": 0.1, "megabytes": 25.0}
_CHILD = """
import json, resource, socket, sys, time
opened = []
def refuse(self, *args):
    opened.append(repr(args))
    raise OSError("no network here")
socket.socket.connect = refuse
before, start = set(sys.modules), time.perf_counter()
{statement}
taken = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({{"seconds": taken, "bytes": peak, "modules": len(set(sys.modules) - before), "opened": opened}}))
"""

_ROOT = Path(__file__).resolve().parents[1]
_FIRST = """
import json, sys, time
import httpx, openai
ASKED = {"model": "gpt-5", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}
ANSWER = {
    "id": "1", "object": "chat.completion", "created": 1, "model": "gpt-5",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 20, "completion_tokens": 3, "total_tokens": 23},
}
transport = httpx.MockTransport(lambda request: httpx.Response(200, json=ANSWER))
client = openai.OpenAI(api_key="k", base_url="http://localhost", http_client=httpx.Client(transport=transport))
client.chat.completions.create(**ASKED)
before, start = set(sys.modules), time.process_time()
from cacheprefix import Session
session = Session()
from cacheprefix_sdk import wrap
wrap(client, session).chat.completions.create(**ASKED)
taken = time.process_time() - start
assert len(session.calls) == 1
print(json.dumps({"seconds": taken, "modules": len(set(sys.modules) - before)}))
"""


def compiled() -> dict[str, str]:
    """The environment in which Python keeps what it compiles, as an installed package is kept."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def first_answer(checkout: Path) -> dict[str, Any]:
    """Processor time and modules from ``import cacheprefix`` to a wrapped client's first answer, by this checkout."""
    known = {**compiled(), "PYTHONPATH": os.pathsep.join([str(checkout), str(checkout / "adapters" / "sdk")])}
    command = [sys.executable, "-c", _FIRST]
    done = subprocess.run(command, cwd=checkout, env=known, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def first_rows(pairs: int, against: Path | None) -> list[_table.Row]:
    """Rows of the first answer; with another checkout the ratio of both, pair by pair."""
    mine, theirs = list[dict[str, Any]](), list[dict[str, Any]]()
    for number in range(pairs + 1):
        _table.progress("first answer", number, pairs)
        turn = [(_ROOT, mine)] + ([(against, theirs)] if against else [])
        for checkout, found in turn if number % 2 else reversed(turn):
            found.append(first_answer(checkout))
    # The first of each writes what Python compiles.
    mine, theirs = mine[1:], theirs[1:]
    seconds = statistics.median(one["seconds"] for one in mine)
    beside = {"the other checkout": statistics.median(one["seconds"] for one in theirs)} if theirs else None
    rows = [_table.topic("to a client's first answer, processor time", seconds, "s", beside)]
    rows.append(_table.topic("to a client's first answer, modules loaded", mine[0]["modules"], "modules"))
    if theirs:
        ratios = sorted(one["seconds"] / other["seconds"] for one, other in zip(mine, theirs, strict=True))
        name = f"to a client's first answer, median ratio of {len(ratios)} pairs"
        rows.append(_table.topic(name, statistics.median(ratios), "", {"least": ratios[0], "most": ratios[-1]}))
    return rows


def start_up(repeats: int) -> float:
    """Seconds that an empty program takes, from start to end."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        times.append(time.perf_counter() - start)
    return min(times)


def measure(statement: str, repeats: int) -> dict[str, Any]:
    """The best time and the median peak memory of several processes."""
    found = []
    for _ in range(repeats):
        code = _CHILD.format(statement=statement)
        done = subprocess.run([sys.executable, "-c", code], env=compiled(), check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout))
    return {
        "seconds": min(one["seconds"] for one in found),
        "megabytes": statistics.median(one["bytes"] for one in found) / 1e6,
        "modules": found[0]["modules"],
        "connections": sum(len(one["opened"]) for one in found),
    }


def main() -> int:
    """Measure, print, write; exit code 1 when the import is above its goal."""
    parser = _table.options(__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--pairs", type=int, default=15, help="processes of each checkout, to the first answer")
    parser.add_argument("--against", type=Path, help="another checkout, to compare the first answer with")
    options = parser.parse_args()
    bare = measure("pass", options.repeats)
    empty = {"bare Python's start": start_up(options.repeats)}
    rows = []
    for name, statement in STATEMENTS.items():
        _table.progress(name)
        found = measure(statement, options.repeats)
        over = found["megabytes"] - bare["megabytes"]
        rows.append(_table.topic(f"{name}, time", found["seconds"], "s", empty, goal=GOALS["seconds"]))
        rows.append(_table.topic(f"{name}, memory above bare Python", over, "MB", digits=1, goal=GOALS["megabytes"]))
        rows.append(_table.topic(f"{name}, modules loaded", found["modules"], "modules"))
        rows.append(_table.topic(f"{name}, connections tried", found["connections"], "connections", goal=0))
    rows += first_rows(options.pairs, options.against)
    _table.finish("import", rows, options, packages=("orjson", "pluggy", "typing_extensions"))
    return 1 if any(row["value"] > row["goal"] for row in rows[:4] if "goal" in row) else 0


if __name__ == "__main__":
    sys.exit(main())
