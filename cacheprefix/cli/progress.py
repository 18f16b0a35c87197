"""How far a long command is, on standard error and only where somebody watches."""

from __future__ import annotations

import sys


class Counting:
    """Counts steps of a known number; silent where standard error is no terminal."""

    def __init__(self, total: int, what: str) -> None:
        self._total, self._what, self._done = total, what, 0

    def step(self) -> None:
        """One more is done."""
        self._done += 1
        if sys.stderr.isatty():
            end = "\r\x1b[K" if self._done >= self._total else ""
            print(f"\r{self._done}/{self._total} {self._what}{end}", end="", file=sys.stderr, flush=True)
