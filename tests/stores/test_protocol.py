"""What every store must do, asked of all three."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cacheprefix.stores import Store


def test_an_unknown_key_is_absent(store: Store) -> None:
    """A key that was never set reads as None."""
    assert store.get("k") is None


def test_a_value_comes_back_byte_for_byte(store: Store) -> None:
    """Any bytes survive, also empty ones and those that are no text."""
    for value in (b"", b"\x00\xff" * 700, "hällo".encode()):
        store.set("k", value)
        assert store.get("k") == value


def test_a_value_is_replaced(store: Store) -> None:
    """The last set wins."""
    store.set("k", b"1")
    store.set("k", b"2")
    assert store.get("k") == b"2"
    assert store.sizes() == {"k": 1}


def test_a_value_expires(store: Store) -> None:
    """After its time to live a key is absent and no longer counted."""
    store.set("k", b"1", 0.5)
    assert store.get("k") == b"1"
    time.sleep(0.55)
    assert store.get("k") is None
    assert store.sizes() == {}


@pytest.mark.parametrize("ttl", [0.0, -1.0])
def test_no_time_to_live_is_expired_at_once(store: Store, ttl: float) -> None:
    """A time to live of zero or less keeps nothing, not even what was there."""
    store.set("k", b"1")
    store.set("k", b"2", ttl)
    assert store.get("k") is None


def test_a_lasting_value_replaces_a_short_lived_one(store: Store) -> None:
    """Setting without a time to live lifts the earlier one."""
    store.set("k", b"1", 0.03)
    store.set("k", b"2")
    time.sleep(0.05)
    assert store.get("k") == b"2"


def test_delete_says_whether_something_was_there(store: Store) -> None:
    """The first delete finds the key, the second does not."""
    store.set("k", b"1")
    assert store.delete("k")
    assert not store.delete("k")
    assert store.get("k") is None


def test_a_generation_stays_until_it_is_bumped(store: Store) -> None:
    """Equal answers mean that nobody bumped in between; a bump changes the answer."""
    first = store.generations(["a", "b"])
    assert store.generations(["a", "b"]) == first
    store.bump(["b"])
    assert store.generations(["a", "b"]) != first
    assert store.generations(["a"]) == store.generations(["a"])


def test_read_is_get_and_generations_at_once(store: Store) -> None:
    """The combined read gives what the two single ones give."""
    store.set("k", b"1")
    assert store.read("k", ["a"]) == (b"1", store.generations(["a"]))
    assert store.read("nothing", ["a", "b", "c"]) == (None, store.generations(["a", "b", "c"]))


def test_a_forgotten_generation_never_comes_back_as_it_was(store: Store) -> None:
    """After clear a name has another generation than before: no entry of that time looks current."""
    before = store.generations(["p:a"])
    store.clear("p:")
    assert store.generations(["p:a"]) != before


def test_clear_takes_a_prefix_and_nothing_else(store: Store) -> None:
    """Only keys that start with the prefix go, also where it holds wildcards of the server."""
    for key in ("a:1", "a:2", "b:1", "a*", "a[x]:1", "ax:1"):
        store.set(key, b"1")
    assert store.clear("a[x]:") == 1
    assert store.clear("a:") == 2
    assert set(store.sizes()) == {"b:1", "a*", "ax:1"}
    assert store.clear() == 3
    assert store.sizes() == {}


def test_sizes_counts_bytes_by_key(store: Store) -> None:
    """Sizes are those of the values."""
    store.set("a:1", b"123")
    store.set("a:2", b"12345")
    store.set("b:1", b"1")
    assert store.sizes("a:") == {"a:1": 3, "a:2": 5}


def test_a_lease_has_one_holder(store: Store) -> None:
    """While one owner holds a lease nobody else gets, renews or releases it."""
    assert store.acquire("l", "one", 5)
    assert not store.acquire("l", "two", 5)
    assert not store.renew("l", "two", 5)
    assert not store.release("l", "two")
    assert store.renew("l", "one", 5)
    assert store.release("l", "one")
    assert store.acquire("l", "two", 5)
    assert not store.release("l", "one")


def test_taking_a_lease_twice_is_no_conflict(store: Store) -> None:
    """A holder whose answer was lost asks again and still holds it."""
    assert store.acquire("l", "one", 5)
    assert store.acquire("l", "one", 5)


def test_a_lease_ends_by_itself(store: Store) -> None:
    """After its time somebody else gets it, and the old holder cannot renew or release."""
    assert store.acquire("l", "one", 0.05)
    time.sleep(0.08)
    assert not store.renew("l", "one", 5)
    assert store.acquire("l", "two", 5)
    assert not store.release("l", "one")
    assert not store.acquire("l", "three", 5)


def test_a_renewed_lease_lasts(store: Store) -> None:
    """Renewing moves the end."""
    assert store.acquire("l", "one", 0.5)
    assert store.renew("l", "one", 30)
    time.sleep(0.55)
    assert not store.acquire("l", "two", 5)


def test_clear_leaves_leases_alone(store: Store) -> None:
    """A leader still leads after the entries are gone."""
    assert store.acquire("p:l", "one", 5)
    store.clear("p:")
    assert not store.acquire("p:l", "two", 5)


def test_many_threads_get_one_lease(store: Store) -> None:
    """Of 16 threads that ask at once exactly one wins."""
    gate = threading.Barrier(16)

    def ask(i: int) -> bool:
        gate.wait()
        return store.acquire("l", f"owner-{i}", 5)

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(ask, range(16))) == 1


def test_many_threads_work_on_one_store(store: Store) -> None:
    """Concurrent writers and readers see whole values of their own key."""

    def work(i: int) -> bool:
        key, good = f"k{i % 8}", True
        for _ in range(20):
            store.set(key, f"{i % 8}".encode() * 100)
            good = good and store.get(key) == f"{i % 8}".encode() * 100
            store.bump([key])
        return good

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))


def test_while_somebody_writes_no_answer_matches(store: Store) -> None:
    """From the first mark to the last writer's end generations match nothing, and afterwards not those of before."""
    before = store.generations(["a", "b"])
    store.mark(["a"], "one", 60)
    store.mark(["a"], "two", 60)
    store.bump(["a"], "one")
    told = [store.generations(["a"]) for _ in range(2)] + [store.read("k", ["a"])[1] for _ in range(2)]
    assert len(set(told)) == 4
    assert store.generations(["b"]) == store.generations(["b"])
    store.bump(["a"], "two")
    after = store.generations(["a", "b"])
    assert after == store.generations(["a", "b"]) == store.read("k", ["a", "b"])[1]
    assert after != before


def test_a_mark_whose_writer_is_gone_ends_by_itself(store: Store) -> None:
    """Answers match again when its time is over, and none that was given before it or meanwhile."""
    before = store.generations(["a"])
    store.mark(["a"], "one", 0.2)
    store.mark(["a"], "two", 0.1)
    during = store.generations(["a"])
    end = time.monotonic() + 60
    while (after := store.generations(["a"])) != store.generations(["a"]):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert after not in {before, during}
    store.mark(["a"], "three", 60)
    store.bump(["a"], "three")
    assert store.generations(["a"]) == store.generations(["a"])


def test_a_store_is_a_store(store: Store) -> None:
    """Each implementation answers to the protocol and tells whether it is shared."""
    assert isinstance(store, Store)
    assert store.shared == store.blocking == (type(store).__name__ != "MemoryStore")
    assert type(store).__name__ in repr(store)
