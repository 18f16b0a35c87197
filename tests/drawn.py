"""How much of the tests a run takes: how many examples property tests draw, and which part of the slow tests."""

from __future__ import annotations

import os
import zlib

FACTOR = float(os.environ.get("CACHEPREFIX_EXAMPLES", "1"))
"""Examples drawn of each that is asked for."""


def examples(number: int) -> int:
    """So many of ``number`` are drawn in this run, one at least."""
    return max(1, round(number * FACTOR))


PART = os.environ.get("CACHEPREFIX_PART", "")
"""Which part of the slow tests that are no property tests, ``1/2`` or ``2/2``; empty for all."""


MANY = 4
"""Cases of one test up to which ``make test`` runs all; of more it runs half, and ``make test-more`` the others."""


def in_part(test: str, part: str) -> bool:
    """Whether a test, by its id, is in a part: each is in one, in every run the same."""
    number, _, parts = part.partition("/")
    return not part or zlib.crc32(test.encode()) % int(parts) == int(number) - 1
