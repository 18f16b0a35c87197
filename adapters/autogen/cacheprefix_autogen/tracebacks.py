"""Takes our frames out of the tracebacks of errors that pass through us.

AutoGen puts the traceback of an error in a team that works as a tool into the tool's result, which a model reads: with
our frames in it the request would be another one than without us, and would tell the model where we are installed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise
from traceback import format_tb
from types import TracebackType

from cacheprefix.errors import told

_LOG = logging.getLogger("cacheprefix")


def without_ours(error: BaseException) -> None:
    """Take our frames out of an error's traceback, and of those that it came from; a bare ``raise`` must follow.

    An error that was raised by us keeps them. With the logger ``cacheprefix`` at DEBUG the whole traceback is logged,
    without what the error says. Before Python 3.11 the frame that raises again stays.
    """
    if _LOG.isEnabledFor(logging.DEBUG):
        # Privacy: the error is the application's or a provider's, and its text may quote a prompt.
        told_of = [f"{told(one)}\n{''.join(format_tb(one.__traceback__))}" for one in _chain(error)]
        _LOG.debug("an error passes through cacheprefix: %s", "".join(told_of))
    for one in _chain(error):
        frames = list(_frames(one.__traceback__))
        if not frames or _ours(frames[-1]):
            continue
        kept = [frame for frame in frames if not _ours(frame)]
        for frame, after in pairwise(kept):
            frame.tb_next = after
        one.__traceback__ = kept[0]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and what it was raised from or behind, each once."""
    known, left = set[int](), [error]
    while left:
        one = left.pop()
        if id(one) not in known:
            known.add(id(one))
            yield one
            left += [each for each in (one.__cause__, one.__context__) if each is not None]


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _ours(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] in ("cacheprefix", "cacheprefix_autogen")
