"""The matrix of faults on a LangGraph application: its result is that of the unmodified one."""

import asyncio
from functools import reduce
from operator import add

import httpx
import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

from cacheprefix.server import SimulatedProvider
from cacheprefix_langgraph import PrefixMiddleware, PrefixState, forked, wrap_model
from tests.fault_matrix import FOUND, HANDBOOK, cases, check, check_event_loop, check_fork, check_stall, names

CASES = cases()
KNOWN = {}


@tool
def look(at: str) -> str:
    """Look at a place."""
    return f"{at}: {FOUND}"


class State(MessagesState, PrefixState):
    """A thread's messages, and what cacheprefix keeps of it."""


@pytest.fixture(scope="module")
def provider():
    """One provider for the whole matrix."""
    with SimulatedProvider("openai") as started:
        yield started


@pytest.fixture(scope="module")
def application(provider):
    """An agent with a tool, then a node that streams."""

    def run(session, replies):
        provider.reset()
        provider.simulator.script = replies
        plain = ChatOpenAI(
            model="gpt-5.2", base_url=provider.openai_base_url, api_key="k", max_retries=0, stream_usage=True
        )
        model = plain if session is None else wrap_model(plain, session)
        finder = create_agent(
            plain if session is None else model,
            [look],
            system_prompt=f"{HANDBOOK}\n\nYou are the finder.",
            middleware=[] if session is None else [PrefixMiddleware(session, role="finder")],
        )

        def find(state):
            return {"messages": finder.invoke({"messages": state["messages"]})["messages"][-1:]}

        def write(state):
            asked = [SystemMessage(f"{HANDBOOK}\n\nYou are the writer."), *state["messages"]]
            whole = None
            for chunk in model.stream(asked):
                whole = chunk if whole is None else whole + chunk
            return {"messages": [whole]}

        graph = StateGraph(State)
        graph.add_node("find", find)
        graph.add_node("write", write if session is None else forked(session, role="writer")(write))
        graph.add_edge(START, "find").add_edge("find", "write").add_edge("write", END)
        try:
            out = graph.compile().invoke({"messages": [HumanMessage("Find it and write it down.")]})
        except Exception as error:
            return [type(error).__name__]
        return [message.text for message in out["messages"]]

    return run


@pytest.mark.parametrize("case", CASES, ids=names(CASES))
def test_the_result_is_that_of_the_unmodified_application(case, application, monkeypatch):
    """Whatever raises, is slow, answers rubbish or cannot be reached."""
    check(case, application, monkeypatch, KNOWN)


async def _by(way, target, given):
    """What a graph, an agent or a model gives for an input, asked in one of LangChain's ways."""
    if way == "ainvoke":
        return await target.ainvoke(given)
    if way == "abatch":
        (said,) = await target.abatch([given])
        return said
    if way == "astream_events":
        events = [event async for event in target.astream_events(given, version="v2")]
        return events[-1]["data"]["output"]
    parts = [part async for part in target.astream(given)]
    if not isinstance(parts[0], dict):
        return reduce(add, parts)
    # Of a graph: what each node wrote.
    return {"messages": [message for part in parts for node in part.values() for message in node["messages"]]}


@pytest.fixture(params=["ainvoke", "astream", "astream_events", "abatch"])
def async_application(request, provider):
    """The same agent and node in an event loop; graph, agent and model are all asked in one way."""
    way = request.param

    async def go(session, replies):
        provider.reset()
        provider.simulator.script = replies
        # One of its own: LangChain keeps one for all models, in whatever event loop they are used.
        client = httpx.AsyncClient()
        plain = ChatOpenAI(
            model="gpt-5.2",
            base_url=provider.openai_base_url,
            api_key="k",
            max_retries=0,
            stream_usage=True,
            http_async_client=client,
        )
        model = plain if session is None else wrap_model(plain, session)
        finder = create_agent(
            model,
            [look],
            system_prompt=f"{HANDBOOK}\n\nYou are the finder.",
            middleware=[] if session is None else [PrefixMiddleware(session, role="finder")],
        )

        async def find(state):
            return {"messages": (await _by(way, finder, {"messages": state["messages"]}))["messages"][-1:]}

        async def write(state):
            asked = [SystemMessage(f"{HANDBOOK}\n\nYou are the writer."), *state["messages"]]
            return {"messages": [await _by(way, model, asked)]}

        graph = StateGraph(State)
        graph.add_node("find", find)
        graph.add_node("write", write if session is None else forked(session, role="writer")(write))
        graph.add_edge(START, "find").add_edge("find", "write").add_edge("write", END)
        try:
            out = await _by(way, graph.compile(), {"messages": [HumanMessage("Find it and write it down.")]})
        finally:
            await client.aclose()
        if session is not None:
            assert [call.agent for call in session.calls] == ["finder", "finder", "writer"]
        return [message.text for message in out["messages"]]

    return lambda session, replies: asyncio.run(go(session, replies))


def test_a_store_that_hangs_never_holds_the_event_loop(async_application):
    """Full texts, kept tool results and the gate, in a store that takes its time for each call."""
    check_event_loop(async_application)


@pytest.mark.slow
def test_the_event_loop_goes_on_while_a_store_takes_its_time(async_application):
    """Longer for each call than the gate waits for one: no event loop stands still for it, agent's or stream's."""
    check_stall(async_application)


def test_a_child_that_is_forked_off_from_a_busy_process_runs_it(application):
    """Prefork servers and pools: no lock of the parent's holds it, and nothing of the parent's is waited for."""
    check_fork(application)
