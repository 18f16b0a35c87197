"""A session's calls as lines of a file, written while it runs, for ``cacheprefix watch``, ``status`` and ``explain``.

One JSON object a line: a header, then one object for each model call, tool call and change of the tool cache's
statistics, and an end. Several processes may write to one file. No line holds prompt text unless it is asked for.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cacheprefix.cache import Verdict
from cacheprefix.call import Call
from cacheprefix.calls.report import Report, Totals
from cacheprefix.errors import SetupError, StateError, plain
from cacheprefix.locks import Lock
from cacheprefix.profiles import (
    Amount,
    CacheprefixProfileWarning,
    Profile,
    Registry,
    default_registry,
    load_price_library,
    usage_from_dict,
)
from cacheprefix.prompt import Reason
from cacheprefix.stores import aside
from cacheprefix.toolcache import CacheStats, ToolCall, ToolResultCache

if TYPE_CHECKING:
    from cacheprefix.plugins import Plugins

__all__ = ["VERSION", "EventLog", "Run", "is_event"]

VERSION = 1
"""Version of the lines' form."""

_ASK_SECONDS = 10.0
"""How often a store that other processes share is asked what it holds: that walks all of its keys."""


def _shown(value: Any) -> Any:
    """What was read, with control characters written out: a log is shown on terminals."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {_shown(name): _shown(inner) for name, inner in value.items()}
    return [_shown(inner) for inner in value] if isinstance(value, list) else value


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner may read: it tells what agents do."""
    return os.open(path, flags, 0o600)


class Watched(Protocol):
    """What an event log needs of a session: its hooks, and the cache of its tools' results."""

    @property
    def plugins(self) -> Plugins:
        """The hooks in force."""
        ...

    @property
    def tool_cache(self) -> ToolResultCache | None:
        """The cache of tool results, where there is one."""
        ...


S = TypeVar("S", bound=Watched)


class EventLog:
    """Writes what a session does to a file: ``EventLog("run.events").bind(session)``.

    Lines are appended, each at once, so that others can follow. ``include_text`` keeps the few characters around a
    difference. Raises ``SetupError`` when the file cannot be written. Safe to call from any thread; when writing
    fails later (a full disk), the session goes on and the plugin is named once.
    """

    def __init__(self, path: str | os.PathLike[str], *, include_text: bool = False) -> None:
        self.path = Path(path)
        self._include_text = include_text
        self._run, self._pid = "", 0
        self._watched: Watched | None = None
        self._told: CacheStats | None = None
        self._asked = -_ASK_SECONDS
        self._lock = Lock()
        try:
            self._file = open(self.path, "ab", buffering=0, opener=_private)  # noqa: SIM115 - closed by close(), at the latest at the program's end
        except OSError as error:
            raise SetupError(f"events cannot be written to {self.path}: {error.strerror}; name another file") from error
        self._begin()
        atexit.register(self.close)

    def bind(self, session: S) -> S:
        """Write the calls of ``session`` and its children, and its tool cache's, and give the session back."""
        load_price_library()
        self._watched = session
        session.plugins.register(self, "events")
        if session.tool_cache is not None:
            session.tool_cache.subscribe(self.tool)
        return session

    def cacheprefix_after_call(self, call: Call, verdict: Verdict) -> None:
        """Write a finished model call."""
        shown = verdict if self._include_text else verdict.redacted()
        plain = {item.name: getattr(call, item.name) for item in fields(call) if item.name != "paid"}
        plain |= {"profile": call.profile.name, "usage": call.usage.as_dict(), "verdict": shown.as_dict()}
        plain["money"] = call.money
        plain["reasons"] = [asdict(one) for one in call.reasons]
        self._write({"type": "call", "call": plain})
        self._statistics()

    def tool(self, call: ToolCall) -> None:
        """Write a tool call that went through the cache."""
        self._write({"type": "tool", "at": time.time(), **asdict(call)})
        self._statistics()

    def close(self) -> None:
        """Write the end and close the file. Safe to call again."""
        atexit.unregister(self.close)
        if not self._file.closed:
            if self._pid == os.getpid():  # else a forked child that has written nothing; the run is its parent's
                self._statistics(last=True)
                self._write({"type": "end", "at": time.time()})
            self._file.close()

    def _statistics(self, *, last: bool = False) -> None:
        """The tool cache's entries and evictions, where they changed."""
        cache = None if self._watched is None else self._watched.tool_cache
        if cache is None or (cache.shared and not last and time.monotonic() - self._asked < _ASK_SECONDS):
            return
        self._asked = time.monotonic()
        if last:
            self._tell(cache)
        else:
            aside(cache.store, self._tell, cache)

    def _tell(self, cache: ToolResultCache) -> None:
        now = cache.stats()
        if now != self._told:
            self._told = now
            self._write({"type": "tool_cache", "stats": now.as_dict()})

    def _begin(self) -> None:
        self._run, self._pid = secrets.token_hex(4), os.getpid()
        self._write({"type": "start", "cacheprefix_events": VERSION, "at": time.time(), "pid": self._pid})

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._pid != os.getpid():
            self._begin()  # a forked child's calls are a run of its own
        with self._lock:
            if not self._file.closed:
                # One write a line: what several processes append does not mix.
                self._file.write(json.dumps({**line, "run": self._run}).encode() + b"\n")


