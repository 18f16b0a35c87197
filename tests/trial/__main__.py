"""``python -m tests.trial ADAPTER... --minutes M --seed S``: hostile applications, one after the other.

``--only N`` plays the one application with that seed again and says everything. Exits with 1 where an invariant is
broken. ``make trial`` runs every adapter in its environment and prints ``--table build/trial/*.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# As in the tests: no trial speaks TLS, and a failing one says what was raised.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).resolve().parents[1] / "authority.pem")
os.environ.setdefault("CACHEPREFIX_SHOW_ERRORS", "1")

from tests.trial.applications import application
from tests.trial.playing import ADAPTERS, Driver, driver, patient, played, quiet

_SPACE = 1_000_000
_TOLD = 15.0
"""Seconds between two lines of progress."""


def trial(adapter: str, seconds: float, seed: int) -> dict[str, Any]:
    """Play applications for some time; the row of the table."""
    kind, began, told = driver(adapter), time.monotonic(), time.monotonic()
    row: dict[str, Any] = {"adapter": adapter, "applications": 0, "requests": 0, "forks": 0, "broken": {}, "seeds": []}
    number = seed * _SPACE
    while (now := time.monotonic()) - began < seconds:
        found, requests, forks = _play(kind, number)
        row["applications"] += 1
        row["requests"] += requests
        row["forks"] += forks
        if found:
            row["seeds"].append(number)
            for line in found:
                name = line.split(":")[0]
                row["broken"][name] = row["broken"].get(name, 0) + 1
            print(f"{adapter}: {application(number, kind.apis)}\n  " + "\n  ".join(found[:4]))
            print(f"  again: python -m tests.trial {adapter} --only {number}", flush=True)
            if any("not at its end" in line for line in found):
                break  # its threads would go on beside the next ones
        number += 1
        if now - told >= _TOLD:
            told = now
            print(f"{adapter}: {_line(row, now - began)}", flush=True)
    row["seconds"] = time.monotonic() - began
    return row


def _play(kind: type[Driver], number: int) -> tuple[list[str], int, int]:
    found, *counts = played(kind, application(number, kind.apis))
    return [str(one) for one in found], *counts


def _line(row: dict[str, Any], seconds: float) -> str:
    rate = row["requests"] / seconds if seconds else 0
    return (
        f"{row['applications']:,} applications, {row['requests']:,} requests ({row['forks']:,} forks) in "
        f"{seconds:,.0f} s ({rate:.1f} a s), "
        f"{len(row['seeds'])} with something broken"
    )


def table(rows: list[dict[str, Any]]) -> str:
    """What came of all."""
    lines = []
    for row in rows:
        lines.append(f"{row['adapter']:<14} {_line(row, row['seconds'])}")
        lines += [f"{'':<14}   {name}: {count}" for name, count in sorted(row["broken"].items())]
        lines += [f"{'':<14}   again: python -m tests.trial {row['adapter']} --only {one}" for one in row["seeds"][:5]]
    return "\n".join(lines)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.trial", description=__doc__)
    parser.add_argument("adapters", nargs="*", choices=[*ADAPTERS, []], help="which; several one after the other")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each adapter")
    parser.add_argument("--seed", type=int, default=1, help="another one plays other applications")
    parser.add_argument("--only", type=int, help="the seed of one application, as a report names it")
    parser.add_argument("--into", type=Path, help="a folder for the rows of the table")
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of such files, and play nothing")
    given = parser.parse_args()
    quiet()
    patient()
    if given.table:
        rows = [json.loads(path.read_text("utf-8")) for path in given.table]
    elif given.only is not None:
        kind = driver(given.adapters[0])
        print(application(given.only, kind.apis))
        found, requests, _ = _play(kind, given.only)
        print("\n".join(found) or f"nothing is broken in {requests} requests")
        return bool(found)
    else:
        rows = [trial(adapter, given.minutes * 60, given.seed) for adapter in given.adapters]
        for row in rows if given.into else ():
            given.into.mkdir(parents=True, exist_ok=True)
            (given.into / f"{row['adapter']}.json").write_text(json.dumps(row), "utf-8")
    print(table(rows))
    return any(row["seeds"] for row in rows)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Frameworks leave threads behind that nobody ends.
    os._exit(status)
