"""The fan-out gate on the wire: siblings that start together on a cold prefix follow one leader."""

import asyncio
import operator
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Annotated

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

from cacheprefix import Gate, Session
from cacheprefix.server import Fault, Latency, Reply
from cacheprefix.stores import MemoryStore
from cacheprefix_langgraph import PrefixMiddleware, forked, wrap_model
from tests.cancelling import PATIENCE, Points, until_led
from tests.langgraph.conftest import Bench

HANDBOOK = "The handbook says that every statement needs a source. " * 200
WORKERS = 4


class Fan(TypedDict):
    messages: list
    reports: Annotated[list, operator.add]


def fan(model, session, *, later, workers=WORKERS):
    """Workers from START: nobody has written the prefix before. Threads go on when all are there, as tasks are."""
    met = threading.Barrier(workers)

    def worker(state):
        met.wait(60)
        return {"reports": [model.invoke([SystemMessage(state["role"]), *state["messages"]]).text]}

    async def aworker(state):
        return {"reports": [(await model.ainvoke([SystemMessage(state["role"]), *state["messages"]])).text]}

    graph = StateGraph(Fan)
    graph.add_node("worker", forked(session, role="worker")(aworker if later else worker))
    roles = [f"You are worker {number}." for number in range(workers)]
    graph.add_conditional_edges(
        START, lambda s: [Send("worker", {"messages": s["messages"], "role": role}) for role in roles], ["worker"]
    )
    graph.add_edge("worker", END)
    return graph.compile()


def go(graph, later):
    """Run the graph, sync or async."""
    given = {"messages": [HumanMessage("Look into it.")], "reports": []}
    return asyncio.run(graph.ainvoke(given)) if later else graph.invoke(given)


@pytest.fixture
def slow(bench):
    """A provider that takes its time, so that siblings really overlap."""
    bench.slow(0.15)
    return bench


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_without_the_gate_a_cold_fan_out_reads_nothing(slow, later):
    """All four write the same prefix at once."""
    session = slow.session(HANDBOOK, gate=None)
    go(fan(wrap_model(slow.model(), session), session, later=later), later)
    assert [record.outcome.read_tokens for record in slow.provider.requests] == [0] * WORKERS


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_all_but_the_leader_read_what_it_wrote(slow, later):
    """With the gate everybody but one reads the prefix."""
    session = slow.session(HANDBOOK)
    out = go(fan(wrap_model(slow.model(), session), session, later=later), later)
    assert len(out["reports"]) == WORKERS
    assert all(out["reports"])
    assert sum(record.outcome.read_tokens > 0 for record in slow.provider.requests) == WORKERS - 1
    assert [call.usage.cache_read_tokens for call in session.calls].count(0) == 1


def test_when_the_leader_fails_the_others_still_answer(bench):
    """The next one leads; the failure reaches the caller of the failed one only."""
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)
    bench.slow(0.1)
    bench.script(lambda request: Reply(fault=Fault(status=500)) if request.index == 0 else Reply(text="fine"))

    def one(number):
        try:
            return model_text(model, session, number)
        except Exception as error:
            return type(error).__name__

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(one, range(3)))
    assert answers.count("fine") == 2


def model_text(model, session, number):
    """One forked call, as a node makes it."""

    @forked(session, role=f"r{number}")
    def node(state):
        return model.invoke([SystemMessage(f"You are {number}."), *state["messages"]]).text

    return node({"messages": [HumanMessage("Look into it.", id="same")]})


# ------------------------------------------------------------------ who leads, and how long the others wait


