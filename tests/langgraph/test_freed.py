"""A session that LangGraph's objects were made with is freed with them; the application's own model goes on."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from typing import Annotated

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix_langgraph import PrefixMiddleware, forked, subgraph, wrap_model

HANDBOOK = "The handbook says that every statement needs a source. " * 200


def graph(bench, model, *, later):
    """Two forked roles, run on a thread of their own."""
    session = bench.session(HANDBOOK)
    wrapped = wrap_model(model, session)
    built = StateGraph(MessagesState)
    for name in ("critic", "writer"):

        def node(state, name=name):
            return {"messages": [wrapped.invoke([SystemMessage(f"You are {name}."), *state["messages"]])]}

        async def anode(state, name=name):
            return {"messages": [await wrapped.ainvoke([SystemMessage(f"You are {name}."), *state["messages"]])]}

        built.add_node(name, forked(session, role=name)(anode if later else node))
        built.add_edge(START, name)
    app, given = built.compile(checkpointer=InMemorySaver()), {"messages": [HumanMessage("Look into it.")]}
    config = {"configurable": {"thread_id": "one"}}
    asyncio.run(app.ainvoke(given, config)) if later else app.invoke(given, config)
    assert len(session.calls) == 2
    return weakref.ref(session)


def agents(bench, model, *, later):
    """Two agents behind the middleware."""
    session = bench.session(HANDBOOK)
    made = [
        create_agent(model, [], system_prompt=f"You are {name}.", middleware=[PrefixMiddleware(session, role=name)])
        for name in ("critic", "writer")
    ]
    given = {"messages": [HumanMessage("Look into it.")]}

    async def one_after_the_other():
        # In one loop: a client of the SDK's keeps connections that no other loop can use, with us or without.
        for agent in made:
            await agent.ainvoke(given)

    if later:
        asyncio.run(one_after_the_other())
    else:
        for agent in made:
            agent.invoke(given)
    assert len(session.calls) == 2
    return weakref.ref(session)


@pytest.mark.slow
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("run", [graph, agents])
def test_a_session_goes_with_the_graphs_and_models_that_were_made_with_it(chat, run, later):
    """No registry, class or context variable of ours or of the framework's keeps it."""
    model = chat.model()
    session = run(chat, model, later=later)
    gc.collect()
    assert session() is None
    assert model.invoke("still there").text


@pytest.mark.slow
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_sequence_that_failed_keeps_nothing_of_its_state(chat, later):
    """LangGraph runs its steps one by one, and never comes to the last of them."""
    session = chat.session(HANDBOOK)
    model = wrap_model(chat.model(), session)

    class Said(HumanMessage):
        """A message of the user's that is looked for."""

    def fail(_):
        raise LookupError

    steps = RunnableLambda(lambda state: [SystemMessage("You are critic."), *state["messages"]]) | model | fail
    built = StateGraph(MessagesState)
    built.add_node("critic", forked(session, role="critic")(steps))
    built.add_edge(START, "critic")
    app = built.compile()
    said = Said("Look into it.")
    with pytest.raises(LookupError):
        asyncio.run(app.ainvoke({"messages": [said]})) if later else app.invoke({"messages": [said]})
    del said
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is Said]


class Connection:
    """What a tool of one user's holds."""


def _finder(held):
    """A tool over a connection of its own, which is told to ``held``."""
    connection = Connection()
    held.append(weakref.ref(connection))

    def find(at: Annotated[str, "Where."], number: int = 3) -> str:
        """Find what was asked for."""
        return f"{at} {number} {connection}"

    return StructuredTool.from_function(find)


def _name(tool):
    """How a tool is called in a body of either kind."""
    return tool.get("function", tool)["name"]


@pytest.mark.parametrize("door", ["agent", "subgraph", "bound"])
@pytest.mark.parametrize("asked", [False, True])
def test_what_a_users_tool_holds_goes_with_it_and_others_send_the_same(bench, door, asked):
    """Others of the thread go on with its schema, to the byte; also where the tool came before the first request."""
    session, held = bench.session(HANDBOOK), []
    model = wrap_model(bench.model(), session)
    config, task = {"configurable": {"thread_id": "one"}}, {"messages": [HumanMessage("Look into it.")]}

    @forked(session, role="critic")
    def critic(state):
        return {"messages": [model.invoke([SystemMessage(f"You are the critic.\n\n{HANDBOOK}"), *state["messages"]])]}

    graph = StateGraph(MessagesState).add_node(critic).add_edge(START, "critic").compile()

    def finds(state):
        tool, told = _finder(held), f"You find.\n\n{HANDBOOK}"
        if door == "bound":
            return {"messages": [model.bind_tools([tool]).invoke([SystemMessage(told), *state["messages"]])]}
        if door == "subgraph":
            return subgraph(create_agent(model, [tool], system_prompt=told), session, role="finder").invoke(state)
        middleware = PrefixMiddleware(session, role="finder")
        return create_agent(model, [tool], system_prompt=told, middleware=[middleware]).invoke(state)

    finder = forked(session, role="finder")(finds) if door == "bound" else finds
    both = StateGraph(MessagesState).add_sequence([("finder", finder), ("critic", critic)]).add_edge(START, "finder")
    if asked:
        graph.invoke(task, {"configurable": {"thread_id": "zero"}})
    both.compile().invoke(task, config)
    assert len(held) == 1
    gc.collect()
    assert held[0]() is None
    graph.invoke(task, config)
    shown = [json.loads(body).get("tools") for body in bench.bodies]
    assert shown[-2] == shown[-1]
    declared = [json.dumps(tool) for tools in shown for tool in tools or () if _name(tool) == "find"]
    assert len(set(declared)) == 1
    assert len(declared) > 1 or door != "agent"
    assert session.failures == {}
