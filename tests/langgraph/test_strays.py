"""Nodes that do not send the conversation as the state has it: with messages of their own in front, or written anew."""

from __future__ import annotations

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.profiles import default_registry
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply, SimulatedProvider, fill
from cacheprefix_langgraph import forked, wrap_model

HANDBOOK = "Every statement needs a source that the reader can open. " * 110
NAMES = ("planner", "critic", "writer")


def notes(name):
    """A text that a node puts in front."""
    return HumanMessage(fill(f"Notes for {name}.", 1_200))


WAYS = {
    "the handbook in front": lambda name, said: [HumanMessage(HANDBOOK), *said],
    "the same in front": lambda name, said: [notes("all"), *said],
    "the role's own in front": lambda name, said: [notes(name), *said],
    "others in front each time": lambda name, said: [notes(f"{name} {len(said)}"), *said],
    "written anew": lambda name, said: [HumanMessage(one.text) if isinstance(one, AIMessage) else one for one in said],
    "the last ones": lambda name, said: said[-3:],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rules", ["openai-5.6", "anthropic", "anthropic, marked"])
def test_a_run_is_not_dearer(way, rules):
    """Three roles in four rounds cost less than without us: what others or the role itself read again is marked."""
    row, _, marked = rules.partition(",")
    costs = []
    for mode in (None, "fork"):
        with SimulatedProvider(
            row, lambda request: Reply(fill(f"Answer {request.index}.", 200)), count=ESTIMATE
        ) as provider:
            run(provider, WAYS[way], mode, marked=bool(marked))
            profile = default_registry().get(row)
            costs.append(sum(one.outcome.cost_units(profile) for one in provider.requests))
    assert costs[1] < 0.97 * costs[0]


def run(provider, way, mode, *, marked):
    """One run of the team; ``mode`` None is without us."""
    options = {"base_url": provider.openai_base_url, "api_key": "k", "max_retries": 0}
    model = ChatOpenAI(model="gpt-5.6", **options)
    if provider.simulator.rules == "anthropic":
        options["base_url"] = provider.anthropic_base_url
        model = ChatAnthropic(model="claude-opus-4-1", max_tokens=900, **options)
    session = mode and Session(SharedPrefix(system=HANDBOOK), mode=mode, caching=Caching(counter=ESTIMATE))
    model = wrap_model(model, session) if session else model
    graph, previous = StateGraph(MessagesState), START

    def node(name):
        text = f"You are the {name}." if way is WAYS["the handbook in front"] else f"You are the {name}.\n\n{HANDBOOK}"
        lead = SystemMessage(
            [{"type": "text", "text": text, **({"cache_control": {"type": "ephemeral"}} if marked else {})}]
        )

        def answer(state):
            return {"messages": [model.invoke([lead, *way(name, state["messages"])])]}

        return forked(session, role=name)(answer) if session else answer

    for turn in range(4):
        for name in NAMES:
            graph.add_node(f"{name} {turn}", node(name))
            graph.add_edge(previous, f"{name} {turn}")
            previous = f"{name} {turn}"
    graph.compile().invoke({"messages": [HumanMessage(fill("Begin.", 300))]})
