"""A union of tools that grows: the same as one made of all at once, without reading those that are there."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix import SharedPrefix
from cacheprefix.errors import ToolClashError
from cacheprefix.layout.prefix import Tool
from tests.drawn import examples


def _tool(name: str, about: str = "d") -> dict[str, Any]:
    return {"name": name, "description": about, "input_schema": {"type": "object"}}


@settings(max_examples=examples(60))
@given(st.lists(st.lists(st.text("abc", min_size=1, max_size=3), max_size=4), max_size=5))
def test_it_is_the_one_that_is_made_of_all_at_once(rounds: list[list[str]]) -> None:
    """In whatever order they come, and wherever each belongs."""
    grown = SharedPrefix(system="s").frozen()
    for names in rounds:
        assert grown.key
        grown = grown.with_tools([_tool(name) for name in names])
    whole = SharedPrefix(system="s", tools=[_tool(name) for names in rounds for name in names]).frozen()
    assert grown == whole
    assert (grown.key, grown.text, grown.tool_names) == (whole.key, whole.text, whole.tool_names)
    for name in ("a", "b", "ab", "ccc", "d"):
        assert grown.tool(name) == next((one for one in whole.tools if one.name == name), None)
    assert grown.among(["c", "a", "d", "c"]) == tuple(one for one in whole.tools if one.name in ("a", "c"))


def test_tools_that_were_given_out_of_order_are_found_and_put_in_order() -> None:
    """``SharedPrefix`` takes frozen tools as they come."""
    given = [Tool(name, b"{}") for name in ("b", "a")]
    prefix = SharedPrefix(tools=given)
    assert prefix.tool("b") == given[0]
    assert prefix.among(["a", "b"]) == (given[0], given[1])
    assert prefix.with_tools([_tool("c")]).tool_names == ("a", "b", "c")


def test_another_schema_of_a_known_name_is_refused_while_it_grows() -> None:
    """Also beside one that is new."""
    with pytest.raises(ToolClashError):
        SharedPrefix(tools=[_tool("a")]).frozen().with_tools([_tool("b"), _tool("a", "another")])


def test_one_more_tool_costs_the_same_however_many_there_are() -> None:
    """Each user's request may bring one of its own."""

    def steps(count: int) -> int:
        prefix = SharedPrefix(tools=[_tool(f"t{number:05}") for number in range(count)]).frozen()
        prefix = prefix.with_tools([_tool("a")])
        called = 0

        def note(*_: object) -> None:
            nonlocal called
            called += 1

        sys.setprofile(note)
        try:
            grown = prefix.with_tools([_tool("t00001b")])
            found = grown.tool("t00001b")
        finally:
            sys.setprofile(None)
        assert found is not None
        return called

    assert steps(2_000) < steps(100) + 20
