"""How sure one can be of rates, and of the difference of two on the same tasks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_Z = 1.959964
"""The 97.5 % point of the normal distribution: intervals hold with 95 % confidence."""

_POWER = 0.841621
"""The 80 % point: a difference of the size told is found four times in five."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of tasks that were solved, and the interval that holds it with 95 % confidence."""

    solved: int
    tasks: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The share, from 0 to 1; 0 where there were no tasks."""
        return self.solved / self.tasks if self.tasks else 0.0


def rate(solved: int, tasks: int) -> Rate:
    """A rate with Wilson's score interval, which holds for few tasks and near 0 and 1 too.

    With p = solved / tasks, n = tasks and z = 1.96:
    (p + z²/2n ± z · sqrt(p(1 - p)/n + z²/4n²)) / (1 + z²/n).
    """
    if not tasks:
        return Rate(0, 0, 0.0, 1.0)
    share = solved / tasks
    square = _Z * _Z
    middle = share + square / (2 * tasks)
    spread = _Z * math.sqrt(share * (1 - share) / tasks + square / (4 * tasks * tasks))
    scale = 1 + square / tasks
    return Rate(solved, tasks, max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))


@dataclass(frozen=True, slots=True)
class McNemar:
    """Two layouts on the same tasks: only tasks that one solves and the other does not tell them apart."""

    only_first: int
    only_second: int
    tasks: int
    p: float
    """How likely so uneven a split is where both are equally good: below 0.05 it is beyond chance."""

    @property
    def difference(self) -> float:
        """Rate of the second less that of the first."""
        return (self.only_second - self.only_first) / self.tasks if self.tasks else 0.0

    @property
    def visible(self) -> float:
        """The difference of rates that so many tasks, with so many that differ, would show four times in five.

        (1.96 + 0.84) · sqrt(d / n), with n tasks of which the share d is solved by one of the two only.
        """
        if not self.tasks:
            return 1.0
        # Where none differed, one might have: no sample shows that there is nothing to see.
        share = max(1, self.only_first + self.only_second) / self.tasks
        return min(1.0, (_Z + _POWER) * math.sqrt(share / self.tasks))


def mcnemar(pairs: Iterable[tuple[bool, bool]]) -> McNemar:
    """McNemar's exact test, two-sided: of b + c tasks that differ, the smaller count under a fair coin.

    ``pairs`` says of each task whether the first and whether the second layout solved it.
    """
    found = list(pairs)
    first = sum(one and not other for one, other in found)
    second = sum(other and not one for one, other in found)
    both = first + second
    tail = sum(math.comb(both, count) for count in range(min(first, second) + 1))
    return McNemar(first, second, len(found), min(1.0, 2 * tail / 2**both))
