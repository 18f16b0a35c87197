"""Failing open, and saying things once: what every session of a tree shares."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from typing import TypeVar

from cacheprefix.bounded import Bounded
from cacheprefix.errors import BodyError, NotSharedError, StateError, plain, told
from cacheprefix.locks import Lock

T = TypeVar("T")

log = logging.getLogger("cacheprefix")

_MOST = 1_000
"""Different things that are said, at most: names of users' own agents and tools may stand in them."""

_MANY = 20
"""Sessions with the very same shared text from which on they are probably made one a request."""
_PREFIXES = 1_000

_OWN = "the request goes out in the application's own layout"
_SENT = {
    **dict.fromkeys(("layout", "rewrite", "forked", "middleware", "subgraph", "role", "begin", "body"), _OWN),
    **dict.fromkeys(("copy", "fork", "send", "place", "take over", "turn", "views", "tools"), _OWN),
    **dict.fromkeys(
        ("tool-result budget", "compaction", "compact hook", "consolidation", "condense", "decisions", "summary"),
        "the history goes out without that decision",
    ),
    "load state": "what goes on from it is sent as the application has it, without what that held",
    "gate": "the request goes out without waiting",
    "gate store": "requests of other processes are not waited for",
    "traffic": "each process goes by its own requests a minute",
}
"""What is sent where a step of ours failed. Other steps change nothing that is sent."""


class CacheprefixWarning(UserWarning):
    """Something did not go as it should, once named; the application went on."""


class Notices:
    """Failures of ours by step, and what the user should know, each said once. Thread-safe."""

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        self._notes: dict[str, None] = {}
        self._unasked: dict[str, None] = {}
        self._said: set[str] = set()
        self._lock = Lock()

    def attempt(self, step: str, work: Callable[[], T], otherwise: T) -> T:
        """Do our own work; whatever it raises is counted and named once, and ``otherwise`` is the answer.

        Raises ``NotSharedError``, which is raised in strict mode alone.
        """
        try:
            return work()
        except NotSharedError:
            # Strict mode, which the user chose so that it is heard.
            raise
        except Exception as error:
            self.failed(step, error)
            return otherwise

    def failed(self, step: str, error: Exception) -> None:
        """Count a failure of ours and warn about its kind once."""
        with self._lock:
            self.failures[step] += 1
        kind = "the body" if isinstance(error, BodyError) else "cacheprefix"
        what = f"{kind} failed ({told(error)})"
        if isinstance(error, StateError) and error.of_version:
            what = str(error)
        elif isinstance(error, StateError) or step == "load state":
            what = f"the saved state is damaged ({told(error)})"
        sent = _SENT.get(step, "the call goes on without it")
        if self._first(f"{step}:{type(error).__name__}"):
            text = plain(f"{step}: {what}; {sent}")
            log.warning(text)
            _warn(text)

    def not_kept(self, error: Exception) -> None:
        """Count a full text that its store did not take, and warn once."""
        with self._lock:
            self.failures["full tool results"] += 1
        self.warn_once(
            "full tool results",
            f"full tool results: the store failed ({told(error)}); until it answers, new results stay whole, and texts "
            "that are referred to already wait in memory",
        )

    def note(self, text: str) -> None:
        """Remember something the user should know; it stands in the report and, once, in the log."""
        text = plain(text)
        with self._lock:
            new = text not in self._notes and len(self._notes) < _MOST
            if new:
                self._notes[text] = None
        if new:
            log.info(text)

    def note_if_unasked(self, text: str) -> None:
        """Remember what a report is to say as long as no request has come: what was probably wrapped amiss."""
        with self._lock:
            if len(self._unasked) < _MOST:
                self._unasked[plain(text)] = None

    @property
    def unasked(self) -> tuple[str, ...]:
        """What to say where no request has come."""
        with self._lock:
            return tuple(self._unasked)

    def warn_once(self, key: str, text: str) -> None:
        """Warn about something the application did, once."""
        if self._first(key):
            log.warning(plain(text))
            _warn(plain(text))

    @property
    def notes(self) -> tuple[str, ...]:
        """What was noted, in order."""
        with self._lock:
            return tuple(self._notes)

    def _first(self, key: str) -> bool:
        with self._lock:
            new = key not in self._said and len(self._said) < _MOST
            if new:
                self._said.add(key)
        return new


def _warn(text: str) -> None:
    """Warn without letting a filter that turns warnings into errors reach the user's call."""
    try:
        warnings.warn(text, CacheprefixWarning, stacklevel=4)
    except CacheprefixWarning:
        log.debug("the warning was turned into an error by a filter and is only logged")


class MadeSessions:
    """Counts the sessions of a process that were made with the very same shared text. Thread-safe, bounded."""

    def __init__(self) -> None:
        self._made: Bounded[tuple[str, str, bytes], int] = Bounded(_PREFIXES)
        self._lock = Lock()

    def add(self, name: str, scope: str, text: str, notices: Notices) -> None:
        """Count one, by its name, its tenant and its shared text, and warn of the one that is one too many."""
        if not text:
            return
        key = name, scope, blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()
        with self._lock:
            made = self._made[key] = self._made.get(key, 0) + 1
        if made == _MANY:
            notices.warn_once(
                "many sessions",
                f"{made} sessions with the very same shared text were made in this process: what one knows of "
                "conversations, tools and costs no other one does, and none reports the whole; make one where the "
                "application starts, and use it for every request",
            )

    def forget(self) -> None:
        """Begin to count anew, for tests."""
        with self._lock:
            self._made.clear()


MADE = MadeSessions()
