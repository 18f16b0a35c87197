"""Compare what programs send, report and print with what is recorded, or record it anew.

``python -m tests.recorded core`` runs every workload of an environment and says what differs, in words;
``--write`` writes the files of ``tests/recorded/core``, ``--quick`` takes only examples and tutorials, and further
words choose workloads by parts of their names. ``make net`` does all environments. Exits with 1 when something differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from tests.recorded.digests import changes, written
from tests.recorded.workloads import ENVIRONMENTS, Workload, recorded, workloads

HERE = Path(__file__).parent


def main() -> int:
    """Run, compare or write, and say what is different."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", choices=[*ENVIRONMENTS])
    parser.add_argument("names", nargs="*", help="parts of workload names; all without")
    parser.add_argument("--write", action="store_true", help="record what is sent now")
    parser.add_argument("--quick", action="store_true", help="only examples and tutorials")
    given = parser.parse_args()
    if given.write and given.quick:
        parser.error("what is recorded is whole: --write without --quick")
    folder = HERE / given.environment
    chosen = [
        one
        for one in workloads(given.environment)
        if (not given.names or any(part in one.name for part in given.names)) and (one.quick or not given.quick)
    ]
    differing = 0
    for workload in chosen:
        began = time.monotonic()
        said = differences(workload, folder, quick=given.quick, write=given.write)
        differing += bool(said)
        print(f"{workload.name} ({time.monotonic() - began:.1f} s)", file=sys.stderr, flush=True)
        for line in said:
            print(f"{given.environment}/{workload.name}: {line}", flush=True)
    if given.write and not given.names:
        for path in sorted(folder.glob("*.txt")):
            if path.stem not in {one.name for one in chosen}:
                path.unlink()
                print(f"{given.environment}/{path.stem}: is gone")
    verb = "recorded anew" if given.write else "differ (make net ARGS=--write records them anew)"
    print(f"{given.environment}: {differing} of {len(chosen)} workloads {verb}")
    return int(bool(differing) and not given.write)


def differences(workload: Workload, folder: Path, *, quick: bool = False, write: bool = False) -> list[str]:
    """What a workload does otherwise than recorded, a sentence each; with ``write`` it is recorded."""
    sides = workload.quick if quick else list(workload.sides)
    path = folder / f"{workload.name}.txt"
    old = path.read_text("utf-8") if path.exists() else ""
    new = written(recorded(workload, sides))
    said = [line for line in changes(old, new) if not quick or line.startswith(tuple(f"{side}: " for side in sides))]
    if write and new != old:
        folder.mkdir(exist_ok=True)
        path.write_text(new, "utf-8")
    return said


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Some frameworks put tools in the order of a set; with this, the order is the same each time.
        again = [sys.executable, "-m", "tests.recorded", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
