"""The prompts seen so far as one tree of sections a lane, bounded by bytes, and which agent sent what.

Prompts that begin alike share nodes, so one look-up a section finds the best earlier prompt however many there were.
A request that is kept holds its last node; when it is forgotten, the nodes that only it held go with it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from cacheprefix.bounded import Bounded
from cacheprefix.prompt import TIERS, Prompt, Section, SettingScope, lane_key, salt
from cacheprefix.prompt.compare import parting
from cacheprefix.prompt.sections import with_sections

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cacheprefix.cache.verdict import Cause
    from cacheprefix.profiles import Profile, Ttl


@dataclass(slots=True, eq=False)
class SentRequest:
    """One request. Its sections are those of the prompt, so keeping them costs a tuple."""

    index: int
    agent: str
    session: str
    scope: str
    provider: str
    prompt: Prompt
    lane: bytes
    digests: Sequence[bytes]
    """Those of its sections."""
    keys: Sequence[bytes]
    """Per section its key in the tree: the digest, and where a tier begins what salts it."""
    totals: Sequence[int]
    """Tokens up to and including each section."""
    leaf: Node
    at: float
    marks: tuple[int, ...]
    """Sections with a breakpoint, written or not."""
    line: AgentHistory
    salts: Sequence[bytes]
    path: Sequence[Node] = ()
    """The nodes of its sections."""
    alike: int | None = None
    """Sections from the start that the request before it in its line has too; None where that is not known."""
    failed: bool = False
    forgotten: bool = False
    pending: bool = True
    slim: bool = False
    """Whether only its place in the tree is kept, because it is too old to be compared with."""
    timed: bool = True
    """Whether it is known when its answer began."""
    made: Prompt | None = None
    """The request as the application made it; None where that is what was sent."""
    gone: bool = False
    """Whether it was let go, so that its place in the tree needs no text."""

    @property
    def sections(self) -> tuple[Section, ...]:
        """The prompt's sections."""
        return self.prompt.sections


class AgentHistory:
    """The recent requests of one agent in one session: what its next request is held against."""

    __slots__ = ("alarmed", "previous_read", "records")

    def __init__(self, keep: int) -> None:
        self.records: deque[SentRequest] = deque(maxlen=keep)
        self.alarmed: Cause | None = None
        """The break that was reported and is not over yet."""
        self.previous_read: int | None = None

    def add(self, record: SentRequest) -> SentRequest | None:
        """A request of this line went out; returns the one that it makes too old to be compared with."""
        dropped = self.records[0] if len(self.records) == self.records.maxlen else None
        self.records.append(record)
        return dropped

    def remove(self, record: SentRequest) -> None:
        """It failed."""
        if record in self.records:
            at = self.records.index(record)
            if at + 1 < len(self.records):
                self.records[at + 1].alike = None
            del self.records[at]

    def shared(self, digests: Sequence[bytes]) -> list[tuple[SentRequest, int]]:
        """The requests, newest first, and how many sections from the start each has in common with a new one.

        What each has in common with the one before it was noted when it came, so only the newest is compared as
        a whole, and of the others what stands behind that.
        """
        found: list[tuple[SentRequest, int]] = []
        equal, alike, own = 0, None, len(digests)
        for record in reversed(self.records):
            if alike is None:
                equal = equal_digests(digests, record.digests)
            elif alike == equal:
                held = record.digests
                # Most part right here, and to look costs a tenth of a call.
                if own > equal < len(held) and digests[equal] == held[equal]:
                    equal = equal_digests(digests, held, equal)
                elif len(held) < equal:
                    equal = len(held)
            elif alike < equal:
                equal = alike
            found.append((record, equal))
            alike = record.alike
        return found


def equal_digests(a: Sequence[bytes], b: Sequence[bytes], start: int = 0) -> int:
    """How many two rows have in common from the start, of which the first ``start`` are known to be equal.

    By bisection on slices, which are compared in C: mostly the very same objects.
    """
    low, high = start, min(len(a), len(b))
    return high if a[low:high] == b[low:high] else parting(a, b, low, high)


_KEEP_ADDRESSES = 256
_NODE_BYTES = 1_100
_RECORD_BYTES = 600
_SECTION_BYTES = 72
"""What one section costs a request that is still compared with: its key, its running total, its place."""
_REFERENCE_BYTES = 8
"""What one section costs of the request as the application made it, which has most of them from what was sent."""


