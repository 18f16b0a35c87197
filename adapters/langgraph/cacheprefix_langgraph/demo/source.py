"""The demonstration's input: the source of an installed package, and tools that really read it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from langchain_core.tools import BaseTool, tool

from cacheprefix.errors import SetupError

_MOST_LINES = 400
_MOST_HITS = 40


@dataclass(frozen=True, slots=True)
class Source:
    """A package's Python files by relative path."""

    name: str
    files: dict[str, tuple[str, ...]]

    @property
    def lines(self) -> int:
        """Lines in all files."""
        return sum(len(lines) for lines in self.files.values())

    def largest(self, count: int) -> list[str]:
        """The paths of the files with most lines, largest first."""
        return sorted(self.files, key=lambda path: (-len(self.files[path]), path))[:count]


def read_source(package: str) -> Source:
    """The source of an installed package (by import name) or of a folder.

    Raises ``SetupError`` when there is nothing to read, naming what to pass instead.
    """
    root = _root(package)
    files: dict[str, tuple[str, ...]] = {}
    for path in sorted(root.rglob("*.py")):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SetupError(f"{path} cannot be read ({error}); pass another package or folder with --input") from error
        if text.strip():
            files[path.relative_to(root.parent).as_posix()] = tuple(text.splitlines())
    if not files:
        raise SetupError(f"{root} holds no Python source; pass an installed package or a folder with --input")
    return Source(package, files)


def tools_for(source: Source) -> list[BaseTool]:
    """Three tools that read the source and nothing else."""

    @tool
    def list_files() -> str:
        """List the files of the package with their number of lines."""
        return "\n".join(f"{path} ({len(lines)} lines)" for path, lines in source.files.items())

    @tool
    def read_file(path: str, first: int = 1, last: int = 200) -> str:
        """Read numbered lines of one file of the package.

        Args:
            path: the file as list_files names it.
            first: number of the first line.
            last: number of the last line, at most 400 lines behind the first.
        """
        lines = source.files.get(path)
        if lines is None:
            return f"error: no file {path!r}; list_files names them all"
        first = max(1, first)
        last = min(last, first + _MOST_LINES - 1, len(lines))
        return "\n".join(f"{number:>5}  {lines[number - 1]}" for number in range(first, last + 1))

    @tool
    def search(pattern: str) -> str:
        """Search the package for a regular expression; gives file, line number and line of each match.

        Args:
            pattern: a Python regular expression.
        """
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            return f"error: {pattern!r} is no regular expression: {error}"
        hits = [
            f"{path}:{number}: {line.strip()}"
            for path, lines in source.files.items()
            for number, line in enumerate(lines, 1)
            if compiled.search(line)
        ]
        shown = hits[:_MOST_HITS]
        more = f"\n... and {len(hits) - len(shown)} more" if len(hits) > len(shown) else ""
        return "\n".join(shown) + more if shown else "no matches"

    return [list_files, read_file, search]


def _root(package: str) -> Path:
    """The folder of a package, or the folder itself; raises ``SetupError`` for what is neither."""
    folder = Path(package)
    if folder.is_dir():
        return folder.resolve()
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise SetupError(f"{package!r} is neither a folder nor an installed package; pass one of them with --input")
    return Path(next(iter(spec.submodule_search_locations)))
