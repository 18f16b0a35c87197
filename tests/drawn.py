"""How many examples property tests draw: a fifth of what they ask for in ``make test``, all in ``make test-more``."""

from __future__ import annotations

import os

FACTOR = float(os.environ.get("CACHEPREFIX_EXAMPLES", "1"))
"""Examples drawn of each that is asked for."""


def examples(number: int) -> int:
    """So many of ``number`` are drawn in this run, one at least."""
    return max(1, round(number * FACTOR))