@pytest.mark.slow
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_the_others_start_with_the_leaders_first_token_and_not_with_its_last(chat, later):
    """A leader that the application does not stream is streamed inside, and its answer is whole."""
    slow = chat
    slow.provider.simulator.latency = Latency(base=0.05, uncached=0, cached=0, output=0.05, scale=1)
    slow.script(lambda request: Reply(" ".join(str(number) for number in range(60))))
    session = slow.session(HANDBOOK)
    out = go(fan(wrap_model(slow.model(), session), session, later=later), later)
    assert set(out["reports"]) == {" ".join(str(number) for number in range(60))}
    leader = min(slow.provider.requests, key=lambda record: record.started_at)
    followers = [record for record in slow.provider.requests if record is not leader]
    assert all(leader.first_token_at <= record.started_at < leader.ended_at for record in followers)


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_leader_that_nobody_waits_for_is_asked_as_the_application_asked(bench, later):
    """One worker alone on a cold prefix: its request goes out as a plain one, and so does the next step's."""
    session = bench.session(HANDBOOK)
    graph = fan(wrap_model(bench.model(), session), session, later=later, workers=1)
    go(graph, later)
    assert session.report().gate.led == 1
    assert [bool(record.json.get("stream")) for record in bench.provider.requests] == [False]


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_leader_whose_siblings_are_there_is_streamed(bench, later):
    """One of the four, for the others; what a fork runs inside of is no sibling of its own."""
    bench.slow(0.05)
    session = bench.session(HANDBOOK)
    go(fan(wrap_model(bench.model(), session), session, later=later), later)
    assert sorted(bool(record.json.get("stream")) for record in bench.provider.requests) == [False] * 3 + [True]


def test_a_fork_within_a_fork_is_alone(chat):
    """The outer node waits for the inner one and not the other way round."""
    session = chat.session(HANDBOOK)
    model = wrap_model(chat.model(), session)

    @forked(session, role="inner")
    def inner(state):
        return {"messages": [model.invoke([SystemMessage("You are inside."), *state["messages"]])]}

    inside = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner").compile()

    @forked(session, role="outer")
    def outer(state, config):
        return {"messages": inside.invoke({"messages": state["messages"]}, config)["messages"]}

    graph = StateGraph(MessagesState).add_node("outer", outer).add_edge(START, "outer").compile()
    graph.invoke({"messages": [HumanMessage("Look into it.")]}, {"configurable": {"thread_id": "t"}})
    assert session.report().gate.led == 1
    assert not chat.provider.requests[0].json.get("stream")


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_siblings_that_the_application_streams_follow_its_streamed_leader(bench, later):
    """Each stream arrives whole at its reader."""
    bench.slow(0.05)
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)

    @forked(session, role="worker")
    def one(state):
        return "".join(chunk.text for chunk in model.stream([SystemMessage("You work."), *state["messages"]]))

    @forked(session, role="worker")
    async def aone(state):
        given = [SystemMessage("You work."), *state["messages"]]
        return "".join([chunk.text async for chunk in model.astream(given)])

    state = {"messages": [HumanMessage("Look into it.", id="same")]}

    async def gather():
        return await asyncio.gather(*(aone(state) for _ in range(3)))

    if later:
        answers = asyncio.run(gather())
    else:
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(one, [state] * 3))
    assert len(set(answers)) == 1
    assert sorted(record.outcome.read_tokens > 0 for record in bench.provider.requests) == [False, True, True]


def test_a_leader_that_breaks_off_in_the_middle_releases_the_others(bench):
    """The connection is cut after the first token; nobody waits for the time limit, and the leader asks again."""
    bench.slow(0.03)
    bench.script(lambda request: Reply("fine", fault=Fault(cut_after=1)) if request.index == 0 else Reply("fine"))
    session = bench.session(HANDBOOK, gate=Gate(60.0, price=0.0))
    out = go(fan(wrap_model(bench.model(), session), session, later=False), later=False)
    assert out["reports"] == ["fine"] * WORKERS
    assert len(bench.provider.requests) == WORKERS + 1
    assert not session.failures


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_leader_whose_sdk_names_what_broke_the_stream_asks_again_too(bench, later, monkeypatch):
    """From openai 3 on that is the SDK's error of a connection that failed; the plain answer had not been cut."""
    family = import_module("anthropic" if bench.kind == "anthropic" else "openai")
    _names_what_breaks(family, monkeypatch)
    bench.slow(0.03)
    bench.script(lambda request: Reply("fine", fault=Fault(cut_after=1)) if request.index == 0 else Reply("fine"))
    session = bench.session(HANDBOOK, gate=Gate(60.0, price=0.0))
    out = go(fan(wrap_model(bench.model(), session), session, later=later), later=later)
    assert out["reports"] == ["fine"] * WORKERS
    assert len(bench.provider.requests) == WORKERS + 1
    assert not session.failures


