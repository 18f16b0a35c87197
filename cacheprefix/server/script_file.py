"""Scripts as files: what the simulated model answers, for teams that are tried without a line of Python."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cacheprefix.errors import BodyError, SetupError
from cacheprefix.prompt import loads
from cacheprefix.server.script import Fault, Queue, Reply, Request, Script, ToolCall


def read_script(path: Path, otherwise: Script) -> Script:
    """The script in a JSON file.

    A list holds the replies, one after the other. An object holds such lists by a text that stands in the prompt, such
    as ``"You are the planner"``: of several that stand there the one that comes last decides, ``otherwise`` answers
    where none does, and each list's last reply comes again. A reply is its text, or an object with ``text``, ``tools``
    (each with ``name`` and ``arguments``), ``thinking`` and ``error`` (an HTTP status).
    Raises ``SetupError`` that names the place.
    """
    try:
        given = loads(path.read_bytes())
    except (OSError, BodyError) as error:
        raise SetupError(f"--script {path}: {error}") from error
    if isinstance(given, list):
        return Queue(_replies(given, str(path)), otherwise)
    if not isinstance(given, Mapping):
        message = f"--script {path}: write a list of replies, or an object of such lists by a text of the prompt"
        raise SetupError(message)
    return ByText({text: _replies(replies, f"{path}: {text!r}") for text, replies in given.items()}, otherwise)


class ByText:
    """Replies by a text that stands in the prompt; of several the one that comes last. Thread-safe."""

    def __init__(self, replies: Mapping[str, Sequence[Reply]], otherwise: Script) -> None:
        self._replies, self._otherwise = replies, otherwise
        self._given: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, request: Request, /) -> Reply:
        """The next reply of the text that comes last."""
        at, text = max(((request.text.rfind(text), text) for text in self._replies), default=(-1, ""))
        if at < 0:
            return self._otherwise(request)
        with self._lock:
            number = self._given[text]
            self._given[text] += 1
        replies = self._replies[text]
        return replies[min(number, len(replies) - 1)]


def _replies(given: Any, where: str) -> list[Reply]:
    replies = given if isinstance(given, list) else [given]
    if not replies:
        raise SetupError(f"{where} has no replies: write at least one")
    return [_reply(one, f"{where}, reply {number}") for number, one in enumerate(replies, 1)]


def _reply(given: Any, where: str) -> Reply:
    """A reply of a script's file: a text, or an object; raises ``SetupError`` with where it stands."""
    if isinstance(given, str):
        return Reply(given)
    known = {"text", "tools", "thinking", "error"}
    if not isinstance(given, Mapping) or set(given) - known:
        raise SetupError(f"{where}: write a text, or an object of {', '.join(sorted(known))}")
    calls = given.get("tools") or ()
    if not all(isinstance(one, Mapping) and isinstance(one.get("name"), str) for one in calls):
        raise SetupError(f"{where}: each of tools is an object with name and arguments")
    return Reply(
        str(given.get("text") or ""),
        tuple(ToolCall(one["name"], one.get("arguments") or {}) for one in calls),
        str(given.get("thinking") or ""),
        fault=Fault(int(given["error"])) if given.get("error") else None,
    )
