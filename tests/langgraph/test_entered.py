"""Every way into a node: whatever method a graph or a Runnable is run by, what is asked inside is a fork."""

import asyncio
import functools
import sys
import time
import warnings

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import (
    ConfigurableField,
    RunnableBranch,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix import ToolResultBudget
from cacheprefix_langgraph import PrefixMiddleware, PrefixState, forked, subgraph, wrap_model
from tests.langgraph.test_ledger import history

HANDBOOK = "The handbook says that every statement needs a source. " * 90
SAYS = "Draft in two sentences."
"""What only the fork knows."""
GIVEN = {"messages": history()}

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="LangGraph's async nodes do not find their run before Python 3.11"
)


class State(MessagesState, PrefixState):
    """Messages, and what was decided on them."""


async def gather(stream):
    """All that a stream gives."""
    return [one async for one in stream]


async def third(app):
    """Events of version 3, read to the end."""
    async with await app.astream_events(GIVEN, version="v3") as run:
        return [one async for one in run]


async def one(given):
    """A stream of one thing."""
    yield given


WAYS = {
    "invoke": lambda app: app.invoke(GIVEN),
    "stream": lambda app: list(app.stream(GIVEN)),
    "messages": lambda app: list(app.stream(GIVEN, stream_mode="messages")),
    "batch": lambda app: app.batch([GIVEN]),
    "batch_as_completed": lambda app: list(app.batch_as_completed([GIVEN])),
    "map": lambda app: app.map().invoke([GIVEN]),
    "transform": lambda app: list(app.transform(iter([GIVEN]))),
    "stream_events_v3": lambda app: list(app.stream_events(GIVEN, version="v3")),
    "ainvoke": lambda app: app.ainvoke(GIVEN),
    "astream": lambda app: gather(app.astream(GIVEN)),
    "amessages": lambda app: gather(app.astream(GIVEN, stream_mode="messages")),
    "abatch": lambda app: app.abatch([GIVEN]),
    "abatch_as_completed": lambda app: gather(app.abatch_as_completed([GIVEN])),
    "atransform": lambda app: gather(app.atransform(one(GIVEN))),
    "astream_log": lambda app: gather(app.astream_log(GIVEN)),
    "astream_events_v1": lambda app: gather(app.astream_events(GIVEN, version="v1")),
    "astream_events_v2": lambda app: gather(app.astream_events(GIVEN, version="v2")),
    "astream_events_v3": third,
}
"""How a graph is run."""
QUICK = ("invoke", "map", "astream_log", "astream_events_v2")
"""The ways that are tried each time."""


def each(ways):
    """Ways as parameters; all but the quick ones are slow together."""
    return [pytest.param(way, marks=[] if way in QUICK else pytest.mark.slow) for way in ways]


ASYNC = [way for way in WAYS if way.startswith("a")]
STREAMED = ("astream_log", "astream_events_v1", "astream_events_v2")
"""The ways in which LangGraph streams its nodes."""


def chain_of(model):
    """A chain as the documentation of LangChain makes them."""
    prompt = ChatPromptTemplate.from_messages([("system", "You draft."), MessagesPlaceholder("messages")])
    return prompt | model | (lambda answer: {"messages": [answer]})


def asks(model, state):
    """What a node asks."""
    return {"messages": [model.invoke([SystemMessage("You draft."), *state["messages"]])]}


async def aasks(model, state):
    """As ``asks``, later."""
    return {"messages": [await model.ainvoke([SystemMessage("You draft."), *state["messages"]])]}


def function_of(model):
    """A function as a node."""

    def draft(state):
        return asks(model, state)

    return draft


def coroutine_of(model):
    """A coroutine function."""

    async def draft(state):
        return await aasks(model, state)

    return draft


def generator_of(model):
    """A generator function."""

    def draft(state):
        yield asks(model, state)

    return draft


def agenerator_of(model):
    """An asynchronous one."""

    async def draft(state):
        yield await aasks(model, state)

    return draft


class Speaker:
    """A callable object, and one with a method."""

    def __init__(self, model):
        self.model = model

    def __call__(self, state):
        return asks(self.model, state)

    def said(self, state):
        return asks(self.model, state)


def streamed(model, states):
    """What takes a stream and gives one."""
    for state in states:
        yield asks(model, state)


async def astreamed(model, states):
    """As ``streamed``, later."""
    async for state in states:
        yield await aasks(model, state)


def graph_of(model):
    """A compiled graph."""
    return StateGraph(State).add_node("speaks", function_of(model)).add_edge(START, "speaks").compile()


def agent_of(model):
    """An agent of LangChain's making."""
    return create_agent(model, [], system_prompt="You draft.")