def _names_what_breaks(family, monkeypatch):
    """Streams of an SDK raise its own error for the transport's."""
    events, later = family.Stream._iter_events, family.AsyncStream._iter_events

    def renamed(stream, error):
        # httpx in older SDKs, httpx2 in newer ones.
        assert type(error).__module__.startswith("httpx")
        return family.APIConnectionError(request=stream.response.request)

    def named(self):
        try:
            yield from events(self)
        except Exception as error:
            raise renamed(self, error) from error

    async def named_later(self):
        try:
            async for event in later(self):
                yield event
        except Exception as error:
            raise renamed(self, error) from error

    monkeypatch.setattr(family.Stream, "_iter_events", named)
    monkeypatch.setattr(family.AsyncStream, "_iter_events", named_later)


@pytest.mark.slow
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_nobody_waits_longer_than_the_limit(chat, later):
    """A leader that takes its time holds the others up for no more than the session allows."""
    chat.slow(1.5)
    session = chat.session(HANDBOOK, gate=Gate(0.05, price=0.0))
    go(fan(wrap_model(chat.model(), session), session, later=later), later)
    begun = min(record.first_token_at for record in chat.provider.requests)
    assert len(chat.provider.requests) == WORKERS
    assert all(record.started_at < begun for record in chat.provider.requests)
    assert all(record.outcome.read_tokens == 0 for record in chat.provider.requests)


@pytest.mark.parametrize(("rules", "text"), [("vllm", HANDBOOK), ("openai-5.6", HANDBOOK[:3000])])
def test_where_waiting_gains_nothing_nobody_leads(servers, rules, text):
    """An engine lets cold parallel requests share anyway; a short prefix is not worth the wait."""
    bench = Bench("openai-chat", servers(rules))
    bench.rules = rules
    session = bench.session(text)
    go(fan(wrap_model(bench.model(model="some-model"), session), session, later=False), later=False)
    assert len(bench.provider.requests) == WORKERS
    assert session.report().gate is None


# ------------------------------------------------------------------ prewarming


@pytest.fixture
def claude(servers):
    """A model of Anthropic's."""
    bench = Bench("anthropic", servers("anthropic"))
    yield bench
    bench.release()


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_prewarming_writes_the_shared_part_and_all_siblings_read_it(claude, later):
    """One request for no answer, without the roles' texts; then everybody at once, nobody streamed for it."""
    claude.slow(0.05)
    session = claude.session(HANDBOOK)
    out = go(fan(wrap_model(claude.model(), session, prewarm=True), session, later=later), later)
    assert len(out["reports"]) == WORKERS
    warm, *asked = sorted(claude.provider.requests, key=lambda record: record.started_at)
    assert warm.json["max_tokens"] == 0
    assert "stream" not in warm.json
    assert len(asked) == WORKERS
    shared = len(warm.prompt.sections)
    for record in asked:
        assert record.prompt.sections[:shared] == warm.prompt.sections
        assert record.outcome.read_tokens == warm.outcome.input_tokens
        assert not record.json.get("stream")
    assert session.calls[0].purpose == "prewarm"
    assert session.calls[0].unmodified_units == 0


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_refused_prewarm_leaves_a_leader(claude, later, monkeypatch):
    """Then the leader is streamed, as without it, and nothing that was refused is quoted."""
    monkeypatch.delenv("CACHEPREFIX_SHOW_ERRORS", raising=False)
    claude.slow(0.05)
    claude.provider.simulator.script = lambda request: Reply("fine")
    session = claude.session(HANDBOOK)
    model = wrap_model(claude.model(), session, prewarm=True)
    from cacheprefix_langgraph import prewarming

    def broken(*args, **kwargs):
        raise ConnectionError("refused, and here is your prompt")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prewarming, "sender", broken)
        out = gone(fan(model, session, later=later), later)
    assert out["reports"] == ["fine"] * WORKERS
    assert "your prompt" not in str(session.report())
    assert sorted(record.outcome.read_tokens > 0 for record in claude.provider.requests) == [False, True, True, True]


