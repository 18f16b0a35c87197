"""Whose words stand in a prompt: threads that are cleared or rewound, runs without a thread, pairs of conversations."""

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from langchain_core.messages import AnyMessage, HumanMessage, RemoveMessage, SystemMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from cacheprefix import Caching, Compaction, Session, SharedPrefix
from cacheprefix.errors import SetupError
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply
from cacheprefix_langgraph import PrefixState, forked, wrap_model
from tests.talks import BOUNDS, LONG, USERS, asking, check, played, question

HANDBOOK = "The handbook of the house, rule by rule. " * 150


class State(MessagesState, PrefixState):
    pass


def _graph(bench, session, saver=None, state=State, *, roles=("helper", "critic"), bound=False):
    """Nodes one after the other, each with its role's own system text."""
    model = wrap_model(bench.model(), session)
    graph = StateGraph(state)
    before = START
    for role in roles:
        mine = wrap_model(bench.model(), session, role=role) if bound else model

        def node(given, role=role, mine=mine):
            return {"messages": [mine.invoke([SystemMessage(f"{HANDBOOK}\n\nYou are {role}."), *given["messages"]])]}

        graph.add_node(role, node if bound else forked(session, role=role)(node))
        graph.add_edge(before, role)
        before = role
    graph.add_edge(before, END)
    return graph.compile(checkpointer=saver)


def _said(name, number):
    return HumanMessage(f"{name} {number}: " + " ".join(f"{name}-value-{number}-{k}" for k in range(60)))


def _session(bench, **options):
    return bench.session(HANDBOOK, compaction=Compaction(trigger=5_000, horizon=1_000), gate=None, **options)


def _thread(name):
    return {"configurable": {"thread_id": name}}


def _bodies(chat, start=0):
    return [body.decode() for body in chat.bodies[start:]]


@pytest.mark.slow
@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("state", [State, MessagesState])
def test_a_cleared_thread_leaves_nothing_behind(chat, state, bound):
    """After ``RemoveMessage(REMOVE_ALL_MESSAGES)`` neither the next prompt nor the next checkpoint has its words."""
    session, config = _session(chat), _thread("t")
    app = _graph(chat, session, InMemorySaver(), state, bound=bound)
    for number in range(14):
        app.invoke({"messages": [_said("old", number)]}, config)
    assert session.conversation("t").ledger.epoch > 0
    app.update_state(config, {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES)]})
    before = len(chat.bodies)
    app.invoke({"messages": [HumanMessage("What is the weather?")]}, config)
    assert not any("old-value" in body for body in _bodies(chat, before))
    values = app.get_state(config).values
    assert "old-value" not in str(values.get("cacheprefix"))
    if state is State and not bound:
        assert "old-value" not in session.conversation("t").ledger.dumps()


@pytest.mark.slow
@pytest.mark.parametrize("back", [4, 20, 26])
def test_a_rewound_thread_goes_on_as_in_a_fresh_process(chat, back):
    """The checkpoint's ledger wins: not a byte of the prompt depends on what this process decided later."""
    saver, config = InMemorySaver(), _thread("t")
    app = _graph(chat, _session(chat), saver)
    for number in range(16):
        app.invoke({"messages": [_said("task", number)]}, config)
    states = [one for one in app.get_state_history(config) if len(one.values["messages"]) >= back and not one.next]
    then = states[-1].config
    sent = []
    for graph in (app, _graph(chat, _session(chat), saver)):
        before = len(chat.bodies)
        graph.invoke({"messages": [HumanMessage("And now?")]}, then)
        sent.append([{**json.loads(body), "stream": 0, "stream_options": 0} for body in chat.bodies[before:]])
    assert sent[0] == sent[1]
    assert not any("task-value-15" in json.dumps(body) for body in sent[0])


