"""The provider's store: one tree of sections a lane, each node with the life of its cache entry.

Prompts that begin alike share nodes, so a request costs one dictionary look-up a section however many
requests came before. The texts of a node's children are kept sorted: among sorted texts the longest
common beginning is always with a neighbour.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

from cacheprefix.profiles import Ttl
from cacheprefix.prompt import TIERS, Prompt, Section, SettingScope, Tier, salt


class Life:
    """When an entry was written, until when it lives, and from when on it can be read. Seconds."""

    __slots__ = ("expires", "idle", "longest", "made", "readable_at", "ttl", "writers")

    def __init__(self, ttl: Ttl, now: float, readable_at: float) -> None:
        self._grant(ttl)
        self.made = now
        self.expires = -inf
        self.readable_at = readable_at
        self.writers = 1
        """Requests under way that write this entry; a failed one takes only its own share back."""
        self.extend(now)

    def extend(self, now: float) -> None:
        """Start the idle time anew at ``now``; the longest life in all stays what it is."""
        self.expires = max(self.expires, min(now + self.idle, self.made + self.longest))

    def rewrite(self, now: float, ttl: Ttl) -> None:
        """The same content was computed again; of two lifetimes asked for the longer one holds."""
        if _idle(ttl) > self.idle:
            self._grant(ttl)
        self.made = now
        self.extend(now)

    def end(self) -> None:
        """Take the entry back."""
        self.expires = -inf

    def _grant(self, ttl: Ttl) -> None:
        """Take over a lifetime."""
        self.ttl = ttl
        self.idle = _idle(ttl)
        self.longest = inf if ttl.max_seconds is None else ttl.max_seconds


def _idle(ttl: Ttl) -> float:
    return inf if ttl.seconds is None else ttl.seconds


class Node:
    """One section behind the sections of its ancestors."""

    __slots__ = ("branches", "children", "group", "key", "life", "parent", "section")

    def __init__(self, parent: Node | None, key: bytes, group: bytes, section: Section | None) -> None:
        self.parent = parent
        self.key = key
        self.group = group
        self.section = section
        self.children: dict[bytes, Node] = {}
        self.branches: dict[bytes, list[tuple[bytes, bytes]]] = {}
        """Children that could share a beginning, as sorted (data, key)."""
        self.life: Life | None = None

    def readable(self, now: float) -> bool:
        """Whether the entry that ends here can be read at ``now``."""
        return self.life is not None and self.life.readable_at <= now <= self.life.expires

    def alive(self, now: float) -> bool:
        """Whether an entry ends here, readable yet or not."""
        return self.life is not None and now <= self.life.expires

    def alike(self, group: bytes, data: bytes, wanted: Callable[[Node], bool]) -> Iterator[Node]:
        """The nearest wanted child on either side of ``data`` among those of its group."""
        row = self.branches.get(group, [])
        at = bisect_left(row, (data, b""))
        for step in (range(at - 1, -1, -1), range(at, len(row))):
            for index in step:
                child = self.children[row[index][1]]
                if wanted(child):
                    yield child
                    break


class Forest:
    """The trees of all lanes, with the order in which their nodes were used."""

    def __init__(self, capacity_tokens: int | None) -> None:
        self._capacity = capacity_tokens
        self._roots: dict[bytes, Node] = {}
        self._order: OrderedDict[Node, None] = OrderedDict()
        self._tokens = 0

    def __len__(self) -> int:
        """Nodes held."""
        return len(self._order)

    def root(self, lane: bytes) -> Node:
        """The tree of a lane."""
        return self._roots.setdefault(lane, Node(None, lane, b"", None))

    @staticmethod
    def walk(root: Node, keys: Sequence[bytes]) -> list[Node]:
        """The known nodes along ``keys``."""
        path: list[Node] = []
        node: Node | None = root
        for key in keys:
            node = node.children.get(key) if node is not None else None
            if node is None:
                break
            path.append(node)
        return path

    def child(self, node: Node, key: bytes, group: bytes, section: Section) -> Node:
        """The child of ``node`` under ``key``, made if need be."""
        found = node.children.get(key)
        if found is None:
            found = node.children[key] = Node(node, key, group, section)
            insort(node.branches.setdefault(group, []), (section.data, key))
            self._order[found] = None
            self._tokens += section.tokens
        return found

    def touch(self, path: Sequence[Node]) -> None:
        """Mark a path as used just now, ancestors after descendants, so that leaves always go first."""
        for node in reversed(path):
            if node in self._order:
                self._order.move_to_end(node)

    def tidy(self, now: float) -> None:
        """Drop what has expired, then the least recently used leaves that are over the capacity."""
        while self._order:
            oldest = next(iter(self._order))
            over = self._capacity is not None and self._tokens > self._capacity
            if not over and oldest.alive(now):
                break
            if not over and oldest.children:
                break
            self._drop(oldest)

    def clear(self) -> None:
        """Forget everything. A node and its parent hold each other, which only the garbage collector would find."""
        for node in self._order:
            node.parent = None
        self._order.clear()
        self._roots.clear()
        self._tokens = 0

    def prune(self, node: Node) -> None:
        """Drop a node that holds no entry and leads to none."""
        held = node.life is not None and node.life.expires > -inf
        if not held and not node.children and node in self._order:
            self._drop(node)

    def _drop(self, node: Node) -> None:
        """Forget a node, its text and its life."""
        del self._order[node]
        if node.section is None or node.parent is None:
            return
        self._tokens -= node.section.tokens
        node.life = None
        del node.parent.children[node.key]
        row = node.parent.branches[node.group]
        del row[bisect_left(row, (node.section.data, node.key))]
        if not row:
            del node.parent.branches[node.group]


def keys_of(prompt: Prompt, placement: Mapping[str, SettingScope]) -> list[bytes]:
    """For each section its key under its parent.

    A tier's salt is part of the key of the first section at or behind the tier's place: a setting that
    invalidates a tier thereby invalidates everything from there on.
    """
    keys = list(prompt.digests)
    if not any(where in TIERS for where in placement.values()):
        return keys
    entered = 0
    for index, one in enumerate(prompt.sections):
        salts = b""
        while entered <= _PLACE[one.tier]:
            salts += salt(prompt, placement, TIERS[entered])
            entered += 1
        keys[index] = salts + one.digest
        if entered == len(TIERS):
            break
    return keys


_PLACE: Mapping[Tier, int] = {tier: place for place, tier in enumerate(TIERS)}
