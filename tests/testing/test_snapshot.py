"""A frozen prefix is compared with the committed one, and a change is told with path, diff and money."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix import Session, SharedPrefix
from cacheprefix.errors import StateError
from cacheprefix.testing import PrefixSnapshot, frozen_prefix


@pytest.fixture
def snapshot(tmp_path):
    """``snapshot()`` compares, ``snapshot(update=True)`` writes."""
    return lambda **options: PrefixSnapshot(tmp_path, "test_it", **options)


def test_the_same_prefix_passes(snapshot, make_body):
    """Only what stands before the messages counts."""
    snapshot(update=True)([make_body("one"), make_body("two")])
    snapshot()([make_body("three")])


def test_without_a_snapshot_it_fails(snapshot, make_body):
    """A test that was renamed must not pass unseen."""
    with pytest.raises(AssertionError, match=r"no snapshot .*--cacheprefix-update"):
        snapshot()([make_body()])


@pytest.mark.parametrize(
    ("change", "path", "shown"),
    [
        ({"tools": ("write", "read")}, "tools_reordered at tools[0]", "read, write became write, read"),
        ({"tools": ("read",)}, "tools_changed at tools[1]", '-    "name": "write"'),
        ({"tools": ("read", "write", "zip")}, "tools_changed at tools[2]", '+     "name": "zip"'),
        ({"system": "Short."}, "system_changed at system[0]", "shorter in every call"),
        ({"model": "gpt-5.5"}, "model_changed at model", '+ "model": "gpt-5.5"'),
    ],
)
def test_a_change_is_told_with_path_diff_and_money(snapshot, make_body, change, path, shown):
    """So that who reviews it need not run anything."""
    snapshot(update=True)([make_body()])
    with pytest.raises(AssertionError) as failure:
        snapshot()([make_body(**change)])
    said = str(failure.value)
    assert path in said
    assert shown.replace(" ", "") in said.replace(" ", "")
    assert "per 1,000 calls" in said
    assert "$" in said


def test_a_description_is_told_by_its_field(snapshot, make_body):
    """Down to the JSON field and the character."""
    body = make_body()
    snapshot(update=True)([body])
    body["tools"][1]["function"]["description"] = "What it did."
    with pytest.raises(AssertionError, match=r"tools_changed at tools\[1\].function.description"):
        snapshot()([body])


def test_a_session_and_a_prefix_are_frozen_alike(snapshot):
    """Whatever order the tools came in: a shared prefix has its own."""
    tools = [{"name": name, "description": "d", "parameters": {}} for name in ("b", "a")]
    snapshot(update=True)(SharedPrefix(system="Handbook.", tools=tools), model="gpt-5.6")
    snapshot()(Session(SharedPrefix(system="Handbook.", tools=tools[::-1])), model="gpt-5.6")
    with pytest.raises(AssertionError, match="system_changed"):
        snapshot()(SharedPrefix(system="Handbook!", tools=tools), model="gpt-5.6")


def test_calls_that_begin_differently_have_no_prefix(make_body):
    """There is nothing to freeze then, and it is said where they part."""
    with pytest.raises(AssertionError, match="tools_reordered"):
        frozen_prefix([make_body(), make_body(tools=("write", "read"))])


@pytest.mark.parametrize("text", ["", "[]", '{"version": 9}', '{"version": 1, "api": "x"}'])
def test_a_damaged_snapshot_is_named(snapshot, make_body, text):
    """With its file and what to do."""
    path = snapshot().path()
    path.write_text(text, "utf-8")
    with pytest.raises(StateError, match=r"test_it\.json"):
        snapshot()([make_body()])


def test_an_update_that_changes_nothing_leaves_the_file(snapshot, make_body):
    """And only what was written is named."""
    written = []
    snapshot(update=True, on_write=written.append)([make_body()])
    snapshot(update=True, on_write=written.append)([make_body()])
    assert len(written) == 1
    assert not [path for path in written[0].parent.iterdir() if path != written[0]]


def test_long_lines_are_cut_so_that_a_diff_reads_well(snapshot, make_body):
    """One changed word in a long paragraph is one changed line."""
    system = make_body()["messages"][0]["content"]
    snapshot(update=True)([make_body()])
    lines = json.loads(snapshot().path().read_text("utf-8"))["sections"][-1]["text"]
    assert "".join(lines) == system
    assert max(map(len, lines)) <= 101
    with pytest.raises(AssertionError) as failure:
        snapshot()([make_body(system=system.replace("source. ", "SOURCE. ", 1))])
    assert len([line for line in str(failure.value).splitlines() if line.strip().startswith("+ ")]) <= 2


_VALUES = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(), st.none())


@given(st.text(max_size=300), st.dictionaries(st.text(min_size=1, max_size=8), _VALUES, max_size=4))
def test_any_prefix_equals_its_own_snapshot(tmp_path_factory, text, extra):
    """Whatever characters and numbers stand in it."""
    body = {
        "model": "m",
        "messages": [{"role": "system", "content": text or "x"}, {"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "t", "description": text, "parameters": extra}}],
    }
    folder = tmp_path_factory.mktemp("snapshots")
    PrefixSnapshot(folder, "test", update=True)([body])
    PrefixSnapshot(folder, "test")([body])