@pytest.mark.parametrize("fresh", [False, True])
def test_messages_taken_out_of_a_thread_take_their_decisions_along(chat, fresh):
    """Removing old messages one by one drops what was decided on them, from the process and from the checkpoint."""
    saver, config = InMemorySaver(), _thread("t")
    session = _session(chat)
    app = _graph(chat, session, saver)
    for number in range(14):
        app.invoke({"messages": [_said("old", number)]}, config)
    assert "old-value" in str(app.get_state(config).values["cacheprefix"])
    if fresh:
        session = _session(chat)
        app = _graph(chat, session, saver)
    gone = app.get_state(config).values["messages"][:-2]
    app.update_state(config, {"messages": [RemoveMessage(id=message.id) for message in gone]})
    before = len(chat.bodies)
    app.invoke({"messages": [HumanMessage("And now?")]}, config)
    assert not any("old-value-0-" in body for body in _bodies(chat, before))
    assert "old-value" not in str(app.get_state(config).values["cacheprefix"])


class Replacing(PrefixState):
    """A state whose messages are replaced by what a node gives back."""

    messages: list[AnyMessage]


def _around(inner, state, saver=None):
    """A graph with another graph as its only node."""
    graph = StateGraph(state)
    graph.add_node("inner", inner)
    graph.add_edge(START, "inner")
    graph.add_edge("inner", END)
    return graph.compile(checkpointer=saver)


def _nested(chat, session, saver, depth, outer=State):
    """Roles in a subgraph that clears its messages where it is told to, so many graphs deep."""

    def clear(given):
        if given["messages"][-1].text == "Clear.":
            return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), HumanMessage("What is the weather?")]}
        return None

    graph = StateGraph(State)
    graph.add_node("clear", clear)
    graph.add_node("roles", _graph(chat, session))
    graph.add_edge(START, "clear")
    graph.add_edge("clear", "roles")
    made = graph.compile()
    for level in range(depth):
        last = level == depth - 1
        made = _around(made, outer if last else State, saver if last else None)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_thread_whose_roles_are_in_subgraphs_is_cleared_like_any_other(chat, depth, fresh):
    """The outermost checkpoint's decisions on what is gone go too, though no role runs in the outermost graph."""
    saver, config, session = InMemorySaver(), _thread("t"), _session(chat)
    app = _nested(chat, session, saver, depth)
    for number in range(14):
        app.invoke({"messages": [_said("old", number)]}, config)
    assert "old-value" in str(app.get_state(config).values["cacheprefix"])
    if fresh:
        session = _session(chat)
        app = _nested(chat, session, saver, depth)
    app.update_state(config, {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES)]})
    before = len(chat.bodies)
    app.invoke({"messages": [HumanMessage("What is the weather?")]}, config)
    assert not any("old-value" in body for body in _bodies(chat, before))
    assert "old-value" not in str(app.get_state(config).values["cacheprefix"])
    assert not session.failures


def test_what_a_subgraph_removes_leaves_the_state_around_it(chat):
    """Where the outer state takes the subgraph's messages over, decisions on removed ones do not come back."""
    saver, config, session = InMemorySaver(), _thread("t"), _session(chat)
    app = _nested(chat, session, saver, 1, Replacing)
    said = []
    for number in range(14):
        said = app.invoke({"messages": [*said, _said("old", number)]}, config)["messages"]
    assert "old-value" in str(app.get_state(config).values["cacheprefix"])
    app.invoke({"messages": [*said, HumanMessage("Clear.")]}, config)
    assert "old-value" not in str(app.get_state(config).values)
    assert not session.failures


def test_a_thread_that_is_cleared_and_grows_at_once_leaves_nothing_behind(chat):
    """More messages than before are looked at too, where they do not go on from those that there were."""
    saver, config = InMemorySaver(), _thread("t")
    app = _graph(chat, _session(chat), saver)
    for number in range(14):
        app.invoke({"messages": [_said("old", number)]}, config)
    assert "old-value" in str(app.get_state(config).values["cacheprefix"])
    fresh = [HumanMessage(f"Another talk, {number}.") for number in range(80)]
    app.update_state(config, {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *fresh]}, as_node="__start__")
    app.invoke(None, config)
    assert "old-value" not in str(app.get_state(config).values)


