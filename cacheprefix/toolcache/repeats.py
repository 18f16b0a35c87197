"""Repeat detection: refuses a call that an agent repeats although nothing has changed since."""

from __future__ import annotations

from collections import Counter, deque

from cacheprefix.locks import RLock


class RepeatDetector:
    """The cacheable calls of one agent in one user turn, each with the state of the world that it asked about.

    A call is a repeat when the last ``2 * threshold`` calls hold it ``threshold`` times already. Calls that run
    at the same time count once: the model has not seen an answer yet. After a write that the answer may depend on
    it is another call, because reading a file after every edit is no loop. ``threshold`` 0 switches it off.
    """

    def __init__(self, threshold: int = 2) -> None:
        self._threshold = threshold
        self._lock = RLock()
        self._window: deque[bytes] = deque(maxlen=max(1, 2 * threshold))
        self._running: Counter[bytes] = Counter()

    def start(self, call: bytes) -> bool:
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


def repeat_message(tool: str, times: int) -> str:
    """Return what the model reads instead of a result; the tool's name is cut to 256 bytes."""
    name = tool.encode("utf-8", "replace")[:256].decode("utf-8", "ignore")
    return (
        f"[error] Repeated identical call to {name}: it was made {times} times with these arguments in this "
        "turn. Use the result you have, different arguments, or a different approach."
    )