class CacheEntry:
    """One cache entry, as far as it can be known from outside: from when and until when it can be read."""

    __slots__ = ("ends", "expires", "idle", "longest", "readable_at", "refreshes", "writers")

    def __init__(self, ttl: Ttl, now: float) -> None:
        self.readable_at = inf
        self.expires = -inf
        self.idle = -inf
        self.writers = 0
        """Requests under way that write it; when all of them fail it was never there."""
        self.write(ttl, now)

    def write(self, ttl: Ttl, now: float) -> None:
        """Computed anew: its whole life begins again, with the longer of the two lifetimes."""
        idle = inf if ttl.seconds is None else ttl.seconds
        if idle > self.idle:
            self.idle = idle
            self.longest = inf if ttl.max_seconds is None else ttl.max_seconds
            self.refreshes = ttl.refreshed_by_read
        self.ends = now + self.longest
        self.refresh(now)

    def refresh(self, now: float) -> None:
        """The idle time starts anew, never beyond the longest life in all."""
        until = now + self.idle
        if until > self.ends:  # noqa: PLR1730 - a comparison costs a tenth of a call, and this is done for every node
            until = self.ends
        if until > self.expires:  # noqa: PLR1730 - as above
            self.expires = until


def keep_alive(entries: Iterable[CacheEntry | None], now: float) -> None:
    """Begin the idle time of entries that are read anew, as ``refresh`` does for one: a call for each takes longer."""
    for entry in entries:
        if entry is not None and entry.refreshes and entry.readable_at <= now <= entry.expires:
            until = now + entry.idle
            if until > entry.ends:  # noqa: PLR1730 - as in ``refresh``
                until = entry.ends
            if until > entry.expires:  # noqa: PLR1730 - as above
                entry.expires = until


class Common:
    """A beginning that two sections have in common and that the provider keeps as a unit of its own."""

    __slots__ = ("life", "section", "size", "tokens")

    def __init__(self, section: Section, size: int, tokens: int, life: CacheEntry) -> None:
        self.section = section
        self.size = size
        """Bytes of the section's data that belong to it."""
        self.tokens = tokens
        self.life = life

    def begins(self, section: Section) -> bool:
        """Whether a section begins with it."""
        own = self.section
        return (own.kind, own.head) == (section.kind, section.head) and (
            section.data[: self.size] == own.data[: self.size]
        )


class Node:
    """One section behind those of its ancestors."""

    __slots__ = (
        "branches", "children", "commons", "depth", "dropped", "entry", "gone", "key", "known", "last", "parent",
        "refs", "section",
    )  # fmt: skip

    def __init__(self, parent: Node | None, key: bytes, section: Section | None) -> None:
        self.parent = parent
        self.key = key
        self.section = section
        """None for the root, and where its text was let go; its key tells which it was."""
        self.children: dict[bytes, Node] = {}
        self.branches: dict[tuple[str, str], list[tuple[bytes, bytes]]] | None = None
        """Children by kind and envelope, as sorted (data, key), once there are two."""
        self.commons: list[Common] | None = None
        """Common beginnings of its children, for providers that keep such units; the latest few."""
        self.entry: CacheEntry | None = None
        """The entry that ends here."""
        self.last = -1
        """Index of the latest request that went through here; -1 for none."""
        self.depth: int = -1 if parent is None else parent.depth + 1
        self.dropped = False
        """Whether a mark stood here that was over the provider's limit and so was not written."""
        self.known = 0
        """Tokens up to here as the provider counted them; 0 when it never said."""
        self.refs = 0
        """Children, and requests that end here."""
        self.gone = 0
        """How many of those were let go; all: then nobody holds the text."""

    def readable(self, now: float) -> bool:
        """Whether the entry that ends here can be read at ``now``."""
        entry = self.entry
        return entry is not None and entry.readable_at <= now <= entry.expires

    def heads(self) -> set[str]:
        """The envelopes of its children."""
        if self.branches is None:
            return {child.section.head for child in self.children.values() if child.section is not None}
        return {head for (_, head), row in self.branches.items() if row}

    def neighbours(self, section: Section) -> tuple[Iterator[Node], Iterator[Node]]:
        """Children that may share a beginning with ``section``: smaller and greater texts, the nearest first.

        Among sorted texts the longest common beginning is always with the next on either side.
        """
        if self.branches is None:
            alike = (
                child
                for child in self.children.values()
                if child.section is not None
                and child.section.kind == section.kind
                and child.section.head == section.head
            )
            return alike, iter(())
        row = self.branches.get((section.kind, section.head), [])
        at = bisect_left(row, (section.data, b""))
        return (
            (self.children[row[index][1]] for index in range(at - 1, -1, -1)),
            (self.children[row[index][1]] for index in range(at, len(row))),
        )


