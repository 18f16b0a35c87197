"""``PrefixState`` mixes with the dict classes of both modules, and keeps decisions in the checkpoints of each."""

import sys
import typing
from typing import Annotated

import pytest
import typing_extensions
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph, add_messages

from cacheprefix import ToolResultBudget
from cacheprefix.errors import SetupError
from cacheprefix_langgraph import PrefixState, forked, wrap_model

HANDBOOK = "Every statement needs a source that the reader can open. " * 120


class Standard(typing.TypedDict):
    """A state as most applications declare it."""

    messages: Annotated[list[AnyMessage], add_messages]


class Extended(typing_extensions.TypedDict):
    """The same of the other module."""

    messages: Annotated[list[AnyMessage], add_messages]


class Behind(Standard, PrefixState):
    """Behind the application's own."""


class Before(PrefixState, Standard):
    """In front of it."""


class Direct(typing.TypedDict, PrefixState):
    """Beside the class itself."""

    messages: Annotated[list[AnyMessage], add_messages]


class Optional(PrefixState, total=False):
    """Alone."""

    messages: Annotated[list[AnyMessage], add_messages]


class Other(Extended, PrefixState):
    """With the other module's."""


class Own(MessagesState, PrefixState):
    """With LangGraph's."""


class Topic(typing.TypedDict, total=False):
    """Other fields, of the standard library's."""

    topic: "str"


class Both(PrefixState, Topic, MessagesState):
    """In front of bases of both modules, which do not mix with each other."""


class Between(Topic, PrefixState, MessagesState):
    """Between them."""


@pytest.mark.parametrize("state", [Behind, Before, Direct, Optional, Other, Own, Both, Between])
def test_a_state_with_it_keeps_what_was_decided(chat, state):
    """The channel is there, is a dict for who asks, and holds the cut of a long result."""
    session = chat.session(HANDBOOK, budget=ToolResultBudget(max_tokens=50))
    model = wrap_model(chat.model(), session)

    @forked(session, role="writer")
    def writer(given):
        return {"messages": [model.invoke([SystemMessage("You write."), *given["messages"]])]}

    graph = StateGraph(state)
    graph.add_node("writer", writer)
    graph.add_edge(START, "writer")
    app = graph.compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "one"}}
    call = AIMessage("", tool_calls=[{"id": "c", "name": "read_file", "args": {"path": "a"}}])
    app.invoke({"messages": [HumanMessage("Go."), call, ToolMessage("word " * 900, tool_call_id="c")]}, config)
    assert app.get_state(config).values["cacheprefix"]
    if type(state) is type(Extended) or sys.version_info >= (3, 12):
        # Before 3.12 pydantic refuses the standard library's.
        assert "cacheprefix" in app.get_input_jsonschema()["properties"]
    assert state(messages=[]) == {"messages": []}
    both = state in (Both, Between)
    assert typing_extensions.get_type_hints(state).keys() == {"messages", "cacheprefix", *(["topic"] if both else [])}
    assert not both or (state.__optional_keys__, state.__required_keys__) == ({"topic", "cacheprefix"}, {"messages"})


class Plain:
    topic: str


def test_beside_a_class_that_is_no_dict_it_names_the_way():
    """Python's own words would name neither."""
    with pytest.raises(SetupError, match=r"Plain.*cacheprefix: PrefixChannel"):

        class _State(Plain, PrefixState):
            pass


def test_it_is_a_schema_by_itself():
    """A graph may have nothing else in its state."""
    graph = StateGraph(PrefixState)
    graph.add_node("nothing", lambda state: None)
    graph.add_edge(START, "nothing")
    assert graph.compile().invoke({"cacheprefix": {}}).keys() == {"cacheprefix"}
