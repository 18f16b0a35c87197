"""Every scripted program of the repository, by environment: examples, tutorials, the demonstration and benchmarks.

Left out is what a clock decides (overhead, import, scaling, engines) and what reads recorded traces, which are no part
of the repository.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import runpy
import shutil
import sys
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.recorded.digests import Side, request

ROOT = Path(__file__).resolve().parents[2]
LAYOUTS = ("unmodified", "shared")
APIS = ("openai", "anthropic")
PROVIDER = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "MODEL")


SIDE_BY_SIDE = re.compile(
    r"demo|tutorial-langgraph|send|fan|waves|graphflow|dag|code_review|concurrent|for_each|parallel|async|flow"
    r"|example-(?:agent_team|deep_research|task_dag|text_injection|langgraph-team|maf-team|ag2-team|openai_agents-team)"
    r"|specialists"
)
"""Workloads that send several requests at a time: which of them comes first, and so leads, writes and is not read, is
chance."""
QUICK = re.compile(
    r"tutorial|example-(?:agent_team|compaction|side_question|tool_cache|maf-team|ag2-team|litellm-team|openai_agents-team)"
    r"|example-langgraph-(?:agent_middleware|compaction|supervisor|team)"
    r"|example-autogen-(?:round_robin|selector|tools_and_budget)|example-crewai-(?:sequential|tools_and_budget)"
)
"""Something of every front door."""

JOINED = re.compile(r"graphflow|example-autogen-(?:waves|specialists)")
"""Those whose framework joins the answers in the order in which they come."""


@dataclass(frozen=True)
class Workload:
    """One recorded file: its runs by name, each of which sends requests to a simulated provider of its own."""

    name: str
    sides: Mapping[str, Callable[[], Any]]

    @property
    def quick(self) -> list[str]:
        """Which sides ``--quick`` runs, as ``make test`` does in the core; the others are for ``make test-more``."""
        return [side for side in self.sides if "anthropic" not in side] if QUICK.search(self.name) else []


@contextlib.contextmanager
def watched() -> Iterator[Side]:
    """What is sent to simulated providers, and which sessions are made, while it lasts; whole at its end."""
    from cacheprefix import Session
    from cacheprefix.server import Simulator

    side = Side()
    sessions: list[Session] = []
    accept, init, uuid4 = Simulator.accept, Session.__init__, uuid.uuid4
    numbers = itertools.count(1)

    def accepted(self: Any, api: Any, path: str, body: bytes, headers: Mapping[str, str], **more: Any) -> Any:
        exchange = accept(self, api, path, body, headers, **more)
        side.requests.append(request(path, exchange.record.headers, body))
        return exchange

    def made(self: Any, *given: Any, **options: Any) -> None:
        sessions.append(self)
        init(self, *given, **options)

    Simulator.accept, Session.__init__ = accepted, made  # type: ignore[assignment, method-assign]
    # A program that makes up names makes up the same ones each time.
    uuid.uuid4 = lambda: uuid.UUID(int=next(numbers), version=4)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield side
    finally:
        Simulator.accept, Session.__init__ = accept, init  # type: ignore[method-assign]
        uuid.uuid4 = uuid4
    side.reports = [report for report in (each.report().as_dict() for each in sessions) if report["agents"]]
    side.printed = said.getvalue()


def recorded(workload: Workload, sides: Iterable[str]) -> dict[str, Side]:
    """Run these sides of a workload."""
    found = {}
    for name in sides:
        with watched() as side:
            try:
                side.rows = workload.sides[name]() or ()
            except Exception as error:
                # Some frameworks refuse some of their own requests at some providers: that is recorded too.
                print(f"raised {type(error).__name__}")
        side.chance = bool(SIDE_BY_SIDE.search(workload.name))
        side.joined = bool(JOINED.search(workload.name))
        found[name] = side
    return found


def workloads(environment: str) -> list[Workload]:
    """All of an environment: ``core``, ``autogen``, ``crewai``, ``maf``, ``ag2``, ``litellm`` or ``openai_agents``."""
    return list(ENVIRONMENTS[environment]())


def program(path: Path, *arguments: str, beside: Path | None = None, **variables: str) -> None:
    """Run a Python file as a script, with no provider in the environment but what ``variables`` say."""
    before, argv, places, loaded = dict(os.environ), sys.argv, list(sys.path), set(sys.modules)
    for name in PROVIDER:
        os.environ.pop(name, None)
    os.environ.update(variables)
    sys.argv = [str(path), *arguments]
    sys.path[:0] = [str(path.parent), *([str(beside)] if beside else ())]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{path} {' '.join(arguments)} ended with {end.code}") from end
    finally:
        os.environ.clear()
        os.environ.update(before)
        sys.argv, sys.path[:] = argv, places
        for name in set(sys.modules) - loaded:
            # Programs of several folders have modules of the same names beside them.
            if name.startswith("_") or name == "research":
                sys.modules.pop(name)


def example(path: str, variants: Mapping[str, Sequence[str]]) -> Workload:
    """An example with several sets of arguments."""
    file = ROOT / "examples" / path
    sides = {label: partial(program, file, *arguments, "--json") for label, arguments in variants.items()}
    return Workload("example-" + path.removesuffix(".py").replace("/", "-"), sides)


def both(*more: str) -> dict[str, Sequence[str]]:
    """Both layouts with each API."""
    return {f"{layout} {api}": ("--layout", layout, "--api", api, *more) for api in APIS for layout in LAYOUTS}


def tutorial(name: str) -> Workload:
    """The programs of a tutorial's page, each against a provider of its own."""
    page = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text("utf-8")
    programs = dict(re.findall(r'```python title="([^"]+)"\n(.*?)```', page, re.DOTALL))

    def run(title: str) -> None:
        from cacheprefix.server import SimulatedProvider

        with tempfile.TemporaryDirectory() as folder, SimulatedProvider("openai") as provider:
            path = Path(folder) / title
            path.write_text(programs[title], "utf-8")
            program(path, OPENAI_API_KEY="any", OPENAI_BASE_URL=provider.openai_base_url)

    sides = {title: partial(run, title) for title in programs}
    return Workload(f"tutorial-{name}", sides)