class PromptTrees:
    """The trees of all lanes, and which requests are remembered. Not thread-safe by itself."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._roots: dict[bytes, Node] = {}
        self._records: OrderedDict[int, SentRequest] = OrderedDict()
        self.latest: dict[bytes, SentRequest] = {}
        """The latest request of each lane that is held as a whole."""
        self._sessions: dict[str, set[int]] = {}

    def __len__(self) -> int:
        """Requests remembered."""
        return len(self._records)

    def root(self, lane: bytes) -> Node:
        """The tree of a lane, made when it is new."""
        found = self._roots.get(lane)
        if found is None:
            found = self._roots[lane] = Node(None, lane, None)
        return found

    def record(self, index: int) -> SentRequest | None:
        """A request by its index; None when it was forgotten."""
        return self._records.get(index)

    def look(self, lane: bytes, keys: Sequence[bytes], start: Sequence[Node] = ()) -> tuple[Node | None, list[Node]]:
        """The root of a lane and the known nodes along ``keys``, of which ``start`` are known; changes nothing."""
        root = self._roots.get(lane)
        path = list(start)
        node = path[-1] if path else root
        for index in range(len(path), len(keys)):
            node = node.children.get(keys[index]) if node is not None else None
            if node is None:
                break
            path.append(node)
        return root, path

    def grow(self, lane: bytes, keys: Sequence[bytes], sections: Sequence[Section], path: list[Node]) -> None:
        """Add the nodes that ``path`` lacks, and the texts that were let go."""
        if path and path[-1].section is None:
            self._say_again(path, sections)
        node = path[-1] if path else self.root(lane)
        for index in range(len(path), len(sections)):
            section = sections[index]
            child = Node(node, keys[index], section)
            _adopt(node, child, section)
            node.refs += 1
            self._bytes += _NODE_BYTES + len(section.data)
            path.append(child)
            node = child

    def remember(self, record: SentRequest) -> None:
        """Keep a request; forget the oldest ones while too many bytes are held."""
        record.leaf.refs += 1
        self._sessions.setdefault(record.session, set()).add(record.index)
        self._records[record.index] = self.latest[record.lane] = record
        self._bytes += _weight(record)
        while self._bytes > self._max_bytes and len(self._records) > 1:
            self.forget(next(iter(self._records.values())))

    def forget(self, record: SentRequest) -> None:
        """Give up a request, and the nodes that only it held."""
        if self._records.pop(record.index, None) is None:
            return
        self._bytes -= _weight(record)
        self._not_latest(record)
        record.forgotten = True
        record.line.remove(record)
        mine = self._sessions[record.session]
        mine.discard(record.index)
        if not mine:
            del self._sessions[record.session]
        record.leaf.gone -= record.gone
        node: Node | None = record.leaf
        while node is not None:
            node.refs -= 1
            if node.refs > 0:
                break
            node = self._remove(node)

    def clear(self) -> None:
        """Forget everything. A node and its parent hold each other, which only the garbage collector would find."""
        rest = list(self._roots.values())
        for node in rest:
            rest += node.children.values()
        for node in rest:
            node.parent = None
        for held in (self._roots, self._records, self.latest, self._sessions):
            held.clear()
        self._bytes = 0

    def let_go(self, session: str) -> tuple[list[SentRequest], set[bytes]]:
        """Hold no text any more that only requests of a session hold: those requests, and the data of those texts.

        Their places in the tree stay, known by digests, since the provider's cache does not forget: what comes again
        is expected to be read, and what siblings cost is reckoned as before. A request under way keeps its texts.
        """
        found = [self._records[index] for index in self._sessions.get(session, ())]
        found = [record for record in found if not record.pending and not record.gone]
        nodes: dict[int, Node] = {}
        for record in found:
            self.slim(record)
            record.gone = True
            record.leaf.gone += 1
            node: Node | None = record.leaf
            while node is not None and id(node) not in nodes:
                nodes[id(node)] = node
                node = node.parent
        texts = set()
        for node in sorted(nodes.values(), key=lambda one: -one.depth):
            section, parent = node.section, node.parent
            if section is None or parent is None or node.gone < node.refs:
                continue
            texts.add(section.data)
            parent.commons = [one for one in parent.commons or () if not one.begins(section)] or None
            _disown(parent, node, section)
            self._bytes -= len(section.data)
            node.section = None
            parent.gone += 1
        return found, texts

    def _say_again(self, path: Sequence[Node], sections: Sequence[Section]) -> None:
        """Put the texts of a path in where they were let go: at its end, as what is behind such a node was too."""
        for node, section in zip(reversed(path), reversed(sections[: len(path)]), strict=True):
            parent = node.parent
            if node.section is not None or parent is None:
                return
            node.section = section
            parent.gone -= 1
            self._bytes += len(section.data)
            if parent.branches is not None:
                insort(parent.branches.setdefault((section.kind, section.head), []), (section.data, node.key))

    def slim(self, record: SentRequest) -> None:
        """Keep only a request's place in the tree."""
        if record.forgotten or record.slim or record.pending:
            return
        self._bytes -= _weight(record)
        record.slim = True
        self._not_latest(record)
        record.prompt, record.made = with_sections(record.prompt, ()), None
        record.digests, record.keys, record.totals, record.path = (), (), (), ()
        self._bytes += _weight(record)

    def _not_latest(self, record: SentRequest) -> None:
        """Forget that a request was the last one of its lane."""
        if self.latest.get(record.lane) is record:
            del self.latest[record.lane]

    def _remove(self, node: Node) -> Node | None:
        """Take a node out of the tree; its parent, or None where it was a root."""
        parent, section = node.parent, node.section
        if parent is None:
            self._roots.pop(node.key, None)
            return None
        self._bytes -= _NODE_BYTES
        del parent.children[node.key]
        if section is None:
            parent.gone -= 1
        else:
            self._bytes -= len(section.data)
            _disown(parent, node, section)
        return parent


