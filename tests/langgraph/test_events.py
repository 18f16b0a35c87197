"""LangChain's event streams (version 3): the application sees what it always saw, and its requests are forks."""

import asyncio
import warnings

import pytest
from langchain.agents import create_agent
from langchain_core._api import LangChainBetaWarning
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from cacheprefix_langgraph import PrefixState, StreamVerdicts, forked, subgraph, wrap_model

HANDBOOK = "The handbook says that every statement needs a source. " * 90
ROLES = {"planner": "You plan.", "critic": "You criticise."}
BEGIN = {"messages": [HumanMessage("Please begin.")]}


class State(MessagesState, PrefixState):
    """A thread's messages and decisions."""


@pytest.fixture(autouse=True)
def experimental():
    """LangChain says of every such stream that it may change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LangChainBetaWarning)
        yield


def team(model, session, how):
    """Two roles in a row that ask their model as a whole, or for its events."""

    def make(role, text):
        def whole(state):
            return {"messages": [model.invoke([SystemMessage(text), *state["messages"]])]}

        def events(state):
            stream = model.stream_events([SystemMessage(text), *state["messages"]], version="v3")
            return {"messages": [AIMessage("".join(stream.text))]}

        async def later(state):
            stream = await model.astream_events([SystemMessage(text), *state["messages"]], version="v3")
            return {"messages": [AIMessage("".join([part async for part in stream.text]))]}

        node = {"whole": whole, "events": events, "later": later}[how]
        return node if session is None else forked(session, role=role)(node)

    graph = StateGraph(State)
    graph.add_sequence([(role, make(role, text)) for role, text in ROLES.items()])
    return graph.add_edge(START, "planner").add_edge("critic", END).compile(checkpointer=InMemorySaver())


def told(graph, later):
    """What a run of the graph streams: texts of its messages, and the names of all events."""
    config = {"configurable": {"thread_id": "one"}}

    async def gather():
        async with await graph.astream_events(BEGIN, config, version="v3") as run:
            return [await message.text async for message in run.messages], await run.output()

    if later:
        return asyncio.run(gather())
    run = graph.stream_events(BEGIN, config, version="v3")
    return [str(message.text) for message in run.messages], run.output


def is_team(bench, session):
    """Whether the two requests are forks, observed with all their usage."""
    first, second = bench.prompts()
    shared = first.sections[:-1]
    assert second.sections[: len(shared)] == shared
    assert [text in prompt.sections[-1].text for prompt, text in zip((first, second), ROLES.values(), strict=True)]
    assert [call.agent for call in session.calls] == list(ROLES)
    counted = [record.outcome.input_tokens for record in bench.provider.requests]
    assert [call.usage.input_tokens for call in session.calls] == counted
    assert session.failures == {}


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_graphs_events_are_those_of_the_application(bench, later):
    """Nodes that ask as a whole are streamed by LangChain itself, message by message, and stay forks."""
    plain = told(team(bench.model(), None, "whole"), later)
    bench.provider.reset()
    bench.release()
    session = bench.session(HANDBOOK, plugins=[StreamVerdicts()])
    texts, state = told(team(wrap_model(bench.model(), session), session, "whole"), later)
    assert len(texts) == len(plain[0]) == 2
    assert [message.type for message in state["messages"]] == ["human", "ai", "ai"]
    assert [message.text for message in state["messages"][1:]] == texts
    is_team(bench, session)


@pytest.mark.parametrize("how", ["events", "later"])
def test_a_models_events_inside_a_node_belong_to_a_fork(bench, how):
    """Also when the stream is read where no fork is in force any more, as LangChain's own task does."""
    session = bench.session(HANDBOOK)
    graph = team(wrap_model(bench.model(), session), session, how)
    config = {"configurable": {"thread_id": "one"}}
    out = asyncio.run(graph.ainvoke(BEGIN, config)) if how == "later" else graph.invoke(BEGIN, config)
    assert all(message.text for message in out["messages"])
    is_team(bench, session)


def test_an_agents_events_are_those_of_a_fork_of_a_compiled_graph(bench):
    """The copy that ``subgraph`` makes streams as the graph does."""
    session = bench.session(HANDBOOK)
    graph = StateGraph(State)
    for role, text in ROLES.items():
        agent = create_agent(wrap_model(bench.model(), session), bench.tools, system_prompt=f"{text}\n\n{HANDBOOK}")
        graph.add_node(role, subgraph(agent, session, role=role))
    graph.add_edge(START, "planner").add_edge("planner", "critic").add_edge("critic", END)
    run = graph.compile().stream_events(BEGIN, version="v3")
    inner = [[str(message.text) for message in part.messages] for part in run.subgraphs]
    assert [len(texts) for texts in inner] == [1, 1]
    is_team(bench, session)
