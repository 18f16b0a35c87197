"""Make small wrong changes in the core, one at a time, and see whether any test notices.

``python -m tests.mutants`` draws ``--number`` changes by ``--seed``, each room its share, and runs the room's tests
against each in a copy of the tree; what no test notices is printed at the end with its line. Words choose rooms. A
change is called killed by the first failing test, or when its tests take far longer than without it. After
``--minutes`` no further one is begun. The exit code is 1 only where the tests fail without any change: which changes
survive is for people to read.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from functools import partial
from multiprocessing.pool import Pool
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tests.mutants.mutations import Mutation, mutations

ROOT = Path(__file__).resolve().parents[2]
TESTS = {
    "session": ("session", "config", "plugins", "sdk", "langgraph/test_gate.py"),
    "prompt": ("prompt", "wire", "session/test_bodies.py", "fuzz"),
    "profiles": ("profiles",),
    "cache": ("cache", "server/test_agrees_with_expectation.py"),
    "wire": ("wire", "session/test_bodies.py", "history", "fuzz"),
    "layout": ("layout", "session/test_side_forks.py", "session/test_tails.py"),
    "history": ("history", "session"),
    "calls": ("session",),
    "stores": ("stores",),
    "toolcache": ("toolcache",),
    "server": ("server", "langgraph/test_gate.py"),
}
"""The rooms of the core, and the tests of each. ``session`` is what lies in no room of its own."""

COPIED = ("cacheprefix", "adapters", "tests", "benchmarks", "examples", "docs", "skills")
BESIDE = ("pyproject.toml", "README.md", "CHANGELOG.md", "Makefile")
HEAVY = ("orjson", "pluggy", "httpx", "openai", "anthropic", "starlette", "uvicorn", "typer")
"""Imported once, before the copies are made of this process: their import takes longer than most tests."""


def main() -> int:
    """Draw, run, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", help="rooms; all without")
    parser.add_argument("--number", type=int, default=200, help="changes to try (default 200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=120.0, help="begin no further change after so long")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--trusted", action="store_true", help="the tests are known to pass without a change")
    parser.add_argument("--at", action="append", default=[], help="only changes at this PATH or PATH:LINE, all of them")
    given = parser.parse_args()
    unknown = set(given.rooms) - set(TESTS)
    if unknown:
        parser.error(f"no rooms {', '.join(sorted(unknown))}; there are {', '.join(TESTS)}")
    drawn = draw(given.rooms or list(TESTS), given.number, given.seed, given.at)
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    end = time.monotonic() + given.minutes * 60
    rooms = list(dict.fromkeys(room for room, _ in drawn))
    with tempfile.TemporaryDirectory(prefix="mutants-") as made, _workers(given.jobs, Path(made)) as pool:
        plain: dict[str, float] = {}
        unchanged = pool.imap(partial(_unchanged, trusted=given.trusted), rooms)
        for room, (status, seconds) in zip(rooms, unchanged, strict=True):
            if status != 0:
                print(f"{room}: its tests fail as they are, so nothing can be told of changes there")
                return 1
            if not given.trusted:
                print(f"{room}: {seconds:.0f} s without a change", flush=True)
            plain[room] = seconds
        work = [(room, change, 60.0 + 4 * plain[room], end) for room, change in drawn]
        outcomes = []
        for outcome, seconds in pool.imap(_attempt, work):
            print(f"{outcome} after {seconds:.0f} s: {drawn[len(outcomes)][1]}", flush=True)
            outcomes.append(outcome)
    return told(drawn, outcomes)


def draw(rooms: Sequence[str], number: int, seed: int, places: Sequence[str]) -> list[tuple[str, Mutation]]:
    """So many changes of the rooms, each room by its share of all that could be made, the same for the same source."""
    found: dict[str, list[Mutation]] = {}
    for path in sorted((ROOT / "cacheprefix").rglob("*.py")):
        parts = path.relative_to(ROOT / "cacheprefix").parts
        room = parts[0] if len(parts) > 1 else "session"
        if room in rooms:
            found.setdefault(room, []).extend(mutations(str(path.relative_to(ROOT)), path.read_bytes()))
    every = [(room, change) for room, changes in found.items() for change in changes]
    if places:
        return [(room, change) for room, change in every if {change.path, f"{change.path}:{change.line}"} & {*places}]
    return random.Random(seed).sample(every, min(number, len(every)))


_PATIENCE = 600.0
"""Seconds for a room's tests where nobody knows how long they take."""
_where = ROOT
"""In a worker, its own copy of the tree; the tree itself is never touched."""