def _weight(record: SentRequest) -> int:
    """About how many bytes a record holds."""
    made = 0 if record.made is None else _REFERENCE_BYTES * len(record.made.sections)
    return _RECORD_BYTES + _SECTION_BYTES * len(record.keys) + made


def _disown(parent: Node, child: Node, section: Section) -> None:
    """Take a node out of its parent's sorted branches, where there are any."""
    if parent.branches is not None:
        row = parent.branches[section.kind, section.head]
        del row[bisect_left(row, (section.data, child.key))]


def _adopt(parent: Node, child: Node, section: Section) -> None:
    """Put a node under its parent. From the second child on they stand sorted, so that the nearest are found."""
    parent.children[child.key] = child
    if parent.branches is not None:
        insort(parent.branches.setdefault((section.kind, section.head), []), (section.data, child.key))
    elif len(parent.children) > 1:
        parent.branches = {}
        for key, sibling in parent.children.items():
            known = sibling.section
            if known is not None:
                insort(parent.branches.setdefault((known.kind, known.head), []), (known.data, key))


class Addresses:
    """The lane of each prompt, and what salts each of its tiers: reckoned once for each model and settings."""

    def __init__(self) -> None:
        self._known: Bounded[tuple[Any, ...], tuple[Profile, bytes, tuple[bytes, ...]]] = Bounded(_KEEP_ADDRESSES)

    def of(self, prompt: Prompt, profile: Profile, scope: str) -> tuple[bytes, tuple[bytes, ...]]:
        """Lane and salts; no salts at all where no setting salts a tier."""
        key = (id(profile), scope, prompt.api, prompt.model, *prompt.settings.items())
        found = self._known.get(key)
        if found is None:
            # The profile is held as well, so that its id stays its own.
            found = self._known[key] = (profile, *_address(prompt, profile, scope))
        return found[1], found[2]


def _address(prompt: Prompt, profile: Profile, scope: str) -> tuple[bytes, tuple[bytes, ...]]:
    """Lane and salts of a prompt, reckoned anew."""
    placement = placements(prompt, profile)
    lane = lane_key(prompt, placement, provider=profile.name, scope=scope)
    if not any(where in TIERS for where in placement.values()):
        return lane, ()
    return lane, tuple(salt(prompt, placement, tier) for tier in TIERS)


def keys_of(prompt: Prompt, salts: Sequence[bytes]) -> Sequence[bytes]:
    """For each section its key under the section before.

    What salts a tier is mixed into the key of the first section in or behind that tier, so two prompts part
    there when such a setting differs, although their sections are equal.
    """
    if not any(salts):
        return prompt.digests
    keys = list(prompt.digests)
    pending = [(place, one) for place, one in enumerate(salts) if one]
    for index, section in enumerate(prompt.sections):
        while pending and pending[0][0] <= TIERS.index(section.tier):
            keys[index] = pending.pop(0)[1] + keys[index]
        if not pending:
            break
    return keys


def placements(prompt: Prompt, profile: Profile) -> Mapping[str, SettingScope]:
    """Where each setting of the prompt belongs by the profile."""
    return {name: profile.placement(name) for name in prompt.settings}
