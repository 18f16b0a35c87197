"""What holds for many nodes of a tree at once, so that a request does not have to visit each node on its way.

A strand is a row of nodes, each the child of the one before. A request goes through the first so many of them, so
the latest that went through any node, and the latest that read it, are kept as a few ranges. Depths count from the
lane's first section, 0.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cacheprefix.cache._tree import Life, Node

TAIL = 8
"""Nodes of an end that makes room for another one: a role's tail, beside which the conversation goes on."""

T = TypeVar("T", int, float)


@dataclass(slots=True)
class Calm:
    """What is known of the entries of all nodes before ``end``: these bounds hold for each.

    For what is read as a row every node has one; else those count that there are and that a read keeps alive.

    Bounds stay true as time goes on, because reads and writes only make an entry live longer; where an entry is
    replaced or taken away, ``end`` moves up.
    """

    end: int
    readable: float = -inf
    """From when on the youngest can be read."""
    idle: float = inf
    """The shortest time that one lives on after a read."""
    ends: float = inf
    """The earliest end that no read puts off."""
    expires: float = inf
    """Until when they live without a further read."""

    def add(self, life: Life) -> None:
        """One more entry that can be read."""
        self.readable = max(self.readable, life.readable_at)
        self.idle = min(self.idle, life.idle if life.refreshes else -inf)
        self.ends = min(self.ends, life.ends)
        self.expires = min(self.expires, life.expires)

    def holds(self, now: float, read: float) -> bool:
        """Whether all can be read at ``now``, when they were read together at ``read``."""
        until = self.expires if read == -inf else max(self.expires, min(read + self.idle, self.ends))
        return self.readable <= now <= until


