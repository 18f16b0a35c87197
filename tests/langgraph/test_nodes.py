"""Every kind of node, state and run that LangGraph has, with its calls as forks on the wire."""

import asyncio
import contextlib
import dataclasses
import functools
import gc
import inspect
import operator
import re
import sys
import uuid
from typing import Annotated, Literal

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, RetryPolicy, Send, StreamWriter, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from cacheprefix import Session, ToolResultBudget, preview
from cacheprefix.errors import ConfigError, SetupError
from cacheprefix.server import Reply, ToolCall
from cacheprefix_langgraph import PrefixChannel, PrefixMiddleware, PrefixState, forked, subgraph, wrap_model
from cacheprefix_langgraph.model import session_of
from cacheprefix_langgraph.teams.worker import session_for
from tests.langgraph.test_ledger import history

HANDBOOK = "The handbook says that every statement needs a source. " * 90
PLAN, WORK = SystemMessage("You plan."), SystemMessage("You work.")
BEGIN = HumanMessage("Please begin.", id="h")
THREAD = {"configurable": {"thread_id": "one"}}


@pytest.fixture
def session(chat):
    """A session with a budget for tool results, so that nodes have decisions to save."""
    return chat.session(HANDBOOK, budget=ToolResultBudget(max_tokens=200))


@pytest.fixture
def model(chat, session):
    """A wrapped model."""
    return wrap_model(chat.model(), session)


CONFIG = [] if sys.version_info >= (3, 11) else ["config"]
"""What a forked node asks for beside its own parameters."""
NEEDS_CONTEXT = pytest.mark.skipif(
    sys.version_info < (3, 11),
    reason="LangGraph's async nodes do not find their run before Python 3.11, without us too",
)
IN_BOTH = [pytest.param(False, id="sync"), pytest.param(True, id="async", marks=NEEDS_CONTEXT)]


def is_team(chat, count=2):
    """Whether the requests so far are forks of one prefix, the later ones readers of it."""
    prompts = chat.prompts()
    assert len(prompts) == count
    shared = len(prompts[0].sections) - 1
    assert all(prompt.sections[:shared] == prompts[0].sections[:shared] for prompt in prompts)
    assert all(record.outcome.read_tokens >= 1_200 for record in list(chat.provider.requests)[1:])
    assert "You plan." in prompts[0].sections[-1].text
    assert "You work." in prompts[1].sections[-1].text
    return True


class Typed(MessagesState, PrefixState):
    """A state of dictionaries."""


class Model(BaseModel):
    """A state of pydantic's."""

    messages: Annotated[list[AnyMessage], add_messages] = []
    cacheprefix: PrefixChannel = {}


@dataclasses.dataclass
class Data:
    """A state of dataclasses."""

    messages: Annotated[list[AnyMessage], add_messages] = dataclasses.field(default_factory=list)
    cacheprefix: PrefixChannel = dataclasses.field(default_factory=dict)


def messages_of(state):
    """The messages of a state of either shape."""
    return state["messages"] if isinstance(state, dict) else state.messages


@pytest.mark.parametrize("kind", [Typed, Model, Data], ids=["typeddict", "pydantic", "dataclass"])
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_states_of_every_shape_share_and_keep_their_ledger(chat, session, model, kind, later):
    """The wrapped node is given, and returns, what the node itself was."""

    def planner(state: kind):
        assert isinstance(state, dict if kind is Typed else kind)
        return {"messages": [AIMessage(model.invoke([PLAN, *messages_of(state)]).text)]}

    async def worker(state: kind):
        answer = AIMessage((await model.ainvoke([WORK, *messages_of(state)])).text)
        return {"messages": [answer]} if kind is Typed else kind(messages=[answer])

    def sync_worker(state: kind):
        answer = AIMessage(model.invoke([WORK, *messages_of(state)]).text)
        return {"messages": [answer]} if kind is Typed else kind(messages=[answer])

    graph = StateGraph(kind)
    graph.add_node("planner", forked(session, role="planner")(planner))
    graph.add_node("worker", forked(session, role="worker")(worker if later else sync_worker))
    graph.add_edge(START, "planner")
    graph.add_edge("planner", "worker")
    given = {"messages": history()}
    out = asyncio.run(graph.compile().ainvoke(given)) if later else graph.compile().invoke(given)
    assert is_team(chat)
    assert len(out["messages"]) == 5
    assert out["cacheprefix"]
    assert not session.failures


class Talk(TypedDict):
    """A state whose messages have another name."""

    talk: Annotated[list[AnyMessage], add_messages]