def test_a_subgraph_given_less_drops_nothing_of_the_thread(chat):
    """Where the outermost graph has roles of its own, what is gone is what its own state no longer has."""
    saver, config, session = InMemorySaver(), _thread("t"), _session(chat)
    worker = _graph(chat, session, roles=("worker",))
    graph = StateGraph(State)
    graph.add_node("helper", _graph_node(chat, session))
    graph.add_node("worker", lambda given: worker.invoke({**given, "messages": [HumanMessage("Look it up.")]}))
    graph.add_edge(START, "helper")
    graph.add_edge("helper", "worker")
    app = graph.compile(checkpointer=saver)
    for number in range(14):
        app.invoke({"messages": [_said("old", number)]}, config)
    kept = app.get_state(config).values["cacheprefix"]
    assert "old-value" in str(kept)
    assert "gone" not in kept


def _graph_node(chat, session):
    """One role as a node."""
    model = wrap_model(chat.model(), session)

    @forked(session, role="helper")
    def helper(given):
        return {"messages": [model.invoke([SystemMessage(f"{HANDBOOK}\n\nYou are helper."), *given["messages"]])]}

    return helper


def test_runs_without_a_thread_are_conversations_of_their_own(chat):
    """Questions of many people raise no alarm, and each run with its subgraph is one conversation."""
    session = chat.session(HANDBOOK, gate=None)
    inner = _graph(chat, session, roles=("inner",))
    model = wrap_model(chat.model(), session)

    @forked(session, role="outer")
    def outer(given):
        return {"messages": [model.invoke([SystemMessage(f"{HANDBOOK}\n\nYou are outer."), *given["messages"]])]}

    graph = StateGraph(State)
    graph.add_node("outer", outer)
    graph.add_node("inside", inner)
    graph.add_edge(START, "outer")
    graph.add_edge("outer", "inside")
    graph.add_edge("inside", END)
    app = graph.compile()
    document = HumanMessage("The same document. " + "words of it " * 800)
    for number in range(4):
        app.invoke({"messages": [HumanMessage(f"Question number {number}. " * 3), document]})
    calls = session.calls
    assert not any(call.verdict.alarm for call in calls)
    names = [call.conversation for call in calls]
    assert len(set(names)) == 4
    assert names[::2] == names[1::2]


def test_a_run_that_begins_with_the_last_one_goes_on_with_its_conversation(chat):
    """An application that keeps the history itself is told by it, and its compactions hold."""
    session = _session(chat)
    app = _graph(chat, session)
    history = []
    for number in range(14):
        history = app.invoke({"messages": [*history, _said("mine", number)]})["messages"]
    assert len({call.conversation for call in session.calls}) == 1
    assert max(len(json.loads(body)["messages"]) for body in chat.bodies) < len(history)


def test_what_parallel_nodes_say_to_themselves_parts_no_run(chat):
    """Branches with messages of their own stay in the run's conversation."""
    session = chat.session(HANDBOOK, gate=None)
    model = wrap_model(chat.model(), session)
    graph = StateGraph(State)
    for role in ("one", "two", "three"):

        def node(given, role=role):
            own = [SystemMessage(f"{HANDBOOK}\n\nYou are {role}."), *given["messages"]]
            first = model.invoke(own)
            return {"messages": [model.invoke([*own, first, HumanMessage(f"{role}: shorter, please")])]}

        graph.add_node(role, forked(session, role=role)(node))
        graph.add_edge(START, role)
        graph.add_edge(role, END)
    app = graph.compile()
    app.invoke({"messages": [HumanMessage("Say something.")]})
    app.invoke({"messages": [HumanMessage("Say something else.")]})
    assert len(session.calls) == 12
    assert len({call.conversation for call in session.calls}) == 2


