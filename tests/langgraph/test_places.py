"""Where a LangGraph role's text stands on the wire: at the end, or still where the role last had it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from cacheprefix import Caching, Compaction, Session, SharedPrefix
from cacheprefix.profiles import default_registry
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply, SimulatedProvider, fill
from cacheprefix_langgraph import PrefixState, forked, subgraph, wrap_model

HANDBOOK = "Every statement needs a source that the reader can open. " * 80
LONG = {name: f"You are the {name}. " + f"{name} rule, and its reason. " * 60 + "Go." for name in ("planner", "critic")}
SHORT = {name: f"You are the {name}." for name in ("planner", "critic")}


class State(MessagesState, PrefixState):
    """A conversation and its ledger."""


@pytest.fixture(scope="module")
def server():
    """A provider that caches everything and answers in a few words."""
    with SimulatedProvider("openai", lambda request: Reply(fill(f"Answer {request.index}:", 12))) as provider:
        yield provider


def team(provider, session, texts, saver, *, whole=False, shared_first=False):
    """A graph in which each role answers once a turn; ``whole``: each a graph of its own, which has no such channel."""
    model = ChatOpenAI(model="gpt-5.2", base_url=provider.openai_base_url, api_key="k", max_retries=0)
    model = model if session is None else wrap_model(model, session)
    graph, previous = StateGraph(State), START

    def node(name):
        system = "\n\n".join((HANDBOOK, texts[name]) if shared_first else (texts[name], HANDBOOK))

        def answer(state):
            return {"messages": [model.invoke([SystemMessage(system), *state["messages"]])]}

        if whole:
            alone = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile(name=name)
            return subgraph(alone, session, role=name)
        return answer if session is None else forked(session, role=name)(answer)

    for name in texts:
        graph.add_node(name, node(name))
        graph.add_edge(previous, name)
        previous = name
    graph.add_edge(previous, END)
    return graph.compile(checkpointer=saver)


def talk(provider, session, texts, turns, saver=None, thread="one"):
    """So many turns of one thread; the messages of each request."""
    provider.reset()
    graph = team(provider, session, texts, saver or InMemorySaver())
    for turn in range(turns):
        graph.invoke({"messages": [HumanMessage(f"Turn {turn}?")]}, {"configurable": {"thread_id": thread}})
    return [record.json["messages"] for record in provider.requests]


def fresh(**options):
    """A session that shares the handbook."""
    return Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="openai", counter=ESTIMATE), **options)


def units(provider):
    """What all requests cost."""
    return sum(record.outcome.cost_units(default_registry().get("openai")) for record in provider.requests)


def test_a_long_text_keeps_its_place_and_the_next_request_begins_with_the_whole_earlier_one(server):
    """Append only, role by role: nothing that was sent is sent anew."""
    sent = talk(server, fresh(), LONG, 5)
    for mine in (sent[2::2], sent[3::2]):
        for before, after in pairwise(mine):
            assert after[: len(before)] == before
            assert LONG["planner"] not in str(after[-1])
            assert LONG["critic"] not in str(after[-1])


def test_a_short_text_stays_the_last_message(server):
    """So that everyone shares all that stands before it."""
    for index, messages in enumerate(talk(server, fresh(), SHORT, 4)):
        assert f"You are the {'critic' if index % 2 else 'planner'}." in messages[-1]["content"]


def test_another_process_takes_up_the_recorded_place(server):
    """With the saved thread alone, its next request is the one that the first process would have sent."""
    saver = InMemorySaver()
    talk(server, fresh(), LONG, 4, saver)
    here = talk(server, fresh(), LONG, 1, saver)
    twin = InMemorySaver()
    session = fresh()
    talk(server, session, LONG, 4, twin)
    assert talk(server, session, LONG, 1, twin)[0] == here[0]
    assert LONG["planner"] not in str(here[0][-1])


@pytest.mark.slow
@pytest.mark.parametrize("texts", [LONG, SHORT], ids=["long", "short"])
@pytest.mark.parametrize("whole", [False, True], ids=["nodes", "subgraphs"])
def test_a_thread_resumed_after_each_turn_sends_what_one_process_sends(whole, texts):
    """Also where a long text leaves its place, and after going back: the reckoning is saved, not only the place."""

    def turns(provider, saver, *, resumed):
        provider.reset()
        graph, states = team(provider, fresh(), texts, saver, whole=whole), []
        for number, size in enumerate((400, 1000, 400, 20, 400, 100)):
            graph = team(provider, fresh(), texts, saver, whole=whole) if resumed else graph
            # The last turn but one goes back to the second's end.
            thread = states[1].config if number == 4 else {"configurable": {"thread_id": "one"}}
            graph.invoke({"messages": [HumanMessage(f"{number}: {'pad ' * size}")]}, thread)
            states.append(graph.get_state({"configurable": {"thread_id": "one"}}))
        return [record.json["messages"] for record in provider.requests]

    with SimulatedProvider("openai", lambda request: Reply("fine " * (len(request.text) % 50))) as provider:
        sent = turns(provider, InMemorySaver(), resumed=False)
        assert turns(provider, InMemorySaver(), resumed=True) == sent
    assert len({tuple("<role" in str(message) for message in messages) for messages in sent}) > 4


def test_a_short_text_that_stays_is_resumed_where_it_stands():
    """What it has cost so far is saved: by that it stays where it is, or goes to the end."""

    def turns(provider, *, resumed):
        provider.reset()
        saver, graph = InMemorySaver(), None
        for number in range(12):
            if resumed or graph is None:
                graph = team(provider, fresh(), {"planner": "You are the planner."}, saver)
            message = HumanMessage(f"{number}: {'pad ' * (number % 3)}")
            graph.invoke({"messages": [message]}, {"configurable": {"thread_id": "one"}})
        return [record.json["messages"] for record in provider.requests]

    with SimulatedProvider("openai", lambda request: Reply("Fine.")) as provider:
        assert turns(provider, resumed=True) == turns(provider, resumed=False)


def test_a_thread_that_a_compaction_makes_short_is_resumed_as_what_it_was():
    """It was once long enough to share, and its requests stay forks; before that point, in one process too, none is."""
    texts = {name: f"{SHORT[name]}\n\n{HANDBOOK[:2000]}" for name in SHORT}
    rules = Compaction(trigger=1_500, target=600, keep_turns=1, keep_users=False, horizon=10_000)

    def turns(provider, *, resumed):
        def made():
            sharing = SharedPrefix(system=HANDBOOK[:2000])
            session = Session(sharing, caching=Caching(provider="openai", counter=ESTIMATE), compaction=rules)
            return team(provider, session, texts, saver)

        provider.reset()
        saver, states = InMemorySaver(), []
        graph = made()
        for number, size in enumerate((10, 700, 10, 430, 10)):
            graph = made() if resumed else graph
            # The last turn goes back to the first one's end.
            thread = states[0].config if number == 4 else {"configurable": {"thread_id": "one"}}
            graph.invoke({"messages": [HumanMessage(f"{number}: {'pad ' * size}")]}, thread)
            states.append(graph.get_state({"configurable": {"thread_id": "one"}}))
        return [record.json["messages"] for record in provider.requests]

    with SimulatedProvider("openai", lambda request: Reply(f"fine {len(request.text)}")) as provider:
        sent = turns(provider, resumed=False)
        assert turns(provider, resumed=True) == sent
    forked_ = ["<role" in str(messages) for messages in sent]
    assert "removed" in str(sent[6])
    assert (forked_[0], forked_[6], forked_[8]) == (False, True, False)


@settings(max_examples=6, phases=(Phase.generate,), suppress_health_check=list(HealthCheck), deadline=None)
@given(
    long=st.sets(st.sampled_from(["planner", "critic"])),
    turns=st.integers(1, 5),
    short=st.sampled_from([0, 40, 90]),
)
def test_a_finished_thread_is_never_dearer(server, long, turns, short):
    """Whoever brings a long text, and however short the answers are."""
    texts = {name: (LONG if name in long else SHORT)[name] + " Be careful." * short for name in LONG}
    talk(server, None, texts, turns)
    plain = units(server)
    session = fresh()
    talk(server, session, texts, turns)
    assert units(server) <= plain * 1.005
    assert not session.failures


@pytest.mark.parametrize("texts", [SHORT, LONG, SHORT | {"critic": LONG["critic"]}], ids=["short", "long", "mixed"])
@pytest.mark.parametrize("tokens", [30, 200])
def test_nodes_whose_prompts_begin_with_the_shared_text_already_are_never_dearer(texts, tokens):
    """Their small requests stay as they are, and forks read the shared text that those have written."""
    costs = []
    for session in (None, fresh()):
        with SimulatedProvider("openai", lambda request: Reply(fill(f"Answer {request.index}:", tokens))) as provider:
            graph = team(provider, session, texts, InMemorySaver(), shared_first=True)
            for turn in range(4):
                graph.invoke({"messages": [HumanMessage(f"Turn {turn}?")]}, {"configurable": {"thread_id": "one"}})
            rules = default_registry().get("openai")
            costs.append([record.outcome.cost_units(rules) for record in provider.requests])
    unmodified, ours = costs
    for calls in range(4, 9):
        assert sum(ours[:calls]) <= 1.1 * sum(unmodified[:calls])
    assert session.report().total.unmodified_units == pytest.approx(sum(unmodified), rel=0.02)


def test_a_broken_choice_of_the_place_leaves_the_applications_own_request(server, monkeypatch):
    """The failure is counted, and every call says it."""
    monkeypatch.setattr("cacheprefix.layout.role_position.RolePositions.choose", lambda *_, **__: 1 / 0)
    session = fresh()
    with pytest.warns(UserWarning, match="layout"):
        sent = talk(server, session, LONG, 1)
    assert session.failures["layout"] == 2
    assert all(LONG[name] in str(messages[0]) for name, messages in zip(LONG, sent, strict=True))
    assert {(call.layout, call.reasons[-1].why) for call in session.calls} == {("own", "failed")}


@pytest.mark.parametrize("documents", ["none", "in front of the role's text", "behind it"])
def test_a_graph_that_is_asked_in_short_threads_reads_what_its_nodes_read_without_us(server, documents):
    """Long role texts, or documents of each thread in the system texts, are paid once more in the first ones alone."""
    model = ChatOpenAI(model="gpt-5.2", base_url=server.openai_base_url, api_key="k", max_retries=0)
    texts, found = {name: text if documents != "none" else text * 2 for name, text in LONG.items()}, {"": ""}

    def node(name, asked):
        def answer(state):
            parts = [found[""], texts[name]] if documents == "in front of the role's text" else [texts[name], found[""]]
            system = "\n\n".join(part for part in (HANDBOOK, *parts) if part)
            return {"messages": [asked.invoke([SystemMessage(system), *state["messages"]])]}

        return answer

    def threads(session):
        server.reset()
        asked, graph, previous = model if session is None else wrap_model(model, session), StateGraph(State), START
        for name in texts:
            graph.add_node(
                name, node(name, asked) if session is None else forked(session, role=name)(node(name, asked))
            )
            graph.add_edge(previous, name)
            previous = name
        compiled = graph.compile(checkpointer=InMemorySaver())
        for thread in range(6):
            found[""] = "" if documents == "none" else fill(f"Document {thread}:", 700)
            said = fill(f"Question {thread}:", 150)
            compiled.invoke({"messages": [HumanMessage(said)]}, {"configurable": {"thread_id": f"{thread}"}})
        return [record.outcome.cost_units(default_registry().get("openai")) for record in server.requests]

    session = fresh()
    own, ours = threads(None), threads(session)
    assert session.failures == {}
    # What a fork says more is the role's name around its text.
    assert sum(ours[6:]) <= 1.03 * sum(own[6:])
