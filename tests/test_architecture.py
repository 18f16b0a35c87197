"""The rooms of the house and which way their arrows point, read from the imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "cacheprefix"
ADAPTERS = {"ag2", "langgraph", "autogen", "crewai", "litellm", "maf", "openai_agents", "sdk"}

ALWAYS = {"errors", "_version", "locks", "effects", "contexts", "bounded", "unnamed", "notices", "mode"}
BELOW = {
    "errors": set(),
    "_version": set(),
    "locks": set(),
    "effects": set(),
    "contexts": set(),
    "bounded": set(),
    "unnamed": set(),
    "notices": set(),
    "mode": set(),
    "prompt": set(),
    "wire": {"prompt"},
    "profiles": {"prompt"},
    "services": {"prompt", "profiles"},
    "cache": {"prompt", "wire", "profiles"},
    "stores": set(),
    "layout": {"prompt", "wire", "profiles", "services", "cache", "stores"},
    "history": {"prompt", "wire", "profiles", "cache", "stores"},
    "toolcache": {"prompt", "stores"},
    "conversation": {"prompt", "wire", "history"},
    "hookspecs": {"prompt", "profiles", "cache", "layout", "history", "calls"},
    "builtin_plugins": {"prompt", "cache", "layout", "history"},
    "plugins": {"hookspecs", "builtin_plugins"},
    "calls": {
        "prompt",
        "wire",
        "profiles",
        "services",
        "cache",
        "stores",
        "layout",
        "history",
        "toolcache",
        "conversation",
        "plugins",
    },
    "forks": {"prompt", "wire", "profiles", "cache", "layout", "history", "conversation", "calls"},
    "options": {"prompt", "profiles", "cache", "stores", "history", "layout", "calls"},
    "adapter_session": {
        "prompt",
        "wire",
        "profiles",
        "services",
        "cache",
        "history",
        "layout",
        "conversation",
        "calls",
        "forks",
        "plugins",
        "toolcache",
        "options",
        "stores",
    },
    "bodies": {"prompt", "wire", "profiles", "layout", "conversation", "calls", "adapter_session"},
    "watched_clients": {"prompt", "calls", "adapter_session", "bodies"},
    "dry_run": {"prompt", "calls", "bodies", "adapter_session"},
    "events": {"prompt", "profiles", "cache", "stores", "toolcache", "calls", "plugins"},
    "config_fields": {"toolcache", "history", "layout", "profiles"},
    "config": {"profiles", "stores", "history", "toolcache", "plugins", "events", "config_fields", "options"},
}
"""What each room may import beside itself, the errors and notices; the session may import all of them, and adapters
the session. Of ``calls`` the hooks' signatures name nothing but values."""

LEAVES = {
    "server": set(),
    "audit": set(),
    "report": {"server", "audit"},
    "telemetry": set(),
    "record": set(),
    "verify": {"server"},
    "testing": {"server", "audit"},
    "cli": {"server", "audit", "report", "telemetry", "testing", "record", "verify"},
    "__main__": {"cli"},
}
"""Nothing below imports these. Among them arrows point one way too: a server and an audit know nothing of each
other, a report shows an audit, fixtures serve and audit, the command line starts all."""

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
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports here are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _room(path: Path) -> str:
    return path.relative_to(CORE).with_suffix("").parts[0]


def _rooms() -> set[str]:
    return {_room(path) for path in _modules(CORE)}


def _arrows(path: Path) -> set[str]:
    named = {name.split(".")[1] for name in _imports(path) if name.startswith("cacheprefix.")}
    return (named & _rooms()) - {_room(path)} - ALWAYS


@pytest.mark.slow
@pytest.mark.parametrize("room", sorted(BELOW))
def test_a_room_imports_only_what_lies_below_it(room):
    """Prompt, wire and profiles, cache, then layout and history; stores below history, tool cache and the gate."""
    for path in _modules(CORE):
        if _room(path) == room:
            assert _arrows(path) <= BELOW[room], path


@pytest.mark.slow
@pytest.mark.parametrize("leaf", sorted(LEAVES))
def test_arrows_between_leaves_point_one_way(leaf):
    """From the server to the audit, to the report, to the command line."""
    for path in _modules(CORE):
        if _room(path) == leaf:
            assert _arrows(path) & set(LEAVES) <= LEAVES[leaf], path


@pytest.mark.slow
def test_nothing_below_imports_a_leaf():
    """Neither a room nor the session needs a server, a report or a command line."""
    for path in _modules(CORE):
        if _room(path) not in LEAVES:
            assert not _arrows(path) & set(LEAVES), path


def test_every_folder_is_a_room():
    """A new folder gets its place in the order before it gets modules."""
    folders = {path.name for path in CORE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders <= set(BELOW) | set(LEAVES)


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
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8"))
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
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "cacheprefix":
                assert tool or node.module in DOORS, f"{path}:{node.lineno}"
                rooms = {alias.name: f"cacheprefix.{alias.name}" for alias in node.names}
                whole |= {name: room for name, room in rooms.items() if room in DOORS}
                assert rooms.keys() - whole.keys() <= _public(node.module), f"{path}:{node.lineno}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in whole:
                assert node.attr in _public(whole[node.value.id]), f"{path}:{node.lineno}"


@pytest.mark.parametrize("adapter", ["litellm", "openai_agents"])
def test_a_thin_adapter_stays_thin(adapter):
    """At most 165 lines of code: those that are neither blank, nor a comment, nor a docstring."""
    lines = 0
    for path in _modules(ROOT / "adapters" / adapter):
        text = path.read_text("utf-8")
        said = {
            line
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            for line in range(node.lineno, (node.end_lineno or 0) + 1)
        }
        found = enumerate(map(str.strip, text.splitlines()), 1)
        lines += sum(bool(line) and line[0] != "#" and number not in said for number, line in found)
    assert 0 < lines <= 165, lines


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
    assert set(loaded) <= {"cacheprefix", "cacheprefix._version"}


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
