"""What ``cacheprefix record`` adds to the time until the first byte of an answer, and to a whole streamed answer.

``python -m benchmarks.bench_record`` prints a table and writes ``benchmarks/results/record.json``. One program asks the
same simulated provider (in a process of its own) the same streamed question, directly and through the recording proxy
(in another), in turns, so that a machine that changes its pace changes both; the figure is the median of the
differences of neighbours. Connections are kept, as the SDKs keep them.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx

from benchmarks import _table

GOAL_MS = 2.0
QUESTION = {
    "model": "gpt-5.2",
    "stream": True,
    "messages": [{"role": "user", "content": "Every claim stands beside the place that it comes from. " * 800}],
}


@contextmanager
def started(*arguments: str) -> Iterator[dict[str, str]]:
    """A command of ours in a process of its own, with the ``NAME=VALUE`` pairs that it prints first."""
    command = [sys.executable, "-m", "cacheprefix", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        assert running.stdout is not None
        try:
            said = ""
            while "ANTHROPIC_BASE_URL" not in said:
                said += running.stdout.readline()
            yield dict(word.split("=", 1) for word in said.split() if "=" in word)
        finally:
            running.terminate()


def asked(client: httpx.Client, url: str) -> tuple[float, float]:
    """Seconds until the first byte of the answer's body, and until its last."""
    began = time.perf_counter()
    with client.stream("POST", f"{url}/chat/completions", json=QUESTION) as answer:
        parts = answer.iter_raw()
        next(parts)
        first = time.perf_counter() - began
        for _ in parts:
            continue
    return first, time.perf_counter() - began


def main() -> int:
    """Measure, print, write; exit code 1 when the median of what is added is above the goal."""
    parser = _table.options(__doc__)
    parser.add_argument("--repeats", type=int, default=300)
    options = parser.parse_args()
    with ExitStack() as held:
        provider = held.enter_context(started("serve", "--rules", "openai"))["OPENAI_BASE_URL"]
        upstream = provider.removesuffix("/v1")
        proxy = held.enter_context(started("record", "--port", "0", "--upstream", upstream))["OPENAI_BASE_URL"]
        client = held.enter_context(httpx.Client(timeout=60))
        for url in (provider, proxy) * 20:
            asked(client, url)
        _table.progress("asking")
        pairs = [(asked(client, provider), asked(client, proxy)) for _ in range(options.repeats)]
    rows = []
    for at, name in enumerate(("time to the first byte", "time of a whole streamed answer")):
        direct = statistics.median(one[at] for one, _ in pairs) * 1000
        added = statistics.median(other[at] - one[at] for one, other in pairs) * 1000
        goal = {"goal": GOAL_MS} if at == 0 else {}
        rows.append(_table.topic(f"{name}, added by recording", added, "ms", {"directly": direct}, digits=2, **goal))
    _table.finish("record", rows, options)
    return int(rows[0]["value"] > GOAL_MS)


if __name__ == "__main__":
    sys.exit(main())