def test_messages_may_have_another_name(chat, session, model):
    """``messages_key`` says which; the boundary is found there."""

    @forked(session, role="planner", messages_key="talk")
    def planner(state):
        return {"talk": [AIMessage(model.invoke([PLAN, *state["talk"], HumanMessage("Plan it.")]).text)]}

    @forked(session, role="worker", messages_key="talk")
    def worker(state):
        model.invoke([WORK, *state["talk"], HumanMessage("Do it.")])

    graph = StateGraph(Talk).add_sequence([("planner", planner), ("worker", worker)]).add_edge(START, "planner")
    graph.compile().invoke({"talk": [BEGIN]})
    first, second = chat.prompts()
    marked = max(index for index, section in enumerate(first.sections[:-1]) if section.marker is not None)
    assert first.sections[marked].text == "Please begin."
    assert second.sections[: marked + 1] == first.sections[: marked + 1]


def test_what_langgraph_injects_arrives(chat, session, model):
    """Configuration, runtime, store and writer, found by the node's own annotations."""
    seen = {}

    class Context(TypedDict):
        tone: str

    @forked(session, role="planner")
    def planner(
        state: MessagesState,
        config: RunnableConfig,
        *,
        runtime: Runtime[Context],
        store: BaseStore,
        writer: StreamWriter,
    ):
        seen.update(thread=config["configurable"]["thread_id"], tone=runtime.context["tone"])
        store.put(("notes",), "one", {"text": "kept"})
        writer({"step": "planning"})
        return {"messages": [AIMessage(model.invoke([PLAN, *state["messages"]], config).text)]}

    store = InMemoryStore()
    graph = StateGraph(MessagesState, context_schema=Context).add_node("planner", planner).add_edge(START, "planner")
    compiled = graph.compile(store=store, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "one"}}
    chunks = list(compiled.stream({"messages": [BEGIN]}, config, context={"tone": "dry"}, stream_mode="custom"))
    assert chunks == [{"step": "planning"}]
    assert seen == {"thread": "one", "tone": "dry"}
    assert store.get(("notes",), "one").value == {"text": "kept"}
    assert "You plan." in chat.prompts()[0].sections[-1].text
    assert session.calls[0].conversation == "one"


def test_a_command_goes_where_it_says_and_is_still_drawn(chat, session, model):
    """LangGraph reads the destinations from the return annotation, through our wrapper."""

    @forked(session, role="planner")
    def planner(state: Typed) -> Command[Literal["worker", "idle"]]:
        answer = AIMessage(model.invoke([PLAN, *state["messages"]]).text)
        return Command(goto="worker", update={"messages": [answer]})

    @forked(session, role="worker")
    def worker(state: Typed) -> Command[Literal["__end__"]]:
        return Command(goto=END, update={"messages": [AIMessage(model.invoke([WORK, *state["messages"]]).text)]})

    graph = StateGraph(Typed).add_node("planner", planner).add_node("worker", worker).add_edge(START, "planner")
    compiled = graph.add_node("idle", lambda state: None).compile()
    edges = {(edge.source, edge.target) for edge in compiled.get_graph().edges}
    assert {("planner", "worker"), ("planner", "idle"), ("worker", "__end__")} <= edges
    out = compiled.invoke({"messages": history()})
    assert is_team(chat)
    assert len(out["messages"]) == 5
    assert out["cacheprefix"]


class Jobs(Typed):
    """A state with reports from parallel workers."""

    reports: Annotated[list[str], operator.add]


class Job(TypedDict):
    """What a worker is sent: less than the state."""

    messages: list[AnyMessage]
    topic: str


def test_workers_that_are_sent_a_part_of_the_state_share_what_their_planner_wrote(chat, session, model):
    """A ``Send`` payload holds no ledger; it is read from the graph, and written back."""

    @forked(session, role="planner")
    def planner(state: Jobs):
        model.invoke([PLAN, *state["messages"]])

    @forked(session, role="worker")
    def worker(job: Job):
        given = [WORK, *job["messages"], HumanMessage(f"Your topic: {job['topic']}")]
        return {"reports": [model.invoke(given).text]}

    graph = StateGraph(Jobs).add_node("planner", planner).add_node("worker", worker, input_schema=Job)
    graph.add_edge(START, "planner")
    graph.add_conditional_edges(
        "planner", lambda s: [Send("worker", {"messages": s["messages"], "topic": t}) for t in "abc"], ["worker"]
    )
    out = graph.compile().invoke({"messages": history(), "reports": []})
    assert len(out["reports"]) == 3
    planned, *worked = chat.prompts()
    shared = len(planned.sections) - 1
    assert all(prompt.sections[:shared] == planned.sections[:shared] for prompt in worked)
    assert {prompt.sections[-2].text for prompt in worked} == {f"Your topic: {topic}" for topic in "abc"}
    assert all(record.outcome.read_tokens >= 1_200 for record in list(chat.provider.requests)[1:])
    assert out["cacheprefix"]