def _answer(request):
    """What the model says to someone: their own words, where it was told any."""
    number, named = request.index, re.search("|".join(USERS), request.text)
    return Reply(f"{named.group()} is answered: {named.group()}-answer-{number}." if named else f"Well {number}.")


@pytest.mark.slow
@BOUNDS
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("way", ["threads", "none", "model"])
@played
def test_no_section_of_one_conversation_is_in_anothers_prompt_and_no_message_is_missing(
    chat, way, bounds, later, given_turns, people
):
    """People with equal texts among theirs, by turns and at a time.

    In threads, in runs without one, and by a bound model alone.
    """
    chat.provider.reset()
    chat.script(_answer)
    session = chat.session(HANDBOOK, gate=None, **bounds)
    app = _graph(chat, session, InMemorySaver() if way == "threads" else None, roles=("helper",))
    model = wrap_model(chat.model(), session, role="helper")
    talks = {user: [] for user in USERS[:people]}
    compacted = 0

    def asked(user):
        if way == "model":
            return model, [SystemMessage(f"{HANDBOOK}\n\nYou are helper."), *talks[user]], None
        said = talks[user][-1:] if way == "threads" else talks[user]
        return app, {"messages": list(said)}, _thread(user) if way == "threads" else None

    def ask(user):
        target, given, config = asked(user)
        return target.invoke(given, config)

    async def aask(now):
        return await asyncio.gather(*(target.ainvoke(given, config) for target, given, config in map(asked, now)))

    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(people) as pool:
        for number, turn in enumerate(given_turns):
            now, start = asking(turn, people), len(chat.provider.requests)
            for user in now:
                talks[user].append(HumanMessage(question(user, number, turn)))
            answers = loop.run_until_complete(aask(now)) if later else list(pool.map(ask, now))
            compacted += check(
                chat.provider.requests[start:], {user: [one.text for one in talks[user]] for user in now}
            )
            for user, answer in zip(now, answers, strict=True):
                talks[user].append(answer if way == "model" else answer["messages"][-1])
    chat.release()
    loop.close()
    assert compacted or given_turns is not LONG or "compaction" not in bounds
    assert not session.failures


@pytest.mark.parametrize("first", ["alice", "bob"])
def test_a_tool_that_is_bound_in_one_tenants_run_is_in_no_other_tenants_prompt(bench, first):
    """Whoever asks first, on one graph and one session: the tool may be made for that tenant."""
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider=bench.rules, counter=ESTIMATE))
    model = wrap_model(bench.model(), session)

    def alices_house(at: str) -> str:
        """Asks the house."""
        return at

    def node(given, config, role):
        tools = [bench.tools[0], *([alices_house] if config["configurable"]["cacheprefix_scope"] == "alice" else [])]
        asked = [SystemMessage(f"{HANDBOOK}\n\nYou are {role}."), *given["messages"]]
        return {"messages": [model.bind_tools(tools).invoke(asked), HumanMessage("Go on.")]}

    graph, before = StateGraph(MessagesState), START
    for role in ("helper", "critic"):

        def asks(given, config: RunnableConfig, role=role):
            return node(given, config, role)

        graph.add_node(role, forked(session, role=role)(asks))
        graph.add_edge(before, role)
        before = role
    app = graph.compile()
    others = ["bob", "carol"] if first == "alice" else ["alice", "carol"]
    for who in (first, *others):
        app.invoke({"messages": [HumanMessage("Hello.")]}, {"configurable": {"cacheprefix_scope": who}})
    sent = ["alices_house" in body.decode() for body in bench.bodies]
    assert sent == [who == "alice" for who in (first, *others) for _ in range(2)]
    assert not session.failures
    assert {call.layout for call in session.calls} == {"fork"}


def _secrets(chat, start=0):
    """Whose secrets stand in each request, by who asked it."""
    found = []
    for body in _bodies(chat, start):
        asker = re.search("I am (alice|bob)", body)
        found.append((asker and asker[1], sorted(set(re.findall("SECRET-(alice|bob)", body)))))
    return found


