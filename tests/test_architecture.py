"""The rooms of the house and which way their arrows point, read from the imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from cacheprefix.profiles import Profile
from cacheprefix.prompt.reasons import Why
from tests.syntax import parsed

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "cacheprefix"
ADAPTERS = {"ag2", "langgraph", "autogen", "crewai", "litellm", "maf", "openai_agents", "sdk"}

ALWAYS = {
    "errors", "_version", "locks", "effects", "contexts", "bounded", "by_object", "unnamed", "notices", "mode",
    "lazy_names",
}  # fmt: skip
"""What every room may import; among themselves these form no circle either (``test_circles.py``)."""
_TABLE = """
prompt:
stores:
versions:
wire: prompt
profiles: prompt
toolcache: prompt stores
services: prompt profiles
cache: prompt wire profiles
history: prompt wire profiles
layout: prompt stores wire profiles services cache
conversation: prompt wire history
call: prompt profiles cache
options: prompt stores profiles cache history layout
config_fields: layout
hookspecs: prompt profiles cache history layout call
builtin_plugins: prompt cache history layout
plugins: hookspecs builtin_plugins
calls: prompt stores wire profiles toolcache services cache history layout conversation call plugins
forks: prompt wire profiles cache history layout conversation calls
adapter_session: prompt stores wire profiles cache history layout conversation call options plugins calls forks
events: prompt stores profiles toolcache cache call plugins calls
config: profiles toolcache history options config_fields plugins events
keep_alive: profiles layout forks
wrapped_parts: adapter_session
bodies: prompt wire profiles layout conversation history calls adapter_session
watched_clients: prompt wire calls adapter_session bodies
dry_run: prompt call calls adapter_session bodies
session: prompt stores wire profiles toolcache services cache history layout conversation call options plugins \
  calls forks adapter_session config keep_alive dry_run
adapter: prompt versions profiles toolcache history layout calls forks adapter_session config wrapped_parts \
  bodies watched_clients dry_run session
entry_points: session
_wrap: hookspecs dry_run session adapter
__init__: prompt profiles cache history layout conversation call options hookspecs calls keep_alive dry_run \
  session _wrap
"""
BELOW = {room: set(below.split()) for room, _, below in (row.partition(":") for row in _TABLE.split("\n") if row)}
"""Which rooms each room imports, beside those of ``ALWAYS``: all of them, and no others. For type checkers too."""

LEAVES = {
    "server": set(),
    "audit": set(),
    "report": {"audit"},
    "record": set(),
    "verify": {"server"},
    "telemetry": set(),
    "testing": {"server"},
    "cli": {"server", "audit", "report", "record", "verify"},
    "__main__": {"cli"},
}
"""Which of the tools each tool imports; nothing else imports one. A server and an audit know nothing of each other, a
report shows an audit, fixtures serve, the command line starts all."""

FRAMEWORKS = ("ag2", "agent_framework", "autogen", "crewai", "deepagents", "langchain", "langgraph", "litellm")
EXTRAS = (
    "aiohttp",
    "brotli",
    "genai_prices",
    "jinja2",
    "opentelemetry",
    "packaging",
    "redis",
    "rich",
    "starlette",
    "tiktoken",
    "transformers",
    "typer",
    "uvicorn",
    "zstandard",
)


def _modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def _imports(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, also inside functions and for type checkers."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports here are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _room(path: Path) -> str:
    return path.relative_to(CORE).with_suffix("").parts[0]


@cache
def _rooms() -> set[str]:
    return {_room(path) for path in _modules(CORE)}


def _arrows(path: Path) -> set[str]:
    """The rooms that a file imports; a public name is one of ``__init__``."""
    named = {name.split(".")[1] for name in _imports(path) if name.startswith("cacheprefix.")}
    return {name if name in _rooms() else "__init__" for name in named} - {_room(path)} - ALWAYS


@cache
def _used() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    used: dict[str, set[str]] = {}
    for path in _modules(CORE):
        used.setdefault(_room(path), set()).update(_arrows(path))
    return used


@pytest.mark.slow
def test_a_room_imports_what_its_table_says():
    """All of it: an arrow that no import uses any more goes from the table, too."""
    allowed = {room: set() for room in ALWAYS} | BELOW
    assert {room: arrows for room, arrows in _used().items() if room not in LEAVES} == allowed


@pytest.mark.slow
def test_arrows_between_leaves_point_one_way():
    """From the server to the audit, to the report, to the command line."""
    assert {room: arrows & set(LEAVES) for room, arrows in _used().items() if room in LEAVES} == LEAVES


def _page(heading: str) -> str:
    """A part of the architecture's page."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    return page.split(f"\n## {heading}\n")[1].split("\n## ")[0]


