"""What the commands read: event files of sessions, saved conversations, request bodies; and how they print."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cacheprefix.errors import SetupError, plain
from cacheprefix.events import Run, is_event


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation's saved state, as ``Conversation.dumps()`` wrote it."""

    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Body:
    """A request body, or a bare list of messages put into one."""

    data: Mapping[str, Any]


def read_saved(path: Path, run: Run | None = None) -> Run | Conversation | Body:
    """Read a file of any of the three kinds; ``-`` is standard input. Raises ``SetupError`` that names the file.

    ``run`` takes in an event file's lines, as it sums them up.
    """
    raw = _raw(path)
    first = raw.split(b"\n", 1)[0]
    if is_event(first):
        return (Run() if run is None else run).read(raw.splitlines())
    try:
        data = json.loads(raw)
    except ValueError as error:
        raise SetupError(f"{path} is no event file, saved conversation or request: not JSON ({error})") from None
    if isinstance(data, list):
        return Body({"messages": data})
    if isinstance(data, Mapping) and "version" in data and "ledger" in data:
        return Conversation(data)
    if isinstance(data, Mapping) and ("messages" in data or "input" in data):
        return Body(data)
    raise SetupError(f"{path} is no event file, saved conversation or request: write one with EventLog or dumps()")


def read_run(path: Path) -> Run:
    """Read an event file. Raises ``SetupError`` for anything else."""
    saved = read_saved(path)
    if isinstance(saved, Run):
        return saved
    raise SetupError(f"{path} is no event file of a session: write one with cacheprefix.events.EventLog")


def as_text(data: Any) -> str:
    """Data as JSON, for programs and for people: what steers a terminal is written out, as JSON has it."""
    text = json.dumps(data, indent=2, ensure_ascii=False, default=str)
    if plain(text, "\n") == text:
        return text
    return "".join(one if plain(one, "\n") == one else json.dumps(one)[1:-1] for one in text)


def print_json(data: Any) -> None:
    """Print data as JSON, for programs."""
    print(as_text(data))


_NOTHING = object()


def imported(name: str, otherwise: Any = _NOTHING) -> Any:
    """What ``module:name`` or ``file.py:name`` names; the current folder counts as a place of modules.

    Raises ``SetupError`` for a name of another form, for a module that cannot be imported, and where the module has
    nothing of that name and there is no ``otherwise``.
    """
    where, _, what = name.rpartition(":")
    if not where or not what:
        raise SetupError(f"{name!r} is no name: write module:name, or file.py:name")
    path = Path(where)
    folder, module = str(Path.cwd()), where.removesuffix(".py").replace("/", ".")
    if path.suffix == ".py" and (path.is_absolute() or ".." in path.parts):
        folder, module = str(path.parent), path.stem
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = importlib.import_module(module)
    except Exception as error:
        raise SetupError(f"cannot import {where!r} ({type(error).__name__}: {plain(str(error))})") from error
    named = getattr(found, what, otherwise)
    if named is _NOTHING:
        raise SetupError(f"module {where!r} has no {what!r}")
    return named


def _raw(path: Path) -> bytes:
    if str(path) == "-":
        return sys.stdin.buffer.read()
    try:
        return path.read_bytes()
    except OSError as error:
        raise SetupError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
