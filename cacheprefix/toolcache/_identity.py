"""Which tool a function is, in this process: a number for each object that runs tools."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

_numbers = itertools.count(1)
# By address, while the object lives: tools are often models that cannot be hashed.
_known: dict[int, tuple[weakref.ref[Any], int]] = {}


def identity_of(function: Any) -> str:
    """Return what tells this function from every other one of the process; empty where nothing can.

    A bound method is made anew at each look, so it goes by its object and its function. No number is used twice.
    """
    owner, own = getattr(function, "__self__", None), getattr(function, "__func__", None)
    parts = [function] if owner is None or own is None else [owner, own]
    numbers = [_number(part) for part in parts]
    return "" if None in numbers else ".".join(map(str, numbers))


def _number(thing: Any) -> int | None:
    address = id(thing)
    known = _known.get(address)
    if known is not None and known[0]() is thing:
        return known[1]
    try:
        seen = weakref.ref(thing, _forget(address))
    except TypeError:
        return None
    # Of two threads that come at once, the later one's number stays; the other costs a miss.
    _known[address] = (seen, number := next(_numbers))
    return number


def _forget(address: int) -> Callable[[weakref.ref[Any]], None]:
    def gone(seen: weakref.ref[Any]) -> None:
        known = _known.get(address)
        if known is not None and known[0] is seen:
            del _known[address]

    return gone
