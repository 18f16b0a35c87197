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
    loops: float
    """Further requests of each task, at most, as far as is known."""
    places: float = 0.0
    """Cost units that the places of the agents' texts add to the forks; less than 0 where they save."""


def pays(stake: Stake, read: float) -> bool:
    """Whether the forks of this and the later tasks cost less than the unmodified requests, however long they loop.

    ``read`` is the price of a cached token. Writing costs the same in both layouts and cancels out.
    """
    return all(_fork(stake, read, loops) < _plain(stake, read, loops) * MARGIN for loops in (0.0, stake.loops))


def _fork(stake: Stake, read: float, loops: float) -> float:
    shared = stake.fresh + stake.known
    beside = stake.overhead * (1 + read * loops) * (1 + len(stake.later))
    first = stake.fresh + read * stake.known
    return first + read * shared * (loops + (1 + loops) * len(stake.later)) + beside + stake.places


def _plain(stake: Stake, read: float, loops: float) -> float:
    first = (read if stake.tools_known else 1.0) * stake.own_tools + stake.own_texts
    rest = sum(read * stake.own_tools + texts for texts in stake.later)
    each = stake.own_tools * (1 + len(stake.later)) + stake.own_texts + sum(stake.later)
    return first + rest + read * loops * each
