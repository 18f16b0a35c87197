"""The ledger forms a semilattice, survives JSON, and costs little."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.errors import StateError
from cacheprefix.history import Ledger, merge_json, update_json

SECTION = st.sampled_from(["results", "turns", "actions", "inserts", "epochs"])
ENTRY = st.tuples(SECTION, st.sampled_from("abcdefgh"), st.sampled_from(["k", "c:r:9:", "c:r:8:", "=1"]))
LEDGERS = st.lists(st.lists(ENTRY, max_size=6), max_size=3).map(
    lambda parts: _merged([Ledger().record(entries) for entries in parts])
)


def _merged(ledgers):
    out = Ledger()
    for ledger in ledgers:
        out = out.merge(ledger)
    return out


@pytest.mark.slow
@given(LEDGERS, LEDGERS, LEDGERS)
def test_merge_is_associative_commutative_and_idempotent(a, b, c):
    """Branches may merge in any order and any number of times, as values and as JSON."""
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(b) == b.merge(a)
    assert a.merge(a) == a
    assert a.merge(b).merge(b) == a.merge(b)
    assert merge_json(a.to_json(), b.to_json()) == a.merge(b).to_json() == merge_json(b.to_json(), a.to_json())


ENTRIES = st.lists(ENTRY, max_size=6)


def _went_on(draw, value):
    """A ledger as it may be after a value: some decisions dropped, some made."""
    held = Ledger.from_json(value)
    gone = [(section, key) for section, key, _ in held if draw(st.booleans())]
    return held.without(gone).record(draw(ENTRIES))


@st.composite
def saved(draw):
    """A saved value after some updates, each of which decides anew and drops some of what was decided."""
    value = {}
    for _ in range(draw(st.integers(0, 3))):
        value = merge_json(value, update_json(value, _went_on(draw, value)))
    return value


@given(saved(), saved(), saved())
def test_saved_values_with_drops_merge_in_any_order(a, b, c):
    """A drop and a later decision on the same address come out the same, however branches are joined."""
    assert merge_json(merge_json(a, b), c) == merge_json(a, merge_json(b, c))
    assert merge_json(a, b) == merge_json(b, a)
    assert merge_json(a, a) == merge_json(a, None)
    assert merge_json(merge_json(a, b), b) == merge_json(a, b)


@given(st.data(), saved())
def test_an_update_makes_of_a_saved_value_what_was_decided(data, value):
    """Also where it drops, and where it decides again on what was dropped before."""
    after = _went_on(data.draw, value)
    once = merge_json(value, update_json(value, after))
    assert Ledger.from_json(once) == after
    assert update_json(once, after) == {}


@given(st.data(), saved())
def test_what_an_inner_graph_drops_its_outer_graphs_drop_too(data, value):
    """It starts with the outer value and hands its own back, over as many graphs as there are."""
    middle = merge_json(value, update_json(value, _went_on(data.draw, value)))
    after = _went_on(data.draw, middle)
    innermost = merge_json(middle, update_json(middle, after))
    assert Ledger.from_json(merge_json(value, merge_json(middle, innermost))) == after


def test_a_saved_value_names_the_latest_drops_alone():
    """A thread that drops something with each turn does not grow; what one turn drops stays together."""
    value, sizes = {}, []
    for turn in range(40):
        after = Ledger().record([("results", f"{turn}-{n}", "k") for n in range(20)])
        value = merge_json(value, update_json(value, after))
        sizes.append(sum(map(len, value.get("gone", {}).values())))
    assert max(sizes) <= 260 + 20
    assert {f"38-{n}" for n in range(20)} <= set(value["gone"]["results"])


@given(LEDGERS, LEDGERS)
def test_what_is_new_since_then_is_enough_to_merge(a, b):
    """A branch may send only its own decisions to the join."""
    after = a.merge(b)
    assert a.merge(after.since(a)) == after


@given(LEDGERS)
def test_json_round_trip_gives_an_equal_ledger(ledger):
    """What a checkpoint holds is plain JSON and loads to the same decisions."""
    assert Ledger.loads(ledger.dumps()) == ledger
    assert json.loads(json.dumps(ledger.to_json())) == ledger.to_json()
    assert Ledger.loads(ledger.dumps()).dumps() == ledger.dumps()


def test_a_first_decision_is_never_revisited():
    """Recording the same address again changes nothing."""
    ledger = Ledger().record([("results", "a", "k")])
    assert ledger.record([("results", "a", "c:r:1:")]).get("results", "a") == "k"


def test_a_clone_is_free_and_independent():
    """A fork takes the parent's decisions and keeps its own to itself."""
    parent = Ledger().record([("results", str(n), "k") for n in range(1_000)])
    fork = parent
    grown = fork.record([("results", "new", "c:r:1:")])
    assert parent.get("results", "new") is None
    assert grown.get("results", "7") == "k"
    assert any(layer is parent._layers[0] for layer in grown._layers), "layers are shared, not copied"


def test_a_conflict_is_settled_the_same_way_everywhere_and_starts_an_epoch():
    """Two branches that decided differently agree after the merge, and the merge is on record."""
    a = Ledger().record([("results", "x", "k")])
    b = Ledger().record([("results", "x", "c:r:9:")])
    assert a.merge(b).get("results", "x") == b.merge(a).get("results", "x")
    assert a.merge(b).epoch == a.epoch + 1
    assert a.merge(b).epoch == 1
    assert a.epoch == a.merge(a).epoch == 0


def test_pruning_forgets_what_left_the_history_and_its_rules():
    """Only decisions on content that is still there stay, with the rules they name."""
    ledger = Ledger().record(
        [
            ("results", "live", "c:r1:9:"),
            ("results", "gone", "c:r2:9:"),
            ("actions", "gone#2", "d"),
            ("rules", "r1", "[]"),
            ("rules", "r2", "[]"),
            ("epochs", "e", "compacted"),
        ]
    )
    pruned = ledger.prune(["live"])
    assert [(section, key) for section, key, _ in pruned] == [
        ("epochs", "e"),
        ("results", "live"),
        ("rules", "r1"),
    ]


def test_an_older_version_is_migrated_and_a_newer_one_refused():
    """A saved ledger loads in the versions after it, and never silently in those before."""
    old = Ledger.from_json({"version": 0, "r": {"a": "k"}})
    assert old.get("results", "a") == "k"
    assert old.to_json()["version"] == 1
    with pytest.raises(StateError, match="version 99"):
        Ledger.from_json({"version": 99})


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "[1]",
        '{"version":1,"results":[]}',
        '{"version":1,"results":{"a":[]}}',
        '{"version":1,"rules":{"a":[1]}}',
    ],
)
def test_a_damaged_ledger_is_refused(text):
    """Text that no ledger wrote raises StateError."""
    with pytest.raises(StateError):
        Ledger.loads(text)


def test_many_small_records_stay_cheap():
    """Ten thousand single decisions make a few layers, not ten thousand copies."""
    ledger = Ledger()
    for n in range(10_000):
        ledger = ledger.record([("results", f"d{n}", "k")])
    assert len(ledger) == 10_000
    assert len(ledger._layers) <= 16