@pytest.mark.parametrize("way", ["sends", "loop", "batch"])
def test_one_roles_separate_questions_are_no_edited_history(chat, way):
    """A graph that sums up one document after the other, or all at once, has changed nothing that it said."""
    documents = [f"Document {at}: " + f"{word} " * 400 for at, word in enumerate(("sea", "land", "ice", "fire"))]
    session = chat.session(HANDBOOK)
    model = wrap_model(chat.model(), session)

    @forked(session, role="reader")
    def read(given):
        questions = [[WORK, HumanMessage(text)] for text in given.get("documents", documents)]
        answers = model.batch(questions) if way == "batch" else [model.invoke(one) for one in questions]
        return {"reports": [answer.text for answer in answers]}

    def whole(_):
        return [Send("read", {"documents": [text]}) for text in documents] if way == "sends" else "read"

    graph = StateGraph(Jobs).add_node("read", read).add_conditional_edges(START, whole, ["read"])
    assert len(graph.compile().invoke({"messages": [], "reports": []})["reports"]) == 4
    assert all(call.layout == "fork" for call in session.calls)
    assert not [found.cause for found in session.report().breaks if found.cause.startswith("history")]


@pytest.mark.parametrize("later", IN_BOTH)
def test_tasks_of_the_functional_api_are_forks_and_return_what_they_return(chat, session, model, later):
    """There is no state to save decisions in: results stay as they are, whatever their type."""

    @task
    @forked(session, role="planner")
    def plan(messages):
        return model.invoke([PLAN, *messages]).text

    @task
    @forked(session, role="worker")
    async def work(messages):
        return {"text": (await model.ainvoke([WORK, *messages])).text}

    @task
    @forked(session, role="worker")
    def sync_work(messages):
        return {"text": model.invoke([WORK, *messages]).text}

    @entrypoint(checkpointer=InMemorySaver())
    def flow(messages):
        return plan(messages).result(), sync_work(messages).result()

    @entrypoint(checkpointer=InMemorySaver())
    async def aflow(messages):
        return await plan(messages), await work(messages)

    config = {"configurable": {"thread_id": "one"}}
    first, second = asyncio.run(aflow.ainvoke(history(), config)) if later else flow.invoke(history(), config)
    assert isinstance(first, str)
    assert list(second) == ["text"]
    assert is_team(chat)
    assert [call.conversation for call in session.calls] == ["one", "one"]
    assert not session.failures


@pytest.mark.parametrize("later", IN_BOTH)
def test_what_is_no_update_of_the_state_comes_back_as_it_is(chat, session, model, later):
    """Forked conditional edges, tasks and functions that nodes call answer their callers, and not the state."""

    def asked(answer):
        def ask(state):
            model.invoke([PLAN, *state["messages"]])
            return answer

        async def aask(state):
            await model.ainvoke([PLAN, *state["messages"]])
            return answer

        return forked(session, role="planner")(aask if later else ask)

    answers = ("a text", AIMessage("an answer"), ["one", "two"], {"score": 3}, 3, Send("end", {}))
    helpers, rated, got = [asked(answer) for answer in answers], task(asked({"messages": []})), []

    def node(state):
        got.extend([*(one(state) for one in helpers), rated(state).result()])
        return {}

    async def anode(state):
        got.extend([*[await one(state) for one in helpers], await rated(state)])
        return {}

    graph = StateGraph(Typed)
    graph.add_node("node", anode if later else node)
    graph.add_node("end", lambda _: {"messages": [AIMessage("The end.")]})
    graph.add_conditional_edges(START, asked("node"), ["node"])
    graph.add_conditional_edges("node", asked([Send("end", {}), Send("end", {})]), ["end"])
    app, given = graph.compile(), {"messages": history()}
    result = asyncio.run(app.ainvoke(given)) if later else app.invoke(given)
    assert got == [*answers, {"messages": []}]
    assert [one.text for one in result["messages"]][-2:] == ["The end.", "The end."]
    assert not session.failures


def test_outside_of_a_graph_a_node_returns_what_it_returns(chat, session, model):
    """A test, a script or another framework calls it as a function."""
    node = forked(session, role="planner")(lambda state: model.invoke([PLAN, *state["messages"]]).text)
    assert isinstance(node({"messages": history()}), str)
    update = forked(session, role="planner")(lambda state: {"messages": [model.invoke([PLAN, *state["messages"]])]})
    assert list(update({"messages": history()})) == ["messages"]
    nothing = forked(session, role="planner")(lambda state: print(model.invoke([PLAN, *state["messages"]]).text[:0]))
    assert nothing({"messages": history()}) is None
    assert not any("channel" in note for note in session.report().notes)


MODES = ["values", "updates", "messages", "custom", "checkpoints", "tasks", "debug"]


