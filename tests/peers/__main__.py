"""The frameworks' own tests with us underneath: ``python -m tests.peers [SUITE ...] [--sample] [--jobs N]``.

Each suite is run plain, observed, forked and shared (``underneath.py`` says how); what passes is compared, and what is
sent. Observed, nothing may differ: the same tests pass, and every HTTP request has the same bytes. A test
that differs is run again, plain and observed: where it differs from itself plain, that is chance; so is what a fork
loses and, run alone, does not. Forked is a session with its defaults: what one agent asks alone is left as it is.
Shared is one with a handbook and another role, so that every request has a text of ours. There, many tests of LangChain
are lost whose fake model answers with its prompt: so once more, answered, with fakes that say what they would without
us. What is lost then asserts the very bytes of a prompt: its failure shows our text, or ``differences.toml`` lists it
with the reason. That is at most 1 % of a suite, and nothing else may be lost.

The tests are those of the source distributions of the pinned versions, which pip downloads into build/peers.
``CACHEPREFIX_PEERS`` names a folder to look into first, for NAME-VERSION or NAME: a checkout has tests that
distributions leave out. deepagents' has none at all: what holds for its applications is in
tests/transparent/test_langgraph.py and tests/langgraph/test_middleware.py. What the tests need beside the environment
under test (constraints/peers.txt) is installed into an environment of its own that stands on that one, so that the
environment itself stays what it is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / "build" / "peers"
LAYERS = ("plain", "observed", "forked", "shared", "answered")
AGAIN = 3
"""Runs of what differs when observed, plain and observed, and of what a fork loses for no reason that is known."""
MOST = 0.01
"""Of a suite's tests: more is not lost where every request is a fork."""
VARIABLE = "CACHEPREFIX_PEERS"

_ADAPTERS = ("langgraph", "autogen", "crewai", "sdk")
_PLUGINS = ("anyio", "cacheprovider", "cacheprefix", "xdist", "benchmark", "codspeed", "retry", "ddtrace")
"""Of other tests: they warn, change reports, or run a failed test again."""


_ASKING = (
    *("agents", "crew", "hooks", "llms", "project", "task", "test_callback.py", "test_crew.py", "test_custom_llm.py"),
    *("test_crew_thread_safety.py", "test_llm.py", "test_markdown_task.py", "test_project.py", "test_streaming.py"),
    *("test_streaming_integration.py", "test_task.py", "test_task_guardrails.py", "test_usage_shape_parity.py"),
)
"""Of CrewAI's tests those of what asks a model."""
_ASKING_SHORTLY = (
    *("crew_creation", "manager_agent_delegating_to_assigned_task_agent", "cache_hitting_between_agents"),
    *("using_memory", "kickoff_for_each_error_handling", "kickoff_async_basic_functionality_and_output"),
)
"""Of these a few, of each way to ask one: all of them take the better part of an hour."""

_ASKING_CLIENTS = (
    *("models/test_openai_model_client.py", "models/test_anthropic_model_client.py"),
    *("models/test_chat_completion_cache.py", "models/test_reply_chat_completion_client.py", "test_openai_agent.py"),
    "tools/test_mcp_workbench_model_client.py",
)
"""Of AutoGen's extensions the tests of its clients, and of what holds one."""

_OF_NODES = tuple(
    f"tests/test_{name}.py"
    for name in (
        *("interrupt_state", "interruption", "messages_state", "parent_command", "pydantic", "runnable", "state"),
        *("subgraph_detection", "subgraph_persistence", "tracing_interops"),
    )
)
"""Of LangGraph's tests those of what a node is and gives back."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Which tests, in which environment, and how we are put underneath."""

    name: str
    environment: str
    """Part of its name: "" is the core's."""
    under: str
    """What ``underneath.py`` puts there."""
    tests: tuple[str, ...]
    sample: tuple[str, ...] = ()
    """What of it belongs to the sample; nothing is left out of it."""
    options: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    """Of ``_PLUGINS`` those that its tests are run by."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Those of LangChain's have fake models whose answers are their prompts."""
        return LAYERS if "models" in self.under else LAYERS[:-1]


