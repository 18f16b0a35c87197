"""Each adapter's own tests on the oldest and on the newest versions that it declares.

``python -m tests.versions [oldest|newest ...] [ADAPTER ...] [--python PYTHON] [--jobs N] [--write]``: an environment
each (``.venv-oldest-langgraph-3.11``), made anew by uv, then that adapter's folder of tests in it. Oldest are the lower
bounds in the adapter's pyproject.toml, with what they themselves take today; newest is what the index has. The core's
own requirements and the tests' tools are the newest and the pinned ones in both; the core is an "adapter" of its own
here, on the lower bounds of its extras. Paths of tests choose a part of an adapter's. What ran last is kept in
build/versions, whole or in part; ``--write`` puts it into docs/compatibility.md, which then says which.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "versions"
PAGE = ROOT / "docs" / "compatibility.md"
MARKS = ("<!-- versions -->", "<!-- /versions -->")

CORE = "cli,otel,prices,record,redis,report,server,tokens"
TOOLS = ("blockbuster", "hypothesis", "pytest", "pytest-asyncio", "pytest-xdist")
EDGES = {"oldest": "lowest-direct", "newest": "highest"}


@dataclass(frozen=True, slots=True)
class Suite:
    """What is installed for an adapter, what runs, and which packages its row names."""

    extras: str
    tests: tuple[str, ...]
    named: tuple[str, ...]
    beside: tuple[str, ...] = ()
    """Other adapters and packages that the tests use."""
    pins: str = "langgraph"
    """The constraints file that has the tests' tools."""
    newest: tuple[str, ...] = ()
    """What more is installed on the newest edge alone, from Python 3.11 on: packages that exclude the oldest one."""
    without: tuple[str, ...] = ()
    """Options of pytest that leave out the tests of those packages where they are not."""