def _core() -> Iterator[Workload]:

    plain = ("agent_team", "basic_chat", "compaction", "memory", "multi_process", "side_question", "task_dag")
    for name in (*plain, "text_injection", "tool_cache", "volatile_context"):
        yield example(f"{name}.py", both())
    yield example("cache_smoke_test.py", {api: ("--api", api) for api in APIS})
    yield Workload("example-deep_research", {label: partial(_research, *given) for label, given in both().items()})
    yield example("compare/scripted_tasks.py", {f"{one} openai": ("--layout", one) for one in LAYOUTS})
    for path in sorted((ROOT / "examples" / "langgraph").glob("[a-z]*.py")):
        if path.stem == "code_review":
            variants = {f"{one} {rules}": ("--layout", one, "--rules", rules) for rules in APIS for one in LAYOUTS}
            yield example("langgraph/code_review.py", variants)
        else:
            yield example(f"langgraph/{path.name}", both())
    yield tutorial("langgraph")
    yield Workload("demo", {"all": _demo})
    yield from _langgraph_benchmark()
    yield Workload("bench-roles", {"all": partial(rows_of, "bench_roles")})
    yield Workload("bench-short", {"all": partial(rows_of, "bench_short")})
    yield Workload("bench-detection", {"240 cases": partial(rows_of, "bench_detection", "--cases", "240")})


