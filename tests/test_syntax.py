"""Tests of how tests read Python."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

from tests.syntax import parsed


class _Parsing:
    """Garbage that only the collector finds, and that parses as it is collected: so does a traceback's formatting."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        self._deeper(6)

    def _deeper(self, levels: int) -> None:
        if levels:
            self._deeper(levels - 1)
        else:
            ast.parse("a + b")


def test_what_the_collector_runs_does_not_break_a_parse():
    """A traceback that is told in the midst of it, of something that raises as it is collected, was one."""
    for _ in range(20):
        _Parsing()
        assert parsed(Path(ast.__file__)).body
    assert gc.isenabled()
