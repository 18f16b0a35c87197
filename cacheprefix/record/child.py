"""Runs the program whose requests are recorded."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from cacheprefix.errors import SetupError

NOT_FOUND = 127
"""What a shell answers where there is no such command."""


async def run_child(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run ``command`` to its end with this process's own input and output, and return its exit code.

    A program that a signal ended gives 128 plus the signal's number, as in a shell. Signals that ask this process to
    end are handed to the program; Ctrl-C in a terminal reaches it anyway, and what it then does decides.

    Raises:
        SetupError: there is no such program, or it may not be run.
    """
    try:
        child = await asyncio.create_subprocess_exec(*command, env=dict(environment))
    except OSError as error:
        raise SetupError(f"cannot run {command[0]!r}: {error.strerror}") from error
    with _handed_on(child):
        code = await child.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _handed_on(child: asyncio.subprocess.Process) -> Iterator[None]:
    """Meanwhile, signals to end are the program's. Windows has none that could be handed on."""
    if sys.platform == "win32":
        yield
        return
    loop = asyncio.get_running_loop()
    handled = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    for number in handled[:2]:
        loop.add_signal_handler(number, _tell, child, number)
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


def _tell(child: asyncio.subprocess.Process, number: int) -> None:
    if child.returncode is None:
        child.send_signal(number)
