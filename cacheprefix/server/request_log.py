"""What the simulated provider remembers of each request, and its log in the audit's own form."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import Self

from cacheprefix.errors import BodyError, SetupError
from cacheprefix.prompt import Api, Prompt, dumps, loads
from cacheprefix.server.outcome import CacheOutcome
from cacheprefix.server.script import Asked, Reply


@dataclass(slots=True)
class Record:
    """One request as it came, and what became of it. Times are seconds of the server's clock."""

    index: int
    api: Api
    path: str
    body: bytes
    """The bytes as they came, without the content encoding."""

    headers: Mapping[str, str]
    """Headers that matter to the cache; never a key."""

    scope: str = ""
    """Who may share: a digest of the API key."""

    session: str | None = None
    agent: str | None = None
    """What the request's ``x-cacheprefix-session`` and ``x-cacheprefix-agent`` headers say."""

    started_at: float = 0.0
    first_token_at: float | None = None
    ended_at: float | None = None
    model: str = ""
    rules: str = ""
    """Name of the profile row that decided."""

    provider: str = ""
    prompt: Prompt | None = None
    """The body as sections; None where it could not be read."""

    asked: Asked = field(default_factory=Asked)
    reply: Reply | None = None
    outcome: CacheOutcome | None = None
    usage: Mapping[str, Any] | None = None
    """What was reported, in the provider's own fields; it may be wrong on purpose."""

    diagnostics: Mapping[str, Any] | None = None
    """The explanation of a miss that was given with it."""

    output_tokens: int = 0
    modelled_ttft: float | None = None
    """Seconds to the first token by the latency model, slept or not."""

    status: int = 200
    error: str | None = None
    invalid: tuple[BodyError, ...] = ()
    """What the real provider would refuse the body for, also where this one takes it."""

    @property
    def json(self) -> Any:
        """The body as an object. Raises ``BodyError`` where it is not JSON."""
        return loads(self.body)


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner may read: it holds whole prompts."""
    return os.open(path, flags, 0o600)


class Log:
    """Appends records to a JSON-lines file, one object a request, as ``cacheprefix audit`` reads it."""

    def __init__(self, path: str | Path) -> None:
        try:
            self._file = open(path, "ab", opener=_private)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise SetupError(f"cannot record to {path}: {error.strerror}; name a file that can be written") from error
        self._lock = threading.Lock()

    def write(self, record: Record) -> None:
        """One line. Bodies that are no JSON object are left out: there is no prompt to audit."""
        line = _line(record)
        if line is not None:
            with self._lock:
                self._file.write(dumps(line, "record") + b"\n")
                self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _line(record: Record) -> dict[str, Any] | None:
    """A served request as a line of the audit's own form; None where its body cannot be read."""
    try:
        request = record.json
    except BodyError:
        return None
    if not isinstance(request, dict):
        return None
    if record.model and not ({"model", "modelId"} & request.keys()):
        request = {"modelId" if record.api == "bedrock" else "model": record.model, **request}
    line: dict[str, Any] = {"ts": record.started_at, "provider": record.provider, "api": record.api}
    optional = {
        "session": record.session,
        "agent": record.agent,
        "headers": dict(record.headers) or None,
        "request": request,
        "usage": record.usage,
        "diagnostics": record.diagnostics,
        "scope": record.scope or None,
        "response_started_ts": record.first_token_at,
        "response_ended_ts": record.ended_at,
        "error": record.error,
    }
    return line | {name: value for name, value in optional.items() if value is not None}