def _research(*arguments: str) -> None:
    """The research example in a folder of its own, with documents that no edit of the documentation changes."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name in ("examples", "skills"):
            shutil.copytree(ROOT / name, folder / name)
        (folder / "docs").mkdir()
        for topic in ("promises", "tests", "caches", "prefixes"):
            lines = (f"What never breaks, {topic} {number}: it is tested, and promised." for number in range(60))
            (folder / "docs" / f"{topic}.md").write_text(f"# About {topic}\n\n" + "\n".join(lines), "utf-8")
        program(folder / "examples" / "deep_research.py", *arguments, "--json")


def _demo() -> None:
    from cacheprefix.cli import main

    rules = ("exact", "openai", "openai-5.6", "anthropic")
    if main(["demo", "--json", "--latency", "0", *(word for one in rules for word in ("--rules", one))]):
        raise RuntimeError("the demonstration failed")


def rows_of(module: str, *arguments: str) -> list[dict[str, Any]]:
    """The rows of a benchmark that follow from its script alone: those whose unit is a time are left out."""
    from benchmarks import _table

    said, results, argv = io.StringIO(), _table.RESULTS, sys.argv
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
        _table.RESULTS, sys.argv = Path(folder), [module, *arguments, "--json"]
        os.environ["CACHEPREFIX_TRACES"] = folder
        try:
            import_module(f"benchmarks.{module}").main()
        finally:
            _table.RESULTS, sys.argv = results, argv
            del os.environ["CACHEPREFIX_TRACES"]
    return [row for row in json.loads(said.getvalue())["rows"] if row.get("unit") not in ("ms", "s")]


def _slug(name: str) -> str:
    return "bench-" + re.sub(r"\W+", "-", name.replace("->", " ")).strip("-").lower()


def _langgraph_benchmark() -> Iterator[Workload]:
    from benchmarks import bench_langgraph as bench
    from benchmarks.langgraph_workloads import WORKLOADS

    for each in WORKLOADS:
        sides = {}
        for rules in bench.RULES:
            for layout in (*LAYOUTS, *(("stock",) if rules.name == "anthropic" else ())):
                sides[f"{layout} {rules.name}"] = partial(_ran, bench.run, each, rules, layout=layout)
        yield Workload(_slug(each.name), sides)


def _autogen() -> Iterator[Workload]:
    for path in sorted((ROOT / "examples" / "autogen").glob("[a-z]*.py")):
        # The workers of AutoGen's gRPC runtime ask from processes of their own, which nobody records.
        if path.stem != "grpc_workers":
            yield example(f"autogen/{path.name}", both())
    yield tutorial("autogen")
    from benchmarks import bench_autogen as bench
    from benchmarks.autogen_workloads import WORKLOADS

    for each in WORKLOADS:
        sides = {}
        for rules in bench.RULES:
            for layout in LAYOUTS:
                run = partial(_ran, bench.run, each, rules, shared=layout == "shared")
                sides[f"{layout} {rules.rules} {rules.read_price:g}"] = run
        yield Workload(_slug(each.name), sides)


def _crewai() -> Iterator[Workload]:
    from benchmarks import bench_crewai as bench  # before anything of CrewAI: it sets what CrewAI reads at import
    from benchmarks.crewai_workloads import WORKLOADS

    for path in sorted((ROOT / "examples" / "crewai").glob("[a-z]*.py")):
        yield example(f"crewai/{path.name}", both())
    yield tutorial("crewai")
    for each in WORKLOADS:
        sides = {}
        for rules in bench.RULES:
            for reading in (rules.rules, *rules.readings):
                for layout in LAYOUTS:
                    run = partial(_ran, bench.run, each, rules, reading, shared=layout == "shared")
                    sides[f"{layout} {reading} {rules.read_price:g}"] = run
        yield Workload(_slug(each.name), sides)


def _maf() -> Iterator[Workload]:
    patterns = ("sequential", "concurrent", "group_chat")
    yield _patterns("maf/team.py", patterns)
    from benchmarks import bench_maf as bench

    for name in bench.WORKLOADS:
        yield _of_table(bench.run, bench.RULES, name)


def _ag2() -> Iterator[Workload]:
    yield _patterns("ag2/team.py", ("channel", "stream", "fan_out"))
    from benchmarks import bench_ag2 as bench

    for name in bench.WORKLOADS:
        yield _of_table(bench.run, bench.RULES, name)


def _litellm() -> Iterator[Workload]:
    yield _patterns("litellm/team.py", ("function", "router"))


def _openai_agents() -> Iterator[Workload]:
    # The SDK's own models speak OpenAI's APIs.
    patterns = [(f"{pattern} {layout}", pattern, layout) for pattern in ("handoffs", "tools") for layout in LAYOUTS]
    yield example("openai_agents/team.py", {name: ("--layout", at, "--pattern", one) for name, one, at in patterns})


def _patterns(path: str, patterns: Sequence[str]) -> Workload:
    variants = {
        f"{pattern} {label}": (*given, "--pattern", pattern) for pattern in patterns for label, given in both().items()
    }
    return example(path, variants)


def _of_table(run: Callable[..., Any], rules: Sequence[tuple[str, str, float]], name: str) -> Workload:
    sides = {
        f"{layout} {of} {price:g}": partial(_ran, run, name, of, model, shared=layout == "shared")
        for of, model, price in rules
        for layout in LAYOUTS
    }
    return Workload(_slug(name), sides)


def _ran(run: Callable[..., Any], *given: Any, **options: Any) -> None:
    """A benchmark's run for what it sends; its sessions are seen as they are made."""
    run(*given, **options)


ENVIRONMENTS: Mapping[str, Callable[[], Iterator[Workload]]] = {
    "core": _core,
    "autogen": _autogen,
    "crewai": _crewai,
    "maf": _maf,
    "ag2": _ag2,
    "litellm": _litellm,
    "openai_agents": _openai_agents,
}