def gone(graph, later):
    """``go``, where a warning of ours may be given."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return go(graph, later)


@pytest.mark.parametrize(
    "options",
    [{"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"output_config": {"format": {"type": "json_schema"}}}],
    ids=["thinking", "format"],
)
def test_no_prewarm_is_sent_that_the_provider_would_refuse(claude, options):
    """Thinking, an output format and a forced tool rule it out."""
    from cacheprefix_langgraph.prewarming import warms
    from cacheprefix_langgraph.request_bodies import Body

    session = claude.session(HANDBOOK)
    model = wrap_model(claude.model(), session, prewarm=True)
    assert warms(model, Body({"messages": []}, "anthropic", own=True))
    assert not warms(model, Body({"messages": [], **options}, "anthropic", own=True))
    assert not warms(model, Body({"messages": [], "tool_choice": {"type": "any"}}, "anthropic", own=True))
    assert not warms(wrap_model(claude.model(), session), Body({"messages": []}, "anthropic", own=True))


def test_a_cancelled_prewarm_leads_nobody(claude):
    """The leader's task is gone while its prewarm is under way: the next one leads, and nothing is left behind."""
    claude.slow(1.0)
    session = claude.session(HANDBOOK, gate=Gate(600.0, price=0.0))
    first, second = (wrap_model(claude.model(), session, role=name, prewarm=True) for name in ("first", "second"))
    asked = [HumanMessage("Look into it.")]

    async def run():
        leader = asyncio.create_task(first.ainvoke(asked))
        while not session.adapter._gate._flights:  # noqa: ASYNC110 - nothing tells when another one leads
            await asyncio.sleep(0.01)
        leader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leader
        assert not session.adapter._gate._flights
        claude.slow(0.0)
        return await asyncio.wait_for(second.ainvoke(asked), 60)

    assert asyncio.run(run()).text
    assert not session.adapter._gate._flights


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_stream_that_is_left_frees_those_who_wait(claude, later):
    """Before its first chunk, by the application that asked for it; the gate would hold them for ten minutes."""
    session = claude.session(HANDBOOK, gate=Gate(600.0, price=0.0))
    first, second = (wrap_model(claude.model(), session, role=name) for name in ("first", "second"))
    asked = [HumanMessage("Look into it.")]

    async def run():
        stream = first.astream(asked)
        await anext(stream)
        await stream.aclose()
        return await asyncio.wait_for(second.ainvoke(asked), 60)

    if later:
        assert asyncio.run(run()).text
    else:
        stream = first.stream(asked)
        next(stream)
        stream.close()
        assert second.invoke(asked).text
    assert not session.adapter._gate._flights


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_who_reads_streams_in_turn_does_not_wait_for_himself(bench, later):
    """The first chunk may say only that the request was taken; the gate would hold him for ten minutes."""
    session = bench.session(HANDBOOK, gate=Gate(600.0, price=0.0))
    models = [wrap_model(bench.model(), session, role=name) for name in ("first", "second")]
    asked = [HumanMessage("Look into it.")]

    async def rest(stream):
        return [chunk async for chunk in stream]

    async def run():
        streams = [model.astream(asked) for model in models]
        begun = [await asyncio.wait_for(anext(stream), 60) for stream in streams]
        return begun, [await rest(stream) for stream in streams]

    if later:
        begun, more = asyncio.run(run())
    else:
        streams = [model.stream(asked) for model in models]
        begun, more = [next(stream) for stream in streams], list(map(list, streams))
    assert all(any(chunk.text for chunk in [first, *behind]) for first, behind in zip(begun, more, strict=True))
    assert len(session.calls) == 2
    assert not session.adapter._gate._flights


