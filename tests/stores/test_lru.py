"""The bounded map, against a model that does everything the slow and obvious way."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cacheprefix.stores.memory import Lru
from tests.drawn import examples

KEYS = st.sampled_from("abcdefgh")
ENTRIES, BYTES = 4, 100


class LruModel(RuleBasedStateMachine):
    """Same operations on the map and on a list of entries, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.dropped: list[tuple[str, str]] = []
        self.lru: Lru[int] = Lru(ENTRIES, BYTES, lambda: self.now, lambda k, why: self.dropped.append((k, why)))
        self.model: list[tuple[str, int, int, float | None]] = []
        self.expected: list[tuple[str, str]] = []
        self.serial = 0

    def drop_dead(self) -> None:
        """Let expired entries of the model go."""
        dead = [e for e in self.model if e[3] is not None and e[3] <= self.now]
        self.model = [e for e in self.model if e not in dead]
        self.expected += [(e[0], "expired") for e in dead]

    @rule(key=KEYS, size=st.integers(0, 120), ttl=st.one_of(st.none(), st.integers(0, 5)))
    def put(self, key: str, size: int, ttl: int | None) -> None:
        """A write sweeps, replaces without evicting others, then evicts the least recent."""
        self.serial += 1
        self.lru.put(key, self.serial, size, ttl)
        self.drop_dead()
        self.model = [e for e in self.model if e[0] != key]
        if (ttl is None or ttl > 0) and size <= BYTES:
            self.model.append((key, self.serial, size, None if ttl is None else self.now + ttl))
        while len(self.model) > ENTRIES or sum(e[2] for e in self.model) > BYTES:
            self.expected.append((self.model.pop(0)[0], "evicted"))

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        """A read returns the live value and makes it the most recent."""
        found = next((e for e in self.model if e[0] == key), None)
        if found is not None and found[3] is not None and found[3] <= self.now:
            self.model.remove(found)
            self.expected.append((key, "expired"))
            found = None
        assert self.lru.get(key) == (found[1] if found else None)
        if found:
            self.model.remove(found)
            self.model.append(found)

    @rule(key=KEYS)
    def pop(self, key: str) -> None:
        """A removed key is gone, without being reported as dropped."""
        self.lru.pop(key)
        self.model = [e for e in self.model if e[0] != key]

    @rule(seconds=st.integers(1, 3))
    def wait(self, seconds: int) -> None:
        """Time passes."""
        self.now += seconds

    @rule()
    def sweep(self) -> None:
        """A sweep drops exactly the expired."""
        before = len(self.model)
        gone = self.lru.sweep()
        self.drop_dead()
        assert gone == before - len(self.model)

    @invariant()
    def same(self) -> None:
        """Same keys in the same order, within bounds, same departures, and no pile of stale heap items."""
        assert list(self.lru._entries) == [e[0] for e in self.model]
        assert self.lru.bytes == sum(e[2] for e in self.model) <= BYTES
        assert len(self.lru) <= ENTRIES
        assert sorted(self.dropped) == sorted(self.expected)
        assert len(self.lru._expiry) <= 2 * len(self.lru) + 64 + 1


TestLruModel = LruModel.TestCase
TestLruModel.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def test_without_bounds_everything_stays() -> None:
    """None lifts a bound."""
    lru: Lru[int] = Lru(None, None, lambda: 0.0)
    for i in range(1_000):
        lru.put(str(i), i, 1_000_000, None)
    assert len(lru) == 1_000


def test_a_clock_that_went_back_brings_nothing_to_life() -> None:
    """An entry from the future of the present clock has an unknown age and counts as expired."""
    now = [100.0]
    lru: Lru[int] = Lru(10, None, lambda: now[0])
    lru.put("k", 1, 1, 10)
    now[0] = 50.0
    assert lru.get("k") is None
