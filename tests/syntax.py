"""The syntax of Python text, read so that nothing of ours can run in the midst of it."""

from __future__ import annotations

import ast
import gc
from pathlib import Path


def parsed(text: str | Path) -> ast.Module:
    """The syntax tree of some Python, or of a file with some.

    CPython 3.11 counts how deep it is in one place for all parsing in a process: where the collector runs a
    finalizer in the midst of it which parses too, as the formatting of a traceback does, it raises ``SystemError``.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text if isinstance(text, str) else text.read_text("utf-8"))
    finally:
        if collecting:
            gc.enable()