def _theirs(state):
    """What a user alone is to be told, in volatile text."""
    user = re.search("I am (alice|bob)", str(state["messages"]))[1]
    return {"word": f"SECRET-{user}"}


def _told(role, state):
    return [SystemMessage(f"{HANDBOOK}\n\nYou are {role}."), *state["messages"]]


@pytest.mark.parametrize("kind", ["lambda", "chain"])
def test_a_run_that_a_node_starts_for_another_user_is_that_ones(chat, kind):
    """In one compiled graph: bob's run joined the fork of alice's node, with her volatile text and conversation."""
    session = chat.session(HANDBOOK)
    model = wrap_model(chat.model(), session)

    def first(state):
        if "alice" in str(state["messages"]):
            graph.invoke({"messages": [HumanMessage("I am bob.")]}, _thread("bob"))
        return _told("helper", state)

    def both(state):
        return {"messages": [model.invoke(first(state))]}

    chain = RunnableLambda(first) | model | RunnableLambda(lambda answer: {"messages": [answer]})
    node = forked(session, role="helper", volatile=_theirs)(chain if kind == "chain" else RunnableLambda(both))
    graph = StateGraph(MessagesState).add_node("helper", node).add_edge(START, "helper").compile()
    graph.invoke({"messages": [HumanMessage("I am alice.")]}, _thread("alice"))
    assert _secrets(chat) == [("bob", ["bob"]), ("alice", ["alice"])]
    assert [call.conversation for call in session.calls] == ["bob", "alice"]
    assert session.failures == {}


def test_a_model_that_is_bound_once_asks_for_the_tenant_in_whose_node_it_is(chat):
    """Tenants are children of one session: bob's request held what alice's conversation was told, or nothing of his."""
    session = chat.session(HANDBOOK)
    tenants = {user: session.child(user, scope=user) for user in ("alice", "bob")}
    for user, its in tenants.items():
        its.conversation("one").set_zone("memories", f"SECRET-{user}")
    for model in (wrap_model(chat.model(), one, role="helper") for one in (session, tenants["alice"])):
        start = len(chat.bodies)
        for user, its in tenants.items():

            def node(state, model=model):
                return {"messages": [model.invoke(_told("helper", state))]}

            graph = StateGraph(MessagesState).add_node("lead", forked(its)(node)).add_edge(START, "lead").compile()
            graph.invoke({"messages": [HumanMessage(f"I am {user}.")]}, _thread("one"))
        assert _secrets(chat, start) == [("alice", ["alice"]), ("bob", ["bob"])]


@pytest.mark.parametrize("differs", ["session", "volatile"])
@pytest.mark.parametrize("kind", ["function", "object", "chain", "partial", "coroutine", "lambda", "bound lambda"])
def test_a_node_that_is_forked_already_is_forked_for_nobody_else(chat, kind, differs):
    """The inner fork counted: bob's requests went out in alice's session, with what alice alone was to be told."""

    class Node:
        def __call__(self, state):
            return state

    async def later(state):
        return state

    plain = {"object": Node(), "chain": RunnableLambda(str) | str.upper, "coroutine": later}
    around = {"partial": partial, "bound lambda": lambda node: RunnableLambda(node).with_config(tags=["one"])}
    around |= dict.fromkeys(("coroutine", "lambda"), RunnableLambda)
    its = {"session": chat.session(HANDBOOK), "volatile": _theirs}
    node = forked(its["session"], role="helper", volatile=_theirs)(plain.get(kind, lambda state: state))
    node = around[kind](node) if kind in around else node
    other = {**its, differs: chat.session(HANDBOOK) if differs == "session" else lambda _: {}}
    with pytest.raises(SetupError, match="'helper' is forked already, in another session or with another volatile"):
        forked(other["session"], role="helper", volatile=other["volatile"])(node)
    assert forked(its["session"], role="helper", volatile=_theirs)(node) is not node
