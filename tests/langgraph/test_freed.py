"""A session that LangGraph's objects were made with is freed with them; the application's own model goes on."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix_langgraph import PrefixMiddleware, forked, wrap_model

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
