"""The fan-out gate on the wire: siblings that start together on a cold prefix follow one leader."""

import asyncio
import operator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

from cacheprefix.server import Fault, Reply
from cacheprefix_langgraph import forked, wrap_model

HANDBOOK = "The handbook says that every statement needs a source. " * 200
WORKERS = 4


class Fan(TypedDict):
    messages: list
    reports: Annotated[list, operator.add]


def fan(model, session, *, later):
    """Four workers from START: nobody has written the prefix before."""

    def worker(state):
        return {"reports": [model.invoke([SystemMessage(state["role"]), *state["messages"]]).text]}

    async def aworker(state):
        return {"reports": [(await model.ainvoke([SystemMessage(state["role"]), *state["messages"]])).text]}

    graph = StateGraph(Fan)
    graph.add_node("worker", forked(session, role="worker")(aworker if later else worker))
    roles = [f"You are worker {number}." for number in range(WORKERS)]
    graph.add_conditional_edges(
        START, lambda s: [Send("worker", {"messages": s["messages"], "role": role}) for role in roles], ["worker"]
    )
    graph.add_edge("worker", END)
    return graph.compile()


def go(graph, later):
    """Run the graph, sync or async."""
    given = {"messages": [HumanMessage("Look into it.")], "reports": []}
    return asyncio.run(graph.ainvoke(given)) if later else graph.invoke(given)


@pytest.fixture
def slow(bench):
    """A provider that takes its time, so that siblings really overlap."""
    bench.slow(0.15)
    return bench


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_without_the_gate_a_cold_fan_out_reads_nothing(slow, later):
    """All four write the same prefix at once."""
    session = slow.session(HANDBOOK, gate=None)
    go(fan(wrap_model(slow.model(), session), session, later=later), later)
    assert [record.outcome.read_tokens for record in slow.provider.requests] == [0] * WORKERS


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_all_but_the_leader_read_what_it_wrote(slow, later):
    """With the gate everybody but one reads the prefix."""
    session = slow.session(HANDBOOK)
    out = go(fan(wrap_model(slow.model(), session), session, later=later), later)
    assert len(out["reports"]) == WORKERS
    assert all(out["reports"])
    assert sum(record.outcome.read_tokens > 0 for record in slow.provider.requests) == WORKERS - 1
    assert [call.usage.cache_read_tokens for call in session.calls].count(0) == 1


def test_when_the_leader_fails_the_others_still_answer(bench):
    """The next one leads; the failure reaches the caller of the failed one only."""
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)
    bench.slow(0.1)
    bench.script(lambda request: Reply(fault=Fault(status=500)) if request.index == 0 else Reply(text="fine"))

    def one(number):
        try:
            return model_text(model, session, number)
        except Exception as error:
            return type(error).__name__

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(one, range(3)))
    assert answers.count("fine") == 2


def model_text(model, session, number):
    """One forked call, as a node makes it."""

    @forked(session, role=f"r{number}")
    def node(state):
        return model.invoke([SystemMessage(f"You are {number}."), *state["messages"]]).text

    return node({"messages": [HumanMessage("Look into it.", id="same")]})