def of_processes(bench, *, later=False, **options):
    """What the gates of three sessions say that share nothing but the gate's store, as processes do."""
    bench.slow(0.5)
    store = MemoryStore()
    made = [Session(gate=Gate(limit=60.0, price=0.0, store=store)) for _ in range(3)]
    text, asked = f"{HANDBOOK}\n\nYou work.", {"messages": [HumanMessage("Look into it.")]}
    agents = [
        create_agent(bench.model(**options), [], system_prompt=text, middleware=[PrefixMiddleware(one, role="worker")])
        for one in made
    ]

    async def at_once():
        await asyncio.gather(*(agent.ainvoke(asked) for agent in agents))

    if later:
        asyncio.run(at_once())
    else:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda agent: agent.invoke(asked), agents))
    assert [[call.layout for call in one.calls] for one in made] == [["own"]] * 3
    assert [one.failures for one in made] == [{}] * 3
    return [one.report().gate for one in made]


@pytest.mark.slow
def test_one_role_a_process_follows_the_leader_of_another_process_behind_the_middleware(bench):
    """One writes, the others read."""
    found = of_processes(bench)
    assert sum(use.led for use in found) == 1
    assert sum(use.followed for use in found) == 2
    assert sorted(record.outcome.read_tokens > 1_000 for record in bench.provider.requests) == [False, True, True]


@pytest.mark.slow
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", ["openai-chat", "openai-responses"])
def test_a_request_that_goes_out_as_the_application_made_it_follows_the_leader_of_another_process(servers, kind, later):
    """Where the provider caches in blocks without marks: who follows sends what it sends without us, byte for byte."""
    bench = Bench(kind, servers("openai"))
    plain = create_agent(bench.model(model="gpt-4.1"), [], system_prompt=f"{HANDBOOK}\n\nYou work.")
    plain.invoke({"messages": [HumanMessage("Look into it.")]})
    unmodified = bench.provider.requests[0].json
    bench.provider.reset()
    found = of_processes(bench, later=later, model="gpt-4.1")
    bench.release()
    assert [sum(use.led for use in found), sum(use.followed for use in found)] == [1, 2]
    sent = list(bench.provider.requests)
    assert sorted(record.outcome.read_tokens > 1_000 for record in sent) == [False, True, True]
    assert [record.json for record in sent if record.outcome.read_tokens] == [unmodified] * 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
async def test_a_graph_that_is_cancelled_wherever_it_waits_leaves_no_leader(bench):
    """A sample of all points at which it waits: another graph's nodes go on, and so does a later one."""

    async def trial(at):
        session = bench.session(HANDBOOK, gate=Gate(limit=600, price=0))
        model, flights, over = wrap_model(bench.model(), session), session.adapter._gate._flights, asyncio.Event()
        given = {"messages": [HumanMessage("Look into it.")], "reports": []}
        first, second = (fan(model, session, later=True, workers=2) for _ in range(2))

        async def other():
            await until_led(flights, over)
            return await second.ainvoke(given)

        sibling, points = asyncio.create_task(other()), Points(at)
        await asyncio.sleep(0)
        cancelled = await points.run(lambda: first.ainvoke(given))
        over.set()
        assert len((await asyncio.wait_for(sibling, PATIENCE))["reports"]) == 2
        before = len(session.calls)
        assert len((await asyncio.wait_for(second.ainvoke(given), PATIENCE))["reports"]) == 2
        assert len(session.calls) == before + 2
        assert not flights
        assert not session.failures
        return cancelled

    at = 1
    while await trial(at):
        at += 7
    assert at > 6


