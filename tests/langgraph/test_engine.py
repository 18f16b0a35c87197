"""LangGraph's forks on a real prefix cache: llama.cpp reports what the session expected."""

from __future__ import annotations

import openai
import pytest
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

from benchmarks.local_engine import COUNTER, ENVELOPE, MODEL, rules
from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix_langgraph import PrefixMiddleware, forked, wrap_model

HANDBOOK = "Every statement needs a source that the reader can open. " * 4
ROLES = {"planner": "You plan.", "critic": "You criticise.", "writer": "You write."}


@pytest.fixture
def model(engine):
    """``model(kind)`` is LangChain's own client of the engine."""

    def make(kind):
        common = {"model": MODEL, "api_key": "any", "max_retries": 0, "max_tokens": 6}
        if kind == "anthropic":
            return ChatAnthropic(base_url=engine.anthropic_base_url, **common)
        return ChatOpenAI(base_url=engine.openai_base_url, **common)

    return make


def team(model, session, handbook):
    """Three roles in a row, the role in front of the handbook as applications write it."""

    def node(role, text):
        def ask(state):
            own = [SystemMessage(f"{text}\n\n{handbook}"), *state["messages"], HumanMessage("Do your part.")]
            return {"messages": [model.invoke(own)]}

        return forked(session, role=role)(ask)

    graph = StateGraph(MessagesState)
    previous = START
    for role, text in ROLES.items():
        graph.add_node(role, node(role, text))
        graph.add_edge(previous, role)
        previous = role
    graph.add_edge(previous, END)
    return graph.compile()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_forked_nodes_read_the_shared_part_from_a_real_cache(model, fresh_text, kind):
    """Every role but the first reads the handbook and the transcript, as the session expected."""
    handbook = fresh_text(HANDBOOK)
    session = Session(
        SharedPrefix(system=handbook), caching=Caching(provider="llama.cpp", profiles=rules(), counter=COUNTER)
    )
    team(wrap_model(model(kind), session), session, handbook).invoke({"messages": [HumanMessage("Begin.")]})
    first, *others = session.calls
    assert (first.usage.cache_read_tokens or 0) <= ENVELOPE.opening
    assert [call.agent for call in others] == ["critic", "writer"]
    for call in others:
        assert call.usage.cache_read_tokens >= COUNTER(handbook)
        assert call.usage.cache_read_tokens == call.verdict.expected_tokens
        assert call.verdict.cause == "hit"
    assert session.failures == {}


@pytest.mark.slow
def test_agents_with_the_middleware_read_tools_and_text_from_a_real_cache(model, fresh_text):
    """create_agent: two agents with one frozen set of tools read each other's beginning."""
    handbook = fresh_text(HANDBOOK)

    def lookup(topic: str) -> str:
        """Look a topic up."""
        return topic

    session = Session(
        SharedPrefix(system=handbook, tools=[lookup]),
        caching=Caching(provider="llama.cpp", profiles=rules(), counter=COUNTER),
    )
    agents = [
        create_agent(model("openai"), [lookup], system_prompt=text, middleware=[PrefixMiddleware(session, role=role)])
        for role, text in list(ROLES.items())[:2]
    ]
    for agent in agents:
        agent.invoke({"messages": [HumanMessage("Begin.")]})
    first, second = session.calls
    assert second.usage.cache_read_tokens >= COUNTER(handbook)
    assert second.usage.cache_read_tokens == second.verdict.expected_tokens
    assert first.usage.input_tokens == first.input_tokens + ENVELOPE.answer


@pytest.mark.parametrize("mode", ["observe", "fork"])
def test_what_ends_with_two_assistant_messages_is_refused_unmodified_and_answered_as_a_fork(model, fresh_text, mode):
    """llama.cpp takes one for the beginning of its answer and refuses two; a fork ends with the user's turn."""
    handbook = fresh_text(HANDBOOK)
    session = Session(
        SharedPrefix(system=handbook),
        caching=Caching(provider="llama.cpp", profiles=rules(), counter=COUNTER),
        mode=mode,
    )
    chat, sent = wrap_model(model("openai"), session), []

    @forked(session, role="critic")
    def critic(state):
        sent.append(chat.invoke([SystemMessage(f"Criticise it.\n\n{handbook}"), *state["messages"]]))
        return {"messages": sent}

    said = [HumanMessage("Begin."), AIMessage("I plan.", name="planner"), AIMessage("I write.", name="writer")]
    if mode == "observe":
        with pytest.raises(openai.BadRequestError, match="2 or more assistant messages"):
            critic({"messages": said})
    else:
        critic({"messages": said})
        assert sent[0].content
        assert session.failures == {}
