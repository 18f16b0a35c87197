"""Which private names of a framework an adapter relies on, and whether the installed release still has them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from tests.syntax import parsed

ROOT = Path(__file__).resolve().parents[1]
ADAPTERS = ROOT / "adapters"
CLIENTS = ROOT / "cacheprefix" / "watched_clients.py"
"""What adapters of SDK clients share of them stands in the core."""
_PRIVATE = re.compile(r"_[a-z]\w*(?<!_)")
_WORD = re.compile(rb"\b_[a-z]\w*")


def private_names(adapter: str) -> dict[str, str]:
    """Private names that an adapter reads of others, each with a place: attributes, and names in strings.

    Not those that it defines itself; what it overrides of theirs is named by the test.
    """
    read: dict[str, str] = {}
    own: set[str] = set()
    files = sorted((ADAPTERS / adapter).glob("cacheprefix_*/**/*.py"))
    for path in [*files, *([CLIENTS] if adapter == "sdk" else [])]:
        for node in ast.walk(parsed(path)):
            own.update(_defined(node))
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "value", None)
            if isinstance(node, (ast.Attribute, ast.Constant)) and isinstance(name, str) and _PRIVATE.fullmatch(name):
                read.setdefault(name, f"{path.name}:{node.lineno}")
    return {name: where for name, where in read.items() if name not in own}


def _defined(node: ast.AST) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id
            elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                yield target.attr
    elif isinstance(node, ast.arg):
        yield node.arg


def missing(
    adapter: str, packages: Iterable[str], overridden: Iterable[str] = (), ours: Iterable[str] = ()
) -> list[str]:
    """The names that the source of the installed packages has no word of, each with the place that reads it."""
    known: set[str] = set(ours)
    for package in packages:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for path in Path(folder).rglob("*.py"):
                known.update(word.decode() for word in _WORD.findall(path.read_bytes()))
    names = private_names(adapter) | dict.fromkeys(overridden, "overridden")
    assert names, f"the adapter {adapter} reads no private name"
    return [f"{name} ({where})" for name, where in sorted(names.items()) if name not in known]


def releases(*distributions: str) -> str:
    """What is installed, so that a failing test names the release in which a name changed."""
    return ", ".join(f"{name} {version(name)}" for name in distributions)
