"""The public surface as text: every name of every ``__all__``, with signatures, and the public members of classes.

``python -m tests.surface`` says what differs from ``tests/surface/PACKAGE.txt``, and which pages of ``docs/reference``;
``--write`` writes them, which is ``make surface``. Read from the source by griffe, so that no framework has to be
installed. Exits with 1 when something differs.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import griffe

from tests.surface.reference import PAGES, written

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
ADAPTERS = ("ag2", "autogen", "crewai", "langgraph", "litellm", "maf", "openai_agents", "sdk")
PACKAGES = {"cacheprefix": ROOT, **{f"cacheprefix_{name}": ROOT / "adapters" / name for name in ADAPTERS}}


@cache
def loaded(package: str) -> griffe.Module:
    """A package as its source says it."""
    logging.getLogger("griffe").setLevel(logging.ERROR)
    root = griffe.load(package, search_paths=[PACKAGES[package], ROOT], resolve_aliases=True, resolve_external=True)
    assert isinstance(root, griffe.Module)
    return root


def surface(package: str) -> str:
    """One name a line, in the order of the alphabet."""
    return "\n".join(sorted(set(_module(loaded(package))))) + "\n"


def pages() -> Mapping[Path, str]:
    """The pages of the reference that are not as they would be written now, with their new text."""
    packages = {package: loaded(package) for package in PACKAGES}
    texts = {path: written(path.read_text("utf-8"), packages) for path in sorted(PAGES.glob("*.md"))}
    return {path: text for path, text in texts.items() if text != path.read_text("utf-8")}


def _module(module: griffe.Module) -> Iterator[str]:
    for name in module.exports or ():
        yield from _member(module[str(name)], f"{module.path}.{name}")
    for inner in module.modules.values():
        if not inner.is_alias and not inner.name.startswith("_"):
            yield from _module(inner)


def _member(found: griffe.Object | griffe.Alias, path: str) -> Iterator[str]:
    try:
        what = found.final_target if isinstance(found, griffe.Alias) else found
    except griffe.AliasResolutionError:
        yield f"{path}: from elsewhere"
        return
    if isinstance(what, griffe.Class):
        bases = ", ".join(str(base) for base in what.bases)
        yield f"{path}: class({bases}){_called(what.parameters, own=False)}"
        for name, member in what.members.items():
            if not name.startswith("_") and not member.is_alias:
                yield from _member(member, f"{path}.{name}")
    elif isinstance(what, griffe.Function):
        yield f"{path}: {_called(what.parameters, own=what.is_function and isinstance(what.parent, griffe.Class))}" + (
            f" -> {what.returns}" if what.returns else ""
        )
    elif isinstance(what, griffe.Attribute):
        kind = "property" if "property" in what.labels else "value"
        yield f"{path}: {kind} {what.annotation or ''}".rstrip()
    else:
        yield f"{path}: module"


def _called(parameters: griffe.Parameters, *, own: bool) -> str:
    """A signature without what begins with an underscore; ``own`` keeps ``self``."""
    cells, star = [], False
    for one in parameters:
        if (not own and one.name == "self") or one.name.startswith("_"):
            continue
        mark = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(one.kind, "")
        if one.kind is griffe.ParameterKind.keyword_only and not star:
            cells.append("*")
        star = star or one.kind in (griffe.ParameterKind.keyword_only, griffe.ParameterKind.var_positional)
        cell = f"{mark}{one.name}" + (f": {one.annotation}" if one.annotation else "")
        cells.append(f"{cell} = {one.default}" if one.default is not None and not mark else cell)
    return f"({', '.join(cells)})"


def differences(package: str) -> list[str]:
    """What the surface gained and lost against the written one, a line each."""
    path = HERE / f"{package}.txt"
    old = set(path.read_text("utf-8").splitlines()) if path.exists() else set()
    new = set(surface(package).splitlines())
    return [*(f"gone: {line}" for line in sorted(old - new)), *(f"new: {line}" for line in sorted(new - old))]


def main() -> int:
    """Compare or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the surface of now")
    given = parser.parse_args()
    said, changed = [line for package in PACKAGES for line in differences(package)], pages()
    said += [f"another text now: {path.relative_to(ROOT)}" for path in changed]
    print("\n".join(said) or "the public surface is as written")
    if given.write:
        for package in PACKAGES:
            (HERE / f"{package}.txt").write_text(surface(package), "utf-8")
        for path, text in changed.items():
            path.write_text(text, "utf-8")
    return int(bool(said) and not given.write)


if __name__ == "__main__":
    sys.exit(main())
