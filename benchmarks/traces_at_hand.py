"""Recorded data that some benchmarks replay: where it is to be had, and what is done where it is not at hand.

None of it is part of this repository, and no benchmark fetches it. ``CACHEPREFIX_TRACES`` names a folder with

    lmcache_agent_trace/{magagent,miniswe,taubench}/  LMCache/lmcache-agent-trace at 16a14ad, Apache-2.0: its sessions
    tau_bench/gpt-4o-airline.json.gz                  sierra-research/tau-bench at 59a200c, MIT:
                                                      historical_trajectories/gpt-4o-airline.json
    who_and_when/{Hand-Crafted,Algorithm-Generated}.json.gz
                                                      ag2ai/Agents_Failure_Attribution at f4d2b6d, MIT: the transcripts
                                                      of a kind as one object from file name to transcript
    mooncake/conversation_trace.jsonl.gz              kvcache-ai/Mooncake at 3b5a594, Apache-2.0

(github.com/OWNER/NAME; files that end in ``.gz`` are gzipped). ``cacheprefix simulate`` reads the last as it is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

LMCACHE = tuple(f"lmcache_agent_trace/{name}/*.jsonl.gz" for name in ("magagent", "miniswe", "taubench"))
TAU_BENCH = "tau_bench/gpt-4o-airline.json.gz"
WHO_AND_WHEN = ("who_and_when/Hand-Crafted.json.gz", "who_and_when/Algorithm-Generated.json.gz")
LEFT_OUT = 77
"""How a benchmark ends that measured nothing, as its data is not at hand; other tools call such a test skipped so."""


def traces_folder() -> Path:
    """Where the traces are."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "traces"
    return Path(os.environ.get("CACHEPREFIX_TRACES", beside))


def where() -> str:
    """Which data is to be had where, and how it is laid out, for people."""
    return (__doc__ or "").partition("fetches it. ")[2].strip()


def absent(*patterns: str) -> list[str]:
    """Those of the patterns that no file of the folder has the name of: the folder may hold some of the sets alone."""
    return [pattern for pattern in patterns if not any(traces_folder().glob(pattern))]


def say_missing(what: str, *patterns: str) -> None:
    """Say that ``what`` is left out, and where its data is to be had; ``patterns`` are the files that are not there."""
    listed = ", ".join(patterns) or "data"
    print(f"{what} left out: no {listed} in {traces_folder()}. {where()}", file=sys.stderr)


def need(name: str, *patterns: str) -> None:
    """End a benchmark whose data is not all at hand, with a code of its own."""
    if missing := absent(*patterns):
        say_missing(name, *missing)
        sys.exit(LEFT_OUT)
