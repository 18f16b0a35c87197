"""What blocks an event loop: watched in every test that runs one, by LangChain's detector (blockbuster).

What the frameworks and SDKs do themselves is theirs: a call counts as ours where, from the blocking function outwards,
a frame of ours comes before any of theirs. Other libraries are our tools, and what they do for us is ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from blockbuster import BlockBuster

import cacheprefix
from cacheprefix.stores import MemoryStore

CORE = Path(cacheprefix.__file__).parent
ADAPTERS = CORE.parent / "adapters"
TESTS = Path(__file__).parent

TOOLS = {"audit", "cli", "record", "report", "server", "testing", "verify"}
"""Rooms that no application runs in its event loop: what a test starts there stands for another program."""

THEIRS = (
    *("ag2", "agent_framework", "agent_framework_anthropic", "agent_framework_openai", "autogen", "autogen_agentchat"),
    *("autogen_core", "autogen_ext", "crewai", "deepagents", "langchain", "langchain_anthropic", "langchain_core"),
    *("langchain_openai", "langgraph", "langsmith", "litellm", "mcp"),
    *("anthropic", "google", "httpcore", "httpx", "openai"),
)
"""Frameworks and SDKs, by package: an application has them with us and without us."""


class Hanging(MemoryStore):
    """A store that takes its time for each call, and notes which were made where an event loop had to wait for them."""

    shared = True
    blocking = True

    def __init__(self, seconds: float = 0.05) -> None:
        super().__init__()
        self.seconds = seconds
        self.calls: list[str] = []
        self.in_a_loop: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in OPERATIONS:
            return found

        def slow(*arguments: Any, **named: Any) -> Any:
            self.calls.append(name)
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop()
                self.in_a_loop.append(f"{name}\n{''.join(traceback.format_stack(limit=12))}")
            time.sleep(self.seconds)
            return found(*arguments, **named)

        return slow


@contextlib.contextmanager
def stalls() -> Iterator[list[float]]:
    """Seconds for which event loops did nothing else, callback by callback, in all threads."""
    found: list[float] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        begun = time.perf_counter()
        try:
            run(handle)
        finally:
            found.append(time.perf_counter() - begun)

    asyncio.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield found
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]


HANDLERS = ("/logging/__init__.py", "/warnings.py")
"""Where a log line or a warning goes is the application's choice."""

OPERATIONS = {
    *("get", "read", "set", "delete", "generations", "mark", "bump", "sizes", "clear", "acquire", "renew", "release"),
}


class Detector:
    """Notes every blocking call of ours in the event loop of the thread that made it; the calls themselves go on."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._thread = 0
        self._watch = BlockBuster()
        for function in self._watch.functions.values():
            self._observe(function)

    def start(self) -> None:
        """Watch this thread."""
        self.found = []
        self._thread = threading.get_ident()
        self._watch.activate()

    def stop(self) -> None:
        """Give the functions back."""
        self._watch.deactivate()

    def _observe(self, function: Any) -> None:
        allowed = function.can_block_predicate

        def note(*arguments: Any, **named: Any) -> bool:
            if threading.get_ident() == self._thread and not allowed(*arguments, **named):
                frame = inspect.currentframe()
                if frame is not None and _is_ours(frame.f_back, function.can_block_functions):
                    stack = "".join(traceback.format_stack(frame.f_back, limit=12))
                    self.found.append(f"{function.full_name}\n{stack}")
            return True

        function.can_block_predicate = note


def _is_ours(frame: FrameType | None, allowed: Any) -> bool:
    ours: bool | None = None
    store = False
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if any(file.endswith(where) and name in functions for where, functions in allowed):
            return False
        if ours is None:
            ours, store = _whose(Path(file), store)
        elif ours and _is_tool(Path(file)):
            # A room that applications use too, used by a tool: reading a log counts tokens, for example.
            return False
        frame = frame.f_back
    return ours is True


def _is_tool(path: Path) -> bool:
    return path.is_relative_to(CORE) and path.relative_to(CORE).parts[0] in TOOLS


def _whose(path: Path, store: bool) -> tuple[bool | None, bool]:  # noqa: FBT001 - goes with the walk
    """Whether a frame decides, and for whom; and whether the walk has come through a store so far."""
    if path.is_relative_to(CORE):
        room = path.relative_to(CORE).parts[0]
        # Who calls a store's own method waits for it; the question is who that is.
        return (None, True) if room == "stores" else (room not in TOOLS, store)
    if path.is_relative_to(ADAPTERS) and "/cacheprefix_" in str(path):
        return True, store
    if path.is_relative_to(TESTS) and path != Path(__file__):
        return False, store
    if str(path).endswith(HANDLERS):
        return False, store
    if "site-packages" in path.parts and path.parts[path.parts.index("site-packages") + 1] in THEIRS:
        return store, store
    return None, store
