"""Compiled graphs and models bound to a role, as forks on the wire."""

import asyncio

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

from cacheprefix.errors import SetupError
from cacheprefix_langgraph import PrefixState, subgraph, wrap_model

HANDBOOK = "The handbook says that every statement needs a source. " * 90
ROLES = ("coder", "tester")


class State(MessagesState, PrefixState):
    """Messages, and what was decided on them."""


def crew(bench, session):
    """Two agents of LangChain's own making, one after the other."""
    graph = StateGraph(MessagesState)
    previous = START
    for role in ROLES:
        agent = create_agent(
            wrap_model(bench.model(), session), bench.tools, system_prompt=f"You are the {role}.\n\n{HANDBOOK}"
        )
        graph.add_node(role, subgraph(agent, session, role=role))
        graph.add_edge(previous, role)
        previous = role
    return graph.compile()


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_agents_added_as_nodes_share_everything_but_their_tails(bench, later):
    """Tools, system and transcript of the second begin with those of the first."""
    session = bench.session(HANDBOOK)
    graph = crew(bench, session)
    given = {"messages": [HumanMessage("Please begin.")]}
    out = asyncio.run(graph.ainvoke(given)) if later else graph.invoke(given)
    first, second = bench.prompts()
    shared = first.sections[:-1]
    assert second.sections[: len(shared)] == shared
    for prompt, role in zip((first, second), ROLES, strict=True):
        assert f"You are the {role}." in prompt.sections[-1].text
    assert len(out["messages"]) == 3
    assert [call.agent for call in session.calls] == list(ROLES)


def test_langgraph_still_finds_the_wrapped_graphs(bench):
    """The copies are compiled graphs, so drawing and checkpoints see inside."""
    assert [name for name, _ in crew(bench, bench.session(HANDBOOK)).get_subgraphs()] == list(ROLES)


def test_a_model_bound_to_a_role_is_that_role_wherever_it_is_called(bench):
    """No decorator is needed around a prebuilt graph's own node."""
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session, role="supervisor", instruction="You supervise.")
    model.invoke([HumanMessage("Please begin.")])
    (prompt,) = bench.prompts()
    assert "You supervise." in prompt.sections[-1].text
    assert prompt.tier("system")[0].text == HANDBOOK
    assert session.calls[0].agent == "supervisor"


def test_a_graph_made_for_each_user_keeps_that_users_tool(bench):
    """Its description names the user, and the second one's graph could not be made."""
    session = bench.session(HANDBOOK)
    for user in ("alice", "bob"):
        find = StructuredTool.from_function(lambda at: at, name="find", description=f"Finds what is {user}'s.")
        agent = create_agent(wrap_model(bench.model(), session), [find], system_prompt=f"You find.\n\n{HANDBOOK}")
        given = {"configurable": {"thread_id": user}}
        subgraph(agent, session, role="finder").invoke({"messages": [HumanMessage("Please begin.")]}, given)
    shown = ["".join(section.text for section in prompt.sections) for prompt in bench.prompts()]
    held = [[user for user in ("alice", "bob") if f"what is {user}'s" in text] for text in shown]
    assert held == [["alice"], ["bob"]]
    assert "tool_schema_differs" in [one.why for one in session.calls[1].reasons]
    assert session.failures == {}


def test_what_is_no_compiled_graph_is_refused_by_name(bench):
    """The error says what to do instead."""
    with pytest.raises(SetupError, match=r"found StateGraph; call \.compile"):
        subgraph(StateGraph(MessagesState), bench.session(HANDBOOK))


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_what_a_graph_decided_is_in_the_state_around_it(bench, later):
    """Once an update, also where a node asks it twice or hands over; not where the state has no such key."""
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)

    def speaks(state):
        said = [SystemMessage(f"You are the coder. {'Mind the rules. ' * 99}\n\n{HANDBOOK}"), *state["messages"]]
        return {"messages": [model.invoke(said)]}

    def over(state):
        return Command(graph=Command.PARENT, update={"messages": [HumanMessage("Over.")]})

    alone = StateGraph(MessagesState).add_node(speaks).add_edge(START, "speaks")
    coder = subgraph(alone.compile(), session, role="coder")
    handing = subgraph(alone.add_node(over).add_edge("speaks", "over").compile(), session, role="coder")

    def twice(state, config):
        coder.invoke(state, config)
        return coder.invoke(state, config)

    async def atwice(state, config):
        await coder.ainvoke(state, config)
        return await coder.ainvoke(state, config)

    async def updates(graph):
        given = {"messages": [HumanMessage("Please begin.")]}
        return [one async for one in graph.astream(given, stream_mode="updates")]

    for node in (coder, handing, atwice if later else twice):
        for kind, keys in ((State, {"messages", "cacheprefix"}), (MessagesState, {"messages"})):
            graph = StateGraph(kind).add_node("coder", node).add_edge(START, "coder").compile()
            given = {"messages": [HumanMessage("Please begin.")]}
            made = asyncio.run(updates(graph)) if later else list(graph.stream(given, stream_mode="updates"))
            assert [set(one["coder"]) for one in made] == [keys]
    assert not session.failures
