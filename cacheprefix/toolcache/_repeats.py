"""Repeat detection: an agent that makes the same call again and again is told so."""

from __future__ import annotations

from collections import Counter, deque

from cacheprefix.locks import RLock

# A turn with more different writes than this is no loop of the kind that is looked for.
_MAX_SEEN = 4_096


class RepeatDetector:
    """The calls of one agent in one user turn.

    A call is a repeat when the last ``2 * threshold`` calls hold it ``threshold`` times
    already. Calls that run at the same time count once: the model has not seen an answer yet.
    A write that is new in this turn starts the count of all other calls again, because reading
    a file or running the tests after every edit is no loop. ``threshold`` 0 switches it off.
    """

    def __init__(self, threshold: int = 2) -> None:
        self._threshold = threshold
        self._lock = RLock()
        self._window: deque[bytes] = deque(maxlen=max(1, 2 * threshold))
        self._running: Counter[bytes] = Counter()
        self._written: set[bytes] = set()

    def start(self, call: bytes, *, writes: bool = False) -> bool:
        """Note a call; False when it is one repeat too many and must not be made.

        Each True needs a ``finish``.
        """
        if self._threshold <= 0:
            return True
        with self._lock:
            if not self._running[call]:
                if self._window.count(call) >= self._threshold:
                    del self._running[call]
                    return False
                if writes and call not in self._written and len(self._written) < _MAX_SEEN:
                    self._written.add(call)
                    self._window.clear()
                self._window.append(call)
            self._running[call] += 1
            return True

    def finish(self, call: bytes) -> None:
        """Note that a call which was let through has ended, in whatever way."""
        if self._threshold <= 0:
            return
        with self._lock:
            self._running[call] -= 1
            if self._running[call] <= 0:
                del self._running[call]

    def new_turn(self) -> None:
        """Forget everything: the user has spoken."""
        with self._lock:
            self._window.clear()
            self._written.clear()


def repeat_message(tool: str, times: int) -> str:
    """Return what the model reads instead of a result; the tool's name is cut to 256 bytes."""
    name = tool.encode("utf-8", "replace")[:256].decode("utf-8", "ignore")
    return (
        f"[error] Repeated identical call to {name}: it was made {times} times with these arguments in this "
        "turn. Use the result you have, different arguments, or a different approach."
    )