@dataclass(slots=True)
class Run:
    """What was read from an event file so far: the calls, the tool cache, what began and ended."""

    totals: Totals = field(default_factory=Totals)
    registry: Registry = field(default_factory=default_registry)
    recent: list[Call] = field(default_factory=list)
    """The newest calls, at most ``keep``."""
    keep: int = 200
    tools: Counter[str] = field(default_factory=Counter)
    """Tool calls by outcome."""
    stats: dict[str, CacheStats] = field(default_factory=dict)
    """The tool cache's last statistics, by run."""
    started: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    skipped: int = 0
    """Lines that could not be read."""
    line_of: Callable[[Call], str] | None = None
    """Under which name a call is summed up; None for its agent."""
    since: float = 0.0
    """Calls that ended before are left out; seconds since the epoch."""

    def read(self, lines: Iterable[bytes | str]) -> Run:
        """Take in lines; what cannot be read is counted and skipped, since a file may be read while it is written."""
        for line in lines:
            if line.strip():
                self.take(line)
        return self

    def take(self, line: bytes | str) -> Mapping[str, Any] | None:
        """Take in one line and give its object; None where it cannot be read."""
        try:
            event = json.loads(line)
            self._take(event)
        except (ValueError, TypeError, KeyError, AttributeError, StateError):
            self.skipped += 1
            return None
        made: Mapping[str, Any] = event
        return made

    @property
    def running(self) -> bool:
        """Whether a session that began has not ended."""
        return bool(self.started.keys() - self.ended.keys())

    @property
    def tool_cache(self) -> CacheStats | None:
        """The statistics of the tool cache that was told of last."""
        return next(reversed(self.stats.values()), None)

    def report(self) -> Report:
        """As ``Session.report()``; what the session alone knew (its counter, its notes) is left out."""
        made = self.totals.report("the session that wrote it", (), {})
        return replace(made, tool_cache=self.tool_cache)

    def _take(self, event: Mapping[str, Any]) -> None:
        """Add an event to the run: a call, a tool call, the tool cache's statistics, or a session's start or end."""
        kind, run = event["type"], str(event.get("run", ""))
        if kind == "call":
            call = self._call(_shown(event["call"]))
            if call.ended_at < self.since:
                return
            call = call if self.line_of is None else replace(call, agent=self.line_of(call))
            self.totals.remember(call)
            self.recent.append(call)
            del self.recent[: -self.keep]
        elif kind == "tool":
            self.tools[str(event["outcome"])] += 1
        elif kind == "tool_cache":
            self.stats.pop(run, None)
            self.stats[run] = CacheStats.from_dict(event["stats"])
        elif kind == "start":
            if event["cacheprefix_events"] != VERSION:
                raise StateError(f"events of version {event['cacheprefix_events']}, this one reads {VERSION}")
            self.started[run] = float(event["at"])
        elif kind == "end":
            self.ended[run] = float(event["at"])

    def _call(self, plain: Mapping[str, Any]) -> Call:
        """The call that a line holds; fields that this version does not know are left out."""
        values = _known(Call, plain)
        values["usage"] = usage_from_dict(plain["usage"])
        verdict = plain["verdict"]
        values["verdict"] = Verdict(**_known(Verdict, verdict), loss=Amount(usd=verdict.get("lost_usd")))
        values["paid"] = Amount(usd=plain["money"])
        # Logs of earlier versions say no reasons.
        values["reasons"] = tuple(
            Reason(one["why"], one["name"], tuple((str(name), int(number)) for name, number in one["numbers"]))
            for one in plain.get("reasons", ())
        )
        # Those of earlier versions say how much is unsure, and not why.
        if plain.get("unsure_units"):
            values["unsure"] = {"untold": float(plain["unsure_units"])}
        values["profile"] = self._profile(str(plain["profile"]), str(plain["model"]))
        return Call(**values)

    def _profile(self, name: str, model: str) -> Profile:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheprefixProfileWarning)
            return self.registry.profile_for(model, provider=name)


def _known(kind: Any, plain: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that this version knows; a newer one may have written more."""
    return {item.name: plain[item.name] for item in fields(kind) if item.name in plain}


def is_event(line: bytes | str) -> bool:
    """Whether a file that begins with this line is a session's event file."""
    try:
        first = json.loads(line)
    except ValueError:
        return False
    return isinstance(first, Mapping) and first.get("type") == "start" and "cacheprefix_events" in first