MADE = {
    "chain": chain_of,
    "chain_of_chains": lambda model: RunnableLambda(lambda state: state) | chain_of(model),
    "binding": lambda model: chain_of(model).with_config(tags=["t"]),
    "named": lambda model: chain_of(model).with_config(run_name="n") | RunnableLambda(lambda update: update),
    "lambda": lambda model: RunnableLambda(function_of(model)),
    "lambda_of_both": lambda model: RunnableLambda(function_of(model), coroutine_of(model)),
    "lambda_of_chain": lambda model: RunnableLambda(lambda _: chain_of(model)),
    "lambda_of_generator": lambda model: RunnableLambda(generator_of(model)),
    "generator": lambda model: RunnableGenerator(
        functools.partial(streamed, model), functools.partial(astreamed, model)
    ),
    "parallel": lambda model: RunnableParallel(messages=chain_of(model) | (lambda update: update["messages"])),
    "assign": lambda model: RunnablePassthrough.assign(messages=chain_of(model) | (lambda update: update["messages"])),
    "branch": lambda model: RunnableBranch((lambda state: not state, lambda state: state), chain_of(model)),
    "retry": lambda model: chain_of(model).with_retry(),
    "fallbacks": lambda model: chain_of(model).with_fallbacks([chain_of(model)]),
    "alternatives": lambda model: chain_of(model).configurable_alternatives(ConfigurableField("x"), other=chain_of),
    "listeners": lambda model: chain_of(model).with_listeners(on_end=lambda run: None),
    "types": lambda model: chain_of(model).with_types(input_type=State),
    "dict": lambda model: {"messages": chain_of(model) | (lambda update: update["messages"])},
    "function": function_of,
    "coroutine": coroutine_of,
    "generator_function": generator_of,
    "async_generator_function": agenerator_of,
    "partial": lambda model: functools.partial(asks, model),
    "object": Speaker,
    "method": lambda model: Speaker(model).said,
    "graph": graph_of,
    "agent": agent_of,
}
"""What is made a fork."""
NOT_BY = {
    # LangChain refuses these.
    **dict.fromkeys(("coroutine", "async_generator_function"), tuple(way for way in WAYS if way not in ASYNC)),
    **dict.fromkeys(("generator_function", "lambda_of_generator"), STREAMED),
}

AROUND = {
    "with_config": lambda node: node.with_config(tags=["t"]),
    "with_retry": lambda node: node.with_retry(),
    "with_fallbacks": lambda node: node.with_fallbacks([node]),
    "with_listeners": lambda node: node.with_listeners(on_end=lambda run: None),
    "with_types": lambda node: node.with_types(input_type=State),
    "bind": lambda node: node.bind(),
    "pick": lambda node: node.pick("messages") | (lambda messages: {"messages": messages}),
    "assign": lambda node: node.assign(other=lambda _: "x"),
    "map": lambda node: RunnableLambda(lambda state: [state]) | node.map() | (lambda updates: updates[0]),
    "before": lambda node: node | RunnableLambda(lambda update: update),
    "behind": lambda node: RunnableLambda(lambda state: state) | node,
    "parallel": lambda node: RunnableParallel(messages=node | (lambda update: update["messages"])),
    "passed": lambda node: RunnableLambda(lambda _: node),
}
"""What an application makes of a Runnable that is a fork."""


@pytest.fixture
def session(chat):
    """A session with decisions to save, whose prefix another role shares."""
    made = chat.session(HANDBOOK, budget=ToolResultBudget(max_tokens=200))
    made.adapter.join("somebody")
    return made


def run(way, app):
    """What a graph gives, by whichever method."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = WAYS[way](app)
        if asyncio.iscoroutine(made):
            made = asyncio.run(made)
    return made


def is_fork(chat, session, count=1):
    """Whether all that was asked is a fork, with what only the fork knows."""
    assert session.failures == {}
    assert [(call.agent, call.layout) for call in session.calls] == [("draft", "fork")] * count
    assert len(chat.bodies) == count
    for body in chat.bodies:
        assert HANDBOOK[:200].encode() in body
        assert SAYS.encode() in body
    return True


def alone(node):
    """A graph of a node."""
    seen = []

    def last(state):
        seen.append(state)
        return {}

    graph = StateGraph(State).add_node("draft", node).add_node("last", last)
    return graph.add_edge(START, "draft").add_edge("draft", "last").compile(), seen


CASES = [
    pytest.param(kind, way, marks=[] if way in QUICK else pytest.mark.slow)
    for kind in MADE
    for way in WAYS
    if way not in NOT_BY.get(kind, ())
]


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_a_node_is_a_fork_by_whichever_method_its_graph_is_run(chat, session, kind, way):
    """And what it decided is in the state behind it."""
    node = forked(session, role="draft", instruction=SAYS)(MADE[kind](wrap_model(chat.model(), session)))
    app, seen = alone(node)
    run(way, app)
    assert is_fork(chat, session)
    assert seen[0]["cacheprefix"]
    assert len(seen[0]["messages"]) == len(GIVEN["messages"]) + 1


@pytest.mark.parametrize("way", each(WAYS))
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("kind", ["chain", pytest.param("binding", marks=pytest.mark.slow), "lambda", "graph"])
def test_a_fork_stays_one_in_what_an_application_makes_of_it(chat, session, kind, around, way):
    """Wrapped in LangChain's own Runnables."""
    node = forked(session, role="draft", instruction=SAYS)(MADE[kind](wrap_model(chat.model(), session)))
    app, _ = alone(AROUND[around](node))
    run(way, app)
    assert is_fork(chat, session)


