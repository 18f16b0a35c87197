"""What importing the core costs beyond bare Python: time, memory, modules; and whether it touches the network.

``python -m benchmarks.bench_import`` prints a table and writes ``benchmarks/results/import.json``. Each measurement is
a process of its own; times are the best of several, because whatever else the machine does only adds to them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
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
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
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
    _table.finish("import", rows, options, packages=("orjson", "pluggy", "typing_extensions"))
    return 1 if any(row["value"] > row["goal"] for row in rows[:4] if "goal" in row) else 0


if __name__ == "__main__":
    sys.exit(main())
