"""Whether sharing pays: an estimate over the tasks still to come, in cost units."""

from __future__ import annotations

from dataclasses import dataclass

MARGIN = 0.98
"""A fork must come out at this much of the unmodified cost; the estimate knows neither loops nor answers."""


@dataclass(frozen=True, slots=True)
class Stake:
    """What is known when a task's first request is due. Token counts."""

    fresh: int
    """Of the shared part, not yet sent by a fork."""
    known: int
    """Of the shared part, sent before."""
    own_tools: int
    """Tools of the request as the application made it."""
    tools_known: bool
    """Whether an unmodified request would find them in the cache."""
    own_texts: int
    """The shared texts this request would carry itself."""
    later: tuple[int, ...]
    """Tokens of the shared texts that each later task would carry itself."""
    overhead: int
    """Tokens of references and limits, which the unmodified request has not."""
    loops: int
    """Further requests of each task that a fork or an unmodified request makes with all of it."""


def pays(stake: Stake, read: float) -> bool:
    """Whether the forks of this and the later tasks cost less than the unmodified requests.

    ``read`` is the price of a cached token. Writing costs the same in both layouts and cancels out.
    """
    shared = stake.fresh + stake.known
    each = 1 + read * stake.loops
    fork = stake.fresh + read * stake.known + read * stake.loops * shared + stake.overhead * each
    plain = (read if stake.tools_known else 1.0) * stake.own_tools + stake.own_texts
    plain += read * stake.loops * (stake.own_tools + stake.own_texts)
    for texts in stake.later:
        fork += read * shared * (1 + stake.loops) + stake.overhead * each
        plain += read * stake.own_tools + texts + read * stake.loops * (stake.own_tools + texts)
    return fork < plain * MARGIN
