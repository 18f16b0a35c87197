"""Agents whose application has their requests cached itself, by LangChain's caching middleware."""

from __future__ import annotations

from collections import Counter

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_anthropic.middleware import AnthropicPromptCachingMiddleware
from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.profiles import default_registry
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply, SimulatedProvider, ToolCall, fill
from cacheprefix_langgraph import subgraph, wrap_model

HANDBOOK = fill("The handbook.", 4_800)
SIZES = {"first": 1_100, "second": 1_000, "third": 1_400, "fourth": 2_400, "fifth": 2_700}
TOOLS = {"first": 3, "second": 2, "third": 1, "fourth": 0, "fifth": 4}
CALLS = {"first": 2, "fifth": 1}
"""How often an agent calls a tool in a round."""


def test_what_agents_read_of_their_own_requests_is_reckoned_with():
    """Five agents with large tools, in three rounds; 0.88 of unmodified, had nothing of their own been in the cache."""
    assert cost("fork") <= 0.85 * cost(None)


def cost(mode):
    """Cost units of one run; ``mode`` None is without us."""
    asked = Counter()

    def script(request):
        name = next(name for name in SIZES if f"You are the {name}." in request.text)
        asked[name] += 1
        if asked[name] % (CALLS.get(name, 0) + 1):
            return Reply(tool_calls=(ToolCall(f"{name}_0", {"query": f"part {asked[name]}"}),))
        return Reply(fill(f"The {name} says {asked[name]}.", 40))

    with SimulatedProvider("anthropic", script, count=ESTIMATE) as provider:
        model = ChatAnthropic(
            model="claude-opus-4-1", base_url=provider.anthropic_base_url, api_key="k", max_retries=0, max_tokens=90
        )
        session = mode and Session(SharedPrefix(system=HANDBOOK), mode=mode, caching=Caching(counter=ESTIMATE))
        model = wrap_model(model, session) if session else model
        graph, previous = StateGraph(MessagesState), START
        team = {name: agent(model, session, name) for name in SIZES}
        for turn in range(3):
            for name in SIZES:
                graph.add_node(f"{name} {turn}", team[name])
                graph.add_edge(previous, f"{name} {turn}")
                previous = f"{name} {turn}"
        graph.compile().invoke({"messages": [HumanMessage(fill("Begin.", 60))]}, {"recursion_limit": 100})
        profile = default_registry().get("anthropic")
        return sum(one.outcome.cost_units(profile) for one in provider.requests)


def agent(model, session, name):
    """An agent with a long role text and large tools."""

    def look(query: str) -> str:
        return fill(f"About {query}.", 200)

    tools = [
        StructuredTool.from_function(look, name=f"{name}_{number}", description=fill(f"{name} {number}.", 380))
        for number in range(TOOLS[name])
    ]
    text = f"You are the {name}.\n\n{fill(name, SIZES[name])}\n\n{HANDBOOK}"
    middleware = [AnthropicPromptCachingMiddleware()]
    made = create_agent(model, tools, system_prompt=text, middleware=middleware, name=name)
    return subgraph(made, session, role=name) if session else made
