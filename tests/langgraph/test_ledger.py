"""Tool results are decided on once: in a thread, after a restart, with another budget, in parallel branches."""

import operator
from typing import Annotated

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send

from cacheprefix import ToolResultBudget
from cacheprefix_langgraph import PrefixState, forked, wrap_model

HANDBOOK = "The handbook says that every statement needs a source. " * 90
LONG = "\n".join(f"{number}: a line of a long tool result" for number in range(2000))


class State(MessagesState, PrefixState):
    pass


def history():
    """A conversation with one long tool result."""
    return [
        HumanMessage("Read it.", id="h"),
        AIMessage("", tool_calls=[{"id": "c1", "name": "read_file", "args": {"path": "a"}}], id="a"),
        ToolMessage(LONG, tool_call_id="c1", id="t"),
    ]


def build(bench, session, shape="dict", state=State, saver=None):
    """A graph of one node."""
    model = wrap_model(bench.model(), session)

    def speak(given):
        answer = model.invoke([SystemMessage("You read."), *given["messages"]])
        text = AIMessage(answer.text)
        shapes = {
            "dict": {"messages": [text]},
            "command": Command(update={"messages": [text]}),
            "list": [Command(update={"messages": [text]})],
        }
        return shapes[shape]

    graph = StateGraph(state)
    graph.add_node("speak", forked(session, role="reader")(speak))
    graph.add_edge(START, "speak")
    graph.add_edge("speak", END)
    return graph.compile(checkpointer=saver)


def budget(tokens):
    """The session option of a tool-result budget."""
    return {"budget": ToolResultBudget(max_tokens=tokens)}


@pytest.mark.parametrize("shape", ["dict", "command", "list"])
def test_the_decision_is_made_once_and_kept_in_the_graphs_state(bench, shape):
    """Whatever shape the node returns; the ledger holds no text of the result."""
    session = bench.session(HANDBOOK, **budget(200))
    out = build(bench, session, shape).invoke({"messages": history()})
    sent = "".join(s.text for s in bench.prompts()[0].sections)
    assert "1999: a line" in sent
    assert "1000: a line" not in sent
    assert len(str(out["cacheprefix"])) < 1_100
    assert out["messages"][2].content == LONG


def test_a_thread_goes_on_byte_identically_in_another_session_with_another_budget(bench):
    """The checkpoint alone carries the decision: process, session and budget are new."""
    saver = InMemorySaver()
    config = {"configurable": {"thread_id": "t1"}}
    build(bench, bench.session(HANDBOOK, **budget(200)), saver=saver).invoke({"messages": history()}, config)
    other = bench.session(HANDBOOK, **budget(50))
    build(bench, other, saver=saver).invoke({"messages": [HumanMessage("And now?")]}, config)
    none = bench.session(HANDBOOK)
    build(bench, none, saver=saver).invoke({"messages": [HumanMessage("And then?")]}, config)
    first, second, third = bench.prompts()
    kept = len(first.sections) - 1
    assert second.sections[:kept] == third.sections[:kept] == first.sections[:kept]


def test_threads_of_one_graph_never_mix(bench):
    """Decisions of one thread do not show in another's state."""
    saver = InMemorySaver()
    graph = build(bench, bench.session(HANDBOOK, **budget(200)), saver=saver)
    graph.invoke({"messages": history()}, {"configurable": {"thread_id": "big"}})
    graph.invoke({"messages": [HumanMessage("short")]}, {"configurable": {"thread_id": "small"}})
    assert graph.get_state({"configurable": {"thread_id": "big"}}).values["cacheprefix"]["results"]
    assert "results" not in graph.get_state({"configurable": {"thread_id": "small"}}).values["cacheprefix"]


@pytest.mark.parametrize("threads", [True, False])
def test_a_missing_channel_is_noticed_where_threads_are_saved(bench, threads):
    """LangGraph would drop the update without a word; said once, however many nodes the graph has, with the way out."""
    session = bench.session(HANDBOOK, **budget(200))
    model = wrap_model(bench.model(), session)

    def speak(given):
        return {"messages": [AIMessage(model.invoke([SystemMessage("You read."), *given["messages"]]).text)]}

    graph = StateGraph(MessagesState)
    for role, before in (("reader", START), ("critic", "reader")):
        graph.add_node(role, forked(session, role=role)(speak))
        graph.add_edge(before, role)
    config = {"configurable": {"thread_id": "one"}} if threads else None
    graph.compile(checkpointer=InMemorySaver() if threads else None).invoke({"messages": history()}, config)
    said = [note for note in session.report().notes if "class State(MessagesState, PrefixState)" in note]
    assert len(said) == threads


class Fan(State):
    reports: Annotated[list, operator.add]


def test_parallel_branches_decide_alike_and_their_ledgers_join(bench):
    """Three workers from one Send each see the same shortened result."""
    session = bench.session(HANDBOOK, **budget(200))
    model = wrap_model(bench.model(), session)

    @forked(session, role="worker")
    def worker(given):
        return {"reports": [model.invoke([SystemMessage("You work."), *given["messages"]]).text]}

    graph = StateGraph(Fan)
    graph.add_node("worker", worker)
    graph.add_conditional_edges(
        START, lambda s: [Send("worker", {"messages": s["messages"]}) for _ in range(3)], ["worker"]
    )
    graph.add_edge("worker", END)
    out = graph.compile().invoke({"messages": history(), "reports": []})
    assert len(out["reports"]) == 3
    prompts = bench.prompts()
    assert prompts[0].sections == prompts[1].sections == prompts[2].sections
    assert "1000: a line" not in "".join(s.text for s in prompts[0].sections)
    assert out["cacheprefix"]


def test_every_other_message_stays_the_same_object(bench):
    """Only the shortened result is a copy; the state's own message is untouched."""
    from cacheprefix.prompt import ReplaceResult
    from cacheprefix_langgraph.history import carried_out

    messages = history()
    changed = carried_out(messages, [ReplaceResult(2, 0, "short")], 3).messages
    assert changed[0] is messages[0]
    assert changed[1] is messages[1]
    assert (changed[2].content, messages[2].content) == ("short", LONG)


def test_the_estimate_of_the_unmodified_cost_counts_the_whole_result(bench):
    """What the application would have sent is not shortened."""
    session = bench.session(HANDBOOK, **budget(200))
    build(bench, session).invoke({"messages": history()})
    (call,) = session.calls
    assert call.unmodified_units > call.units + 10_000