@pytest.mark.parametrize("later", IN_BOTH)
def test_every_streaming_mode_shows_the_application_and_nothing_of_ours(chat, session, model, later):
    """Tokens come one by one; the shared layout and the role's text are in no message of the state."""

    @forked(session, role="planner")
    def planner(state: Typed):
        return {"messages": [model.invoke([PLAN, *state["messages"]])]}

    @forked(session, role="worker")
    def worker(state: Typed):
        return {"messages": [model.invoke([WORK, *state["messages"]])]}

    graph = StateGraph(Typed).add_sequence([("planner", planner), ("worker", worker)]).add_edge(START, "planner")
    compiled = graph.compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "one"}}
    given = {"messages": [BEGIN]}

    async def gather():
        return [each async for each in compiled.astream(given, config, stream_mode=MODES)]

    chunks = asyncio.run(gather()) if later else list(compiled.stream(given, config, stream_mode=MODES))
    by_mode = {mode: [chunk for name, chunk in chunks if name == mode] for mode in MODES}
    assert is_team(chat)
    assert len(by_mode["messages"]) > 4
    assert {metadata["langgraph_node"] for _, metadata in by_mode["messages"]} == {"planner", "worker"}
    assert [list(update) for update in by_mode["updates"]] == [["planner"], ["worker"]]
    assert all(by_mode[mode] for mode in ("values", "checkpoints", "tasks", "debug"))
    final = by_mode["values"][-1]["messages"]
    assert [message.type for message in final] == ["human", "ai", "ai"]
    assert all("cacheprefix_tail" not in message.additional_kwargs for message in final)
    assert [message.text for message in final if message.type == "ai"] == [
        "".join(chunk.text for chunk, metadata in by_mode["messages"] if metadata["langgraph_node"] == node)
        for node in ("planner", "worker")
    ]


@NEEDS_CONTEXT
def test_events_are_those_of_the_application(chat, session, model):
    """``astream_events`` names the model and streams its tokens."""

    @forked(session, role="planner")
    async def planner(state: Typed):
        return {"messages": [await model.ainvoke([PLAN, *state["messages"]])]}

    compiled = StateGraph(Typed).add_node("planner", planner).add_edge(START, "planner").compile()

    async def gather():
        return [event async for event in compiled.astream_events({"messages": [BEGIN]}, version="v2")]

    events = asyncio.run(gather())
    names = {event["name"] for event in events if event["event"].startswith("on_chat_model")}
    assert names == {"ChatOpenAI"}
    assert sum(event["event"] == "on_chat_model_stream" for event in events) > 2
    assert "You plan." in chat.prompts()[0].sections[-1].text


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_retried_node_asks_the_same_again(chat, session, model, later):
    """The first attempt is lost with its update; the second has the same bytes, and its ledger is kept."""
    attempts = []

    def fail_once():
        """Raise the first time."""
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionError("once")

    @forked(session, role="planner")
    def planner(state: Typed):
        text = model.invoke([PLAN, *state["messages"]]).text
        fail_once()
        return {"messages": [AIMessage(text)]}

    @forked(session, role="planner")
    async def aplanner(state: Typed):
        text = (await model.ainvoke([PLAN, *state["messages"]])).text
        fail_once()
        return {"messages": [AIMessage(text)]}

    policy = RetryPolicy(initial_interval=0.001, jitter=False)
    graph = StateGraph(Typed).add_node("planner", aplanner if later else planner, retry_policy=policy)
    compiled = graph.add_edge(START, "planner").compile()
    given = {"messages": history()}
    out = asyncio.run(compiled.ainvoke(given)) if later else compiled.invoke(given)
    first, second = chat.prompts()
    assert first.sections == second.sections
    assert chat.provider.requests[1].outcome.read_tokens > 1_200
    assert out["cacheprefix"]


def test_an_interrupt_inside_a_node_stops_and_resumes_it(chat, session, model):
    """The question passes through our wrapper; what was said before it is read from the cache afterwards."""

    @forked(session, role="planner")
    def planner(state: Typed):
        draft = model.invoke([PLAN, *state["messages"]]).text
        verdict = interrupt({"draft": draft})
        return {"messages": [AIMessage(f"{draft} ({verdict})")]}

    @forked(session, role="worker")
    def worker(state: Typed):
        model.invoke([WORK, *state["messages"]])

    graph = StateGraph(Typed).add_sequence([("planner", planner), ("worker", worker)]).add_edge(START, "planner")
    compiled = graph.compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "one"}}
    stopped = compiled.invoke({"messages": history()}, config)
    assert stopped["__interrupt__"][0].value["draft"]
    out = compiled.invoke(Command(resume="approved"), config)
    assert out["messages"][-1].text.endswith("(approved)")
    before, again, after = chat.prompts()
    assert before.sections == again.sections
    assert after.sections[: len(before.sections) - 1] == before.sections[:-1]