class Strand:
    """A row of nodes. What requests did to the first of them stands in ranges, the furthest reaching first."""

    __slots__ = ("above", "calm", "held", "passes", "reads", "start", "tip")

    def __init__(self, above: Strand | None, first: Node) -> None:
        self.above = above
        self.start = first.depth
        self.tip = first
        """Its last node."""
        self.passes: list[tuple[int, int]] = []
        """Up to which depth requests went, and their indexes: ever less deep, ever later."""
        self.reads: list[tuple[int, float]] = []
        """Up to which depth every entry was read, and when: likewise."""
        self.held: list[int] = []
        """Depths of nodes that have or had an entry, where not all have one."""
        self.calm = Calm(first.depth)

    # ------------------------------------------------------------------ what was done

    def last(self, depth: int) -> int:
        """Index of the latest request that went through a node; -1 for none."""
        return next((index for end, index in reversed(self.passes) if end > depth), -1)

    def read(self, depth: int) -> float:
        """When a node was last read with all before it; minus infinity for never."""
        return next((at for end, at in reversed(self.reads) if end > depth), -inf)

    def add_pass(self, end: int, index: int) -> None:
        """A request later than all before goes through the nodes before ``end``."""
        passes = self.passes
        while passes and passes[-1][0] <= end:
            passes.pop()
        passes.append((end, index))

    def add_read(self, end: int, at: float) -> None:
        """A request reads all nodes before ``end``; where clocks go back, an earlier read may be the later one."""
        reads = self.reads
        later: list[tuple[int, float]] = []
        while reads and (reads[-1][0] <= end or reads[-1][1] >= at):
            one = reads.pop()
            if one[1] >= at:
                later.append(one)
        if not any(reach >= end for reach, _ in later):
            reads.append((end, at))
        reads += reversed(later)

    def spans(self, end: int) -> Iterator[tuple[int, int]]:
        """Which request was the latest, as the ends of ranges and indexes, up to ``end``."""
        at = self.start
        for reach, index in reversed(self.passes):
            if at < end and reach > at:
                at = min(reach, end)
                yield at, index
        if at < end:
            yield end, -1

    def undo(self, index: int, before: Sequence[tuple[int, int]]) -> None:
        """Where the request ``index`` is the latest, put back those that were it ``before``."""
        place = next((at for at, one in enumerate(self.passes) if one[1] == index), None)
        if place is None:
            return
        end = self.passes[place][0]
        at = self.passes[place + 1][0] if place + 1 < len(self.passes) else self.start
        back: list[tuple[int, int]] = []
        for reach, one in before:
            if at < reach and at < end:
                at = min(reach, end)
                if one >= 0:
                    back.append((at, one))
        self.passes[place : place + 1] = reversed(back)

    # ------------------------------------------------------------------ entries

    def hold(self, depth: int) -> None:
        """The node at ``depth`` has an entry."""
        at = bisect_left(self.held, depth)
        if at == len(self.held) or self.held[at] != depth:
            insort(self.held, depth)

    def stir(self, depth: int) -> None:
        """The entry at ``depth`` is no longer what it was taken for."""
        self.calm.end = max(self.start, min(self.calm.end, depth))

    def whole(self, path: Sequence[Node], end: int, now: float) -> int:
        """How deep the nodes of a path can be read without a gap, up to ``end``."""
        calm, known = self.calm, min(self.calm.end, end)
        if known > self.start and not calm.holds(now, self.read(known - 1)):
            calm = self.calm = Calm(self.start)
        while calm.end < end:
            life = path[calm.end].entry
            if life is None or not life.readable_at <= now <= life.expires:
                return calm.end
            calm.add(life)
            calm.end += 1
        return end

    def revive(self, path: Sequence[Node], end: int, now: float) -> None:
        """A read keeps every entry before ``end`` alive that can be read; where not every node has one."""
        calm, known = self.calm, min(self.calm.end, end)
        if known > self.start and not calm.holds(now, self.read(known - 1)):
            calm = self.calm = Calm(self.start)
        waiting = False
        for depth in self.held[bisect_left(self.held, calm.end) :]:
            if depth >= end:
                break
            life = path[depth].entry
            if life is None or not life.refreshes:
                continue
            if now > life.expires:
                life.refreshes = False  # no read brings it back, and a write makes another
            elif life.readable_at > now:
                calm.end, waiting = depth if not waiting else calm.end, True
            elif waiting:
                life.refresh(now)
            else:
                calm.add(life)
        if not waiting:
            calm.end = max(calm.end, end)
        if min(calm.end, end) > self.start:
            self.add_read(min(calm.end, end), now)

    # ------------------------------------------------------------------ growing and going

    def join(self, parent: Node, child: Node) -> Strand:
        """The strand of a new child of ``parent``, which is one of this strand's nodes."""
        if self.tip is not parent:
            if self.tip.depth - parent.depth > TAIL:
                return Strand(self, child)
            self._part(parent)
        self.tip = child
        return self

    def _part(self, parent: Node) -> None:
        """Make the nodes behind ``parent`` a strand of their own."""
        first = self.tip
        while first.parent is not None and first.parent is not parent:
            first = first.parent
        made = Strand(self, first)
        made.tip, self.tip = self.tip, parent
        made.passes = [one for one in self.passes if one[0] > first.depth]
        made.reads = [one for one in self.reads if one[0] > first.depth]
        made.held = self.held[bisect_left(self.held, first.depth) :]
        node = made.tip
        while True:
            node.strand = made
            for child in node.children.values():
                if child.strand is not made and child.strand is not None:
                    child.strand.above = made
            if node is first or node.parent is None:
                break
            node = node.parent
        self._cut(first.depth)

    def remove(self, node: Node) -> None:
        """Its last node goes."""
        if node.depth > self.start and node.parent is not None:
            self.tip = node.parent
        self._cut(node.depth)

    def _cut(self, end: int) -> None:
        self.passes = _clipped(self.passes, self.start, end)
        self.reads = _clipped(self.reads, self.start, end)
        del self.held[bisect_left(self.held, end) :]
        self.stir(end)


def strands(path: Sequence[Node]) -> list[tuple[Strand, int]]:
    """The strands that a path goes along, from the root on, and the depth up to which it follows each."""
    found: list[tuple[Strand, int]] = []
    end = len(path)
    strand = path[-1].strand if path else None
    while strand is not None:
        found.append((strand, end))
        end = strand.start
        strand = strand.above
    found.reverse()
    return found


def _clipped(rows: list[tuple[int, T]], start: int, end: int) -> list[tuple[int, T]]:
    """Ranges that reach no further than ``end``; of those that would end there alike the latest."""
    if end <= start:
        return []
    over = [value for reach, value in rows if reach >= end]
    rest = rows[len(over) :]
    return [(end, value) for value in over[-1:]] + rest
