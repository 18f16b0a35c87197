"""What a run of the protocol found, dated, in a file that can be kept and sent in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cacheprefix.errors import BodyError, SetupError
from cacheprefix.prompt import dumps, loads
from cacheprefix.verify.protocol import Finding

VERSION = 1


@dataclass(frozen=True, slots=True)
class Evidence:
    """One run: which row, which model, where, when, and each finding. It holds no key and no text of the user's."""

    profile: str
    provider: str
    model: str
    api: str
    date: str
    """UTC, such as ``2026-11-22T08:30:00Z``."""
    simulated: bool
    """Whether a simulated provider answered: then it proves nothing about a real one."""
    requests: int
    input_tokens: int
    usd: float | None
    findings: tuple[Finding, ...]

    @property
    def differing(self) -> tuple[Finding, ...]:
        """Findings that speak against the row."""
        return tuple(one for one in self.findings if one.outcome == "differs")

    def as_data(self) -> dict[str, Any]:
        """The JSON object of the file."""
        return {"version": VERSION, **asdict(self)}


def now() -> str:
    """The date that evidence of this moment carries."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def evidence_folder() -> Path:
    """Where this user's evidence is kept: ``CACHEPREFIX_EVIDENCE``, else a folder beside other programs' data."""
    named = os.environ.get("CACHEPREFIX_EVIDENCE")
    if named:
        return Path(named)
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "cacheprefix" / "evidence"


def save_evidence(evidence: Evidence, path: Path | None = None) -> Path:
    """Write evidence to ``path``, by default a file of its own in ``evidence_folder()``.

    Raises SetupError where it cannot be written.
    """
    if path is None:
        name = re.sub(r"[^\w.-]+", "-", f"{evidence.profile}-{evidence.model}-{evidence.date}")
        path = evidence_folder() / f"{name}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(dumps(evidence.as_data(), "evidence") + b"\n")
    except OSError as error:
        raise SetupError(f"cannot write {path}: {error.strerror}; name another file with --save") from error
    return path


def read_evidence(paths: Sequence[Path] = ()) -> Iterator[Evidence]:
    """All evidence of this user's folder and of ``paths``, oldest first.

    Raises SetupError for a file of ``paths`` that is none; one in the folder that cannot be read is passed over.
    """
    folder = evidence_folder()
    own = sorted(folder.glob("*.json")) if folder.is_dir() else []
    found = [_read(path) for path in paths]
    found += [one for one in map(_read_or_none, own) if one is not None]
    yield from sorted(found, key=lambda one: one.date)


def _read_or_none(path: Path) -> Evidence | None:
    try:
        return _read(path)
    except SetupError:
        return None


def _read(path: Path) -> Evidence:
    try:
        data = loads(path.read_bytes())
        if data.pop("version") != VERSION:
            raise SetupError(f"{path} was written by another release; verify again")
        findings = tuple(Finding(**one) for one in data.pop("findings"))
        return Evidence(**data, findings=findings)
    except (OSError, BodyError, KeyError, TypeError, AttributeError) as error:
        raise SetupError(f"{path} holds no evidence of cacheprefix verify ({type(error).__name__})") from error