def test_a_sequence_that_goes_on_says_what_is_so_by_then(chat, session, model):
    """Text for one call alone is asked for anew when an interrupted or a failed node runs again."""
    ticks = []

    def now(_):
        ticks.append(len(ticks))
        return {"now": f"tick {len(ticks)}"}

    def stopped(_):
        return {"messages": [AIMessage(interrupt("Go on?"))]}

    steps = RunnableLambda(lambda state: [PLAN, *state["messages"]]) | model | stopped
    graph = StateGraph(Typed)
    graph.add_node("planner", forked(session, role="planner", volatile=now)(steps))
    graph.add_edge(START, "planner")
    app = graph.compile(checkpointer=InMemorySaver())
    app.invoke({"messages": [BEGIN]}, THREAD)
    app.invoke(Command(resume="Yes."), THREAD)
    assert ["tick 1" in prompt.sections[-1].text for prompt in chat.prompts()] == [True, False]
    assert "tick 2" in chat.prompts()[1].sections[-1].text


def test_hints_names_and_sub_graphs_are_found_through_the_wrapper(chat, session, model):
    """LangGraph looks at signatures, and one wrapper deep for graphs that a node calls."""
    inner = StateGraph(Typed).add_node("step", lambda state: {"messages": [model.invoke(state["messages"])]})
    compiled_inner = inner.add_edge(START, "step").compile(name="inner")

    @forked(session, role="planner")
    def planner(state: Typed):
        """Plans."""
        return compiled_inner.invoke({"messages": [PLAN, *state["messages"]]})

    assert (planner.__name__, planner.__doc__) == ("planner", "Plans.")
    assert (planner.cacheprefix_role, planner.cacheprefix_session) == ("planner", session)
    graph = StateGraph(Typed).add_node(planner).add_edge(START, "planner").compile()
    assert [name for name, _ in graph.get_subgraphs()] == ["planner"]
    graph.invoke({"messages": [BEGIN]})
    assert "You plan." in chat.prompts()[0].sections[-1].text


def _traced(function):
    """A decorator of the application's own."""

    @functools.wraps(function)
    def traced(*given, **named):
        return function(*given, **named)

    return traced


def test_sub_graphs_are_found_behind_the_applications_own_decorators(chat, session, model):
    """As without us: else what they save and stream is lost to the graph around them."""
    inner = StateGraph(Typed).add_node("step", lambda state: {"messages": [model.invoke(state["messages"])]})
    compiled_inner = inner.add_edge(START, "step").compile(name="inner")

    @_traced
    def planner(state: Typed):
        return compiled_inner.invoke({"messages": [PLAN, *state["messages"]]})

    class Team:
        @_traced
        def planner(self, state: Typed):
            return compiled_inner.invoke({"messages": [PLAN, *state["messages"]]})

    for node in (planner, Team().planner):
        for made in (node, forked(session)(node)):
            graph = StateGraph(Typed).add_node("planner", made).add_edge(START, "planner").compile()
            assert [name for name, _ in graph.get_subgraphs()] == ["planner"]
            assert list(inspect.signature(made).parameters) == ["state", *([] if made is node else CONFIG)]
            assert graph.invoke({"messages": [BEGIN]})["messages"]
    assert len(chat.provider.requests) == 4


def test_a_callable_object_and_a_sub_graph_node_are_forks_too(chat, session, model):
    """Roles are named after the class, or by the user."""

    class Planner:
        """A node with state of its own."""

        def __call__(self, state):
            return {"messages": [AIMessage(model.invoke([PLAN, *state["messages"]]).text)]}

    worker = StateGraph(Typed).add_node("step", lambda state: {"messages": [model.invoke([WORK, *state["messages"]])]})
    graph = StateGraph(Typed).add_node("planner", forked(session)(Planner()))
    graph.add_node("worker", subgraph(worker.add_edge(START, "step").compile(), session, role="worker"))
    graph.add_edge(START, "planner").add_edge("planner", "worker")
    graph.compile().invoke({"messages": [BEGIN]})
    assert is_team(chat)
    assert [call.agent for call in session.calls] == ["Planner", "worker"]