SUITES = {
    suite.name: suite
    for suite in (
        # Left out are the tests of its MCP client, which need a package that this environment's versions exclude.
        Suite(
            "langchain",
            "",
            "models,agents",
            ("tests/unit_tests",),
            ("tests/unit_tests/agents/middleware/core",),
            ("--ignore=tests/unit_tests/mcp",),
        ),
        # Left out is what asks the network for the tables of a tokenizer.
        Suite(
            "langchain-openai",
            "",
            "models",
            ("tests/unit_tests",),
            options=("--ignore=tests/unit_tests/test_token_counts.py", "-k", "not num_tokens and not token_ids"),
        ),
        Suite("langchain-anthropic", "", "models", ("tests/unit_tests",), ("tests/unit_tests/test_chat_models.py",)),
        # Without the servers that it starts in containers: on its savers in memory and in files.
        Suite("langgraph", "", "models,nodes", ("tests",), _OF_NODES, plugins=("anyio",)),
        Suite("langgraph-prebuilt", "", "models", ("tests",)),
        Suite("langgraph-supervisor", "", "models", ("tests",), ("tests",)),
        Suite("langgraph-swarm", "", "models", ("tests",), ("tests",)),
        Suite("autogen-agentchat", "autogen", "autogen", ("tests",)),
        # Of its tests those of what asks a model; MagenticOne's want a browser, which this environment leaves out.
        Suite("autogen-ext", "autogen", "autogen,clients", tuple(f"tests/{name}" for name in _ASKING_CLIENTS)),
        # Of its 5,800 tests those of what asks a model; some modules want packages of its development alone.
        Suite(
            "crewai",
            "crewai",
            "crewai",
            tuple(f"tests/{name}" for name in _ASKING),
            tuple(f"tests/test_crew.py::test_{name}" for name in _ASKING_SHORTLY),
            options=("--continue-on-collection-errors", "-o", "asyncio_mode=strict", "--block-network", "--timeout=60"),
        ),
    )
}


@dataclass(slots=True)
class Ran:
    """What one layer of a suite came to."""

    layer: str
    tests: Mapping[str, Mapping[str, Any]]
    seconds: float
    output: str

    @property
    def passed(self) -> set[str]:
        """Names of the tests that pass."""
        return {name for name, test in self.tests.items() if test["outcome"] == "passed"}

    @property
    def about_prompts(self) -> set[str]:
        """Names of those that fail over a prompt's own text."""
        return {name for name, test in self.tests.items() if test["prompt"]}

    def total(self, what: str) -> Counter[str]:
        """Layouts or failures of all tests together."""
        return sum((Counter(test[what]) for test in self.tests.values()), Counter())


@dataclass(slots=True)
class Verdict:
    """What differs between the layers of a suite."""

    wrong: list[str] = field(default_factory=list)

    def of(self, said: str, names: Iterable[str]) -> None:
        """Keep what is wrong with some tests."""
        self.wrong += [f"{said}: {name}" for name in sorted(names)]


