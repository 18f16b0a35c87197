"""SharedPrefix: what is frozen stays frozen, and a union of tools has one order."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.errors import SetupError, ToolClashError
from cacheprefix.layout import SharedPrefix, Tool, tool_of, union_tools

names = st.lists(st.text("abcdefgh", min_size=1, max_size=4), min_size=1, max_size=6, unique=True)


def tool(name, description="d", **parameters):
    """A tool in Anthropic's form."""
    return {
        "name": name,
        "description": description,
        "input_schema": {"type": "object", "properties": parameters},
    }


@given(names, st.randoms())
def test_the_union_has_one_order_whatever_the_order_of_building(found, random):
    """Agents built in another order give the same union."""
    shuffled = list(found)
    random.shuffle(shuffled)
    first = SharedPrefix(tools=[tool(name) for name in found]).frozen()
    second = SharedPrefix(tools=[tool(name) for name in shuffled]).frozen()
    assert first.tool_names == second.tool_names == tuple(sorted(found))
    assert first.key == second.key


def test_a_tool_changed_after_freezing_does_not_change_the_prefix():
    """The prefix keeps what was passed in, not a reference to it."""
    passed = tool("read", path={"type": "string"})
    prefix = SharedPrefix(system="s", tools=[passed]).frozen()
    before = copy.deepcopy(prefix.tools[0].schema)
    passed["description"] = "changed"
    passed["input_schema"]["properties"]["path"]["type"] = "number"
    assert prefix.tools[0].schema == before
    assert prefix.tools[0].native["description"] == "d"


def test_the_mappings_of_a_prefix_cannot_be_changed():
    """Roles and context are read-only views of copies."""
    roles = {"a": "text"}
    prefix = SharedPrefix(system="s", roles=roles)
    roles["b"] = "late"
    assert "b" not in prefix.text
    with pytest.raises(TypeError):
        prefix.roles["c"] = "no"


def test_keywords_in_another_order_are_no_other_schema():
    """The first spelling stands for both; arguments in another order are another tool, since a model writes them so."""
    first = tool("read", path={"type": "string", "description": "d"}, line={"type": "integer"})
    again = {"input_schema": {"properties": {}, "type": "object"}, "description": "d", "name": "read"}
    again["input_schema"]["properties"] = {"path": {"description": "d", "type": "string"}, "line": {"type": "integer"}}
    (found,) = union_tools([first, again])
    assert found.schema == tool_of(first).schema
    turned = tool("read", line={"type": "integer"}, path={"type": "string", "description": "d"})
    with pytest.raises(ToolClashError):
        union_tools([first, turned])


def test_one_name_with_two_schemas_is_an_error_at_set_up():
    """The error names the tool and what differs."""
    with pytest.raises(ToolClashError, match=r"'read' is declared twice.*description differs") as caught:
        union_tools([tool("read"), tool("read", "other")])
    assert caught.value.name == "read"


def test_the_same_tool_twice_is_one_tool():
    """OpenAI's and Anthropic's form of one schema are the same tool."""
    openai = {
        "type": "function",
        "function": {"name": "read", "description": "d", "parameters": {"type": "object", "properties": {}}},
    }
    assert len(union_tools([tool("read"), openai])) == 1


@pytest.mark.parametrize("wrong", ["tools", {"name": "x"}, 3])
def test_tools_that_are_no_list_are_an_error_at_set_up(wrong):
    """A string, a single dict or a number is named as what it is."""
    with pytest.raises(SetupError, match=r"SharedPrefix\(tools=...\) takes a list"):
        SharedPrefix(tools=wrong)


def test_a_nameless_tool_and_an_unknown_object_are_errors_that_say_what_to_do():
    """A tool without a name, or of a framework without its adapter."""
    with pytest.raises(SetupError, match="has no name"):
        tool_of({"description": "x"})
    with pytest.raises(SetupError, match="needs an adapter"):
        tool_of(object())


def test_a_foreign_tool_object_is_read_by_the_adapters_render():
    """The native object is kept beside the frozen schema and left out of equality."""
    first, second = object(), object()
    render = lambda _: {"name": "x", "description": "", "parameters": {}}  # noqa: E731
    made = tool_of(first, render)
    assert made.native is first
    assert made == tool_of(second, render)
    assert isinstance(made, Tool)


def test_the_text_holds_system_then_context_then_cards():
    """One order, from most to least stable."""
    prefix = SharedPrefix(system="SYS", context={"facts": "F"}, roles={"critic": "C"})
    assert prefix.text.index("SYS") < prefix.text.index("F") < prefix.text.index("C")
    assert 'key="facts"' in prefix.text
    assert 'name="critic"' in prefix.text


def test_the_key_depends_on_every_part():
    """Other text or another tool is another prefix; the key fits OpenAI's 64 characters."""
    keys = {
        SharedPrefix(system="a").key,
        SharedPrefix(system="b").key,
        SharedPrefix(system="a", tools=[tool("t")]).key,
        SharedPrefix(system="a", context={"k": "v"}).key,
    }
    assert len(keys) == 4
    assert all(len(key) <= 64 for key in keys)