def test_what_a_node_keeps_is_one_thing_for_its_fork_and_for_the_application(chat, session, model):
    """Objects and Runnables are forks with the state that the application sees, and changes, in its own ones."""

    class Planner:
        times, closed = 0, []

        def __call__(self, state: Typed):
            self.times += 1
            return {"messages": [AIMessage(model.invoke([PLAN, *state["messages"]]).text)]}

        def __del__(self):
            self.closed.append(self.times)

    class Chain(RunnableLambda):
        times = 0

        def invoke(self, *given, **named):
            self.times += 1
            return super().invoke(*given, **named)

    planner, worker = Planner(), Chain(lambda state: model.invoke([WORK, *state["messages"]]))
    worker |= RunnableLambda(lambda answer: {"messages": [answer]})
    chain, made = worker.first, forked(session)(planner)
    assert isinstance(made, Planner)
    assert (made.__class__.__name__, made.cacheprefix_role) == ("Planner", "Planner")
    graph = StateGraph(Typed).add_node("planner", made).add_node("worker", forked(session, role="worker")(worker))
    graph.add_edge(START, "planner").add_edge("planner", "worker").compile().invoke({"messages": [BEGIN]})
    assert is_team(chat)
    assert (planner.times, made.times, chain.times) == (1, 1, 1)
    planner.times = chain.times = 5
    graph.compile().invoke({"messages": [BEGIN]})
    assert (made.times, chain.times) == (6, 6)
    del planner
    gc.collect()
    assert Planner.closed == []
    del made, graph
    gc.collect()
    assert Planner.closed == [6]


@pytest.mark.parametrize("slots", [True, False])
def test_objects_whose_state_is_elsewhere_or_whose_class_cannot_be_derived_from_are_forks_too(
    chat, session, model, slots
):
    """As functions around them."""

    class Slots:
        __slots__ = ("times",)

        def __call__(self, state):
            self.times = 1
            return {"messages": [AIMessage(model.invoke([PLAN, *state["messages"]]).text)]}

    class Alone:
        times = 0

        def __init_subclass__(cls, **named):
            raise TypeError("nobody derives from this")

        def __call__(self, state):
            self.times += 1
            return {"messages": [AIMessage(model.invoke([PLAN, *state["messages"]]).text)]}

    planner = Slots() if slots else Alone()

    def worker(state):
        return {"messages": [AIMessage(model.invoke([WORK, *state["messages"]]).text)]}

    graph = StateGraph(Typed).add_node("planner", forked(session)(planner)).add_node(forked(session)(worker))
    graph.add_edge(START, "planner").add_edge("planner", "worker").compile().invoke({"messages": [BEGIN]})
    assert is_team(chat)
    assert planner.times == 1


def test_a_role_without_a_name_has_one_that_can_be_read(chat, session, model):
    """Of lambdas, partials, methods and chains, in calls and in the report."""

    class Desk:
        def write(self, state, mood="calm"):
            return {"messages": [AIMessage(model.invoke([WORK, *state["messages"]]).text)]}

    nodes = [
        lambda state: {"messages": [AIMessage(model.invoke([PLAN, *state["messages"]]).text)]},
        functools.partial(Desk().write, mood="bright"),
        Desk().write,
        functools.partial(lambda state, one: Desk().write(state), one=1),
        RunnableLambda(lambda state: Desk().write(state)),
    ]
    for node in [forked(session)(node) for node in nodes]:
        node.invoke({"messages": [BEGIN]}) if isinstance(node, RunnableLambda) else node({"messages": [BEGIN]})
    assert [call.agent for call in session.calls] == ["role 1", "write", "write", "role 3", "role 4"]
    assert "<lambda>" not in str(session.report())


def test_a_system_message_behind_the_conversation_is_the_roles_text(bench):
    """Anthropic's class takes one there, and would put it in front of all."""
    session = bench.session(HANDBOOK)
    session.adapter.join("another")
    model = wrap_model(bench.model(), session)
    said = [BEGIN, AIMessage("Yes."), HumanMessage("And now?")]
    asks = forked(session, role="planner")(lambda state: {"messages": [model.invoke([*state["messages"], PLAN])]})
    asks({"messages": said})
    (prompt,), (call,) = bench.prompts(), session.calls
    texts = [section.text for section in prompt.tier("messages")]
    assert call.layout == "fork"
    assert [text for text in texts[:-1] if text in ("Yes.", "And now?")] == ["Yes.", "And now?"]
    assert PLAN.text in texts[-1]
    assert not any(PLAN.text in section.text for section in prompt.tier("system"))


def test_observed_runnables_are_the_very_same_objects(chat):
    """A chain, a compiled graph and a model as nodes; their calls are told by the names of the nodes."""
    session = chat.session(HANDBOOK, mode="observe")
    model = wrap_model(chat.model(), session)
    inner = StateGraph(Typed).add_node("step", lambda state: {"messages": [model.invoke(state["messages"])]})
    answering = RunnableLambda(lambda answer: {"messages": [answer]})
    nodes = {
        "critic": RunnableLambda(lambda state: state["messages"]) | model | answering,
        "team": inner.add_edge(START, "step").compile(name="team"),
        "writer": {"messages": RunnableLambda(lambda state: state["messages"]) | model},
    }
    graph, last = StateGraph(Typed), START
    for name, node in nodes.items():
        observed = forked(session, role="somebody", volatile=lambda state: {"now": "ten"})(node)
        assert observed is node
        graph.add_node(name, observed)
        graph.add_edge(last, name)
        last = name
    assert subgraph(nodes["team"], session) is nodes["team"]
    assert forked(session)(model) is model
    graph.compile().invoke({"messages": [BEGIN]})
    assert [call.agent for call in session.calls] == ["critic", "team/step", "writer"]