def environment(suite: Suite) -> Path:
    """The Python of an environment that stands on the one under test, and has what only these tests need."""
    below = ROOT / (f".venv-{suite.environment}" if suite.environment else ".venv")
    below = Path(os.environ.get("CACHEPREFIX_ENVIRONMENTS", below.parent)) / below.name
    folder = WORK / f"env-{suite.environment or 'core'}"
    python = folder / "bin" / "python"
    ready = folder / "ready"
    needs = (ROOT / "constraints" / "peers.txt").read_text("utf-8")
    if ready.exists() and ready.read_text("utf-8") == needs:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([below / "bin" / "python", "-m", "venv", "--without-pip", folder], check=True)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    theirs, ours = (
        subprocess.run([one, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
        for one in (below / "bin" / "python", python)
    )
    (Path(ours) / "below.pth").write_text(theirs + "\n", "utf-8")
    # What the environment below has already is not installed again, whatever the pins of this file's neighbours say.
    missing = [line for line in needs.splitlines() if line and not line.startswith("#")]
    command = [_uv(), "pip", "install", "--quiet", "--no-deps", "--python", str(python), *missing]
    subprocess.run(command, check=True)
    ready.write_text(needs, "utf-8")
    return python


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise SystemExit("uv is missing: pip install uv")
    return found


def source(suite: Suite, python: Path) -> Path:
    """The folder of a suite's distribution: a given one, or the source distribution of the version under test."""
    code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    command = [python, "-c", code, suite.name]
    version = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    names = [f"{one}-{version}" for one in (suite.name, suite.name.replace("-", "_"))]
    given = os.environ.get(VARIABLE)
    for name in (*names, suite.name) if given else ():
        if (Path(given or "") / name / "pyproject.toml").exists():
            return Path(given or "") / name
    found = next((WORK / name for name in names if (WORK / name).exists()), None)
    if found is not None:
        return found
    wanted = f"{suite.name}=={version}"
    # Of this package alone: what builds it comes as wheels.
    loading = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--no-binary", suite.name, wanted]
    subprocess.run([*loading, "--dest", str(WORK)], check=True)
    archive = next(path for name in names for path in WORK.glob(f"{name}.tar.gz"))
    with tarfile.open(archive) as file:
        file.extractall(WORK, filter="data")
    return WORK / archive.name.removesuffix(".tar.gz")


def run(suite: Suite, layer: str, *, sample: bool, only: Sequence[str] = (), name: str = "") -> Ran:
    """Run a suite, its sample or some tests ``only`` in one layer."""
    python = environment(suite)
    name = name or f"{suite.name}-{layer}"
    # In a folder of its own: some tests write into the one that they are in, and others' prompts are read from there.
    folder = WORK / f"tests-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source(suite, python), folder)
    seen = WORK / f"{name}.jsonl"
    without = [part for name in _PLUGINS if name not in suite.plugins for part in ("-p", f"no:{name}")]
    chosen = only or (suite.sample if sample else suite.tests)
    # Of a distribution that brings no settings for pytest, nobody else's count.
    alone = ("-c", "pyproject.toml", "--rootdir", ".")
    options = ("-q", "--tb=short", *alone, "-p", "underneath", *without, "-o", "addopts=", *suite.options)
    pytest = ["-m", "pytest", *options, *chosen]
    kept = {name: text for name, text in os.environ.items() if "API_KEY" not in name and not name.startswith("PYTEST")}
    parts = [HERE, ROOT, *(ROOT / "adapters" / name for name in _ADAPTERS)]
    ours = {
        "PYTHONPATH": os.pathsep.join(map(str, parts)),
        "CACHEPREFIX_LAYER": layer,
        "CACHEPREFIX_UNDER": suite.under,
        "CACHEPREFIX_SEEN": str(seen),
        "NO_DOCKER": "true",
    }
    began = time.monotonic()
    done = subprocess.run([python, *pytest], cwd=folder, env=kept | ours, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    (WORK / f"{name}.log").write_text(output, "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    lines = seen.read_text("utf-8").splitlines() if seen.exists() else []
    tests = {found["test"]: found for found in map(json.loads, lines)}
    return Ran(layer, tests, time.monotonic() - began, output)


def differing(plain: Ran, observed: Ran) -> set[str]:
    """The tests that pass plain, and observed do not or send something else."""
    return {
        name
        for name in plain.passed
        if name not in observed.passed or plain.tests[name]["bodies"] != observed.tests[name]["bodies"]
    }


def repeated(suite: Suite, names: set[str]) -> list[dict[str, Ran]]:
    """More runs of some tests, plain and observed."""
    only = sorted(names)
    return [
        {layer: run(suite, layer, sample=False, only=only, name=f"{suite.name}-{layer}-{n}") for layer in LAYERS[:2]}
        for n in range(AGAIN if names else 0)
    ]


def by_chance(name: str, ran: Mapping[str, Ran], more: Sequence[Mapping[str, Ran]]) -> bool:
    """Whether what differed in a test is chance: the order of its threads, a timeout on a busy machine.

    A lost test is, where it passes each time that it is run again. Other bytes are, where plain runs send their
    requests in one order and another: then those of the observed runs are to be the same ones, in any. Recorded answers
    go to whoever asks first, so that plain runs may differ in what they send as well; nothing can be said of those.
    """
    plain, observed = ([runs[layer].tests.get(name) for runs in (ran, *more)] for layer in LAYERS[:2])
    if not all(test and test["outcome"] == "passed" for test in (*plain, *observed[1:])):
        return False
    kept = [test["bodies"] for test in observed if test and test["outcome"] == "passed"]
    asked = [test["bodies"] for test in plain if test]
    if all(one == asked[0] for one in asked):
        return all(one == asked[0] for one in kept)
    sent = {tuple(sorted(one)) for one in asked}
    return len(sent) > 1 or all(tuple(sorted(one)) in sent for one in kept)


def unlisted(suite: Suite, ran: Mapping[str, Ran]) -> dict[str, set[str]]:
    """By layer of forks, the tests that pass plain and are lost there, neither listed nor over a prompt's own text."""
    listed = {name for names in differences(suite.name).values() for name in names}
    last = ran[suite.layers[-1]]
    found = {}
    for layer in suite.layers[2:]:
        lost = ran["plain"].passed - ran[layer].passed - listed - ran[layer].about_prompts
        # To the fakes' words alone those that are kept where these are what they would be without us.
        found[layer] = lost - last.passed if layer == "shared" else lost
    return found


def alone(suite: Suite, lost: Mapping[str, set[str]]) -> set[str]:
    """Of what is lost in a layer that which passes each time that it is run alone: its clock, on a busy machine."""
    kept: set[str] = set()
    for layer, names in lost.items():
        more = [
            run(suite, layer, sample=False, only=sorted(names), name=f"{suite.name}-{layer}-{n}")
            for n in range(AGAIN if names else 0)
        ]
        kept |= {name for name in names if all(name in one.passed for one in more)}
    return kept


def compare(suite: Suite, ran: Mapping[str, Ran], *, sample: bool, chance: set[str]) -> Verdict:
    """What is not as it must be; ``chance`` names the tests that differ from themselves."""
    found, plain = Verdict(), ran["plain"]
    if not plain.passed:
        found.wrong.append(f"no test passes plain: {plain.output[-600:]}")
    observed = ran["observed"]
    other = differing(plain, observed) - chance
    found.of("lost when observed", other - observed.passed)
    found.of("sends other bytes when observed", other & observed.passed)
    for layer, lost in unlisted(suite, ran).items():
        found.of(f"lost when {layer}, for a reason that is not known", lost - chance)
    if not sample:
        last = ran[suite.layers[-1]]
        lost = plain.passed - last.passed - chance
        if len(lost) > MOST * len(plain.passed):
            found.of(f"more than {MOST:.0%} lost when {last.layer}", lost)
        listed = {name for names in differences(suite.name).values() for name in names}
        found.of("listed, and kept", listed & last.passed)
    return found


def differences(suite: str) -> Mapping[str, Sequence[str]]:
    """The tests of a suite that a fork may lose, by reason."""
    with (HERE / "differences.toml").open("rb") as file:
        found: dict[str, dict[str, list[str]]] = tomllib.load(file)
    return found.get(suite, {})


def row(suite: Suite, ran: Mapping[str, Ran]) -> str:
    """One suite's line of the table."""
    plain = ran["plain"].passed
    kept = {layer: len(plain & ran[layer].passed) for layer in suite.layers}
    shares = [f"{layer} {count} ({100 * (1 - count / max(1, len(plain))):.1f} % lost)" for layer, count in kept.items()]
    bodies = sum(len(ran["plain"].tests[name]["bodies"]) for name in plain)
    counts = [(layer, ran[layer].total("layouts")) for layer in suite.layers[2:]]
    forks = ", ".join(f"{layer} {found['fork']} of {sum(found.values())}" for layer, found in counts)
    failed = {layer: dict(ran[layer].total("failures")) for layer in suite.layers[1:]}
    opened = "".join(f"; {layer} failed open: {found}" for layer, found in failed.items() if found)
    took = sum(one.seconds for one in ran.values())
    return (
        f"{suite.name}: plain {len(plain)}, {', '.join(shares[1:])}; {bodies} HTTP bodies compared; requests that are "
        f"forks: {forks}; {took:.0f} s{opened}"
    )


def main() -> int:
    """Run what was asked for; exit code 1 when something differs that is not listed."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--sample", action="store_true", help="a fixed sample of a few minutes")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    given = parser.parse_args()
    unknown = set(given.suites) - set(SUITES)
    if unknown:
        parser.error(f"there is no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    suites = [SUITES[name] for name in given.suites or SUITES]
    suites = [suite for suite in suites if suite.sample or not given.sample]
    WORK.mkdir(parents=True, exist_ok=True)
    for suite in suites:
        source(suite, environment(suite))
    began, wrong = time.monotonic(), 0
    with ThreadPoolExecutor(given.jobs) as pool:
        running = {
            suite.name: {layer: pool.submit(run, suite, layer, sample=given.sample) for layer in suite.layers}
            for suite in suites
        }
        for suite in suites:
            ran = {layer: one.result() for layer, one in running[suite.name].items()}
            doubtful = differing(ran["plain"], ran["observed"])
            more = repeated(suite, doubtful)
            chance = {name for name in doubtful if by_chance(name, ran, more)} | alone(suite, unlisted(suite, ran))
            found = compare(suite, ran, sample=given.sample, chance=chance)
            said = [f"differs by chance: {name}" for name in sorted(chance)] + found.wrong
            print(row(suite, ran), *(f"  {text}" for text in said), sep="\n", flush=True)
            wrong += len(found.wrong)
    print(f"{len(suites)} suites in {time.monotonic() - began:.0f} s, {wrong} differences that are not listed")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
