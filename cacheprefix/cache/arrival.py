"""A request as a cache sees it come: when, and which blocks its prompt is made of."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when it came, in seconds, and the blocks of its prompt in order.

    A block's name stands for everything up to and including it, so equal names mean equal beginnings.
    """

    at: float
    blocks: tuple[Hashable, ...]
    sizes: tuple[int, ...]
    """Tokens of each block."""