def test_observed_objects_methods_and_partials_are_the_very_same_nodes(chat):
    """What an application keeps in a node is where it left it; calls are told by the names of the nodes."""
    session = chat.session(HANDBOOK, mode="observe")
    model = wrap_model(chat.model(), session)

    def asks(state, mood="calm"):
        return {"messages": [model.invoke(state["messages"])]}

    class Worker:
        times = 0

        def __call__(self, state):
            self.times += 1
            return asks(state)

        def step(self, state):
            return self(state)

    nodes = {"object": Worker(), "method": Worker().step, "partial": functools.partial(asks, mood="bright")}
    graph, last = StateGraph(Typed), START
    for name, node in nodes.items():
        assert forked(session, role="somebody")(node) is node
        graph.add_node(name, forked(session, role="somebody")(node)).add_edge(last, name)
        last = name
    graph.compile().invoke({"messages": [BEGIN]})
    assert (graph.nodes["object"].runnable.func.times, nodes["method"].__self__.times) == (1, 1)
    assert [call.agent for call in session.calls] == ["object", "method", "partial"]


def test_ids_that_an_application_numbers_are_those_without_us(chat, monkeypatch):
    """We draw none of them: an application that has its own ``uuid4``, as tests do, gets the same ids in order."""

    def ids(session):
        numbers = iter(range(1, 1_000))
        monkeypatch.setattr("uuid.uuid4", lambda: uuid.UUID(int=next(numbers), version=4))
        model = chat.model() if session is None else wrap_model(chat.model(), session)

        def asks(state):
            model.invoke([PLAN, *state["messages"]])
            return {"messages": [HumanMessage("Go on.")]}

        node = asks if session is None else forked(session)(asks)
        graph = StateGraph(Typed).add_node("asks", node).add_edge(START, "asks").compile()
        return [message.id for message in graph.invoke({"messages": [BEGIN]})["messages"]]

    for mode in ("observe", "fork"):
        assert ids(chat.session(HANDBOOK, mode=mode)) == ids(None)


def test_decisions_are_kept_where_tasks_take_no_context(chat, session, model, monkeypatch):
    """As on Python 3.10, where LangGraph's async nodes and agents do not find their run by themselves."""
    monkeypatch.setattr("langgraph._internal._runnable.ASYNCIO_ACCEPTS_CONTEXT", False)
    monkeypatch.setattr("cacheprefix_langgraph.node._KEEPS_CONTEXT", False)

    async def planner(state: Typed, **more):
        assert not more
        return {"messages": [AIMessage((await model.ainvoke([PLAN, *state["messages"]])).text)]}

    def worker(state: Typed):
        return {"messages": [AIMessage(model.invoke([WORK, *state["messages"]]).text)]}

    async def go():
        for role, node in {"planner": planner, "worker": worker}.items():
            graph = StateGraph(Typed).add_node(role, forked(session, role=role)(node)).add_edge(START, role)
            assert (await graph.compile().ainvoke({"messages": history()}, THREAD))["cacheprefix"]
        agent = create_agent(model, middleware=[PrefixMiddleware(session, role="critic")], checkpointer=InMemorySaver())
        await agent.ainvoke({"messages": [BEGIN]}, THREAD)

    asyncio.run(go())
    assert [call.conversation for call in session.calls] == ["one"] * 3
    assert not session.failures


def test_a_node_that_fails_leaves_no_fork_behind(chat, session, model):
    """What runs next in the same thread is no fork."""

    @forked(session, role="planner")
    def planner(state):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        planner({"messages": [BEGIN]})
    model.invoke([BEGIN])
    assert [section.text for section in chat.prompts()[0].sections] == ["Please begin."]


