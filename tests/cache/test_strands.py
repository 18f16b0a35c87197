"""Ranges along a row of nodes say of each node what visiting it would have said."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.cache._strand import strands
from cacheprefix.cache._tree import Forest, Life
from cacheprefix.profiles import Ttl
from cacheprefix.prompt import Section

LIVES = [
    Ttl("short", 1.0, 10.0),
    Ttl("long", 1.0, 60.0, max_seconds=90.0),
    Ttl("fixed", 1.0, 30.0, refreshed_by_read=False),
]
STEPS = st.tuples(
    st.sampled_from(["go on"] * 4 + ["tail", "fork", "again", "undo", "forget"]),
    st.integers(0, 50),
    st.integers(1, 4),
    st.sampled_from(LIVES),
    st.sampled_from([0.0, 1.0, 5.0, 12.0, 40.0]),
)


class _Leaf:
    """As much of a record as the tree looks at."""

    def __init__(self, index, keys):
        self.index, self.keys, self.lane = index, keys, b"lane"
        self.forgotten = self.slim = False
        self.leaf = None
        self.line = self

    def remove(self, _):
        """A line forgets it."""


def _section(key):
    return Section("messages", "p", "text", "user", key, key, 1)


@given(st.booleans(), st.lists(STEPS, max_size=40))
def test_strands_say_what_every_node_would_have_been_told(dense, steps):
    """Which request went through last, and until when its entry lives: after reads, writes, forks and failures."""
    forest, now, paths, records = Forest(10**9), 0.0, [[b"0"]], []
    last, lives, before = {}, {}, {}
    for number, (what, where, many, ttl, wait) in enumerate(steps):
        now += wait
        sent = [list(one.keys) for one, _ in records] or paths
        base = sent[where % len(sent)] if what in ("fork", "again") else paths[-1]
        keep = 1 + where % len(base) if what == "fork" else len(base)
        added = [b"%d.%d" % (number, n) for n in range(0 if what == "again" else many)]
        keys = base[:keep] + added
        if what in ("undo", "forget") and records:
            record, path = records.pop(-1 if what == "undo" else 0)
            if what == "undo":
                for strand, _ in strands(path):
                    strand.undo(record.index, before[record.index][0])
                for node, old in before[record.index][1]:
                    if last[node] == record.index:
                        last[node] = old
            forest.forget(record)
            paths = [list(one.keys) for one, _ in records] or [[b"0"]]
            _same(records, last, lives, now)
            continue
        _, path = forest.look(b"lane", keys)
        known, ways = list(path), strands(path)
        if dense:
            whole = next((at for at, node in enumerate(path) if not _readable(lives.get(node), now)), len(path))
            reached = next((at for one, end in ways if (at := one.whole(path, end, now)) < end), len(path))
            assert reached == whole
        else:
            whole = len(path)
        spans = [span for one, end in ways for span in one.spans(end)]
        forest.grow(b"lane", keys, [_section(key) for key in keys], path)
        before[number] = spans, [(node, last.get(node, -1) if node in known else -1) for node in path]
        for strand, end in strands(path):
            strand.add_pass(end, number)
            if strand.start < whole:
                if dense:
                    strand.add_read(min(end, whole), now)
                else:
                    strand.revive(path, min(end, whole), now)
        for node in path[:whole]:
            if _readable(lives.get(node), now) and lives[node].refreshes:
                lives[node].refresh(now)
        for node in path[whole:] if dense else path[-1:]:
            if not _readable(lives.get(node), now):
                node.life, lives[node] = Life(ttl, now), Life(ttl, now)
                node.life.readable_at = lives[node].readable_at = now
                node.stirred(hold=not dense)
        last.update(dict.fromkeys(path, number))
        record = _Leaf(number, keys)
        record.leaf = path[-1]
        forest.remember(record)
        records.append((record, path))
        if what != "tail":
            paths.append(keys)
        _same(records, last, lives, now)


def _same(records, last, lives, now):
    """Every node of every request that is held says what was noted of it alone."""
    for node in {one for _, row in records for one in row}:
        assert node.last == last[node]
        held = node.entry
        assert (held is None) == (node not in lives)
        if held is not None and now <= max(held.expires, lives[node].expires):
            assert held.expires == lives[node].expires
        tip = node.strand.tip.depth
        assert all(end <= tip + 1 for end, _ in node.strand.passes + node.strand.reads)
        assert all(depth <= tip for depth in node.strand.held)


def test_an_end_that_makes_room_keeps_what_is_known_of_it():
    """A conversation that goes on beside a role's tail takes neither its latest request nor its latest read from it."""
    forest, keys = Forest(10**9), [b"%d" % n for n in range(6)]
    _, path = forest.look(b"lane", keys)
    forest.grow(b"lane", keys, [_section(key) for key in keys], path)
    for node in path:
        node.life = Life(LIVES[0], 0.0)
        node.life.readable_at = 0.0
        node.stirred()
    for strand, end in strands(path):
        strand.add_pass(end, 7)
        strand.add_read(end, 5.0)
    other = [*keys[:4], b"other"]
    _, beside = forest.look(b"lane", other)
    forest.grow(b"lane", other, [_section(key) for key in other], beside)
    assert path[5].strand is not path[3].strand
    assert beside[4].strand is path[3].strand
    assert [node.last for node in path] == [7] * 6
    assert [node.entry.expires for node in path] == [15.0] * 6
    assert beside[4].last == -1


def _readable(life, now):
    return life is not None and life.readable_at <= now <= life.expires < inf
