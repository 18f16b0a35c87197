"""Agents that are nodes of a graph: what they decided is there in a thread's next run, with limits and without."""

from __future__ import annotations

import json

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import TodoListMiddleware
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix import Caching, Session, SharedPrefix, ToolResultBudget
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply
from cacheprefix_langgraph import PrefixMiddleware, PrefixState, wrap_model

HANDBOOK = "Every statement needs a source. " * 300
THREAD = {"configurable": {"thread_id": "one"}}


@tool
def find(number: int) -> str:
    """Find an order."""
    return f"Order {number}."


@tool
def refund(number: int) -> str:
    """Refund an order."""
    return f"Refunded {number}."


class Kept(MessagesState, PrefixState):
    """A state that keeps decisions."""


def team(session, provider, state, *, inside):
    """Two agents, of whom the second one's tools are known in its first request; nodes, or called in nodes."""
    llm = wrap_model(ChatOpenAI(model="gpt-5.2", base_url=provider.openai_base_url, api_key="k"), session)
    graph, before = StateGraph(state), START
    for name, tools, more in (("billing", [find, refund], []), ("shipping", [find], [TodoListMiddleware()])):
        prefixed = PrefixMiddleware(session, role=name)
        text = f"You are the {name}.\n\n{HANDBOOK}"
        agent = create_agent(llm, tools, system_prompt=text, name=name, middleware=[*more, prefixed])

        def called(given, agent=agent):
            return {"messages": agent.invoke({"messages": given["messages"]})["messages"]}

        graph.add_node(name, called if inside else agent)
        graph.add_edge(before, name)
        before = name
    return graph.compile(checkpointer=InMemorySaver())


@pytest.mark.parametrize("inside", [False, True], ids=["a node", "called in a node"])
@pytest.mark.parametrize("state", [MessagesState, Kept])
@pytest.mark.parametrize("limit", [{"compaction": 60_000}, {"budget": ToolResultBudget(max_tokens=5_000)}], ids="".join)
def test_a_limit_that_nothing_reaches_changes_no_request(servers, limit, state, inside):
    """Also where the graph around the agents has no place for what they decided: the process keeps it."""
    provider, sent = servers("openai"), []
    for options in ({}, limit):
        provider.reset()
        provider.simulator.script = lambda request: Reply(f"Answer {request.index}.")
        caching = Caching(counter=ESTIMATE)
        session = Session(SharedPrefix(system=HANDBOOK), caching=caching, **options)
        app = team(session, provider, state, inside=inside)
        for number in range(3):
            app.invoke({"messages": [HumanMessage(f"Question {number}?", id=f"q{number}")]}, THREAD)
        assert not session.failures
        sent.append([json.loads(record.body) for record in provider.requests])
    assert sent[1] == sent[0]
