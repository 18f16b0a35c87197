"""Runs the program whose requests are recorded."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from cacheprefix.errors import SetupError


async def run_child(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run ``command`` to its end with this process's own input and output, and return its exit code.

    A program that a signal ended gives 128 plus the signal's number, as in a shell. Signals that ask this process to
    end are handed to the program; Ctrl-C in a terminal reaches it anyway, and what it then does decides.

    Raises:
        SetupError: there is no such program, or it may not be run.
    """
    # Before the program is started: a signal that comes at once would end this process alone.
    with _handed_on() as to:
        try:
            child = await asyncio.create_subprocess_exec(*command, env=dict(environment))
        except OSError as error:
            raise SetupError(f"cannot run {command[0]!r}: {error.strerror}") from error
        to(child)
        code = await child.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _handed_on() -> Iterator[Callable[[asyncio.subprocess.Process], None]]:
    """Meanwhile, signals to end are those of the program that is given, also those that come before it is.

    Windows has none that could be handed on.
    """
    if sys.platform == "win32":
        yield lambda _child: None
        return
    loop = asyncio.get_running_loop()
    handled = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    children: list[asyncio.subprocess.Process] = []
    early: list[int] = []

    def tell(number: int) -> None:
        if not children:
            early.append(number)
        elif children[0].returncode is None:
            children[0].send_signal(number)

    def to(child: asyncio.subprocess.Process) -> None:
        children.append(child)
        for number in early:
            tell(number)

    for number in handled[:2]:
        loop.add_signal_handler(number, tell, number)
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    try:
        yield to
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