def _workers(jobs: int, folder: Path) -> Pool:
    """Processes that each have a copy of the tree, and fork for every run of tests."""
    context = multiprocessing.get_context("fork")
    return context.Pool(jobs, _copied, (folder,))


def _copied(folder: Path) -> None:
    """Make a worker's copy."""
    global _where  # noqa: PLW0603 - a process of its own, and the pool gives it no other place
    _where = folder / str(os.getpid())
    ignored = shutil.ignore_patterns("__pycache__", "results", ".*")
    for name in COPIED:
        shutil.copytree(ROOT / name, _where / name, ignore=ignored)
    for name in BESIDE:
        shutil.copy(ROOT / name, _where / name)


def _unchanged(room: str, *, trusted: bool) -> tuple[int | None, float]:
    """The exit status and the seconds of a room's tests as they are; where they are known to pass, of reading them."""
    # Where no test can run at all, every change would count as killed.
    began, reads = time.monotonic(), ["--collect-only"] if trusted else []
    status = run([*reads, *(f"tests/{path}" for path in TESTS[room])], 3600.0)
    return status, _PATIENCE / 10 if trusted else time.monotonic() - began


def _attempt(work: tuple[str, Mutation, float, float]) -> tuple[str, float]:
    """``killed``, ``survived``, ``too slow`` or ``not begun``, and the seconds that it took."""
    room, change, limit, end = work
    began = time.monotonic()
    if began > end:
        return "not begun", 0.0
    path = _where / change.path
    source = path.read_bytes()
    try:
        path.write_bytes(change.made(source))
        status = run(nearest(room, change), limit)
    finally:
        path.write_bytes(source)
    outcome = {0: "survived", None: "too slow"}.get(status, "killed")
    return outcome, time.monotonic() - began


def nearest(room: str, change: Mutation) -> list[str]:
    """The room's test files, those first that name what was changed most often: they are the ones to fail soon."""
    files: dict[Path, None] = {}
    for each in TESTS[room]:
        path = _where / "tests" / each
        files.update(dict.fromkeys(sorted(path.rglob("test_*.py")) if path.is_dir() else [path]))
    names = [name.lstrip("_") for name in (*change.inside.split("."), Path(change.path).stem) if len(name) > 3]
    counted = {path: sum(path.read_text("utf-8").count(name) for name in names) for path in files}
    return [str(path.relative_to(_where)) for path in sorted(files, key=lambda path: -counted[path])]


def run(paths: Sequence[str], limit: float) -> int | None:
    """The exit status of the tests, run in a child of this process; None after ``limit`` seconds."""
    child = os.fork()
    if not child:
        os._exit(_tests(list(paths)))
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _tests(paths: list[str]) -> int:
    """In the child: the copy's tests on the copy's code, until the first one fails."""
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        folders = [str(_where), *(str(path) for path in sorted((_where / "adapters").iterdir()))]
        os.environ.update(
            CI="true", PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=os.pathsep.join(folders), CACHEPREFIX_TRACES=str(_where)
        )
        os.chdir(_where)
        for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "benchmarks")]:
            del sys.modules[name]
        # Not the tree itself, where editable installations lead; its environment lies in it too, and stays.
        tree = {str(ROOT), *(str(path) for path in (ROOT / "adapters").iterdir())}
        sys.path[:] = [*folders, *(place for place in sys.path if place and place not in tree)]
        sys.dont_write_bytecode = True
        quiet = os.open(os.environ.get("MUTANTS_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        options = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(_where)]
        return int(pytest.main([*options, *paths], plugins=[_NoShrinking()]))
    except BaseException:
        traceback.print_exc()
        return 70


class _NoShrinking:
    """Property tests stop at the first example that fails: which is the smallest is no question here."""

    def pytest_sessionstart(self) -> None:
        """After the tests' own profile is loaded and before a test is read."""
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", parent=settings.default, phases=phases, database=None)
        settings.load_profile("mutants")


def told(drawn: Sequence[tuple[str, Mutation]], outcomes: Sequence[str]) -> int:
    """Print what survived with its line, and the sums of every room."""
    print("\nsurvivors:")
    for (_, change), outcome in zip(drawn, outcomes, strict=True):
        if outcome == "survived":
            line = (ROOT / change.path).read_text("utf-8").splitlines()[change.line - 1].strip()
            print(f"  {change}\n      {line}")
    print()
    for room in TESTS:
        sums = Counter(outcome for (each, _), outcome in zip(drawn, outcomes, strict=True) if each == room)
        if sums:
            print(f"{room}: " + ", ".join(f"{number} {outcome}" for outcome, number in sorted(sums.items())))
    sums = Counter(outcomes)
    print("all: " + ", ".join(f"{number} {outcome}" for outcome, number in sorted(sums.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