@pytest.mark.slow
def test_the_drawing_shows_every_room_above_what_it_imports():
    """Imports point down, and to the left within a row."""
    rows = [row.split()[1:] for row in _page("The rooms").split("```")[1].splitlines() if row.strip()]
    drawn = [room for row in reversed(rows) for room in row]
    assert sorted(drawn) == sorted(_rooms() | ADAPTERS)
    at = drawn.index
    assert not {(room, below) for room, used in _used().items() for below in used if at(below) > at(room)}


def test_the_table_of_rooms_has_every_room():
    """A new folder or module is told of before anybody looks for it."""
    rows = re.findall(r"^\| (`.+?) \|", _page("The rooms"), re.MULTILINE)
    told = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    there = {path.name + "/" * path.is_dir() for path in CORE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert sorted(told) == sorted(there - {"__pycache__/"})


def test_every_room_is_a_package():
    """A folder without __init__.py would be left out of type checking and of the wheel's tests."""
    for path in _modules(CORE):
        assert (path.parent / "__init__.py").exists(), path


@pytest.mark.slow
def test_the_core_imports_no_framework():
    """Not even inside a function: what a framework looks like is its adapter's business."""
    for path in _modules(CORE):
        assert not [name for name in _imports(path) if name.startswith(FRAMEWORKS)], path


@pytest.mark.parametrize("adapter", sorted(ADAPTERS))
def test_an_adapter_imports_the_core_and_its_framework_only(adapter):
    """And no other adapter, so that each can be installed alone."""
    others = tuple(f"cacheprefix_{name}" for name in ADAPTERS - {adapter})
    its = {"langgraph": ("langgraph", "langchain"), "maf": ("agent_framework",)}.get(adapter, (adapter,))
    foreign = tuple(name for name in FRAMEWORKS if name not in its)
    allowed_too = ("litellm",) if adapter == "crewai" else ()
    for path in _modules(ROOT / "adapters" / adapter):
        named = [name for name in _imports(path) if name.startswith(others + foreign)]
        assert not [name for name in named if not name.startswith(allowed_too or ("-",))], path


def _public(module: str) -> set[str]:
    """The names that a module of the core declares as public; the errors are all public."""
    path = CORE.parent.joinpath(*module.split("."))
    tree = parsed(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return {node.name for node in tree.body if hasattr(node, "name") and node.name[0] != "_"}


DOORS = {"cacheprefix", "cacheprefix.adapter", "cacheprefix.entry_points", "cacheprefix.wire", "cacheprefix.errors"}
"""Where adapters find all that they may use of the core; an adapter's demo is a tool, and uses other tools too."""


@pytest.mark.slow
def test_an_adapter_uses_the_core_through_its_doors():
    """Public names, what is there for adapters, what knows the shapes of APIs, and errors: no room behind these."""
    for path in _modules(ROOT / "adapters"):
        tool, whole = "demo" in path.parts, dict[str, str]()
        tree = parsed(path)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "cacheprefix":
                assert tool or node.module in DOORS, f"{path}:{node.lineno}"
                rooms = {alias.name: f"cacheprefix.{alias.name}" for alias in node.names}
                whole |= {name: room for name, room in rooms.items() if room in DOORS}
                assert rooms.keys() - whole.keys() <= _public(node.module), f"{path}:{node.lineno}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in whole:
                assert node.attr in _public(whole[node.value.id]), f"{path}:{node.lineno}"


@pytest.mark.parametrize(("adapter", "most"), [("litellm", 210), ("openai_agents", 165)])
def test_a_thin_adapter_stays_thin(adapter, most):
    """At most so many lines of code: those that are neither blank, nor a comment, nor a docstring.

    LiteLLM's has a router beside its functions, which threads and tenants share.
    """
    lines = 0
    for path in _modules(ROOT / "adapters" / adapter):
        text = path.read_text("utf-8")
        said = {
            line
            for node in ast.walk(parsed(text))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            for line in range(node.lineno, (node.end_lineno or 0) + 1)
        }
        found = enumerate(map(str.strip, text.splitlines()), 1)
        lines += sum(bool(line) and line[0] != "#" and number not in said for number, line in found)
    assert 0 < lines <= most, lines


def _python(code: str) -> list[str]:
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return shown.stdout.split()


def test_importing_cacheprefix_brings_no_extra_and_no_framework():
    """Nor does touching every public name."""
    unwanted = _python(
        "import sys, cacheprefix\n"
        "for name in cacheprefix.__all__: getattr(cacheprefix, name)\n"
        f"print(*[name for name in sys.modules if name.startswith({FRAMEWORKS + EXTRAS!r})])"
    )
    assert unwanted == []


def test_importing_cacheprefix_loads_little():
    """Names are loaded on first use, so that the import costs next to nothing."""
    loaded = _python(
        "import sys; before = set(sys.modules); import cacheprefix\n"
        "print(*[name for name in set(sys.modules) - before if name.startswith('cacheprefix')])"
    )
    assert set(loaded) <= {"cacheprefix", "cacheprefix._version", "cacheprefix.lazy_names"}


def test_what_tests_replace_by_name_still_stands_in_the_module_they_name():
    """An adapter's tests run in an environment of their own: a function renamed here fails there, and last."""
    missing = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for name in sorted(set(re.findall(r'"(cacheprefix\w*(?:\.\w+)+)"', path.read_text("utf-8")))):
            package, *parts = name.split(".")
            adapter = package.removeprefix("cacheprefix").removeprefix("_")
            at = ROOT / "adapters" / adapter / package if adapter else CORE
            while parts and (at / parts[0]).is_dir():
                at /= parts.pop(0)
            if parts and (at / f"{parts[0]}.py").is_file():
                at /= f"{parts.pop(0)}.py"
            elif at.name == package:  # not a module: a metric, an attribute of a span
                continue
            files = [at] if at.is_file() else at.rglob("*.py")
            source = "\n".join(each.read_text("utf-8") for each in files)
            missing += [f"{path.name}: {name}" for part in parts if not re.search(rf"\b{part}\b", source)]
    assert not missing


def _changes() -> dict[str, str]:
    """The rows of "Where a change goes": by what is to be changed, where it is begun and what comes then."""
    rows = [line.strip("| ").split(" | ", 1) for line in _page("Where a change goes").splitlines() if "`" in line]
    assert len(rows) >= 6
    return dict(rows)


def test_where_a_change_goes_is_a_file_that_holds_what_is_named_with_it():
    """A file or folder by its path in the core; behind it functions and fields of it."""
    for change, places in _changes().items():
        held = ""
        for name in re.findall(r"`([^`]+)`", places):
            file = CORE / name
            if name.endswith((".py", ".toml")):
                held = file.read_text("utf-8")
            elif name.endswith("/"):
                assert file.is_dir(), f"{change}: {name}"
            elif name.startswith("_"):
                assert f"def {name}(" in held, f"{change}: {name}"
            elif re.fullmatch(r"\w+=?", name):
                assert re.search(rf"\b{name.strip('=')}\b", held), f"{change}: {name}"
            else:
                assert name in ("call.reasons", "cacheprefix explain", "grep '\"NAME\"'"), f"{change}: {name}"


def test_the_steps_of_a_call_name_files_and_what_they_define():
    """Of the core: a class or function in brackets behind it, or ``NAME in FILE``."""
    page = _page("One call, from decorator to wire (LangGraph)")
    files = re.findall(r"`((?:\w+/)*\w+\.py)`", page)
    assert len(files) > 8
    assert not [name for name in files if not (CORE / name).is_file()]
    for name, file in re.findall(r"`([\w.]+)` in `([\w/]+\.py)`", page):
        defined = name.rpartition(".")[2]
        assert re.search(rf"\b(def|class) {defined}\b", (CORE / file).read_text("utf-8")), f"{name} in {file}"


def test_every_field_of_a_profile_has_a_value_among_the_rules():
    """So that who adds a rule finds how one is written."""
    rows = (CORE / "profiles" / "profiles.toml").read_text("utf-8")
    assert not [one.name for one in fields(Profile) if not re.search(rf"\b{one.name}\b", rows)]


def test_who_decides_a_reason_is_found_by_its_name():
    """``grep '"NAME"'`` finds it, and no reason is left that nothing gives. Lists of exported names decide nothing."""
    reasons = CORE / "prompt" / "reasons.py"
    given = [*_modules(CORE), *_modules(ROOT / "adapters")]
    given = [path for path in given if path != reasons and path.name not in ("__init__.py", "adapter.py")]
    text = "\n".join([*(path.read_text("utf-8") for path in given), reasons.read_text("utf-8").partition("\ndef ")[2]])
    assert not [why for why in get_args(Why) if f'"{why}"' not in text]


def test_the_list_of_log_formats_names_every_one():
    """The audit's readers import each; ``messages`` is what several have in common."""
    listed = set(_imports(CORE / "audit" / "readers.py"))
    there = {path.stem for path in (CORE / "audit" / "formats").glob("*.py")} - {"__init__", "messages"}
    assert not {f"cacheprefix.audit.formats.{name}" for name in there} - listed
