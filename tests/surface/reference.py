"""The pages of ``docs/reference`` as plain Markdown, from signatures and docstrings.

A page says between ``<!-- reference: MODULE -->`` and ``<!-- /reference -->`` what is public in a module, or what one
name of it is; everything else on it is written by hand. ``make surface`` writes them all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "reference"

_PART = re.compile(r"<!-- reference: (?P<path>[\w.]+) -->\n.*?<!-- /reference -->", re.DOTALL)
_LONG = 400
"""Characters from which on a constant's value is left out."""
_WIDE = 100
"""Characters from which on a signature has a line for each parameter."""


def written(page: str, packages: Mapping[str, griffe.Module]) -> str:
    """A page's text with what is generated made anew."""
    return _PART.sub(partial(_part, packages), page)


def _part(packages: Mapping[str, griffe.Module], found: re.Match[str]) -> str:
    path = found["path"]
    package, _, inner = path.partition(".")
    root = packages[package]
    lines = "\n".join(_told(root[inner] if inner else root, path))
    return f"<!-- reference: {path} -->\n\n{lines.strip()}\n\n<!-- /reference -->"


def _told(found: griffe.Object | griffe.Alias, path: str) -> Iterator[str]:
    what = found.final_target if isinstance(found, griffe.Alias) else found
    if isinstance(what, griffe.Module):
        yield from _docstring(what)
        for name in what.exports or ():
            yield from _told(what[str(name)], f"{path}.{name}")
    elif isinstance(what, griffe.Class):
        yield from _class(what, path)
    elif isinstance(what, griffe.Function):
        yield from _function(what, path.rpartition(".")[2], "##")
    elif isinstance(what, griffe.Attribute):
        yield from _value(what, path.rpartition(".")[2])


def _exported(what: griffe.Object | griffe.Alias) -> bool:
    """Whether a module of its package, or the package, lists it."""
    return any(what.name in (one.exports or ()) for one in (what.package, *what.package.modules.values()))


def _class(what: griffe.Class, path: str) -> Iterator[str]:
    name = path.rpartition(".")[2]
    # Of ours only what a reader can look up.
    inner = {one.name for one in what.resolved_bases if not _exported(one)}
    bases = ", ".join(name for name in map(str, what.bases) if name not in inner)
    made = _called(what.parameters, "__init__")
    head = f"class {name}({bases})" if bases else f"class {name}"
    yield f"## {name}\n"
    yield _fenced(f"{head}: ..." if made == "__init__(self)" else f"{head}:\n{_indented(f'def {made}: ...')}")
    yield from _docstring(what)
    members = [
        (key, one) for key, one in what.members.items() if not key.startswith("_") and not isinstance(one, griffe.Alias)
    ]
    values = [(key, one) for key, one in members if isinstance(one, griffe.Attribute)]
    for key, one in values:
        kind = f": `{one.annotation}`" if one.annotation else ""
        said = " ".join(one.docstring.value.split()) if one.docstring else ""
        yield f"- `{key}`{kind}{f' -- {said}' if said else ''}"
    if values:
        yield ""
    for key, one in members:
        if isinstance(one, griffe.Function):
            yield from _function(one, f"{name}.{key}", "###")


def _function(what: griffe.Function, name: str, level: str) -> Iterator[str]:
    yield f"{level} {name}\n"
    kind = "async def" if "async" in what.labels else "def"
    returns = f" -> {what.returns}" if what.returns else ""
    yield _fenced(f"{kind} {_called(what.parameters, name.rpartition('.')[2])}{returns}: ...")
    yield from _docstring(what)


def _value(what: griffe.Attribute, name: str) -> Iterator[str]:
    yield f"## {name}\n"
    kind, value = f": {what.annotation}" if what.annotation else "", str(what.value or "")
    held = f" = {value}" if value and len(value) < _LONG else ""
    yield _fenced(f"{name}{kind}{held}") if kind or held else ""
    yield from _docstring(what)


def _called(parameters: griffe.Parameters, name: str) -> str:
    """A name with its parameters as Python writes them."""
    cells, star, slash = [], False, False
    for one in parameters:
        if one.name.startswith("_"):
            continue
        kind = one.kind
        if slash and kind is not griffe.ParameterKind.positional_only:
            cells.append("/")
            slash = False
        slash = slash or kind is griffe.ParameterKind.positional_only
        mark = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(kind, "")
        if kind is griffe.ParameterKind.keyword_only and not star:
            cells.append("*")
        star = star or kind in (griffe.ParameterKind.keyword_only, griffe.ParameterKind.var_positional)
        cell = f"{mark}{one.name}" + (f": {one.annotation}" if one.annotation else "")
        cells.append(f"{cell} = {one.default}" if one.default is not None and not mark else cell)
    cells += ["/"] if slash else []
    if name == "__init__" and cells[:1] != ["self"]:
        cells.insert(0, "self")
    line = f"{name}({', '.join(cells)})"
    return line if len(line) < _WIDE else f"{name}(\n" + "".join(f"    {cell},\n" for cell in cells) + ")"


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```\n"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _docstring(what: griffe.Object) -> Iterator[str]:
    if what.docstring:
        yield f"{what.docstring.value.strip()}\n"
