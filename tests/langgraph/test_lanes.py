"""Which tools a LangGraph role's requests carry on the wire, and that large ones of others never make them dearer."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.profiles import default_registry
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply, SimulatedProvider, fill
from cacheprefix.wire import decode
from cacheprefix_langgraph import PrefixState, forked, wrap_model

HANDBOOK = "Every statement needs a source that the reader can open. " * 80
RULES = ("openai", "anthropic")


class Server(NamedTuple):
    """A provider and the rules that it follows."""

    provider: SimulatedProvider
    rules: str

    @property
    def requests(self):
        """What came in."""
        return self.provider.requests


class State(MessagesState, PrefixState):
    """A conversation and its ledger."""


@pytest.fixture(scope="module", params=RULES)
def server(request):
    """A provider that answers in a few words."""
    answer = lambda asked: Reply(fill(f"Answer {asked.index}:", 30))  # noqa: E731
    with SimulatedProvider(request.param, answer) as provider:
        yield Server(provider, request.param)


def tools(name, count, words=300):
    """So many tools of a role, of some two hundred tokens each."""
    form = {"type": "object", "properties": {"query": {"type": "string"}}}
    about = " ".join(f"{name}{number}" for number in range(words // 3))
    return [
        {"type": "function", "function": {"name": f"{name}_{n}", "description": f"{n} {about}", "parameters": form}}
        for n in range(count)
    ]


def talk(server, session, kits, turns, saver=None, *, late=""):
    """So many turns of one thread, in which each role answers with its own tools; the tools of each request.

    With ``late``, more of each role's text, its tools are bound only when it asks.
    """
    provider, rules = server
    provider.reset()
    if rules == "anthropic":
        model = ChatAnthropic(
            model="claude-opus-4-1", base_url=provider.anthropic_base_url, api_key="k", max_tokens=64, max_retries=0
        )
    else:
        model = ChatOpenAI(model="gpt-5.2", base_url=provider.openai_base_url, api_key="k", max_retries=0)
    model = model if session is None else wrap_model(model, session)
    graph, previous = StateGraph(State), START

    def node(name):
        bind = lambda: model.bind_tools(kits[name]) if kits[name] else model  # noqa: E731
        bound = None if late else bind()

        def answer(state):
            said = [SystemMessage(f"You are the {name}.{late}\n\n{HANDBOOK}"), *state["messages"]]
            return {"messages": [(bound or bind()).invoke(said)]}

        return answer if session is None else forked(session, role=name)(answer)

    for name in kits:
        graph.add_node(name, node(name))
        graph.add_edge(previous, name)
        previous = name
    graph.add_edge(previous, END)
    compiled = graph.compile(checkpointer=saver or InMemorySaver())
    for turn in range(turns):
        compiled.invoke({"messages": [HumanMessage(f"Turn {turn}?")]}, {"configurable": {"thread_id": "one"}})
    named = (record.json.get("tools", []) for record in provider.requests)
    return [[one.get("name") or one["function"]["name"] for one in listed] for listed in named]


def fresh(server):
    """A session that shares the handbook."""
    return Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider=server.rules, counter=ESTIMATE))


def units(server):
    """What all requests cost."""
    return sum(record.outcome.cost_units(default_registry().get(server.rules)) for record in server.requests)


def test_small_toolsets_are_united(server):
    """Every request carries the same tools in the same order."""
    kits = {"planner": tools("plan", 1), "critic": tools("check", 1), "writer": []}
    sent = talk(server, fresh(server), kits, 2)
    assert sent == [["check_0", "plan_0"]] * 6


@pytest.mark.parametrize("turns", [1, 6])
def test_large_toolsets_stay_with_their_roles(server, turns):
    """The requests are the application's own, and cost no more for it."""
    kits = {"planner": tools("plan", 30), "critic": tools("check", 30), "writer": tools("write", 30)}
    plain = talk(server, None, kits, turns)
    before = units(server)
    session = fresh(server)
    assert talk(server, session, kits, turns) == plain
    assert units(server) <= before * 1.001
    said = str(session.report())
    assert "x planner in the application's own layout" in said or "x planner: carries its own tools" in said
    assert session.failures == {}


def test_roles_without_tools_share_beside_one_with_many(server):
    """Two of three read each other's requests; the third keeps its layout or carries what is all its own."""
    kits = {"searcher": tools("search", 30), "critic": [], "writer": []}
    talk(server, None, kits, 6)
    before = units(server)
    session = fresh(server)
    sent = talk(server, session, kits, 6)
    assert units(server) < before
    assert sent[1::3] == sent[2::3] == [[]] * 6
    forks = [str(record.json["messages"][-1]) for record in server.requests]
    assert sum("<role name" in text for text in forks) >= 8
    assert session.failures == {}


def test_a_thread_that_begins_without_tools_reads_what_it_has_sent_when_others_bring_some(server):
    """Its first role goes on without them: behind tools its text, and all that follows it, would be paid once more."""
    kits, text = {"router": [], "worker": tools("work", 3)}, "rule, and its reason. " * 60
    talk(server, None, kits, 3, late=text)
    before = units(server)
    session = fresh(server)
    sent = talk(server, session, kits, 3, late=text)
    assert units(server) <= 1.02 * before
    assert sent[::2] == [[]] * 3
    assert session.failures == {}
    # Another process goes on so by what the thread has saved.
    saver = InMemorySaver()
    for turn in range(3):
        last = fresh(server)
        assert talk(server, last, kits, 1, saver, late=text)[0] == [], turn


def test_another_process_finds_the_lanes_in_the_thread(server):
    """The next turn's requests are those that the first process would have sent, but for marks of what it has sent."""
    kits = {"planner": tools("plan", 60), "critic": tools("check", 1)}
    one, other, session = InMemorySaver(), InMemorySaver(), fresh(server)
    talk(server, session, kits, 3, one)
    talk(server, session, kits, 1, one)
    here = said(server)
    talk(server, fresh(server), kits, 3, other)
    talk(server, fresh(server), kits, 1, other)
    assert said(server) == here


def said(server):
    """The sections of each request."""
    return [[one.data for one in decode(record.json, record.api).sections] for record in server.requests]


def test_tools_that_the_provider_runs_stay_with_those_who_bound_them():
    """They have no schema to unite; roles with the very same tools share all the same, and nothing failed."""
    with SimulatedProvider("openai", lambda _: Reply("Found.")) as provider:
        session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="openai", counter=ESTIMATE))
        kwargs = {"base_url": provider.openai_base_url, "api_key": "k", "max_retries": 0, "use_responses_api": True}
        model = wrap_model(ChatOpenAI(model="gpt-5.2", **kwargs), session)
        bound = model.bind_tools([{"type": "web_search_preview"}, *tools("look", 1)])
        for name in ("planner", "critic"):
            said = [SystemMessage(f"You are the {name}.\n\n{HANDBOOK}"), HumanMessage("Go.")]
            forked(session, role=name)(lambda state: bound.invoke(state["messages"]))({"messages": said})
        sent = [[one.get("name") or one["type"] for one in record.json["tools"]] for record in provider.requests]
        read = [record.outcome.read_tokens for record in provider.requests]
    assert sent == [["web_search_preview", "look_0"]] * 2
    assert read[0] == 0 < read[1]
    assert any("web_search_preview" in note for note in session.report().notes)
    assert session.failures == {}
