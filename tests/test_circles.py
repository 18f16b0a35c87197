"""No circle of imports, in the core and in each adapter."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.syntax import parsed

ROOT = Path(__file__).resolve().parents[1]
ADAPTERS = ("ag2", "autogen", "crewai", "langgraph", "litellm", "maf", "openai_agents", "sdk")
PACKAGES = {
    "cacheprefix": ROOT / "cacheprefix",
    **{f"cacheprefix_{name}": ROOT / "adapters" / name / f"cacheprefix_{name}" for name in ADAPTERS},
}


def modules(package: str) -> dict[str, Path]:
    """The modules of a package by their full names."""
    folder, found = PACKAGES[package], {}
    for path in sorted(folder.rglob("*.py")):
        parts = (package, *path.relative_to(folder).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(known: Mapping[str, Path]) -> dict[str, set[str]]:
    """What each module names in an import, in functions and for type checkers too."""
    arrows = {}
    for name, path in known.items():
        targets = set(_named(parsed(path), known))
        arrows[name] = targets - {name}
    return arrows


def _named(tree: ast.AST, known: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield from (name for name in (inner if inner in known else node.module,) if name in known)


def circles(arrows: Mapping[str, set[str]]) -> list[str]:
    """The groups of modules that reach one another, each as its names in order."""
    reached = {name: _reached(name, arrows) for name in arrows}
    groups = {frozenset({name, *(other for other in reached[name] if name in reached[other])}) for name in arrows}
    return sorted(" ".join(sorted(group)) for group in groups if len(group) > 1)


def _reached(start: str, arrows: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    ahead = [start]
    while ahead:
        for name in arrows[ahead.pop()] - found:
            found.add(name)
            ahead.append(name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_there_is_no_circle_of_imports(package):
    """Whoever reads a module has read all that it needs behind its imports."""
    assert circles(imports(modules(package))) == []


def test_a_circle_is_found_through_functions_and_type_checking():
    """As the reader of one module meets it, whatever the interpreter makes of it."""
    code = {
        "a": "def f():\n    from p import b",
        "b": "if TYPE_CHECKING:\n    from p.c import Name",
        "c": "import p.a",
        "d": "from p.a import x",
    }
    known = {f"p.{name}": Path(name) for name in code}
    arrows = {f"p.{name}": set(_named(parsed(text), known)) for name, text in code.items()}
    assert circles(arrows) == ["p.a p.b p.c"]