def test_without_a_session_the_configuration_counts(chat, monkeypatch):
    """For each front door as for ``Session.from_config()``; a mistake is told when it is called."""
    doors = {
        "wrap_model": lambda: session_of(wrap_model(chat.model())),
        "forked": lambda: forked(lambda state: state).cacheprefix_session,
        "worker": lambda: session_for(chat.model(), None),
        "middleware": lambda: PrefixMiddleware().session,
    }
    monkeypatch.setenv("CACHEPREFIX_MODE", "observe")
    assert {name: door().mode for name, door in doors.items()} == dict.fromkeys(doors, "observe")
    wrapped = wrap_model(chat.model())
    assert session_for(wrapped, None) is session_of(wrapped).adapter
    chat.model().invoke([WORK, BEGIN])
    forked(lambda state: wrapped.invoke([WORK, BEGIN]), role="worker")({"messages": []})
    plain, observed = chat.provider.requests
    assert observed.body == plain.body
    monkeypatch.setenv("CACHEPREFIX_MODE", "sideways")
    for door in doors.values():
        with pytest.raises(ConfigError, match="CACHEPREFIX_MODE"):
            door()


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ({"volatile": {"now": "ten"}}, "volatile is called for each request and gives texts by name, found dict"),
        ({"tools": "search"}, "tools takes names in a list, found a text; use tools=['search']"),
        ({"volatile_role": "tool"}, "volatile_role is one of 'user', 'system', 'developer', found 'tool'"),
        ({"role": 5}, "role is a text, found int"),
        ({"instruction": None}, "instruction is a text, found NoneType"),
        ({"instruction": "\ud800"}, "instruction holds half a character"),
    ],
)
def test_what_no_request_could_be_given_is_refused_before_anything_is_wrapped(option, named):
    """A dict in place of what gives one, and roles that no provider has."""
    with pytest.raises(SetupError, match=re.escape(named)):
        forked(Session(), **option)(lambda state: state)
    with pytest.raises(SetupError, match=re.escape(named)):
        PrefixMiddleware(Session(), **option)


def test_what_stands_in_another_order_is_refused_with_the_right_one():
    """A task that is only started in a fork asks behind it; and a graph has no nodes to ask before it is compiled."""
    with pytest.raises(SetupError, match=r"with @task above @forked"):
        forked(Session(), role="a")(task(lambda messages: messages))
    for made in (forked(Session(), role="a"), lambda graph: preview(graph, Session())):
        with pytest.raises(SetupError, match=r"found StateGraph: call \.compile\(\) first"):
            made(StateGraph(MessagesState))


class Speaker:
    """A node of a class of its own, which has another prompt than its siblings."""

    def __init__(self, model, role):
        self.model, self.role = model, role

    def __call__(self, state):
        return self.said(state)

    def said(self, state):
        """The same as a method."""
        return {"messages": [self.model.invoke([SystemMessage(f"You are the {self.role}."), *state["messages"]])]}


@pytest.mark.parametrize("kind", ["object", "method"])
def test_observed_nodes_of_an_inner_graph_are_told_apart(chat, kind):
    """Under one name each would be told that the other's prompt is its own, changed."""
    session = chat.session(HANDBOOK, mode="observe")
    model = wrap_model(chat.model(), session)
    inner = StateGraph(MessagesState)
    for role in ("writer", "critic"):
        speaker = Speaker(model, role)
        inner.add_node(role, forked(session, role=role)(speaker if kind == "object" else speaker.said))
    compiled = inner.add_edge(START, "writer").add_edge("writer", "critic").compile()

    def twice(state):
        compiled.invoke(state)
        return compiled.invoke(state)

    for node in (compiled, twice):
        outer = StateGraph(MessagesState).add_node("answer", node).add_edge(START, "answer").compile()
        for _ in range(2):
            outer.invoke({"messages": [HumanMessage("Hello " * 900)]})
    assert {call.agent for call in session.calls} == {"answer/writer", "answer/critic"}
    assert "system_changed" not in {call.verdict.cause for call in session.calls}


def test_an_observed_agents_tool_that_asks_a_model_is_not_the_agent(chat):
    """The agent itself has its own name, or that of the node it is."""
    session = chat.session(HANDBOOK, mode="observe")
    model = wrap_model(chat.model(), session)

    @tool
    def check(text: str) -> str:
        """Check a text."""
        return model.invoke([SystemMessage("You check."), HumanMessage(text)]).text

    def script(request):
        done = "You check." in request.text or "c1" in str(request.body)
        return Reply("Done.") if done else Reply(tool_calls=(ToolCall("check", {"text": "x"}, id="c1"),))

    chat.script(script)
    for name in (None, "clerk"):
        agent = create_agent(model, [check], system_prompt="You are the clerk.", name=name)
        StateGraph(MessagesState).add_node("office", agent).add_edge(START, "office").compile().invoke(
            {"messages": [HumanMessage("Begin.")]}
        )
    names = [call.agent for call in session.calls]
    assert names == ["office", "office/tools", "office", "clerk", "clerk/tools", "clerk"]


def test_volatile_that_gives_no_texts_is_the_applications_error():
    """None says nothing with a call; of what is no mapping the node does not run, and nothing of ours has failed."""
    session, ran = Session("Rules."), []
    for given in (None, "12:01"):
        node = forked(session, role="reader", volatile=lambda _, given=given: given)(
            lambda state: ran.append(state) or {}
        )
        with pytest.raises(SetupError, match="volatile gives texts by name") if given else contextlib.nullcontext():
            node({"messages": []})
    assert len(ran) == 1
    assert session.failures == {}
