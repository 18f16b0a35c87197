"""Many sessions made, wrapped and dropped: nothing of them is held."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable

from cacheprefix import Session, SharedPrefix

_MANY = 1_000
_WARM = 200
"""Sessions after which whatever is held once is there."""
_ASKS = 50
"""One in so many asks."""
_TEXT = "The handbook says that every statement needs a source. " * 130


def check_dropped(use: Callable[[Session, bool], object], alone: Callable[[], object] = lambda: None) -> None:
    """Of a thousand sessions, each with a text of its own, nothing is held when their wrappers are gone.

    ``use`` wraps something in a session, and asks by it where it is told to, as one in fifty does. ``alone`` asks the
    same without us: what the library holds by itself since is not ours.
    """
    made, before = [], 0
    for number in range(_MANY):
        if number == _WARM:
            gc.collect()
            before = sys.getallocatedblocks()
        session = Session(SharedPrefix(system=f"Handbook {number}. {_TEXT}"))
        made.append(weakref.ref(session))
        use(session, number % _ASKS == 0)
        del session
    gc.collect()
    ended = sys.getallocatedblocks()
    grown = ended - before - (_MANY - _WARM)
    for _ in range(_WARM, _MANY, _ASKS):
        alone()
    gc.collect()
    grown -= sys.getallocatedblocks() - ended
    assert [at for at, one in enumerate(made) if one() is not None] == []
    # Our weak reference apart, less than ten objects for each; a session alone is hundreds, its prompts more.
    assert grown < 10 * (_MANY - _WARM), f"{grown} objects more than before"
