"""Summaries that a fork writes in coroutines: the event loop goes on, and the bytes are those of the sync path."""

import asyncio
import threading

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix import Compaction, History, RequestBudget
from cacheprefix.errors import BudgetError
from cacheprefix.forks import SideForks
from cacheprefix.server import Echo
from cacheprefix_langgraph import PrefixState, forked, wrap_model

HANDBOOK = "The handbook says that every statement needs a source. " * 90
PAGE = "a line that somebody read once and will hardly need again. " * 60
SUMMARISING = Compaction(trigger=6_000, summarise="fork", keep_turns=2)
CONFIG = {"configurable": {"thread_id": "one"}}
ONE = pytest.mark.parametrize("bench", ["anthropic"], indirect=True)


class State(MessagesState, PrefixState):
    pass


def build(bench, session, how, *, bound=False, saver=None):
    """A graph that answers once, with a model that is called in one way."""
    model = wrap_model(bench.model(), session, **({"role": "reader"} if bound else {}))
    session.adapter.join("another")

    async def speak(state):
        given = [SystemMessage("You read."), *state["messages"]]
        if how == "stream":
            text = "".join([chunk.text async for chunk in model.astream(given)])
        else:
            text = (await model.ainvoke(given)).text
        return {"messages": [AIMessage(text)]}

    def say(state):
        return {"messages": [AIMessage(model.invoke([SystemMessage("You read."), *state["messages"]]).text)]}

    node = say if how == "sync" else speak
    graph = StateGraph(State)
    graph.add_node("speak", node if bound else forked(session, role="reader")(node))
    graph.add_edge(START, "speak")
    return graph.compile(checkpointer=saver)


def talk(start, end):
    """Long questions and answers, and a last question."""
    pairs = [(HumanMessage(f"Question {n}. {PAGE}"), AIMessage(f"Answer {n}. {PAGE}")) for n in range(start, end)]
    return [*(one for pair in pairs for one in pair), HumanMessage("And now?")]


class Held(Echo):
    """Answers a summary only when somebody else in the event loop has gone on meanwhile."""

    def __init__(self):
        super().__init__()
        self.asked, self.let = threading.Event(), threading.Event()
        self.met = []

    def __call__(self, request):
        """An echo, which for a summary waits to be let go."""
        reply = super().__call__(request)
        if "Summarise this conversation" in request.tail:
            self.asked.set()
            self.met.append(self.let.wait(10))
        return reply

    async def meanwhile(self):
        """Another task of the same event loop."""
        for _ in range(2_000):
            if self.asked.is_set():
                break
            await asyncio.sleep(0.005)
        self.let.set()


@pytest.mark.parametrize("how", ["invoke", "stream"])
def test_other_tasks_go_on_while_a_summary_is_written(bench, how):
    """The model answers the summary only after another task has run; the next request has the summary in it."""
    session = bench.session(HANDBOOK, compaction=SUMMARISING)
    held = Held()
    bench.script(held)

    async def both():
        """The graph, and a task beside it."""
        graph = build(bench, session, how)
        await asyncio.gather(graph.ainvoke({"messages": talk(0, 8)}, CONFIG), held.meanwhile())

    asyncio.run(both())
    assert held.met == [True]
    asked, second = bench.prompts()
    assert "Summarise this conversation" in asked.sections[-1].text
    assert second.tokens < 6_000
    assert [call.agent for call in session.calls] == ["summary", "reader"]
    assert session.failures == {}


@ONE
@pytest.mark.parametrize("bound", [False, True], ids=["node", "bound model"])
@pytest.mark.parametrize("how", ["invoke", "stream"])
def test_a_coroutine_sends_what_the_synchronous_call_sends(bench, how, bound):
    """The summary's request and the one behind it, byte for byte; on a thread and without one."""

    def bodies(how, config):
        """The prompts that are sent, as bytes."""
        bench.provider.reset()
        session = bench.session(HANDBOOK, compaction=SUMMARISING)
        given = {"messages": talk(0, 8)}
        graph = build(bench, session, how, bound=bound)
        if how == "sync":
            graph.invoke(given, config)
        else:
            asyncio.run(graph.ainvoke(given, config))
        assert session.failures == {}
        return [[section.data for section in prompt.sections] for prompt in bench.prompts()]

    plain = bodies("sync", CONFIG)
    assert len(plain) == 2
    assert bodies(how, CONFIG) == plain
    if how == "invoke":
        bench.release()
        assert bodies(how, None) == plain


@ONE
def test_a_summary_that_cannot_be_had_leaves_an_extract(bench, monkeypatch):
    """The failure is counted, the request goes on compacted, and nothing is asked again in the synchronous path."""
    session = bench.session(HANDBOOK, compaction=SUMMARISING)

    def broken(*_, **__):
        raise ConnectionError

    model = build(bench, session, "invoke")
    monkeypatch.setattr(SideForks, "asummary", lambda *_, **__: broken)
    asyncio.run(model.ainvoke({"messages": talk(0, 8)}, CONFIG))
    (prompt,) = bench.prompts()
    assert prompt.tokens < 6_000
    assert list(session.failures) == ["summary"]


@ONE
def test_an_impossible_budget_is_the_applications_error_in_a_coroutine_too(bench):
    """Nothing is sent."""
    limit = RequestBudget(window=1_500, reserve=200)
    session = bench.session(HANDBOOK, compaction=SUMMARISING, history=History(request_budget=limit))
    with pytest.raises(BudgetError):
        asyncio.run(build(bench, session, "invoke").ainvoke({"messages": talk(0, 2)}, CONFIG))
    assert bench.bodies == []


@ONE
def test_zones_are_refreshed_with_a_summary_that_was_awaited(bench):
    """The new text waits for the compaction, whose summary a coroutine awaits, and a resumed thread repeats it."""
    saver = InMemorySaver()
    session = bench.session(HANDBOOK, compaction=SUMMARISING)

    async def run():
        """Two turns, the second of which is compacted."""
        graph = build(bench, session, "invoke", saver=saver)
        session.conversation("one").set_zone("memories", "She likes tea.")
        await graph.ainvoke({"messages": [HumanMessage("Please begin.")]}, CONFIG)
        session.conversation("one").set_zone("memories", "She likes coffee now.")
        await graph.ainvoke({"messages": talk(0, 8)}, CONFIG)

    asyncio.run(run())
    bench.release()
    build(bench, bench.session(HANDBOOK), "sync", saver=saver).invoke({"messages": [HumanMessage("Go on.")]}, CONFIG)
    _, _, before, after = bench.prompts()
    text = "\n".join(section.text for section in before.tier("messages"))
    assert "coffee" in text
    assert "tea" not in text
    assert after.sections[: len(before.sections) - 1] == before.sections[:-1]
