"""A safe way in, on LangGraph's wire: off, and a share of the threads."""

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from cacheprefix import Caching
from cacheprefix.prompt import ESTIMATE
from cacheprefix_langgraph import forked, wrap_model

HANDBOOK = "The handbook says that every statement needs a source. " * 200


@pytest.fixture
def graph():
    """``graph(model, session)`` has two roles, which say the handbook themselves; without a session nothing of ours."""

    def make(model, session=None):
        made, previous = StateGraph(MessagesState), START
        for role in ("critic", "writer"):

            def node(state, role=role):
                asked = [SystemMessage(f"{HANDBOOK}\n\nYou are the {role}."), *state["messages"]]
                return {"messages": [AIMessage(model.invoke(asked).text)]}

            made.add_node(role, node if session is None else forked(session, role=role)(node))
            made.add_edge(previous, role)
            previous = role
        made.add_edge(previous, END)
        return made.compile()

    return make


def go(made, thread):
    """One run of a thread."""
    said = {"messages": [HumanMessage(f"About {thread}.")]}
    return made.invoke(said, {"configurable": {"thread_id": thread}})


def test_off_touches_and_sees_nothing(bench, graph, monkeypatch):
    """The wire has the application's own bytes, the graph its own nodes, and the session no call."""
    monkeypatch.setenv("CACHEPREFIX_MODE", "off")
    session = bench.session(HANDBOOK)
    go(graph(bench.model()), "one")
    go(graph(wrap_model(bench.model(), session), session), "one")
    assert bench.bodies[:2] == bench.bodies[2:]
    assert session.calls == ()


def test_threads_outside_of_the_share_keep_every_byte(bench, graph):
    """They are counted beside the forked ones, by what the provider reported."""
    caching = Caching(provider=bench.rules, counter=ESTIMATE, fork_share=0.5)
    session, threads = bench.session(HANDBOOK, caching=caching), [f"thread {number}" for number in range(8)]
    made = graph(wrap_model(bench.model(), session), session)
    for thread in threads:
        go(graph(bench.model()), thread)
    plain = list(bench.bodies)
    for thread in threads:
        go(made, thread)
    sent, arms = bench.bodies[len(plain) :], session.report().arms
    left = [call.reasons[-1].why == "not_in_fork_share" for call in session.calls]
    assert left == [session.adapter.shared.arms.arm("", call.conversation) == "own" for call in session.calls]
    assert left == [body == own for body, own in zip(sent, plain, strict=True)]
    assert 2 <= arms.fork.conversations <= 6
    assert arms.fork.conversations + arms.own.conversations == 8
    assert arms.fork.calls + arms.own.calls == 16
