"""Compiled graphs and models bound to a role, as forks on the wire."""

import asyncio

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix.errors import SetupError
from cacheprefix_langgraph import subgraph, wrap_model

HANDBOOK = "The handbook says that every statement needs a source. " * 90
ROLES = ("coder", "tester")


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


def test_what_is_no_compiled_graph_is_refused_by_name(bench):
    """The error says what to do instead."""
    with pytest.raises(SetupError, match=r"found StateGraph; call \.compile"):
        subgraph(StateGraph(MessagesState), bench.session(HANDBOOK))