@pytest.mark.slow
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_the_report_says_who_waited_in_vain_for_a_sibling_with_another_question(bench, later):
    """Who goes on without a leader that takes too long leads those with its own question: there are none."""
    bench.slow(1.2)
    session = bench.session(HANDBOOK, gate=Gate())
    model = wrap_model(bench.model(), session)
    met = threading.Barrier(WORKERS)

    def worker(state):
        met.wait(60)
        return {"reports": [model.invoke([SystemMessage("You look."), *state["messages"]]).text]}

    async def aworker(state):
        return {"reports": [(await model.ainvoke([SystemMessage("You look."), *state["messages"]])).text]}

    session.adapter.join("writer")
    graph = StateGraph(Fan).add_node("worker", forked(session, role="worker")(aworker if later else worker))
    sends = [Send("worker", {"messages": [HumanMessage(f"Look into {one}.")]}) for one in range(WORKERS)]
    graph.add_conditional_edges(START, lambda _: sends, ["worker"])
    go(graph.compile(), later)
    use = session.report().gate
    # On a busy machine a thread may begin when the leader has its answer already, and wait for nobody.
    assert 0 < use.gave_up < WORKERS
    assert (use.followed, use.at_once) == (0, 0)
    (fan_out,) = use.fan_outs
    assert fan_out.gave_up == use.gave_up
    assert f"{use.gave_up} in vain" in str(session.report())


@pytest.mark.slow
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_threads_that_begin_different_conversations_on_one_cold_handbook_follow_one_leader(slow, later):
    """They share nothing that was said, and still the handbook: one writes it."""
    session = slow.session(HANDBOOK)
    model, number = wrap_model(slow.model(), session), 4
    met = threading.Barrier(number)

    def planner(state):
        met.wait(60)
        return {"messages": [model.invoke([SystemMessage("You plan."), *state["messages"]])]}

    async def aplanner(state):
        return {"messages": [await model.ainvoke([SystemMessage("You plan."), *state["messages"]])]}

    session.adapter.join("writer")
    node = forked(session, role="planner")(aplanner if later else planner)
    graph = StateGraph(MessagesState).add_node("planner", node).add_edge(START, "planner").compile()
    given = [
        ({"messages": [HumanMessage(f"Question {one}. " * 30)]}, {"configurable": {"thread_id": str(one)}})
        for one in range(number)
    ]

    async def run():
        await asyncio.gather(*(graph.ainvoke(*one) for one in given))

    if later:
        asyncio.run(run())
    else:
        with ThreadPoolExecutor(number) as pool:
            list(pool.map(lambda one: graph.invoke(*one), given))
    read = sorted(record.outcome.read_tokens > 2_000 for record in slow.provider.requests)
    assert read == [False] + [True] * (number - 1)
    assert (session.report().gate.led, session.report().gate.followed) == (number, number - 1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
async def test_a_stream_that_is_cancelled_stands_in_the_report(chat):
    """The provider was asked and charges for it, whoever reads the answer."""
    session = chat.session(HANDBOOK)
    model = wrap_model(chat.model(), session, role="planner")
    chat.script(["A long answer. " * 400])
    # A minute in all: it is under way when it is cancelled.
    chat.provider.simulator.latency = Latency(base=0, uncached=0, cached=0, output=0.05, scale=1)
    begun = asyncio.Event()

    async def read():
        async for _ in model.astream([SystemMessage("You plan."), HumanMessage("Begin.")]):
            begun.set()

    task = asyncio.create_task(read())
    await asyncio.wait_for(begun.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [call.agent for call in session.calls] == ["planner"]
    assert session.report().total.calls == 1
    assert not session.adapter.waiting.gate._flights
