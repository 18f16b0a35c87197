"""Full tool results, kept outside the prompt."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheprefix.stores import MemoryStore, ResultStore, Slice, Store

TEXT = st.text(st.characters(codec=None), max_size=200)


def test_a_text_is_read_back_in_pieces(store: Store) -> None:
    """Pieces count characters, know the total, and say which is the last."""
    results = ResultStore(store)
    text = "".join(f"line {i} with ü\n" for i in range(100))
    ref = results.put(text)
    first = results.get(ref, 0, 50)
    assert first == Slice(text[:50], 0, len(text))
    assert not first.complete
    rest = results.get(ref, 50)
    assert rest is not None
    assert first.text + rest.text == text
    assert rest.complete
    assert results.get(ref, 10_000) == Slice("", 10_000, len(text))
    assert results.get(ref, -5, 3) == Slice("lin", 0, len(text))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=TEXT, offset=st.integers(0, 250), limit=st.one_of(st.none(), st.integers(0, 250)))
def test_any_text_survives(text: str, offset: int, limit: int | None) -> None:
    """Every text, also one with lone surrogates, comes back as it was, whole and cut."""
    results = ResultStore(MemoryStore())
    piece = results.get(results.put(text), offset, limit)
    end = None if limit is None else offset + limit
    assert piece == Slice(text[offset:end], offset, len(text))


def test_the_reference_depends_on_the_text_alone() -> None:
    """The same in every store and scope, so that prompts that show it are the same bytes."""
    one, two = ResultStore(MemoryStore()), ResultStore(MemoryStore(), namespace="other", ttl=5)
    assert one.put("text") == two.put("text", scope="tenant") == "h5eqvkvx43eiqxds"
    assert one.put("text") != one.put("text ")


def test_a_reference_reads_nothing_in_another_scope(store: Store) -> None:
    """A reference that leaks to another tenant is of no use there."""
    results = ResultStore(store)
    ref = results.put("secret", scope="tenant a")
    assert results.get(ref, scope="tenant b") is None
    assert results.get(ref) is None
    assert results.get(ref, scope="tenant a") == Slice("secret", 0, 6)


def test_keys_hold_no_text_and_no_scope(store: Store) -> None:
    """Who reads the store's keys learns neither tenant nor reference."""
    results = ResultStore(store)
    ref = results.put("secret", scope="tenant a")
    assert all(word not in key for key in store.sizes() for word in ("tenant", "secret", ref))


def test_damaged_bytes_count_as_gone(store: Store) -> None:
    """A text is returned only when it is the one that the reference names."""
    results = ResultStore(store)
    ref = results.put("the text")
    (key,) = store.sizes()
    store.set(key, b"another text")
    assert results.get(ref) is None
    store.set(key, b"\xff\xfe")
    assert results.get(ref) is None


def test_a_reference_that_a_model_invented_is_gone(store: Store) -> None:
    """Any string may be asked for."""
    results = ResultStore(store)
    for ref in ("", "../../etc/passwd", "*", "\ud800", "x" * 10_000):
        assert results.get(ref) is None


def test_a_text_expires() -> None:
    """After the time to live it is gone."""
    now = [0.0]
    results = ResultStore(MemoryStore(clock=lambda: now[0]), ttl=10)
    ref = results.put("text")
    now[0] = 11
    assert results.get(ref) is None


def test_texts_are_forgotten_one_by_one_or_by_scope(store: Store) -> None:
    """Delete takes one, clear a scope or all, and other entries of the store stay."""
    results = ResultStore(store)
    store.set("cacheprefix:other", b"1")
    one, two = results.put("one", scope="a"), results.put("two", scope="a")
    results.put("three", scope="b")
    assert results.delete(one, scope="a")
    assert not results.delete(one, scope="a")
    assert results.clear(scope="a") == 1
    assert results.get(two, scope="a") is None
    assert results.clear() == 1
    assert set(store.sizes()) == {"cacheprefix:other"}