SUITES = {
    "core": Suite(
        CORE,
        tuple(f"tests/{name}" for name in ("cache", "history", "layout", "profiles", "prompt", "session", "wire")),
        ("orjson", "pluggy", "starlette"),
        ("httpx", "-e", "adapters/sdk[openai,anthropic]"),
    ),
    # Prebuilt applications and the class for Bedrock (the extras) ask for newer versions than the adapter does.
    "langgraph": Suite(
        "openai,anthropic,google,savers",
        ("tests/langgraph", "tests/transparent/test_langgraph.py"),
        ("langgraph", "langchain", "langchain-core", "langchain-openai", "langchain-anthropic", "openai", "anthropic"),
        ("-e", "adapters/sdk"),
        newest=("-e", "adapters/langgraph[prebuilt,aws]"),
        without=(
            "--ignore=tests/langgraph/test_baseline.py",
            "--ignore=tests/langgraph/test_documented.py",
            "-k",
            "not deep_agents and not supervisor and not swarm",
        ),
    ),
    "autogen": Suite(
        "openai,anthropic,grpc,mcp",
        ("tests/autogen", "tests/transparent/test_autogen.py"),
        ("autogen-agentchat", "autogen-ext", "openai", "anthropic", "mcp"),
        pins="autogen",
    ),
    "crewai": Suite(
        "anthropic,azure,bedrock,gemini,litellm",
        ("tests/crewai",),
        ("crewai", "openai", "anthropic", "litellm"),
        pins="crewai",
    ),
    "maf": Suite(
        "openai,anthropic,orchestrations",
        ("tests/maf", "tests/transparent/test_maf.py"),
        ("agent-framework-core", "agent-framework-openai", "agent-framework-anthropic", "openai", "anthropic"),
        pins="maf",
    ),
    "ag2": Suite(
        "openai,anthropic",
        ("tests/ag2", "tests/transparent/test_ag2.py"),
        ("ag2", "openai", "anthropic"),
        pins="ag2",
    ),
    "litellm": Suite(
        "",
        ("tests/litellm", "tests/transparent/test_litellm.py"),
        ("litellm", "openai", "mcp"),
        # LiteLLM 1.106.2 imports it where it answers, and declares it for its extra alone.
        pins="litellm",
        newest=("litellm[mcp]",),
    ),
    "openai_agents": Suite(
        "",
        ("tests/openai_agents", "tests/transparent/test_openai_agents.py"),
        ("openai-agents", "openai"),
        pins="openai_agents",
    ),
    "sdk": Suite("openai,anthropic", ("tests/sdk", "tests/transparent/test_sdk.py"), ("openai", "anthropic")),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One environment's run."""

    adapter: str
    edge: str
    python: str
    versions: str
    result: str
    tests: str


def uv() -> str:
    """The command, of this environment or of the path."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise SystemExit("uv is missing: pip install uv")
    return found


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([uv(), "pip", "install", "--quiet", "--python", str(python), *arguments], cwd=ROOT, check=True)


def _recent(python: Path) -> bool:
    """Whether it has Python 3.11, which the pinned tools and deepagents need."""
    return _said(python, "import sys; print(sys.version_info >= (3, 11))") == "True"


def _tools(suite: Suite, python: Path) -> list[str]:
    """The pinned ones, which need Python 3.11; on an older one the newest that there are for it."""
    if not _recent(python):
        return list(TOOLS)
    pins = (ROOT / "constraints" / f"{suite.pins}.txt").read_text("utf-8").splitlines()
    return [line for line in pins if line.partition("==")[0] in TOOLS]


def made(adapter: str, edge: str, interpreter: str) -> Path:
    """The Python of a new environment, with the adapter on one edge of its ranges."""
    suite = SUITES[adapter]
    found = [uv(), "python", "find", interpreter]
    plain = subprocess.run(found, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    tag = re.search(r"\d+\.\d+", _said(Path(plain.stdout.strip()), "import platform; print(platform.python_version())"))
    folder = ROOT / f".venv-{edge}-{adapter}-{tag[0] if tag else interpreter}"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([uv(), "venv", "--quiet", "--python", interpreter, str(folder)], check=True)
    python, resolution = folder / "bin" / "python", ("--resolution", EDGES[edge])
    if adapter == "core":
        _pip(python, *resolution, "-e", f".[{suite.extras}]", *suite.beside)
        _pip(python, *_tools(suite, python))
        return python
    # First the core and the tools, at today's versions: the edge is of what the adapter itself declares.
    _pip(python, "-e", f".[{CORE}]", *_tools(suite, python))
    extras = f"[{suite.extras}]" if suite.extras else ""
    more = suite.newest if edge == "newest" and _recent(python) else ()
    _pip(python, *resolution, "-e", f"adapters/{adapter}{extras}", *suite.beside, *more)
    return python


def _said(python: Path, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


_VERSIONS = (
    "import sys; from importlib.metadata import version, distributions\n"
    "there = {d.metadata['Name'].lower() for d in distributions()}\n"
    "print(', '.join(f'{name} {version(name)}' for name in sys.argv[1:] if name in there))"
)


def run(adapter: str, edge: str, interpreter: str, jobs: int, chosen: list[str]) -> Row:
    """Make the environment, run the adapter's tests in it, and keep what came of it."""
    suite, began = SUITES[adapter], time.monotonic()
    python = made(adapter, edge, interpreter)
    tests = chosen or list(suite.tests)
    # anyio's plugin reads a name that the newest pytest deprecates, and nothing here uses it; what a framework is going
    # to change in another of its own parts is no failure of ours.
    without = ("-p", "no:anyio", "-W", "ignore::PendingDeprecationWarning")
    left_out = () if edge == "newest" and _recent(python) else suite.without
    options = ("-q", "-ra", *without, *left_out, "-n", str(jobs), "--dist", "worksteal")
    command = [str(python), "-m", "pytest", *options, *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    KEPT.mkdir(parents=True, exist_ok=True)
    log = KEPT / f"{python.parents[1].name.removeprefix('.venv-')}.log"
    log.write_text(done.stdout + done.stderr, "utf-8")
    last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "nothing ran")
    here = subprocess.run([python, "-c", _VERSIONS, *suite.named], capture_output=True, text=True, check=True).stdout
    version = _said(python, "import platform; print(platform.python_version())")
    result = re.sub(r"\s+in [\d.]+s.*", "", last.strip("= "))
    row = Row(adapter, edge, version, here.strip(), result, " ".join(tests))
    log.with_suffix(".json").write_text(json.dumps(asdict(row), indent=1) + "\n", "utf-8")
    print(f"{adapter} {edge} on Python {version}: {result} ({time.monotonic() - began:.0f} s; {row.versions}; {log})")
    return row


def table() -> str:
    """What ran last in each environment, as a table."""
    rows = [Row(**json.loads(path.read_text("utf-8"))) for path in sorted(KEPT.glob("*.json"))]
    rows.sort(key=lambda row: (list(SUITES).index(row.adapter), row.python, row.edge == "newest"))
    lines = [
        f"| {row.adapter}{_part(row)} | {row.edge} | {row.python} | {row.versions} | {row.result} |" for row in rows
    ]
    return "\n".join(["| tests of | versions | Python | with | result |", "| --- | --- | --- | --- | --- |", *lines])


def _part(row: Row) -> str:
    """Which of an adapter's tests, where they were not all."""
    if row.tests == " ".join(SUITES[row.adapter].tests):
        return ""
    return f": {', '.join(Path(path).stem.removeprefix('test_') for path in row.tests.split())}"


def write() -> None:
    """Put the table into the page."""
    before, _, rest = PAGE.read_text("utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{table()}\n\n{MARKS[1]}{after}", "utf-8")


def main() -> int:
    """Run what was asked for; exit code 1 when a test failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument("what", nargs="*", help="edges, adapters, and paths of tests instead of an adapter's own")
    parser.add_argument("--python", default="3.11", help="an interpreter, or a version that uv finds")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put what ran last into docs/compatibility.md")
    given = parser.parse_intermixed_args()
    edges = [name for name in given.what if name in EDGES] or list(EDGES)
    adapters = [name for name in given.what if name in SUITES] or list(SUITES)
    chosen = [name for name in given.what if name not in EDGES and name not in SUITES]
    rows: list[Row] = []
    if given.what or not given.write:
        rows = [run(adapter, edge, given.python, given.jobs, chosen) for adapter in adapters for edge in edges]
    if given.write:
        write()
    return int(any("failed" in row.result or "error" in row.result for row in rows))


if __name__ == "__main__":
    sys.exit(main())