ALONE = ["chain", "binding", "lambda", "generator", "parallel", "assign", "branch", "retry", "fallbacks", "graph"]


@pytest.mark.parametrize("way", each(way for way in WAYS if "messages" not in way and "v3" not in way))
@pytest.mark.parametrize("kind", ALONE)
def test_a_fork_is_one_outside_of_a_graph(chat, session, kind, way):
    """Run by itself."""
    node = forked(session, role="draft", instruction=SAYS)(MADE[kind](wrap_model(chat.model(), session)))
    run(way, node)
    assert is_fork(chat, session)


@pytest.mark.parametrize("way", each(WAYS))
def test_an_agent_with_the_middleware_is_a_fork_by_whichever_method(chat, session, way):
    """As the others."""
    door = PrefixMiddleware(session, role="draft", instruction=SAYS)
    agent = create_agent(chat.model(), [], system_prompt="You draft.", middleware=[door])
    app, _ = alone(agent)
    run(way, app)
    assert is_fork(chat, session)


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "astream_events_v2"])
def test_nodes_of_a_graph_that_run_at_once_are_all_forks(chat, session, way):
    """One that goes on while the graph already tells what another one gave."""
    model = wrap_model(chat.model(), session)

    def slow(state):
        time.sleep(0.2)
        return asks(model, state)

    async def aslow(state):
        await asyncio.sleep(0.2)
        return await aasks(model, state)

    inner = StateGraph(State).add_node("fast", lambda _: {}).add_node("slow", aslow if way in ASYNC else slow)
    inner = inner.add_edge(START, "fast").add_edge(START, "slow").compile()
    app, _ = alone(subgraph(inner, session, role="draft", instruction=SAYS))
    run(way, app)
    assert is_fork(chat, session)


def test_what_is_said_for_one_call_is_asked_for_once(chat, session):
    """Though one method of a Runnable goes on to another one."""
    asked = []

    def said(state):
        asked.append(state)
        return {"now": "ten"}

    for kind in ("branch", "generator", "lambda"):
        made = MADE[kind](wrap_model(chat.model(), session))
        node = forked(session, role="draft", instruction=SAYS, volatile=said)(made)
        list(node.stream(GIVEN))
        node.invoke(GIVEN)
    assert len(asked) == 6


def test_runs_of_a_chain_outside_of_a_graph_know_nothing_of_each_other(chat, session):
    """Its steps belong together by the run, also where they became part of another chain."""
    seen = []

    def said(state):
        seen.append(state["messages"][0].text)
        return {"who": state["messages"][0].text}

    chain = forked(session, role="draft", instruction=SAYS, volatile=said)(chain_of(wrap_model(chat.model(), session)))
    whole = RunnableLambda(lambda state: state) | chain

    async def both():
        given = [{"messages": [HumanMessage(name)]} for name in ("ada", "bob")]
        await asyncio.gather(*(whole.ainvoke(one) for one in given))

    asyncio.run(both())
    assert sorted(seen) == ["ada", "bob"]
    assert is_fork(chat, session, count=2)
    for body in chat.bodies:
        assert (b"ada" in body) != (b"bob" in body)


def test_the_steps_of_a_chain_find_their_own_graphs_state(chat, session):
    """And not that of the graph whose node runs their graph."""
    app, seen = alone(forked(session, role="draft", instruction=SAYS)(chain_of(wrap_model(chat.model(), session))))
    outer = StateGraph(MessagesState).add_node("outer", lambda _: app.invoke(GIVEN) and {}).add_edge(START, "outer")
    outer.compile().invoke({"messages": []})
    assert is_fork(chat, session)
    assert seen[0]["cacheprefix"]
